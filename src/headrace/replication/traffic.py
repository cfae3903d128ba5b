"""Requests, records and bytes of each topic on this broker, in the terms of Kafka's BrokerTopicMetrics.

A partition refers to the counts of its topic, so that counting costs an addition and no lookup. Totals include deleted topics:
they never go down.
"""

from __future__ import annotations

from collections.abc import Iterator


class TopicTraffic:
    """Counts since the topic was created or this broker started."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0  # bytes of batches larger than max.message.bytes
        self.produces = 0  # batches that producers sent, including refused ones
        self.fetches = 0  # reads for fetches, counted once per partition of a request
        self.failed_produces = 0  # batches refused for a reason that a client cannot expect
        self.failed_fetches = 0
        self.replication_bytes_in = 0  # bytes appended as a follower
        self.replication_bytes_out = 0  # bytes sent to followers

    def add(self, other: TopicTraffic) -> None:
        for name in TopicTraffic.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Traffic:
    """The traffic of all topics of a broker."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicTraffic] = {}
        self._deleted = TopicTraffic()

    def topic(self, name: str) -> TopicTraffic:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicTraffic()
        return found

    def delete_topic(self, name: str) -> None:
        """Keep a deleted topic in the totals only."""
        found = self._topics.pop(name, None)
        if found is not None:
            self._deleted.add(found)

    def topics(self) -> Iterator[tuple[str, TopicTraffic]]:
        return iter(sorted(self._topics.items()))

    def total(self) -> TopicTraffic:
        total = TopicTraffic()
        total.add(self._deleted)
        for traffic in self._topics.values():
            total.add(traffic)
        return total
