"""The table of supported APIs: the union of the rows that the API objects of a listener declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.protocol.apis import ApiKey
from headrace.server.dispatch import Service


class Api(Protocol):
    """Handlers of one or more requests."""

    def services(self) -> Sequence[Service]:
        """Return one row for each request: its versions, handler and required permission."""


def make_table(apis: Iterable[Api]) -> dict[ApiKey, Service]:
    """Return the rows of all APIs by key. Raise ValueError if two of them declare the same key."""
    table: dict[ApiKey, Service] = {}
    for api in apis:
        for service in api.services():
            if service.key in table:
                raise ValueError(f"{service.key.name} is declared twice, the second time by {type(api).__name__}")
            table[service.key] = service
    return table
