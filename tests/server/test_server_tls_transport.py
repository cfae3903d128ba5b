"""TLS directly on the socket, against Python's own client: large responses, slow readers, pauses, all kinds of closing."""

import asyncio
import ssl

import pytest
from tests.security.pem_files import Authority, needs_openssl

from headrace.server import socket_server
from headrace.server.connection import Connection
from headrace.server.readiness import LoopReadiness
from headrace.server.socket_server import SocketServer
from headrace.server.tls import Tls, TlsSettings
from headrace.server.tls_transport import Handshake

LARGE = 8 * 1024 * 1024
pytestmark = needs_openssl


class Echo(Connection):
    """As much of a connection as a handshake needs: the transport is what is tested."""

    def __init__(self):
        self.events = []
        self.buffer = bytearray(40_000)
        self.received = bytearray()
        self.reply = None
        self.peer = type("Peer", (), {})()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, size):
        self.received += self.buffer[:size]
        if self.reply is not None:
            self.transport.write(self.reply)
            self.reply = None

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, error):
        self.events.append(("lost", type(error).__name__))


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("pem"))
    store = authority.issue("server", "/CN=localhost")[2]
    return Tls(TlsSettings("SSL", keystore=str(store)), lambda: 0), ssl.create_default_context(
        cafile=authority.certificate
    )


@pytest.fixture(params=["epoll", "selector"])
def stage(certified, request, monkeypatch):
    if request.param == "selector":
        monkeypatch.setattr(socket_server, "make_readiness", LoopReadiness)
    return Stage(*certified)


class Stage:
    def __init__(self, tls, context):
        self.tls = tls
        self.context = context
        self.protocols = []
        self.problems = []

    def take(self, client, own, address, readiness):
        Handshake(client, own, address, self.tls, self.make, self.done, readiness, asyncio.get_running_loop())

    def make(self):
        self.protocols.append(Echo())
        return self.protocols[-1]

    def done(self, handshake, problem):
        self.problems.append(problem)

    def run(self, story):
        async def whole():
            server = await SocketServer.open(self.take, "127.0.0.1", 0, 50, asyncio.get_running_loop())
            await server.start_serving()
            port = server.sockets[0].getsockname()[1]
            try:
                await story(*await asyncio.open_connection("127.0.0.1", port, ssl=self.context, limit=2**16))
            finally:
                server.close()
                for protocol in self.protocols:
                    protocol.transport.abort()
                await asyncio.sleep(0)

        asyncio.run(whole())

    async def connection(self):
        await until(lambda: self.protocols)
        return self.protocols[0]


async def until(condition):
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("it did not happen")


def test_large_requests_and_answers_arrive_whole(stage):
    data = bytes(range(256)) * (LARGE // 256)

    async def story(reader, writer):
        connection = await stage.connection()
        writer.write(data)
        await until(lambda: len(connection.received) == LARGE)
        assert connection.received == data
        connection.transport.write(data)
        assert await reader.readexactly(LARGE) == data
        writer.close()
        await until(lambda: connection.events[-1:] == [("lost", "NoneType")])

    stage.run(story)
    assert stage.problems == [None]


def test_a_slow_client_pauses_the_protocol_until_it_has_read_all(stage):
    async def story(reader, writer):
        connection = await stage.connection()
        connection.reply = bytes(LARGE)
        writer.write(b".")
        await until(lambda: connection.events == ["pause"])
        assert connection.transport.get_write_buffer_size() > 0
        connection.transport.write(b"the end")
        assert (await reader.readexactly(LARGE + 7))[-7:] == b"the end"
        await until(lambda: connection.events == ["pause", "resume"])
        writer.close()

    stage.run(story)


def test_what_was_decrypted_before_a_pause_is_read_after_it(stage):
    async def story(reader, writer):
        connection = await stage.connection()
        took = connection.buffer_updated

        def pause(size):
            took(size)
            connection.transport.pause_reading()

        connection.buffer = bytearray(1000)  # less than a TLS record: the rest stays in OpenSSL
        connection.buffer_updated = pause
        writer.write(b"x" * 10_000)
        while len(connection.received) < 10_000:
            before = len(connection.received)
            connection.transport.resume_reading()
            await until(lambda: len(connection.received) > before)  # noqa: B023 -- done before the next round
            assert len(connection.received) == before + 1000 and not connection.transport.is_reading()
        writer.close()

    stage.run(story)


def test_what_was_written_before_the_end_is_sent(stage):
    async def story(reader, writer):
        connection = await stage.connection()
        connection.transport.write(bytes(LARGE))
        connection.transport.close()
        assert len(await reader.readexactly(LARGE)) == LARGE
        assert await reader.read() == b""  # ends with close_notify: OpenSSL would report a truncated stream
        writer.close()

    stage.run(story)


def test_a_client_that_is_cut_off_is_lost(stage):
    async def story(reader, writer):
        connection = await stage.connection()
        writer.transport.abort()
        await until(lambda: connection.events != [])
        assert connection.events[0][0] == "lost"

    stage.run(story)
