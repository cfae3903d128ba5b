"""TLS directly on the socket, against Python's own client: large responses, slow readers, pauses, all kinds of closing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from tests.security.pem_files import Authority, needs_openssl

from headrace.server import socket_server
from headrace.server.connection import Connection
from headrace.server.readiness import AcceptedClient, LoopReadiness
from headrace.server.socket_server import SocketServer
from headrace.server.tls import Tls, TlsSettings
from headrace.server.tls_transport import Handshake

LARGE = 8 * 1024 * 1024
WAIT_S_MAX = 60.0
pytestmark = needs_openssl


class Echo(Connection):
    """As much of a connection as a handshake needs: the transport is what is tested."""

    def __init__(self) -> None:
        self.events: list[str | tuple[str, str]] = []
        self.buffer = bytearray(40_000)
        self.received = bytearray()
        self.reply: bytes | None = None
        self.peer = type("Peer", (), {})()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:  # type: ignore[override]
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        self.received += self.buffer[:size]
        if self.reply is not None:
            self.transport.write(self.reply)
            self.reply = None

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, error: Any) -> None:
        self.events.append(("lost", type(error).__name__))


@pytest.fixture(scope="module")
def tls_contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, ssl.SSLContext]:
    authority = Authority(tmp_path_factory.mktemp("pem"))
    store = authority.issue("server", "/CN=localhost")[2]
    return Tls(TlsSettings("SSL", keystore=str(store)), lambda: 0), ssl.create_default_context(
        cafile=authority.certificate
    )


@pytest.fixture(params=["epoll", "selector"])
def tls_server(
    tls_contexts: tuple[Tls, ssl.SSLContext], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> TlsServer:
    if request.param == "selector":
        monkeypatch.setattr(socket_server, "make_readiness", LoopReadiness)
    return TlsServer(*tls_contexts)


class TlsServer:
    def __init__(self, tls: Tls, context: ssl.SSLContext) -> None:
        self.tls = tls
        self.context = context
        self.protocols: list[Echo] = []
        self.problems: list[Any] = []

    def on_connection(self, client: AcceptedClient) -> None:
        Handshake(client, self.tls, self.make, self.done, asyncio.get_running_loop())

    def make(self) -> Echo:
        self.protocols.append(Echo())
        return self.protocols[-1]

    def done(self, handshake: Handshake, problem: Any) -> None:
        self.problems.append(problem)

    def run(self, scenario: Callable[..., Any]) -> None:
        async def serve() -> None:
            server = await SocketServer.open(self.on_connection, "127.0.0.1", 0, 50, asyncio.get_running_loop())
            await server.start_serving()
            port = server.sockets[0].getsockname()[1]
            try:
                await scenario(*await asyncio.open_connection("127.0.0.1", port, ssl=self.context, limit=2**16))
            finally:
                server.close()
                for protocol in self.protocols:
                    protocol.transport.abort()
                await asyncio.sleep(0)

        asyncio.run(serve())

    async def connection(self) -> Echo:
        await wait_until(lambda: self.protocols)
        return self.protocols[0]


async def wait_until(condition: Callable[..., Any]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():
            await asyncio.sleep(0.001)


def test_large_requests_and_responses_arrive_complete(tls_server: TlsServer) -> None:
    data = bytes(range(256)) * (LARGE // 256)

    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = await tls_server.connection()
        writer.write(data)
        await wait_until(lambda: len(connection.received) == LARGE)
        assert connection.received == data
        connection.transport.write(data)
        assert await reader.readexactly(LARGE) == data
        writer.close()
        await wait_until(lambda: connection.events[-1:] == [("lost", "NoneType")])

    tls_server.run(scenario)
    assert tls_server.problems == [None]


def test_a_slow_reader_pauses_writing_until_it_has_read_everything(tls_server: TlsServer) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = await tls_server.connection()
        connection.reply = bytes(LARGE)
        writer.write(b".")
        await wait_until(lambda: connection.events == ["pause"])
        assert connection.transport.get_write_buffer_size() > 0
        connection.transport.write(b"the end")
        assert (await reader.readexactly(LARGE + 7))[-7:] == b"the end"
        await wait_until(lambda: connection.events == ["pause", "resume"])
        writer.close()

    tls_server.run(scenario)


def test_data_decrypted_before_a_pause_is_delivered_after_it(tls_server: TlsServer) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = await tls_server.connection()
        original = connection.buffer_updated

        def pause(size: int) -> None:
            original(size)
            connection.transport.pause_reading()

        connection.buffer = bytearray(1000)  # less than a TLS record: the rest stays in OpenSSL
        connection.buffer_updated = pause
        writer.write(b"x" * 10_000)
        while len(connection.received) < 10_000:
            before = len(connection.received)
            connection.transport.resume_reading()
            await wait_until(lambda: len(connection.received) > before)  # noqa: B023 -- done before the next round
            assert len(connection.received) == before + 1000 and not connection.transport.is_reading()
        writer.close()

    tls_server.run(scenario)


def test_close_sends_buffered_data_and_close_notify(tls_server: TlsServer) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = await tls_server.connection()
        connection.transport.write(bytes(LARGE))
        connection.transport.close()
        assert len(await reader.readexactly(LARGE)) == LARGE
        assert await reader.read() == b""  # ends with close_notify: OpenSSL would report a truncated stream
        writer.close()

    tls_server.run(scenario)


def test_an_aborted_client_causes_connection_lost(tls_server: TlsServer) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = await tls_server.connection()
        writer.transport.abort()
        await wait_until(lambda: connection.events != [])
        assert connection.events[0][0] == "lost"

    tls_server.run(scenario)
