"""/metrics for Prometheus and /health for orchestrators: two GETs, served on the node's event loop.

Thirty lines of HTTP instead of a web framework, so that a bare broker starts in a fraction of a second and needs only a few wheels.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headrace.base.errors import ConfigError
from headrace.base.metrics import Metrics
from headrace.observe.loop_idle import LoopIdle

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8192
READ_TIMEOUT_S = 5.0


class HttpEndpoint:
    def __init__(self, listener: str, metrics: Metrics, health: Callable[[], dict[str, Any]]) -> None:
        host, colon, port = listener.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"headrace.http.listener={listener} is not of the form host:port")
        self._host, self.port = host.strip("[]"), int(port)
        self._metrics = metrics
        self._health = health
        self._server: asyncio.Server | None = None
        metrics.texts.append(LoopIdle().expose)

    async def start(self) -> None:
        """Bind the port. If that fails, log a warning and continue without it: the node can still serve data."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host or None, self.port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            log.warning(
                "/metrics and /health are not served: %s:%d cannot be bound (%s); free the port or change headrace.http.listener",
                self._host,
                self.port,
                error.strerror,
            )
            self.port = 0
            return
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_TIMEOUT_S)
            status, content_type, body = await self._respond(head)
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # not HTTP, or disconnected
        finally:
            writer.close()

    async def _respond(self, head: bytes) -> tuple[str, str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", "text/plain", b"only GET is supported\n"
        if path == b"/metrics":
            exposition = await asyncio.get_running_loop().run_in_executor(None, _exposition)
            return "200 OK", exposition.CONTENT_TYPE, await exposition.expose(self._metrics)
        if path == b"/health":
            health = self._health()
            return (
                "200 OK" if health["ok"] else "503 Service Unavailable",
                "application/json",
                json.dumps(health).encode(),
            )
        return "404 Not Found", "text/plain", b"there are /metrics and /health\n"


def _exposition() -> ModuleType:
    """Import the exposition module, on first use and in a thread, because it takes a twentieth of the start-up time."""
    from headrace.observe import exposition

    return exposition
