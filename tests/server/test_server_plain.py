"""Sockets with epoll, on the loop's selector and under TLS: protocols and real clients see asyncio's behaviour."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from headrace.server import plain, socket_server
from headrace.server.plain import PlainTransport
from headrace.server.readiness import AcceptedClient, LoopReadiness, is_possible
from headrace.server.socket_server import SocketServer

LARGE = 8 * 1024 * 1024
WAIT_S_MAX = 60.0


@pytest.fixture(autouse=True, params=["epoll", "selector"])
def readiness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "selector":
        monkeypatch.setattr(socket_server, "make_readiness", LoopReadiness)
    return request.param


class Echo(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.events: list[str | tuple[str, str]] = []
        self.buffer = bytearray(65536)
        self.reply: bytes | None = None  # response to any input, instead of an echo

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        self.transport.write(self.reply or bytes(self.buffer[:size]))

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append(("lost", type(error).__name__))


class EchoServer:
    def __init__(self) -> None:
        self.protocols: list[Echo] = []

    def on_connection(self, client: AcceptedClient) -> None:
        self.protocols.append(Echo())
        PlainTransport(client, self.protocols[-1], asyncio.get_running_loop())

    async def __aenter__(self) -> EchoServer:
        loop = asyncio.get_running_loop()
        assert is_possible(loop)
        self.server = await SocketServer.open(self.on_connection, "127.0.0.1", 0, 50, loop)
        await self.server.start_serving()
        self.address = self.server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.server.close()
        for protocol in self.protocols:
            protocol.transport.abort()
        await yield_to_loop()


async def yield_to_loop(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def wait_until(condition: Callable[..., Any]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():
            await asyncio.sleep(0.001)


def test_many_clients_are_served_concurrently() -> None:
    async def main() -> None:
        async with EchoServer() as echo_server:
            clients = [await asyncio.open_connection(*echo_server.address) for _ in range(100)]
            for number, (_, writer) in enumerate(clients):
                writer.write(b"%03d" % number)
            for number, (reader, writer) in enumerate(clients):
                assert await reader.readexactly(3) == b"%03d" % number
                writer.close()
            await wait_until(lambda: all(("lost", "NoneType") in one.events for one in echo_server.protocols))
            assert all(one.events == ["eof", ("lost", "NoneType")] for one in echo_server.protocols)

    asyncio.run(main())


def test_connections_are_refused_until_the_server_starts_serving() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await SocketServer.open(EchoServer().on_connection, "127.0.0.1", 0, 50, loop)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*server.sockets[0].getsockname())
        server.close()

    asyncio.run(main())


def test_a_slow_reader_pauses_writing_until_it_has_read_everything() -> None:
    async def main() -> None:
        async with EchoServer() as echo_server:
            reader, writer = await asyncio.open_connection(*echo_server.address, limit=1024)
            await wait_until(lambda: echo_server.protocols)
            echo_server.protocols[0].reply = bytes(LARGE)
            writer.write(b".")
            await wait_until(lambda: echo_server.protocols[0].events == ["pause"])
            assert echo_server.protocols[0].transport.get_write_buffer_size() > 0
            assert len(await reader.readexactly(LARGE)) == LARGE
            await wait_until(lambda: echo_server.protocols[0].events == ["pause", "resume"])
            writer.close()

    asyncio.run(main())


def test_a_paused_connection_is_not_read_from() -> None:
    async def main() -> None:
        async with EchoServer() as echo_server:
            reader, writer = await asyncio.open_connection(*echo_server.address)
            await wait_until(lambda: echo_server.protocols)
            transport = echo_server.protocols[0].transport
            transport.pause_reading()
            assert not transport.is_reading()
            writer.write(b"held")
            await writer.drain()
            await yield_to_loop(20)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(4), 0.05)
            transport.resume_reading()
            assert await reader.readexactly(4) == b"held"
            writer.close()

    asyncio.run(main())


def test_close_sends_buffered_data_and_drops_later_writes() -> None:
    async def main() -> None:
        async with EchoServer() as echo_server:
            reader, writer = await asyncio.open_connection(*echo_server.address)
            await wait_until(lambda: echo_server.protocols)
            transport = echo_server.protocols[0].transport
            transport.write(bytes(LARGE))
            transport.close()
            transport.write(b"too late")
            assert transport.is_closing() and len(await reader.read(-1)) == LARGE
            await wait_until(lambda: ("lost", "NoneType") in echo_server.protocols[0].events)
            writer.close()

    asyncio.run(main())


def test_a_client_that_never_reads_is_dropped_after_the_linger_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(plain, "LINGER_S_MAX", 0.01)
        async with EchoServer() as echo_server:
            _, writer = await asyncio.open_connection(*echo_server.address, limit=1)
            await wait_until(lambda: echo_server.protocols)
            echo_server.protocols[0].transport.write(bytes(4 * LARGE))
            echo_server.protocols[0].transport.close()
            await wait_until(lambda: ("lost", "NoneType") in echo_server.protocols[0].events)
            writer.transport.abort()

    asyncio.run(main())


def test_a_connection_reset_reaches_the_protocol_even_while_reading_is_paused(readiness: str) -> None:
    async def main() -> None:
        async with EchoServer() as echo_server:
            for paused in (
                (False, True) if readiness == "epoll" else (False,)
            ):  # a selector reports only readable sockets
                client = socket.create_connection(echo_server.address)
                await wait_until(lambda: len(echo_server.protocols) == 1 + paused)  # noqa: B023
                if paused:
                    echo_server.protocols[-1].transport.pause_reading()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.close()
                await wait_until(lambda: any("lost" in event for event in echo_server.protocols[-1].events))

    asyncio.run(main())


def test_accepting_resumes_after_a_shortage_of_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        monkeypatch.setattr(socket_server, "ACCEPT_PAUSE_S", 0.01)
        async with EchoServer() as echo_server:
            failures = [OSError(24, "Too many open files")]

            class Short:
                def __init__(self, inner: socket.socket) -> None:
                    self.inner = inner

                def accept(self) -> tuple[socket.socket, tuple[str, int]]:
                    if failures:
                        raise failures.pop()
                    return self.inner.accept()

                def fileno(self) -> int:
                    return self.inner.fileno()

            loop = asyncio.get_running_loop()
            inner = echo_server.server.sockets[0]
            loop.remove_reader(inner.fileno())
            listening_socket = socket_server._ListeningSocket(
                Short(inner),  # type: ignore[arg-type]
                echo_server.address,
                is_everywhere=False,
                is_loopback=True,
            )
            loop.add_reader(inner.fileno(), echo_server.server._accept, listening_socket)
            reader, writer = await asyncio.open_connection(*echo_server.address)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert "Too many open files" in caplog.text
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_accepted_sockets_have_nodelay_and_report_both_addresses(host: str) -> None:
    async def scenario() -> None:
        found: list[tuple[socket.socket, tuple[str, int], tuple[str, int]]] = []

        def on_connection(client: AcceptedClient) -> None:
            found.append((client.client_socket, client.own, client.address))

        server = await SocketServer.open(on_connection, host, 0, 10, asyncio.get_running_loop())
        await server.start_serving()
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        while not found:
            await asyncio.sleep(0)
        client, own, address = found[0]
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert own == client.getsockname() and address == writer.get_extra_info("sockname")
        if hasattr(socket, "TCP_CONGESTION"):
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
        client.close()
        writer.close()
        server.close()

    asyncio.run(scenario())
