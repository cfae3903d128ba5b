"""A listener: binds an address and makes a Connection for each client, with TLS and SASL if they are configured."""

from __future__ import annotations

import asyncio
import logging
import socket

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.base.metrics import Metrics, RecentRate
from headrace.server.authentication import Authentication, AuthenticationCounters, SaslSettings
from headrace.server.authority import DENY_ALL, Authority
from headrace.server.connection import Connection
from headrace.server.connection_pool import ConnectionPool
from headrace.server.frames import FrameHandler
from headrace.server.plain import PlainTransport
from headrace.server.readiness import AcceptedClient, is_possible
from headrace.server.socket_server import SocketServer
from headrace.server.tls import Tls
from headrace.server.tls_transport import Handshake

log = logging.getLogger(__name__)

IDLE_SWEEP_S = 10.0  # also the interval at which certificate files are checked


class ListenerSettings(Struct, frozen=True):
    name: str
    host: str  # empty: all interfaces
    port: int  # 0: any free port
    request_bytes_max: int = 104_857_600
    connections_max: int = 2_147_483_647
    idle_s_max: float = 600.0
    backlog: int = 50
    send_buffer_bytes: int = -1  # -1: the system's default
    receive_buffer_bytes: int = -1


class Security(Struct, frozen=True):
    """How a listener authenticates and authorizes its clients. By default they are anonymous and may do nothing."""

    tls: Tls | None = None
    sasl: SaslSettings | None = None
    authority: Authority = DENY_ALL


class Listener:
    def __init__(
        self,
        settings: ListenerSettings,
        handler: FrameHandler,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        security: Security = Security(),  # noqa: B008 -- it is immutable
    ) -> None:
        self.settings = settings
        self._handler = handler
        self._loop = loop
        self._tls = security.tls
        self._sasl = security.sasl
        self._server: asyncio.Server | SocketServer | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._handshakes: dict[Handshake, None] = {}
        name = settings.name
        self.port = settings.port
        self._pool = ConnectionPool(
            metrics.counter("kafka_server_socket_server_metrics_incoming_byte_total", "Bytes read.", listener=name),
            metrics.counter("kafka_server_socket_server_metrics_outgoing_byte_total", "Bytes written.", listener=name),
            metrics.counter(
                "headrace_connections_refused_total", "Connections closed for bad input or a limit.", listener=name
            ),
            loop,
            security.authority,
            metrics.counter(
                "kafka_server_socket_server_metrics_connection_creation_total", "Connections accepted.", listener=name
            ),
        )
        self._counters = AuthenticationCounters(metrics, name)
        created = self._pool.created
        metrics.gauge(
            "kafka_server_socket_server_metrics_connection_creation_rate",
            "Connections accepted per second.",
            RecentRate(created, loop.time),
            listener=name,
        )
        metrics.gauge(
            "kafka_server_socket_server_metrics_connection_count",
            "Open connections.",
            lambda: float(len(self._pool.connections)),
            listener=name,
        )

    async def open(self) -> None:
        """Bind, so that the port is known. Clients are refused, and retry, until `serve` is called."""
        loop = asyncio.get_running_loop()
        settings = self.settings
        try:
            # Do not accept before `serve`: this node has not loaded its metadata yet.
            if is_possible(loop):
                self._server = await SocketServer.open(
                    self._take, settings.host or None, settings.port, settings.backlog, loop
                )
            elif self._tls is not None:
                raise ConfigError(f"listeners: {settings.name} uses TLS, which needs an event loop with a selector")
            else:
                self._server = await loop.create_server(
                    self._make,
                    settings.host or None,
                    settings.port,
                    backlog=settings.backlog,
                    reuse_address=True,
                    start_serving=False,
                )
        except OSError as error:
            raise ConfigError(
                f"listeners: {settings.name} cannot listen on {settings.host or '*'}, port {settings.port}: {error.strerror or error}"
            ) from error
        self._size_buffers(self._server)
        self.port = self._server.sockets[0].getsockname()[1]

    def _size_buffers(self, server: asyncio.Server | SocketServer) -> None:
        """Set the buffer sizes, BEFORE listening: client sockets inherit them, and the window is fixed on connect."""
        sizes = {
            socket.SO_SNDBUF: self.settings.send_buffer_bytes,
            socket.SO_RCVBUF: self.settings.receive_buffer_bytes,
        }
        for one in server.sockets:
            for option, size in sizes.items():
                if size > 0:
                    one.setsockopt(socket.SOL_SOCKET, option, size)

    async def serve(self) -> None:
        assert self._server is not None, "call open first"
        await self._server.start_serving()
        self._sweep(asyncio.get_running_loop())

    def _take(self, client: AcceptedClient) -> None:
        if self._is_full():
            client.client_socket.close()
        elif self._tls is None:
            PlainTransport(client, self._connection(), self._loop)
        else:
            handshake = Handshake(client, self._tls, self._connection, self._handshake_done, self._loop)
            self._handshakes[handshake] = None

    def _make(self) -> asyncio.BufferedProtocol:
        return _Refusal() if self._is_full() else self._connection()

    def _is_full(self) -> bool:
        limit = self.settings.connections_max
        if len(self._pool.connections) + len(self._handshakes) < limit:
            return False
        self._pool.refuse(self.settings.name, "a client", f"max.connections={limit} is reached")
        return True

    def _connection(self) -> Connection:
        if self._sasl is None:
            return Connection(self._handler, self.settings.name, self._pool, self.settings.request_bytes_max)
        authentication = Authentication(self._sasl, self._handler, self._counters, self._loop)
        connection = Connection(authentication, self.settings.name, self._pool, self.settings.request_bytes_max)
        authentication.guard(connection)
        return connection

    def _handshake_done(self, handshake: Handshake, problem: str | None) -> None:
        self._handshakes.pop(handshake, None)
        if problem is not None:
            self._counters.failed.value += 1
            log.warning("TLS handshake with %s on %s failed: %s", handshake.address, self.settings.name, problem)
        elif self._sasl is None:
            self._counters.succeeded.value += 1

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in list(self._pool.connections):
            if (connection.sweep() - 1) * IDLE_SWEEP_S >= self.settings.idle_s_max:
                connection.close()
        if self._tls is not None:
            loop.run_in_executor(None, self._tls.reload_changed_files)
        self._sweeper = loop.call_later(IDLE_SWEEP_S, self._sweep, loop)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    def stop(self) -> None:
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for handshake in list(self._handshakes):
            handshake.close()
        self._pool.end()


class _Refusal(asyncio.BufferedProtocol):
    """A protocol that closes its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(1024)
