"""The cluster that a command connects to: its address and the client's properties."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from headrace.base.errors import ConfigError
from headrace.base.system_errors import system_error_text
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Disconnected
from headrace.client.wire.opening import addresses, client_values, open_cluster
from headrace.client.wire.options import CLIENT_OPTIONS
from headrace.options.table import Value, parse_properties

T = TypeVar("T")

LOCAL = "localhost:9092"
FILE_BYTES_MAX = 1 << 20


class Target(NamedTuple):
    bootstrap: str | None
    command_config: Path | None


def file_values(file: Path | None) -> dict[str, Value]:
    """Read client properties from a file; print a warning for unknown ones.

    Raise ConfigError with the name of a property that cannot be used.
    """
    if file is None:
        return client_values({}, CLIENT_OPTIONS)
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"--command-config: {file} is larger than {FILE_BYTES_MAX} bytes")
        given = parse_properties(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--command-config: {file} cannot be read: {system_error_text(error)}") from error
    try:
        return client_values(given, CLIENT_OPTIONS, lambda line: _warn(f"{file}: {line}"))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def with_cluster(target: Target, work: Callable[[Cluster], Awaitable[T]]) -> T:
    values = file_values(target.command_config)
    servers = values["bootstrap.servers"]
    assert isinstance(servers, list)
    at = addresses(target.bootstrap or ",".join(servers) or LOCAL, "--bootstrap-server")

    async def run() -> T:
        async with open_cluster(values, at) as cluster:
            return await work(cluster)

    try:
        return asyncio.run(run())
    except Disconnected as error:
        if str(values["security.protocol"]).startswith("SASL") or "cannot connect" in str(error):
            raise
        raise Disconnected(f"{error} (if the broker requires a login, pass one with --command-config)") from error


def _warn(line: str) -> None:
    print(f"headrace: {line}", file=sys.stderr)
