"""The cluster that a command speaks to: where it is, and as whom."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from headrace.base.errors import ConfigError
from headrace.base.options import Value, parse_properties
from headrace.client.cluster import Cluster
from headrace.client.connection import Disconnected
from headrace.client.options import CLIENT_OPTIONS
from headrace.client.security import make_security

T = TypeVar("T")

LOCAL = "localhost:9092"
FILE_BYTES_MAX = 1 << 20


class Target(NamedTuple):
    bootstrap: str | None
    command_config: Path | None


def addresses(text: str, option: str = "--bootstrap-server") -> list[tuple[str, int]]:
    found = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit():
            raise ConfigError(f"{option}: {part!r} is not of the form host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def client_values(file: Path | None) -> dict[str, Value]:
    """ConfigError names a property that cannot be used; one that nobody knows is a warning."""
    values: dict[str, Value] = {name: option.default for name, option in CLIENT_OPTIONS.items()}
    if file is None:
        return values
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"--command-config: {file} has more than {FILE_BYTES_MAX} bytes")
        given = parse_properties(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--command-config: {file} cannot be read: {error}") from error
    for name, text in given.items():
        option = CLIENT_OPTIONS.get(name)
        if option is None:
            _warn(f"{file}: {name} is no known option of a client{CLIENT_OPTIONS.suggestion(name)}; it is not used")
            continue
        values[name] = value = option.parse(text)
        if option.refused is not None and value:
            raise ConfigError(f"{file}: {name}: {option.refused}")
        if option.unused is not None and value != option.default:
            _warn(f"{file}: {name} has no effect: {option.unused}")
    return values


def with_cluster(target: Target, work: Callable[[Cluster], Awaitable[T]]) -> T:
    values = client_values(target.command_config)
    servers, timeout_ms = values["bootstrap.servers"], values["request.timeout.ms"]
    assert isinstance(servers, list) and isinstance(timeout_ms, int)
    at = addresses(target.bootstrap or ",".join(servers) or LOCAL)
    security = make_security(values, random.SystemRandom())

    async def run() -> T:
        async with Cluster(
            at, client_id=str(values["client.id"]), timeout_s=timeout_ms / 1000, security=security
        ) as cluster:
            return await work(cluster)

    try:
        return asyncio.run(run())
    except Disconnected as error:
        if security.login is not None or "cannot connect" in str(error):
            raise
        raise Disconnected(f"{error} (if it wants a login, --command-config says who you are)") from error


def _warn(line: str) -> None:
    print(f"headrace: {line}", file=sys.stderr)
