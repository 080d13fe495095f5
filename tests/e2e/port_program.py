"""What runs behind a port of a sandbox in the tests: `python3 port_program.py ADDRESS PORT`; standard library only."""

import base64
import hashlib
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE, _PING, _PONG = 8, 9, 10


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    allowed = threading.Semaphore(0)
    """How many more events may be sent: a client that waits for one before it allows the next sees any buffering."""

    def do_GET(self) -> None:
        if self.path == "/socket":
            self._socket()
        elif self.path == "/events":
            self._events()
        else:
            self._answer(f"{self.command} {self.path} {self.headers.get('e2b-traffic-access-token')}")

    def do_POST(self) -> None:
        if self.path == "/next":
            Handler.allowed.release()
            self._answer("allowed")
            return
        digest, count = hashlib.sha256(), 0
        while size := int(self.rfile.readline(), 16):
            piece = self.rfile.read(size)
            self.rfile.readline()
            digest.update(piece)
            count += len(piece)
        self.rfile.readline()
        self._answer(f"{count} {digest.hexdigest()}")

    def _answer(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(20):
            Handler.allowed.acquire()
            self.wfile.write(f"id: {number}\ndata: event {number}\n\n".encode())

    def _socket(self) -> None:
        """Echo frames as they come, fragments as fragments; a text "bye" is answered with close code 4001."""
        key = self.headers["Sec-WebSocket-Key"] + _GUID
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header(
            "Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        )
        self.end_headers()
        self.close_connection = True
        while True:
            first, second = self.rfile.read(2)
            size = second & 127
            if size == 126:
                (size,) = struct.unpack(">H", self.rfile.read(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self.rfile.read(8))
            mask = self.rfile.read(4) * (size // 4 + 1)
            masked = self.rfile.read(size)
            number = int.from_bytes(masked, "big") ^ int.from_bytes(mask[:size], "big")
            data = number.to_bytes(size, "big")
            kind = first & 15
            if data == b"bye":
                first, data = 0x80 | _CLOSE, struct.pack(">H", 4001)
            elif kind == _PING:
                first = 0x80 | _PONG
            self._frame(first, data)
            if first & 15 == _CLOSE:
                return

    def _frame(self, first: int, data: bytes) -> None:
        if len(data) < 126:
            head = struct.pack(">BB", first, len(data))
        elif len(data) < 1 << 16:
            head = struct.pack(">BBH", first, 126, len(data))
        else:
            head = struct.pack(">BBQ", first, 127, len(data))
        self.wfile.write(head + data)


if __name__ == "__main__":
    ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
