"""What every command that speaks to a cluster needs: the addresses, a connection, a clear end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.base.errors import ConfigError
from headrace.client.cluster import Cluster

T = TypeVar("T")


def addresses(text: str) -> list[tuple[str, int]]:
    found = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdigit():
            raise ConfigError(f"--bootstrap-server: {part!r} is not of the form host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def with_cluster(bootstrap: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Cluster(addresses(bootstrap), client_id="headrace-cli") as cluster:
            return await work(cluster)

    return asyncio.run(run())
