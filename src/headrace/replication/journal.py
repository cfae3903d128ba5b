"""The journal of a coordinator: the local leader of one partition of an internal topic.

A journal lasts for one leader term; the next leader, even if it is the same node, starts with a new journal. Records of a
producer become one batch of its transaction, and a MarkerRecord becomes the marker that ends it. Both are read back as they
were written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice, starmap
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.base.turn_end import turn_end_of
from headrace.records.batch import BatchHeader, check_crc, iterate_batches, unpack_header
from headrace.records.builder import BatchBuilder
from headrace.records.columns import keys_and_values
from headrace.records.control import TransactionMarker
from headrace.replication.partition import Partition
from headrace.replication.verification import OPEN
from headrace.statemachine.journal import NotLeader
from headrace.statemachine.transactional import MarkerRecord, OfProducer, Producer
from headrace.storage.append import transaction_marker
from headrace.storage.files import File

Record = TypeVar("Record")

READ_BYTES = 256 * 1024  # bytes per read of the log while a shard is loaded
RECORDS_AT_ONCE = 100  # records decoded before other tasks may run
ALL_ACKS = -1


class PartitionJournal(Generic[Record]):
    def __init__(
        self,
        partition: Partition,
        encode: Callable[[Record], tuple[bytes, bytes | None]],
        decode: Callable[[bytes | None, bytes | None], Record | None],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        with_markers: bool = False,
    ) -> None:
        """Start a journal for the partition's current leader epoch.

        `decode` returns None for records to skip. With `with_markers`, `read` also yields the markers of transactions.
        """
        self.partition = partition
        self.epoch = partition.leader_epoch
        self._encode = encode
        self._decode = decode
        self._clock = clock
        self._loop = loop
        self._turn_end = turn_end_of(loop)
        self._with_markers = with_markers
        self.guard = OPEN  # guard of the transaction in which the current decision writes
        self._committed: list[Callable[[int], None]] = []
        self._lost: list[Callable[[], None]] = []
        self._reported_offset = self.committed_offset()
        self._is_lost = False
        self._advanced: asyncio.Future[None] | None = None  # done at the next commit, for `settled`
        partition.watch(self._on_partition_changed)

    @property
    def leads(self) -> bool:
        return not self._is_lost and self.partition.is_leader and self.partition.leader_epoch == self.epoch

    # --- the Journal port

    def next_offset(self) -> int:
        if not self.leads:
            raise NotLeader(f"{self.partition.name} has a new leader, or a new leader epoch")
        return self.partition.log.log_end

    def append(self, records: Sequence[Record]) -> int:
        """Append all records as one batch and return the offset of the last.

        Raise NotLeader if leadership is lost, and KafkaError if the partition refuses: too few replicas, a batch that is too
        large, a full disk.
        """
        now_ms = self._clock.now_ms()
        first: Any = records[0]
        if type(first) is MarkerRecord:
            assert len(records) == 1, "a marker is the only record of its decision"
            return self._append_marker(first, now_ms)
        producer: Producer | None = getattr(first, "producer", None)
        builder = BatchBuilder()
        for record in records:
            assert getattr(record, "producer", None) == producer, (
                "all records of a decision belong to one transaction, or to none"
            )
            builder.append(now_ms, *self._encode(record))
        if producer is not None:
            return self._append_of_producer(builder, producer, now_ms)
        data = memoryview(builder.build())
        header = unpack_header(data)
        self.next_offset()
        self.partition.admit(ALL_ACKS)
        if self.partition.checks.compresses or header.size > self.partition.log.config.max_message_bytes:
            # Otherwise there is nothing to check: the batch was built here.
            checked = self.partition.check(data, header, now_ms)
            if checked.converted is not None:
                data, header = checked.converted
        return self.partition.append(data, header, header.max_timestamp, now_ms).last_offset

    def _append_of_producer(self, builder: BatchBuilder, producer: Producer, now_ms: int) -> int:
        """Append records to a producer's transaction, never compressed.

        Checks and conversions are for batches that producers send, which have sequences.
        """
        producer_id, epoch = producer
        data = memoryview(builder.build(producer_id=producer_id, producer_epoch=epoch, transactional=True))
        header = unpack_header(data)
        self.next_offset()
        self.partition.admit(ALL_ACKS)
        if header.size > self.partition.log.config.max_message_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{header.size} bytes in one batch of {self.partition.name}")
        return self.partition.append_transactional(
            data, header, header.max_timestamp, now_ms, self.guard, check_producer=False
        ).last_offset

    def _append_marker(self, record: MarkerRecord, now_ms: int) -> int:
        self.next_offset()
        marker = TransactionMarker(record.commit, record.coordinator_epoch)
        return self.partition.append_marker(
            record.producer_id, record.producer_epoch, marker, record.transaction_version, now_ms
        ).last_offset

    def committed_offset(self) -> int:
        return self.partition.high_watermark - 1

    def on_committed(self, callback: Callable[[int], None]) -> None:
        self._committed.append(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._lost.append(callback)

    def close(self) -> None:
        """Stop following the partition; no callback is called any more."""
        self._is_lost = True
        self.partition.unwatch(self._on_partition_changed)
        self._resume_settling()

    # --- following the partition

    def _on_partition_changed(self) -> None:
        """Schedule `_check_partition` for the end of the turn, when the append or leader change that caused the call is complete."""
        self._turn_end.call(self._check_partition)

    def _check_partition(self) -> None:
        if self._is_lost:
            return
        if not self.leads:
            self.close()
            for lost in self._lost:
                lost()
            return
        self.partition.watch(self._on_partition_changed)
        if (offset := self.committed_offset()) > self._reported_offset:
            self._reported_offset = offset
            for committed in self._committed:
                committed(offset)
            self._resume_settling()

    def _resume_settling(self) -> None:
        if self._advanced is not None and not self._advanced.done():
            self._advanced.set_result(None)

    # --- loading

    async def settled(self) -> None:
        """Wait until everything that earlier terms wrote is committed, and thus final."""
        end = self.partition.log.log_end
        while self.partition.high_watermark < end:
            if not self.leads:
                raise NotLeader(f"{self.partition.name} has a new leader, or a new leader epoch")
            self._advanced = self._loop.create_future()
            await self._advanced

    async def read(self) -> AsyncIterator[tuple[int, list[Any]]]:
        """Yield all committed records in slices, each with the base offset of its batch.

        Raise NotLeader, CorruptData or OSError if the log cannot be read to its end.
        """
        offset = self.partition.log.log_start
        closed: File | None = None
        while offset < self.partition.high_watermark:
            found = self.partition.log.read(offset, READ_BYTES, self.partition.high_watermark)
            if not len(found.range):
                return  # the last records were tombstones that compaction has removed
            try:
                data = await self._loop.run_in_executor(None, found.range.read)
            except ValueError as error:
                # The file was closed in the meantime: compaction or a move to another directory has replaced it.
                if found.range.file is closed:
                    raise NotLeader(f"{self.partition.name} was deleted") from error
                closed = found.range.file
                continue
            reached = offset
            for position, header in iterate_batches(data):
                reached = header.last_offset + 1
                for piece in self._slices(memoryview(data)[position : position + header.size], header):
                    if not self.leads:
                        raise NotLeader(f"{self.partition.name} has a new leader, or a new leader epoch")
                    yield header.base_offset, piece
            if reached == offset:
                raise CorruptData(f"{self.partition.name} has no batch at offset {offset}")
            offset = reached

    def _slices(self, batch: memoryview, header: BatchHeader) -> Iterator[list[Any]]:
        try:
            if header.is_control:
                if self._with_markers:
                    yield _marker(batch, header)
                return
            pairs = keys_and_values(batch, header)
            while some := list(islice(pairs, RECORDS_AT_ONCE)):
                records = [record for record in starmap(self._decode, some) if record is not None]
                yield _of_producer(records, header) if header.is_transactional else records
        except CorruptData as error:
            raise CorruptData(f"in the batch at offset {header.base_offset}: {error}") from error


def _marker(batch: memoryview, header: BatchHeader) -> list[MarkerRecord]:
    """Return the marker of a control batch; empty if it is of another kind or the cleaner has removed its record."""
    check_crc(batch, 0, header)
    marker = transaction_marker(batch)
    if marker is None:
        return []
    return [MarkerRecord(header.producer_id, header.producer_epoch, marker.coordinator_epoch, marker.commit)]


def _of_producer(records: list[Any], header: BatchHeader) -> list[Any]:
    producer = (header.producer_id, header.producer_epoch)
    return [replace(record, producer=producer) if isinstance(record, OfProducer) else record for record in records]
