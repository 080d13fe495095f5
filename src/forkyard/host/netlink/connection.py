"""A netlink socket: changes with acknowledgement, transactions of the packet filter, dumps."""

import errno
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence

from forkyard.host.errors import NetlinkError
from forkyard.host.netlink import codec
from forkyard.host.netlink.codec import Message, Request

ROUTE = 0
NETFILTER = 12

_SOL_NETLINK = 270
_CAP_ACK = 10
_EXT_ACK = 11
_STRICT_CHECK = 12
_SO_SNDBUFFORCE = 32

_TIMEOUT = 5.0
"""Seconds. The kernel answers before `send` returns; a wait means that an answer was lost."""

_SEND_BUFFER = 8 << 20
_RECEIVE = 256 << 10
_CHUNK = 500
"""Independent changes in one system call: 500 of the largest fit into the default send buffer."""

_DUMP_TRIES = 20
_DUMP_INTERRUPTED = 0x10

_BATCH_BEGIN = 0x10
_BATCH_END = 0x11
_NFTABLES = 10


class NetlinkConnection:
    """A socket in the network namespace of the thread that opens it; it stays there whoever uses it.

    Every method blocks, most for under a millisecond, and may be called by several threads.
    """

    def __init__(self, protocol: int) -> None:
        self._lock = threading.Lock()
        self._sequence = 0
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            self._socket.settimeout(_TIMEOUT)
            for option in (_CAP_ACK, _EXT_ACK):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            if protocol == ROUTE:
                self._socket.setsockopt(_SOL_NETLINK, _STRICT_CHECK, 1)
            self._socket.bind((0, 0))
            self.port: int = self._socket.getsockname()[0]
            """The socket's own address, which stands in what the kernel announces of its changes."""
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "NetlinkConnection":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def change(self, requests: Iterable[Request]) -> None:
        """Do these one after another; a failing one does not stop the later ones.

        Raises NetlinkError for the first that failed with an error it does not ignore.
        """
        pending = list(requests)
        first: NetlinkError | None = None
        with self._lock:
            for start in range(0, len(pending), _CHUNK):
                part = pending[start : start + _CHUNK]
                errors = [e for request, e in self._exchange(part) if e.errno not in request.ignore]
                first = first or (errors[0] if errors else None)
        if first is not None:
            raise first

    def commit(self, requests: Sequence[Request]) -> None:
        """Do all of these packet filter changes in one transaction or, raising NetlinkError, none of them."""
        if not requests:
            return
        marker = struct.pack("!BBH", socket.AF_UNSPEC, 0, _NFTABLES)
        begin = Request("beginning a packet filter change", _BATCH_BEGIN, marker)
        end = Request("ending a packet filter change", _BATCH_END, marker)
        with self._lock:
            errors = self._exchange([begin, *requests, end], framed=True)
        if errors:
            raise errors[0][1]

    def dump(self, request: Request) -> list[Message]:
        """All objects that the request lists. Raises NetlinkError."""
        with self._lock:
            for _ in range(_DUMP_TRIES):
                found = self._dump_once(request)
                if found is not None:
                    return found
        raise NetlinkError(request.what, errno.EAGAIN, "the list changed each time it was read")

    def get(self, request: Request) -> Message:
        """The one object that the request asks for. Raises NetlinkError."""
        with self._lock:
            first = self._transmit([request], last=None)
            message = next(self._answers(first, request.what))
        if message.type == codec.ERROR:
            number, detail = codec.parse_error(message)
            raise NetlinkError(request.what, number or errno.ENOMSG, detail)
        return message

    def _exchange(
        self, requests: list[Request], *, framed: bool = False
    ) -> list[tuple[Request, NetlinkError]]:
        """Send, read until the last request (before the closing frame) is acknowledged, and answer the failures.

        The kernel always reports failures, successes only where asked for; one acknowledgement for all keeps
        the receive buffer from overflowing.
        """
        last = len(requests) - (2 if framed else 1)
        first = self._transmit(requests, last)
        failures: list[tuple[Request, NetlinkError]] = []
        for message in self._answers(first, requests[last].what):
            index = message.sequence - first
            if message.type != codec.ERROR or index >= len(requests):
                continue
            number, detail = codec.parse_error(message)
            if number:
                request = requests[index]
                failures.append((request, NetlinkError(request.what, number, detail)))
            # An error of a frame is the only answer to the whole transaction.
            if index == last or (framed and index in (0, last + 1)):
                break
        return failures

    def _dump_once(self, request: Request) -> list[Message] | None:
        """None if the list changed while it was read."""
        dump = Request(request.what, request.type, request.body, request.flags | codec.DUMP)
        first = self._transmit([dump], last=None)
        found: list[Message] = []
        interrupted = False
        for message in self._answers(first, request.what):
            interrupted = interrupted or bool(message.flags & _DUMP_INTERRUPTED)
            if message.type == codec.DONE:
                break
            if message.type == codec.ERROR:
                number, detail = codec.parse_error(message)
                raise NetlinkError(request.what, number, detail)
            found.append(message)
        return None if interrupted else found

    def _transmit(self, requests: list[Request], last: int | None) -> int:
        """Send all in one system call, asking for an acknowledgement of number `last`; answers the first's number."""
        first = self._sequence + 1
        self._sequence += len(requests)
        data = b"".join(
            codec.frame(request, first + index, codec.ACK if index == last else 0)
            for index, request in enumerate(requests)
        )
        try:
            if len(data) > 64 << 10:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
            self._socket.send(data)
        except OSError as error:
            raise NetlinkError(requests[0].what, error.errno or errno.EIO) from error
        return first

    def _answers(self, first: int, what: str) -> Iterator[Message]:
        """Messages of this exchange; what is left of an earlier one that was given up is dropped."""
        while True:
            try:
                data = self._socket.recv(_RECEIVE)
            except TimeoutError:
                raise NetlinkError(what, errno.ETIMEDOUT, "the kernel did not answer") from None
            except OSError as error:
                raise NetlinkError(what, error.errno or errno.EIO) from error
            for message in codec.parse_messages(data):
                if message.sequence >= first and message.type != codec.NOOP:
                    yield message
