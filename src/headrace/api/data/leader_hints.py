"""Where clients find the leaders that a response names, so that they need not ask for metadata first (KIP-951)."""

from __future__ import annotations

from collections.abc import Collection

from headrace.metadata.image import Broker, Endpoint, Image


def endpoints_of(leaders: Collection[int], image: Image, listener: str) -> list[tuple[Broker, Endpoint]]:
    """Return the live ones of these brokers that have the client's listener, with its endpoint."""
    return [
        (broker, endpoint)
        for leader in sorted(leaders)
        if (broker := image.brokers.get(leader)) is not None
        and not broker.fenced
        and (endpoint := broker.endpoint(listener)) is not None
    ]
