"""Opens listeners according to the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

from headrace.base.metrics import Metrics
from headrace.node.configuration.listener_addresses import ListenerAddress
from headrace.node.configuration.settings import Settings
from headrace.node.security import SecurityOfListeners
from headrace.server.frames import FrameHandler
from headrace.server.listener import Listener, ListenerSettings


async def open_listeners(
    settings: Settings,
    addresses: Sequence[ListenerAddress],
    handler: FrameHandler,
    metrics: Metrics,
    security: SecurityOfListeners,
) -> list[Listener]:
    """Bind the listeners without serving: clients are refused until `serve`. If one cannot be bound, close them all."""
    opened: list[Listener] = []
    try:
        for address in addresses:
            connections_max = settings.for_listener(address.name, "max.connections")
            assert isinstance(connections_max, int)
            idle_ms = settings.number("connections.max.idle.ms")
            listener = Listener(
                ListenerSettings(
                    address.name,
                    address.host,
                    address.port,
                    request_bytes_max=settings.number("socket.request.max.bytes"),
                    connections_max=connections_max,
                    idle_s_max=idle_ms / 1000 if idle_ms >= 0 else inf,
                    backlog=settings.number("socket.listen.backlog.size"),
                    send_buffer_bytes=settings.number("socket.send.buffer.bytes"),
                    receive_buffer_bytes=settings.number("socket.receive.buffer.bytes"),
                ),
                handler,
                metrics,
                asyncio.get_running_loop(),
                security.of(address),
            )
            await listener.open()
            opened.append(listener)
    except BaseException:
        for listener in opened:
            listener.stop()
        raise
    return opened
