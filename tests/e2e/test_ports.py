"""Programs behind the ports of real sandboxes: WebSockets, events, uploads in chunks, private ports (report R31)."""

import hashlib
import http.client
from collections.abc import Callable, Iterator

import aiohttp
import pytest
from e2b import Sandbox

from tests.e2e.inside import only_child, output
from tests.e2e.ports import ask, routing, serve
from tests.e2e.server import ServerProcess

PORT = 8765
PRIVATE = {"allow_public_traffic": False}

Make = Callable[..., Sandbox]


@pytest.fixture
def private(make_sandbox: Make, server: ServerProcess) -> Sandbox:
    """A sandbox whose ports need its token, with the program listening on its loopback address only."""
    sandbox = make_sandbox(timeout=300, network=PRIVATE)
    serve(server, sandbox, PORT)
    return sandbox


def test_r31_a_private_port_needs_the_token_of_its_sandbox(
    server: ServerProcess, private: Sandbox, make_sandbox: Make
) -> None:
    other = make_sandbox(timeout=300, network=PRIVATE)
    token = private.traffic_access_token
    assert token
    assert token != other.traffic_access_token
    for wrong in (None, "", "x" * len(token), other.traffic_access_token, private._envd_access_token):
        assert ask(server, private, PORT, token=wrong).status == 403
    assert (
        ask(server, private, PORT, "/path", token=token).text == "GET /path None"
    )  # the token stays outside
    private.pause()
    private.connect(timeout=300)
    again = Sandbox.connect(private.sandbox_id)
    assert ask(server, again, PORT, token=again.traffic_access_token).status == 200
    child = only_child(private)
    try:
        assert ask(server, child, PORT, token=token).status == 403
        assert ask(server, child, PORT, token=child.traffic_access_token).status == 200
    finally:
        child.kill()


def test_r31_a_port_of_another_sandbox_is_open_to_all(server: ServerProcess, sandbox: Sandbox) -> None:
    serve(server, sandbox, PORT, "0.0.0.0")
    assert ask(server, sandbox, PORT).text == "GET / None"
    closed = ask(server, sandbox, PORT + 1)
    assert closed.status == 502
    assert "port is not open" in closed.text


async def test_r31_web_sockets_pass_both_ways(server: ServerProcess, private: Sandbox) -> None:
    token = private.traffic_access_token
    url = f"{server.url}/socket"
    async with aiohttp.ClientSession() as session:
        for wrong in (None, "wrong"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(url, headers=routing(private, PORT, wrong))
            assert refused.value.status == 403
        headers = routing(private, PORT, token)
        async with session.ws_connect(url, headers=headers, max_msg_size=16 << 20) as socket:
            await socket.send_str("text €")
            assert await socket.receive_str(timeout=10) == "text €"
            large = bytes(range(256)) * (5 << 12)
            await socket.send_bytes(large)
            assert await socket.receive_bytes(timeout=20) == large
            await socket.ping(b"are you there")
            await socket.send_str("bye")
            message = await socket.receive(timeout=10)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4001)
        async with session.ws_connect(url, headers=headers) as socket:
            assert await socket.close(code=4002)
            assert socket.close_code == 4002


async def test_r31_a_web_socket_ends_when_its_sandbox_is_paused(
    server: ServerProcess, private: Sandbox
) -> None:
    async with aiohttp.ClientSession() as session:
        headers = routing(private, PORT, private.traffic_access_token)
        async with session.ws_connect(f"{server.url}/socket", headers=headers) as socket:
            await socket.send_str("here")
            assert await socket.receive_str(timeout=10) == "here"
            private.pause()
            message = await socket.receive(timeout=10)
            assert message.type in (aiohttp.WSMsgType.ERROR, aiohttp.WSMsgType.CLOSED)


def test_r31_each_event_arrives_before_the_next_is_sent(server: ServerProcess, private: Sandbox) -> None:
    token = private.traffic_access_token
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", "/events", headers=routing(private, PORT, token))
        stream = connection.getresponse()
        assert stream.headers["Content-Type"] == "text/event-stream"
        for number in range(20):
            assert ask(server, private, PORT, "/next", method="POST", token=token).text == "allowed"
            event = b"".join(stream.readline() for _ in range(3))
            assert event == f"id: {number}\ndata: event {number}\n\n".encode()
        assert stream.read() == b""
    finally:
        connection.close()


def test_r31_a_body_without_a_length_is_whole(server: ServerProcess, private: Sandbox) -> None:
    data = hashlib.shake_128(b"body").digest(20 << 20)
    want = hashlib.sha256(data).hexdigest()

    def pieces() -> Iterator[bytes]:
        """Of all sizes, small ones first."""
        start = 0
        for size in (1, 2, 4095, 4096, 65_537, 1 << 20):
            yield data[start : start + size]
            start += size
        yield data[start:]

    token = private.traffic_access_token
    got = ask(server, private, PORT, "/upload", method="POST", token=token, body=pieces())
    assert got.text == f"{len(data)} {want}"
    path = private.upload_url("/home/user/chunked").removeprefix(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        headers = {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
        connection.request("POST", path, pieces(), headers, encode_chunked=True)
        assert connection.getresponse().status == 200
    finally:
        connection.close()
    assert output(private, "sha256sum chunked").split()[0] == want
