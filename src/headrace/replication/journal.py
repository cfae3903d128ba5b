"""The journal of a coordinator: the local leader of one partition of an internal topic.

It lives as long as one term of that leadership. Whoever else leads the partition, or leads it again, begins with a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice, starmap
from typing import Generic, TypeVar

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData
from headrace.records.batch import BatchHeader, iterate_batches, unpack_header
from headrace.records.builder import BatchBuilder
from headrace.records.columns import keys_and_values
from headrace.replication.partition import Partition
from headrace.statemachine.journal import NotLeader
from headrace.storage.files import File

Record = TypeVar("Record")

READ_BYTES = 256 * 1024  # of the log at once, while a shard is loaded
RECORDS_AT_ONCE = 100  # decoded before others have their turn
ALL_ACKS = -1


class PartitionJournal(Generic[Record]):
    def __init__(
        self,
        partition: Partition,
        encode: Callable[[Record], tuple[bytes, bytes | None]],
        decode: Callable[[bytes | None, bytes | None], Record | None],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`decode` gives None for what can be passed over."""
        self.partition = partition
        self.epoch = partition.leader_epoch
        self._encode = encode
        self._decode = decode
        self._clock = clock
        self._loop = loop
        self._committed: list[Callable[[int], None]] = []
        self._lost: list[Callable[[], None]] = []
        self._told = self.committed_offset()
        self._is_lost = False
        self._advanced: asyncio.Future[None] | None = None  # of whoever waits for a commit
        partition.watch(self._woken)

    @property
    def leads(self) -> bool:
        return not self._is_lost and self.partition.is_leader and self.partition.leader_epoch == self.epoch

    # --- as the runtime wants it

    def next_offset(self) -> int:
        if not self.leads:
            raise NotLeader(f"{self.partition.name} is led elsewhere, or again")
        return self.partition.log.log_end

    def append(self, records: Sequence[Record]) -> int:
        """KafkaError if the partition refuses: too few replicas, a batch too large, a disk that is full."""
        now_ms = self._clock.now_ms()
        builder = BatchBuilder()
        for record in records:
            builder.append(now_ms, *self._encode(record))
        data = memoryview(builder.build())
        header = unpack_header(data)
        self.next_offset()
        self.partition.admit(ALL_ACKS)
        if self.partition.compresses or header.size > self.partition.log.config.max_message_bytes:
            # Else there is nothing to check: the batch was made here.
            checked = self.partition.check(data, header, now_ms)
            if checked.converted is not None:
                data, header = checked.converted
        return self.partition.append(data, header, header.max_timestamp, now_ms).last_offset

    def committed_offset(self) -> int:
        return self.partition.high_watermark - 1

    def on_committed(self, tell: Callable[[int], None]) -> None:
        self._committed.append(tell)

    def on_lost(self, tell: Callable[[], None]) -> None:
        self._lost.append(tell)

    def close(self) -> None:
        """Nobody is told anything from here on."""
        self._is_lost = True
        self.partition.unwatch(self._woken)

    # --- following the partition

    def _woken(self) -> None:
        """In the middle of an append, or of a change of leaders: whoever is told must find it done."""
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._is_lost:
            return
        if not self.leads:
            self.close()
            for lost in self._lost:
                lost()
            return
        self.partition.watch(self._woken)
        if (offset := self.committed_offset()) > self._told:
            self._told = offset
            for committed in self._committed:
                committed(offset)
            if self._advanced is not None and not self._advanced.done():
                self._advanced.set_result(None)

    # --- loading

    async def settled(self) -> None:
        """Returns when all that earlier terms have written is committed: what they were about to say counts from then on."""
        end = self.partition.log.log_end
        while self.partition.high_watermark < end:
            if not self.leads:
                raise NotLeader(f"{self.partition.name} is led elsewhere, or again")
            self._advanced = self._loop.create_future()
            await self._advanced

    async def read(self) -> AsyncIterator[tuple[int, list[Record]]]:
        """All that is committed, in slices, each with the offset of its batch. NotLeader, CorruptData or OSError in between."""
        offset = self.partition.log.log_start
        closed: File | None = None
        while offset < self.partition.high_watermark:
            found = self.partition.log.read(offset, READ_BYTES, self.partition.high_watermark)
            if not len(found.range):
                return  # the last records were tombstones, and compaction has taken them away
            try:
                data = await self._loop.run_in_executor(None, found.range.read)
            except ValueError as error:
                # It was closed meanwhile: compaction, or a move to another directory, has put another file in its place.
                if found.range.file is closed:
                    raise NotLeader(f"{self.partition.name} is gone") from error
                closed = found.range.file
                continue
            reached = offset
            for position, header in iterate_batches(data):
                reached = header.last_offset + 1
                if not header.is_control:
                    for piece in self._slices(memoryview(data)[position : position + header.size], header):
                        if not self.leads:
                            raise NotLeader(f"{self.partition.name} is led elsewhere, or again")
                        yield header.base_offset, piece
            if reached == offset:
                raise CorruptData(f"{self.partition.name} has no batch at offset {offset}")
            offset = reached

    def _slices(self, batch: memoryview, header: BatchHeader) -> Iterator[list[Record]]:
        pairs = keys_and_values(batch, header)
        try:
            while some := list(islice(pairs, RECORDS_AT_ONCE)):
                yield [record for record in starmap(self._decode, some) if record is not None]
        except CorruptData as error:
            raise CorruptData(f"in the batch at offset {header.base_offset}: {error}") from error
