"""Contestants that use a server instead of being one: client libraries and engines.

They share one server, unless a line compares client and server as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bench.contestants import HEADRACE, Broker, Contestant, TlsDoor
from bench.wire import CannotRun

CONFLUENT, CONNECTOR = "confluent-kafka", "Spark's connector"
CONNECTOR_AT_KAFKA = f"{CONNECTOR} on Kafka"


class Closable(Protocol):
    def close(self) -> None:
        """Release resources. May be called more than once."""


class MeasuredClient:
    """A client or engine under measurement. As a contestant it delegates to its server, except for the name."""

    def __init__(self, name: str, server: Broker, owned: Closable | None = None) -> None:
        self.name = name
        self.server = server
        self._owned = owned

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def tls(self) -> TlsDoor:
        return self.server.tls

    def new_producer_id(self) -> tuple[int, int]:
        return self.server.new_producer_id()

    def open_topic(self, name: str, partitions: int) -> None:
        self.server.open_topic(name, partitions)

    def drop_topic(self, name: str) -> None:
        self.server.drop_topic(name)

    def close(self) -> None:
        """Close what this contestant owns, but not the server."""
        if self._owned is not None:
            self._owned.close()


class Hosted(Protocol):
    """A line whose contestants are clients of a server."""

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[Contestant]:
        """Return the contestants in the order of rounds, ours named Headrace. Raise CannotRun if one is missing."""


def server_named(servers: Mapping[str, Broker], name: str) -> Broker:
    found = servers.get(name)
    if found is None:
        raise CannotRun(f"{name} does not take part")
    return found


def server_suffix(server: str) -> tuple[str, str]:
    """Return the suffixes of a line's name and title; both are empty for Headrace."""
    return ("", "") if server == HEADRACE else (f"-{server.lower()}", f", on {server}")
