"""Readers of transactions: some follow a topic with one isolation level or the other, one reads everything at the end.

A read_committed reader filters as clients do: it drops a producer's records from where the broker lists an aborted transaction up to its
marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from msgspec import Struct, field

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.fetch import FetchResponse
from headrace.records.batch import Buffer, CorruptBatch, iterate_batches
from headrace.records.control import ControlType, parse_control_batch
from headrace.records.record import decode_records
from testkit.simulator.checkers import FINAL_FETCH_BYTES, FINAL_TRIES, MOVED, Unreadable
from testkit.simulator.clients import BACKOFF_S, LOST, World, decode_value
from testkit.simulator.groups.offsets import Group, GroupClient
from testkit.simulator.readers import (
    CORRUPT,
    FETCH_BYTES,
    FETCH_WAIT_MS,
    LATEST,
    PACE_S,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Data,
    Reader,
)

READ, STABLE = "read", "stable"  # operations in the history
OFFSETS_VERSIONS = (7, 8, 9)

Aborted = FetchResponse.AbortedTransaction
Place = tuple[str, int]


class Entry(NamedTuple):
    """One record or marker of a log."""

    offset: int
    producer_id: int
    value: str | None  # None for a marker
    commit: bool = False


class Batch(NamedTuple):
    last_offset: int
    entries: list[Entry]


class FinalTransactions(Struct):
    logs: dict[Place, list[Entry]] = field(default_factory=dict)  # all records and markers
    committed: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)  # records visible under read_committed


def entries_of(data: Buffer) -> Iterator[Batch]:
    """Yield the batches of `data` with their entries; raise CorruptBatch if a checksum or the structure is wrong."""
    view = memoryview(data)
    for position, header in iterate_batches(view):
        batch = view[position : position + header.size]
        if header.is_control:
            found = [
                Entry(record.offset, header.producer_id, None, record.type == ControlType.COMMIT)
                for record in parse_control_batch(batch)
            ]
        else:
            found = [Entry(one.offset, header.producer_id, decode_value(one.value)) for one in decode_records(batch)]
        yield Batch(header.last_offset, found)


def without_aborted(batches: Sequence[Batch], aborted: Sequence[Aborted]) -> list[Entry]:
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    dropping: set[int] = set()
    kept: list[Entry] = []
    for batch in batches:
        while waiting and waiting[0].first_offset <= batch.last_offset:
            dropping.add(waiting.pop(0).producer_id)
        for entry in batch.entries:
            if entry.value is None:
                dropping.discard(entry.producer_id)
            elif entry.producer_id not in dropping:
                kept.append(entry)
    return kept


class TransactionReader(Reader):
    """Follows all partitions from the beginning and never seeks back: a record that was visible must stay visible."""

    def __init__(self, name: str, world: World, random: Random, topic: str, partitions: int, isolation: int) -> None:
        super().__init__(name, world, random, topic, partitions)
        self.isolation_level = isolation

    async def run(self) -> None:
        await self.find_topic(self.topic)
        positions = dict.fromkeys(range(self.partitions), 0)
        while not self.world.stopping:
            try:
                if self.random.random() < 0.2:
                    await self._ask(self.random.randrange(self.partitions))
                connection = await self.leader(TopicPartition(self.topic, 0))
                await self._poll(connection, positions)
            except LOST:
                await self.pause(BACKOFF_S)
            except KafkaError as error:
                assert error.code in RETRIABLE, error
                await self.pause(BACKOFF_S)
            await self.pause(PACE_S)
        await self.close()

    async def _ask(self, partition: int) -> None:
        """Record the last stable offset of a partition in the history."""
        if self.isolation_level != READ_COMMITTED:
            return
        call = self.history.invoke(self.name, STABLE, place=(self.topic, partition))
        try:
            found = await self.list_offset(partition, LATEST)
        except (*LOST, KafkaError):
            self.history.info(call)
            raise
        self.history.ok(call, stable=found.offset)

    async def _poll(self, connection: Connection, positions: dict[int, int]) -> None:
        calls = {
            index: self.history.invoke(
                self.name, READ, place=(self.topic, index), position=position, isolation=self.isolation_level
            )
            for index, position in positions.items()
        }
        try:
            partition_responses = await self.fetch(
                connection, positions, FETCH_WAIT_MS, self.random.choice(FETCH_BYTES)
            )
            for data in partition_responses:
                position = self._take(calls.pop(data.partition_index), data, positions[data.partition_index])
                positions[data.partition_index] = position
        except LOST:
            await connection.close()
            raise
        finally:
            for call in calls.values():
                self.history.info(call)
        if any(data.error_code for data in partition_responses):
            await self.pause(BACKOFF_S)
            await self.cluster.refresh([self.topic])

    def _take(self, call: int, data: Data, position: int) -> int:
        """End a read in the history and return the next position."""
        code = ErrorCode(data.error_code)
        if code is not ErrorCode.NONE:
            self.history.fail(call, error=code.name)
            return position
        try:
            batches = list(entries_of(data.records or b""))  # type: ignore[arg-type]
        except CorruptBatch as error:
            self.history.fail(call, error=CORRUPT, text=str(error))
            return position
        entries = self.shown(batches, data)
        following = max(position, batches[-1].last_offset + 1) if batches else position
        self.history.ok(
            call,
            records=[(entry.offset, entry.value) for entry in entries if entry.offset >= position],
            following=following,
            stable=data.last_stable_offset,
        )
        return following

    def shown(self, batches: Sequence[Batch], data: Data) -> list[Entry]:
        if self.isolation_level == READ_COMMITTED:
            return without_aborted(batches, data.aborted_transactions or [])
        return [entry for batch in batches for entry in batch.entries if entry.value is not None]


class FinalTransactionReader(TransactionReader):
    """A new client that reads everything at the end."""

    async def read_everything(self) -> FinalTransactions:
        await self.find_topic(self.topic)
        found = FinalTransactions()
        for index in range(self.partitions):
            place = (self.topic, index)
            self.isolation_level = READ_UNCOMMITTED
            found.logs[place] = await self._read(index, raw=True)
            self.isolation_level = READ_COMMITTED
            found.committed[place] = [
                (entry.offset, entry.value) for entry in await self._read(index, raw=False) if entry.value is not None
            ]
        await self.close()
        return found

    async def _read(self, index: int, *, raw: bool) -> list[Entry]:
        partition = TopicPartition(self.topic, index)
        end = (await self.until_it_works(lambda: self.list_offset(index, LATEST))).offset
        found: list[Entry] = []
        position = tries = 0
        while position < end:
            tries += 1
            if tries > FINAL_TRIES + end:
                raise Unreadable(f"{partition}: no progress at {position} of {end}, isolation {self.isolation_level}")
            try:
                (data,) = await self.fetch(await self.leader(partition), {index: position}, 0, FINAL_FETCH_BYTES)
            except (*LOST, KafkaError):
                continue
            if data.error_code in MOVED:
                await self.refresh()  # to another broker, or its log was just replaced by the copy in another directory
                continue
            if data.error_code != ErrorCode.NONE:
                raise Unreadable(f"{partition} at {position}: {ErrorCode(data.error_code).name}")
            try:
                batches = list(entries_of(data.records or b""))  # type: ignore[arg-type]
            except CorruptBatch as error:
                raise Unreadable(f"{partition} at {position}: {error}") from error
            entries = [entry for batch in batches for entry in batch.entries] if raw else self.shown(batches, data)
            found += [entry for entry in entries if entry.offset >= position]
            if not batches and data.last_stable_offset >= end:
                break  # compaction has removed the last records
            position = max(position, batches[-1].last_offset + 1) if batches else position
        return found


class OffsetsReader(GroupClient):
    """Fetches stable committed offsets of a group; the coordinator refuses while a transaction has pending offsets."""

    def __init__(self, name: str, world: World, random: Random, group: Group) -> None:
        super().__init__(name, world, random, group, None)
        self.fetch_version = random.choice(OFFSETS_VERSIONS)
        self.fetches_stable = True

    async def run(self) -> None:
        await self.until_it_works(self.learn_topics)
        while not self.world.stopping:
            await self.fetch()
            await self.pause(PACE_S * 4)
        await self.close()
