"""Clients and engines under test.

They are measured on one shared server, unless a line compares client and server as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from bench.errors import CannotRun
from bench.systems.servers import HEADRACE, Broker, System, TlsListener

CONFLUENT, CONNECTOR = "confluent-kafka", "Spark's connector"
CONNECTOR_AT_KAFKA = f"{CONNECTOR} on Kafka"


class Closable(Protocol):
    def close(self) -> None:
        """Release resources. May be called more than once."""


class MeasuredClient:
    """A client or engine under test. Everything but its name is that of its server."""

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
    def tls(self) -> TlsListener:
        return self.server.tls

    def new_producer_id(self) -> tuple[int, int]:
        return self.server.new_producer_id()

    def create_topic(self, name: str, partitions: int) -> None:
        self.server.create_topic(name, partitions)

    def delete_topic(self, name: str) -> None:
        self.server.delete_topic(name)

    def close(self) -> None:
        """Close the owned resource, but not the server."""
        if self._owned is not None:
            self._owned.close()


@runtime_checkable
class MeasuresClients(Protocol):
    """A line that measures clients of a server instead of servers."""

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[System]:
        """Return the clients in the order of measurement, ours named Headrace. Raise CannotRun if one is missing."""


def server_named(servers: Mapping[str, Broker], name: str) -> Broker:
    server = servers.get(name)
    if server is None:
        raise CannotRun(f"{name} is not available")
    return server


def server_suffix(server: str) -> tuple[str, str]:
    """Return the suffixes of a line's name and title; both are empty for Headrace."""
    return ("", "") if server == HEADRACE else (f"-{server.lower()}", f", on {server}")
