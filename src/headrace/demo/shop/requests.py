"""Requests on the shop's topics: create them, write customers, list their ends, close the shop for the day."""

from __future__ import annotations

import json
from collections.abc import Iterable

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import TopicPartition
from headrace.client import Admin, Consumer, Producer
from headrace.client.admin.item_errors import ItemsFailed
from headrace.client.admin.topics import PartitionInfo
from headrace.demo.shop.events import CUSTOMERS, customer
from headrace.demo.shop.layout import EVENT_PARTITIONS, Layout, closings_of
from headrace.demo.shop.topics import CLOSINGS, PARTITION_COUNTS, TOPICS
from headrace.demo.shop.topics import CUSTOMERS as CUSTOMERS_TOPIC

CALL_S_MAX = 60.0
POLL_S = 0.5
CLOSINGS_PLACE = TopicPartition(CLOSINGS, 0)
CUSTOMERS_PARTITION = TopicPartition(CUSTOMERS_TOPIC, 0)


class Misplaced(HeadraceError):
    """A record has the wrong offset: another producer writes to the topic, so all computed results would be wrong."""


class Shop:
    def __init__(self, bootstrap: str) -> None:
        self._options = {"bootstrap.servers": bootstrap}
        self._admin = Admin(self._options)

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._admin.close()

    def cluster_id(self) -> str:
        return self._admin.describe_cluster(CALL_S_MAX).id or ""

    def prepare(self) -> None:
        """Create missing topics and write missing customers."""
        there = set(self._admin.list_topics(timeout_s=CALL_S_MAX))
        try:
            self._admin.create_topics([one for one in TOPICS if one.name not in there], timeout_s=CALL_S_MAX)
        except ItemsFailed as refused:
            if any(error.code is not ErrorCode.TOPIC_ALREADY_EXISTS for error in refused.failures.values()):
                raise
        begin = self.ends([CUSTOMERS_PARTITION])[CUSTOMERS_PARTITION]
        with Producer(self._options) as producer:
            some = [customer(number) for number in range(begin, CUSTOMERS)]
            sent = [producer.send(CUSTOMERS_TOPIC, one.value, one.key, partition=0) for one in some]
            for one, delivery in zip(some, sent, strict=True):
                check_offset(CUSTOMERS_PARTITION, one.id, delivery.result().offset)

    def replicas(self) -> list[PartitionInfo]:
        """Return all partitions of the shop's topics, with their leaders and replicas."""
        topics = self._admin.describe_topics([topic.name for topic in TOPICS], timeout_s=CALL_S_MAX)
        return [partition for topic in topics.values() for partition in topic.partitions]

    def layout(self) -> Layout:
        """Return the layout with all closings so far."""
        end = self.ends([CLOSINGS_PLACE])[CLOSINGS_PLACE]
        values: list[int] = []
        with Consumer({**self._options, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([CLOSINGS_PLACE])
            while len(values) < end:
                values += [json.loads(record.value or b"")["events"] for record in consumer.poll(POLL_S)]
        return Layout(closings_of(values))

    def ends(
        self, partitions: Iterable[TopicPartition] = EVENT_PARTITIONS, *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the log ends, or with `committed` the last stable offsets."""
        listed = self._admin.list_offsets(
            dict.fromkeys(partitions, "latest"),
            isolation="read_committed" if committed else "read_uncommitted",
            timeout_s=CALL_S_MAX,
        )
        return {partition: one.offset for partition, one in listed.items()}

    def close_day(self, events: int) -> Layout:
        """Record a closing after `events` events and ring the bells.

        All events must have been written and read: one that is read after a bell would be too late for its window.
        """
        layout = self.layout()
        if events not in layout.closings:
            with Producer(self._options) as producer:
                producer.send(CLOSINGS, b'{"events":%d}' % events, partition=0).result()
            layout = self.layout()
        self.ring(layout)
        return layout

    def ring(self, layout: Layout) -> None:
        """Ring the missing bells; a killed process may have rung only some of them."""
        with Producer(self._options) as producer:
            for partition, click in layout.missing_bells(ends := self.ends()):
                sent = producer.send(partition.topic, click.value, click.key, partition=partition.partition)
                check_offset(partition, ends[partition], sent.result().offset)


def check_offset(partition: TopicPartition, expected: int, found: int) -> None:
    if expected != found:
        raise Misplaced(
            f"{partition}: record {expected} was written as {found}; does another program write to {partition.topic}?"
        )


def partitions_of(topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for topic in topics for index in range(PARTITION_COUNTS[topic])]
