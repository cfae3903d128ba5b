"""Runs the coordinators of this broker: a machine for each partition of an internal topic that it leads.

A partition that comes to be led here is loaded in slices, then answers; one whose leadership is lost forgets everything at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.coordinators.partitioning import coordinator_partition
from headrace.metadata.image import Image
from headrace.records.batch import NO_SEQUENCE
from headrace.records.control import TransactionMarker
from headrace.replication.journal import PartitionJournal
from headrace.replication.partition import Partition
from headrace.replication.verification import OPEN, Guard
from headrace.statemachine.journal import NotLeader
from headrace.statemachine.machine import Arm, Machine
from headrace.statemachine.runtime import Runtime
from headrace.statemachine.transactional import MarkerRecord

log = logging.getLogger(__name__)

LOAD_SLICE_S = 0.004
LOAD_TOLD_S = 1.0  # from here on a load is worth a line in the log
LOAD_AGAIN_S = 5.0
TIMER_S_MIN = 0.001
NO_LEADERSHIP = -1

Answer = TypeVar("Answer")
MachineType = TypeVar("MachineType", bound=Machine[Any, Any])


class Shard(Generic[MachineType]):
    """One term of leadership of one partition."""

    def __init__(
        self,
        machine: MachineType,
        journal: PartitionJournal[Any],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.machine = machine
        self.journal = journal
        self.runtime: Runtime[Any, Any] = Runtime(machine, journal)
        self._clock = clock
        self._loop = loop
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._loaded = 0

    @property
    def name(self) -> str:
        return str(self.journal.partition.name)

    async def load(self, turns: asyncio.Lock) -> None:
        """A slice at each of its turns: many shards that are loaded at once take them one after the other."""
        await self.journal.settled()
        began, pieces = self._loop.time(), self.journal.read()
        is_whole = False
        while not is_whole:
            async with turns:
                is_whole = await self._load_slice(pieces)
            await asyncio.sleep(0)
        took = self._loop.time() - began
        if took > LOAD_TOLD_S:
            log.info("%s is loaded: %d records in %.1f s", self.name, self._loaded, took)
        self.runtime.lead(self._clock.now_ms())
        self._set_alarm()

    async def _load_slice(self, pieces: AsyncIterator[tuple[int, list[Any]]]) -> bool:
        """Whether that was the last."""
        end = self._loop.time() + LOAD_SLICE_S
        async for first, records in pieces:
            for _ in self.runtime.load([(first, records)]):
                self._loaded += len(records)
            if self._loop.time() > end:
                return False
        return True

    def submit(self, request: Any, tell: Callable[[Any, Exception | None], None]) -> None:
        self.runtime.submit(request, self._clock.now_ms(), tell)
        self._set_alarm()

    def arm(self, timer: Hashable, at_ms: int) -> None:
        """Without a decision."""
        self.runtime.arm(timer, at_ms)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """One that rings too early does no harm: it is set again then. Nearly every request moves a timer to later."""
        at_ms = self.runtime.next_timer()
        if at_ms is None or (self._alarm is not None and self._alarm_ms <= at_ms):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        delay = max((at_ms - self._clock.now_ms()) / 1000, TIMER_S_MIN)
        self._alarm = self._loop.call_later(delay, self._tick)
        self._alarm_ms = at_ms

    def _tick(self) -> None:
        self._alarm = None
        self.runtime.tick(self._clock.now_ms())
        self._set_alarm()

    def close(self) -> None:
        self.journal.close()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


class Coordination(Generic[MachineType]):
    def __init__(
        self,
        topic: str,
        make: Callable[[], MachineType],
        encode: Callable[[Any], tuple[bytes, bytes | None]],
        decode: Callable[[bytes | None, bytes | None], Any],
        image: Callable[[], Image],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        end: Callable[[MarkerRecord], Any] | None = None,
    ) -> None:
        """`end` makes the request that ends a transaction of a producer, where producers write into the topic."""
        self.topic = topic
        self._make = make
        self._encode = encode
        self._decode = decode
        self._image = image
        self._clock = clock
        self._loop = loop
        self._end = end
        self._shards: dict[int, Shard[MachineType]] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._broken: dict[int, str] = {}  # could not be loaded, and why
        self._turns = asyncio.Lock()
        self._closed = False

    # --- following leadership

    def elected(self, partition: Partition) -> None:
        """Told of a partition of the topic whenever metadata says something about it."""
        index, held = partition.name.partition, self._shards.get(partition.name.partition)
        if held is not None and held.journal.leads and held.journal.partition is partition:
            return
        self._unload(index)
        if not partition.is_leader or self._closed:
            return
        journal = PartitionJournal[Any](
            partition, self._encode, self._decode, self._clock, self._loop, with_markers=self._end is not None
        )
        shard = self._shards[index] = Shard(self._make(), journal, self._clock, self._loop)
        # AFTER the runtime, which rolls back and refuses whoever waits for an answer.
        journal.on_lost(partial(self._lost, index, shard))
        self._loading[index] = task = self._loop.create_task(self._load(index, shard))
        task.add_done_callback(lambda _: self._loading.pop(index) if self._loading.get(index) is task else None)

    async def _load(self, index: int, shard: Shard[MachineType]) -> None:
        try:
            await shard.load(self._turns)
        except NotLeader:
            self._lost(index, shard)
        except CorruptData as error:
            log.error("%s cannot be loaded: %s; what it coordinates is out of reach", shard.name, error)
            self._broken[index] = str(error)
        except (KafkaError, OSError) as error:
            log.error(
                "%s cannot be read: %s; what it coordinates is out of reach, in %g s it is tried again",
                shard.name,
                error,
                LOAD_AGAIN_S,
            )
            self._broken[index] = str(error)
            self._loop.call_later(LOAD_AGAIN_S, self._load_again, index, shard)

    def _load_again(self, index: int, shard: Shard[MachineType]) -> None:
        """A disk may have failed only once, and nobody else tells of this partition until the node starts again."""
        if self._shards.get(index) is shard:
            self._unload(index)
            self.elected(shard.journal.partition)

    def _lost(self, index: int, shard: Shard[MachineType]) -> None:
        if self._shards.get(index) is shard:
            self._unload(index)

    def _unload(self, index: int) -> None:
        self._broken.pop(index, None)
        task = self._loading.pop(index, None)
        if task is not None:
            task.cancel()
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.runtime.resign()
            shard.close()

    def close(self) -> None:
        self._closed = True
        for index in list(self._shards):
            self._unload(index)

    async def settle(self) -> None:
        """Returns when nothing is being loaded."""
        while self._loading:
            await asyncio.wait(list(self._loading.values()))

    # --- asking

    def partition_of(self, name: str) -> int:
        """KafkaError COORDINATOR_NOT_AVAILABLE while there is no such topic."""
        topic = self._image().topics.get(self.topic)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return coordinator_partition(name, len(topic.partitions))

    def leads(self, name: str) -> bool:
        """Return whether this broker runs the shard of the group or transactional id, loaded or loading."""
        return self.partition_of(name) in self._shards

    def epoch_of(self, name: str) -> int:
        """Of the leadership in which this broker coordinates it; -1 if it does not."""
        topic = self._image().topics.get(self.topic)
        shard = None if topic is None else self._shards.get(coordinator_partition(name, len(topic.partitions)))
        return NO_LEADERSHIP if shard is None or not shard.journal.leads else shard.journal.epoch

    def term_of(self, name: str) -> object:
        """Of this broker as its coordinator, or None; another one after each unload. A move to another directory keeps the epoch."""
        topic = self._image().topics.get(self.topic)
        shard = None if topic is None else self._shards.get(coordinator_partition(name, len(topic.partitions)))
        return None if shard is None or not shard.journal.leads else shard

    def machine_of(self, name: str) -> MachineType:
        """To read what is committed."""
        return self._shard(self.partition_of(name)).machine

    def machines(self) -> list[MachineType]:
        """All that can be loaded; KafkaError COORDINATOR_LOAD_IN_PROGRESS if one of them is not yet."""
        return [self._shard(index).machine for index in sorted(self._shards) if index not in self._broken]

    def loaded(self) -> list[MachineType]:
        """Those that answer now."""
        return [shard.machine for _, shard in sorted(self._shards.items()) if shard.runtime.leading]

    def decide(self, name: str, request: Any) -> asyncio.Future[Any]:
        """The answer, when everything that it rests on is committed: often that is now. KafkaError, now or later, if there is none."""
        shard = self._shard(self.partition_of(name))
        future: asyncio.Future[Any] = self._loop.create_future()
        shard.submit(request, partial(_settle, future))
        return future

    def guard(self, name: str, producer_id: int, producer_epoch: int, *, adds: bool) -> Guard:
        """For `decide_in_transaction`; if it `waits`, the coordinator of the transaction has to say yes first."""
        partition = self._shard(self.partition_of(name)).journal.partition
        return partition.guard(producer_id, producer_epoch, NO_SEQUENCE, adds=adds)

    def decide_in_transaction(self, name: str, request: Any, guard: Guard) -> asyncio.Future[Any]:
        """Like `decide`, where what is written belongs to the transaction of a producer. INVALID_TXN_STATE if that has ended."""
        journal = self._shard(self.partition_of(name)).journal
        journal.guard = guard
        try:
            return self.decide(name, request)
        finally:
            journal.guard = OPEN

    def end_transaction(
        self,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        transaction_version: int,
    ) -> asyncio.Future[None]:
        """Writes a marker to that partition of the topic, and lets its machine know. Done when it is committed; else KafkaError, with
        what the leader of a partition would say."""
        assert self._end is not None, f"nothing of {self.topic} belongs to transactions"
        record = MarkerRecord(producer_id, producer_epoch, marker.coordinator_epoch, marker.commit, transaction_version)
        future: asyncio.Future[None] = self._loop.create_future()
        try:
            self._shard(partition).submit(self._end(record), partial(_settle_end, future))
        except KafkaError as error:
            _settle_end(future, None, error)
        return future

    def glance(
        self, name: str, look: Callable[[MachineType, Any, int, Arm], Answer | None], request: Any
    ) -> Answer | None:
        """For what is asked by the ten thousand a second and changes nothing but timers: what `look` finds without a decision. None:
        it has to be decided."""
        topic = self._image().topics.get(self.topic)
        shard = None if topic is None else self._shards.get(coordinator_partition(name, len(topic.partitions)))
        if shard is None or not shard.runtime.is_settled or not shard.journal.leads:
            return None
        return look(shard.machine, request, self._clock.now_ms(), shard.arm)

    def decide_everywhere(self, request: Any) -> None:
        """On every shard that is loaded; nobody hears the answers."""
        for index in sorted(self._shards):
            if self._shards[index].runtime.leading:
                self._shards[index].submit(request, lambda answer, error: None)

    def _shard(self, index: int) -> Shard[MachineType]:
        shard = self._shards.get(index)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if index in self._broken:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._broken[index])
        if not shard.runtime.leading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard


def _settle(future: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    elif isinstance(error, NotLeader):
        future.set_exception(KafkaError(ErrorCode.NOT_COORDINATOR))
    elif isinstance(error, KafkaError) and error.code in APPEND_ERRORS:
        future.set_exception(KafkaError(APPEND_ERRORS[error.code], error.message))
    else:
        future.set_exception(error)


def _settle_end(future: asyncio.Future[None], answer: None, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    elif isinstance(error, NotLeader) or (isinstance(error, KafkaError) and error.code in NOT_LEADING):
        future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)))
    else:
        future.set_exception(error)


# Of a coordinator; whoever wants a marker written knows partitions and their leaders.
NOT_LEADING = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)

# What a partition says when it refuses a write, as clients of a coordinator know it.
APPEND_ERRORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
