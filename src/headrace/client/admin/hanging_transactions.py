"""Finds and aborts hanging transactions (KIP-664).

Such a transaction is open on a partition, but its coordinator will not end it there, so consumers of committed records
would wait forever. To find them, the partitions are queried first, then the coordinators, then the partitions again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.admin.topics import describe_topics
from headrace.client.admin.transactions import (
    ONGOING,
    ActiveProducer,
    TransactionFilter,
    TransactionInfo,
    describe_producers,
    describe_transaction,
    list_transactions,
    producers_of,
    write_abort,
)
from headrace.client.wire.cluster import Cluster

PARTITIONS_AT_ONCE = 500
LATE_MS = 5 * 60_000  # how long after its timeout an open transaction is suspicious, in milliseconds
_TO_BE_ENDED = (ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


class NotHanging(HeadraceError):
    """There is nothing to abort: no such transaction is open, or its coordinator will end it."""


class HangingTransaction(NamedTuple):
    producer: ActiveProducer
    transactional_id: str | None
    reason: str


class Search(NamedTuple):
    """Where to look: everywhere, or in one topic, one partition of it, or the partitions that one broker leads."""

    topic: str | None = None
    partition: int | None = None
    broker: int | None = None


class Found(NamedTuple):
    hanging: list[HangingTransaction]
    refused: dict[TopicPartition, KafkaError]  # partitions that could not be queried


def why_hanging(open_: ActiveProducer, known: TransactionInfo | None) -> str | None:
    """Return why a transaction hangs, or None if its coordinator will end it.

    A transaction that is being ended may have the next epoch already (KIP-890).
    """
    if known is None or known.producer_id != open_.producer_id:
        return "no coordinator knows its producer"
    if known.state not in _TO_BE_ENDED:
        return f"{known.transactional_id} is {known.state}"
    if open_.partition not in known.partitions:
        return f"{known.transactional_id} is {known.state} without this partition"
    if known.state == ONGOING and known.producer_epoch != open_.producer_epoch:
        return f"{known.transactional_id} is {known.state} at epoch {known.producer_epoch}"
    return None


async def find_hanging(cluster: Cluster, where: Search, *, timeout_ms: int, now_ms: int) -> Found:
    """Find hanging transactions among those open for longer than `timeout_ms` plus LATE_MS.

    `timeout_ms` is the longest timeout that producers may request.
    """
    led = await _partitions(cluster, where)
    refused = {one: KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(one)) for one in led.pop(-1, [])}
    open_ = [
        one
        for one in await _open_transactions(cluster, led, refused)
        if now_ms - one.last_timestamp_ms > timeout_ms + LATE_MS
    ]
    known = await _known_transactions(cluster, {one.producer_id for one in open_})
    hanging = []
    for one in open_:
        found = known.get(one.producer_id)
        reason = why_hanging(one, found)
        if reason is not None:
            hanging.append(HangingTransaction(one, found.transactional_id if found else None, reason))
    if hanging:
        # Query the partitions again, AFTER the coordinators: transactions that ended meanwhile were rightly forgotten.
        suspects = {one.producer.partition for one in hanging}
        led = {broker: [one for one in some if one in suspects] for broker, some in led.items()}
        still = {_identity(one) for one in await _open_transactions(cluster, led, refused)}
        hanging = [one for one in hanging if _identity(one.producer) in still]
    return Found(hanging, refused)


def _identity(open_: ActiveProducer) -> tuple[TopicPartition, int, int | None]:
    return open_.partition, open_.producer_id, open_.start_offset


async def _partitions(cluster: Cluster, where: Search) -> dict[int, list[TopicPartition]]:
    """Return the partitions by leader; -1 holds those without one.

    Raise KafkaError for a topic or partition that does not exist.
    """
    if where.broker is not None:
        await cluster.broker(where.broker)
    found: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic in await describe_topics(cluster, None if where.topic is None else [where.topic]):
        for one in topic.partitions:
            if where.partition in (None, one.partition):
                found[one.leader].append(TopicPartition(topic.name, one.partition))
    if where.partition is not None and not found:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{where.topic} has no partition {where.partition}")
    if where.broker is not None:
        return {where.broker: found[where.broker]}
    return found


async def _open_transactions(
    cluster: Cluster, led: Mapping[int, Sequence[TopicPartition]], refused: dict[TopicPartition, KafkaError]
) -> list[ActiveProducer]:
    open_: list[ActiveProducer] = []
    for broker, partitions in led.items():
        for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
            connection = await cluster.broker(broker)
            found, failed = await producers_of(connection, partitions[first : first + PARTITIONS_AT_ONCE])
            refused.update(failed)
            open_ += [one for one in found if one.start_offset is not None]
    return sorted(open_)


async def _known_transactions(cluster: Cluster, producer_ids: Collection[int]) -> dict[int, TransactionInfo]:
    """Return transactions by producer id, without those that no coordinator knows."""
    if not producer_ids:
        return {}
    known = {}
    for one in await list_transactions(cluster, TransactionFilter(producer_ids=producer_ids)):
        try:
            known[one.producer_id] = await describe_transaction(cluster, one.transactional_id)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # forgotten since it was listed
                raise
    return known


async def abort_hanging(cluster: Cluster, partition: TopicPartition, start_offset: int) -> ActiveProducer:
    """Abort the hanging transaction that starts at this offset, and return its producer.

    Raise NotHanging, without any change, if no transaction is open from there or its coordinator will end it.
    """
    producers = await describe_producers(cluster, partition)
    found = next((one for one in producers if one.start_offset == start_offset), None)
    if found is None:
        raise NotHanging(f"{partition}: no transaction is open from offset {start_offset} on{_others(producers)}")
    known = (await _known_transactions(cluster, {found.producer_id})).get(found.producer_id)
    if known is not None and why_hanging(found, known) is None:
        raise NotHanging(
            f"{partition}: the transaction at offset {start_offset} does not hang, it is that of {known.transactional_id}"
            f" ({known.state}); `terminate` ends it in all of its partitions"
        )
    await write_abort(cluster, partition, found.producer_id, found.producer_epoch, found.coordinator_epoch)
    return found


def _others(producers: Iterable[ActiveProducer]) -> str:
    offsets = [str(one.start_offset) for one in producers if one.start_offset is not None]
    return f"; there are some from {', '.join(offsets)}" if offsets else ""
