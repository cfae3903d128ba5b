"""Runs the coordinators of this broker: a state machine for each partition of an internal topic that it leads.

When this broker becomes the leader of a partition, its shard is loaded in slices and then serves requests. When leadership is lost, the
shard is dropped at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.base.promise import Promise
from headrace.coordinators.partitioning import coordinator_partition
from headrace.metadata.image import Image
from headrace.records.batch import NO_SEQUENCE
from headrace.records.control import TransactionMarker
from headrace.replication.journal import PartitionJournal
from headrace.replication.partition import Partition
from headrace.replication.verification import OPEN, Guard
from headrace.statemachine.journal import NotLeader, Overloaded
from headrace.statemachine.machine import Arm, Machine
from headrace.statemachine.runtime import Runtime
from headrace.statemachine.transactional import MarkerRecord

log = logging.getLogger(__name__)

LOAD_SLICE_S = 0.004
SLOW_LOAD_S = 1.0  # loads that take longer are logged
LOAD_AGAIN_S = 5.0
TIMER_S_MIN = 0.001
NO_LEADERSHIP = -1

Response = TypeVar("Response")
MachineType = TypeVar("MachineType", bound=Machine[Any, Any])


class Shard(Generic[MachineType]):
    """The state machine of one partition during one term of leadership, with its runtime and timer."""

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
        """Load the journal slice by slice and start leading; shards that load at the same time take turns."""
        await self.journal.settled()
        began, pieces = self._loop.time(), self.journal.read()
        is_whole = False
        while not is_whole:
            async with turns:
                is_whole = await self._load_slice(pieces)
            await asyncio.sleep(0)
        took = self._loop.time() - began
        if took > SLOW_LOAD_S:
            log.info("loaded %s: %d records in %.1f s", self.name, self._loaded, took)
        self.runtime.lead(self._clock.now_ms())
        self._set_alarm()

    async def _load_slice(self, pieces: AsyncIterator[tuple[int, list[Any]]]) -> bool:
        """Apply records for `LOAD_SLICE_S` and return whether the journal has been read to its end."""
        end = self._loop.time() + LOAD_SLICE_S
        async for first, records in pieces:
            for _ in self.runtime.load([(first, records)]):
                self._loaded += len(records)
            if self._loop.time() > end:
                return False
        return True

    def submit(self, request: Any, reply: Callable[[Any, Exception | None], None]) -> None:
        self.runtime.submit(request, self._clock.now_ms(), reply)
        self._set_alarm()

    def arm(self, timer: Hashable, at_ms: int) -> None:
        """Set a timer outside a decision."""
        self.runtime.arm(timer, at_ms)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Schedule `_tick` for the next timer.

        An alarm that fires too early is harmless, because `_tick` sets it again. It is therefore not moved to later, although nearly
        every request moves a timer to later.
        """
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


class CoordinatorTopic(NamedTuple, Generic[MachineType]):
    """An internal topic that holds the records of state machines, one machine per partition."""

    name: str
    make_machine: Callable[[], MachineType]
    encode: Callable[[Any], tuple[bytes, bytes | None]]
    decode: Callable[[bytes | None, bytes | None], Any]
    # Makes the request that ends a producer's transaction; None if no record of the topic belongs to a transaction.
    end: Callable[[MarkerRecord], Any] | None = None


class Coordination(Generic[MachineType]):
    """The shards of one internal topic that this broker leads."""

    def __init__(
        self,
        topic: CoordinatorTopic[MachineType],
        image: Callable[[], Image],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.topic = topic.name
        self._make_machine = topic.make_machine
        self._encode = topic.encode
        self._decode = topic.decode
        self._end = topic.end
        self._image = image
        self._clock = clock
        self._loop = loop
        self._shards: dict[int, Shard[MachineType]] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._broken: dict[int, str] = {}  # why a shard could not be loaded, by partition index
        self._turns = asyncio.Lock()
        self._closed = False

    # --- following leadership

    def elected(self, partition: Partition) -> None:
        """Load or unload the shard of a partition of the topic; called whenever its metadata changes."""
        index, held = partition.name.partition, self._shards.get(partition.name.partition)
        if held is not None and held.journal.leads and held.journal.partition is partition:
            return
        self._unload(index)
        if not partition.is_leader or self._closed:
            return
        journal = PartitionJournal[Any](
            partition, self._encode, self._decode, self._clock, self._loop, with_markers=self._end is not None
        )
        shard = self._shards[index] = Shard(self._make_machine(), journal, self._clock, self._loop)
        # AFTER the runtime's callback, which rolls back and fails the parked requests.
        journal.on_lost(partial(self._lost, index, shard))
        self._loading[index] = task = self._loop.create_task(self._load(index, shard))
        task.add_done_callback(lambda _: self._loading.pop(index) if self._loading.get(index) is task else None)

    async def _load(self, index: int, shard: Shard[MachineType]) -> None:
        try:
            await shard.load(self._turns)
        except NotLeader:
            self._lost(index, shard)
        except CorruptData as error:
            log.error(
                "%s cannot be loaded: %s; its groups or transactions are unavailable until it is repaired",
                shard.name,
                error,
            )
            self._broken[index] = str(error)
        except (KafkaError, OSError) as error:
            log.error(
                "%s cannot be read: %s; its groups or transactions are unavailable, trying again in %g s",
                shard.name,
                error,
                LOAD_AGAIN_S,
            )
            self._broken[index] = str(error)
            self._loop.call_later(LOAD_AGAIN_S, self._load_again, index, shard)
        except Exception as error:  # a bug in the state machine: other shards must not be affected
            log.exception(
                "%s: its coordinator failed while it was loaded or took over leadership; retrying in %g s",
                shard.name,
                LOAD_AGAIN_S,
            )
            self._broken[index] = f"the coordinator of {shard.name} failed while it took over leadership: {error!r}"
            self._loop.call_later(LOAD_AGAIN_S, self._load_again, index, shard)

    def _load_again(self, index: int, shard: Shard[MachineType]) -> None:
        """Retry a failed load: the disk error may be transient, and nothing else triggers a load before a restart."""
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
        """Wait until nothing is being loaded."""
        while self._loading:
            await asyncio.wait(list(self._loading.values()))

    # --- requests

    def partition_of(self, name: str) -> int:
        """Return the partition that coordinates `name`. Raise COORDINATOR_NOT_AVAILABLE while the topic does not exist."""
        topic = self._image().topics.get(self.topic)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return coordinator_partition(name, len(topic.partitions))

    def leads(self, name: str) -> bool:
        """Return whether this broker runs the shard of the group or transactional id, loaded or loading."""
        return self.partition_of(name) in self._shards

    def epoch_of(self, name: str) -> int:
        """Return the leader epoch in which this broker coordinates `name`, or -1 if it does not."""
        topic = self._image().topics.get(self.topic)
        shard = None if topic is None else self._shards.get(coordinator_partition(name, len(topic.partitions)))
        return NO_LEADERSHIP if shard is None or not shard.journal.leads else shard.journal.epoch

    def term_of(self, name: str) -> object:
        """Return an object that identifies the term in which this broker coordinates `name`, or None if it does not.

        Unlike the epoch, the term changes with every unload: a move to another directory keeps the epoch.
        """
        topic = self._image().topics.get(self.topic)
        shard = None if topic is None else self._shards.get(coordinator_partition(name, len(topic.partitions)))
        return None if shard is None or not shard.journal.leads else shard

    def machine_of(self, name: str) -> MachineType:
        """Return the state machine that coordinates `name`, for reading committed state. Raise KafkaError if there is none."""
        return self._shard(self.partition_of(name)).machine

    def machines(self) -> list[MachineType]:
        """Return all state machines except broken ones. Raise COORDINATOR_LOAD_IN_PROGRESS if one is still loading."""
        return [self._shard(index).machine for index in sorted(self._shards) if index not in self._broken]

    def loaded(self) -> list[MachineType]:
        """Return the state machines that serve requests now."""
        return [shard.machine for _, shard in sorted(self._shards.items()) if shard.runtime.leading]

    def decide(self, name: str, request: Any) -> Promise[Any]:
        """Return a promise of the response, which is provided once everything the response depends on is committed.

        That is often immediately. KafkaError is raised, or set on the promise, if there is no response.
        """
        shard = self._shard(self.partition_of(name))
        promise: Promise[Any] = Promise()
        shard.submit(request, partial(_settle, promise))
        return promise

    def guard(self, name: str, producer_id: int, producer_epoch: int, *, adds: bool) -> Guard:
        """Return the guard for `decide_in_transaction`; if it `waits`, the transaction's coordinator must first confirm."""
        partition = self._shard(self.partition_of(name)).journal.partition
        return partition.guard(producer_id, producer_epoch, NO_SEQUENCE, adds=adds)

    def decide_in_transaction(self, name: str, request: Any, guard: Guard) -> Promise[Any]:
        """Decide as `decide` does, with records that belong to a producer's transaction.

        Fail with INVALID_TXN_STATE if the transaction has ended.
        """
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
    ) -> Promise[None]:
        """Write a marker to a partition of the topic and apply it to its state machine.

        The promise is done when the marker is committed, or fails with the KafkaError that a partition's leader would return.
        """
        assert self._end is not None, f"nothing of {self.topic} belongs to transactions"
        record = MarkerRecord(producer_id, producer_epoch, marker.coordinator_epoch, marker.commit, transaction_version)
        promise: Promise[None] = Promise()
        try:
            self._shard(partition).submit(self._end(record), partial(_settle_end, promise))
        except KafkaError as error:
            _settle_end(promise, None, error)
        return promise

    def without_decision(
        self, name: str, look: Callable[[MachineType, Any, int, Arm], Response | None], request: Any
    ) -> Response | None:
        """Return what `look` finds without a decision, or None if the request has to be decided.

        This is for requests that come ten thousand times a second and change nothing but timers.
        """
        topic = self._image().topics.get(self.topic)
        shard = None if topic is None else self._shards.get(coordinator_partition(name, len(topic.partitions)))
        if shard is None or not shard.runtime.is_settled or not shard.journal.leads:
            return None
        return look(shard.machine, request, self._clock.now_ms(), shard.arm)

    def decide_everywhere(self, request: Any) -> None:
        """Submit the request to every loaded shard and ignore the responses."""
        for index in sorted(self._shards):
            if self._shards[index].runtime.leading:
                self._shards[index].submit(request, lambda response, error: None)

    def _shard(self, index: int) -> Shard[MachineType]:
        shard = self._shards.get(index)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if index in self._broken:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._broken[index])
        if not shard.runtime.leading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard


def _settle(promise: Promise[Any], response: Any, error: Exception | None) -> None:
    if promise.done():
        return
    if error is None:
        promise.set_result(response)
    elif isinstance(error, NotLeader):
        promise.set_exception(KafkaError(ErrorCode.NOT_COORDINATOR))
    elif isinstance(error, Overloaded):
        # The one error that makes clients retry at the same coordinator; NOT_COORDINATOR would make all of them look for another.
        promise.set_exception(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)))
    elif isinstance(error, KafkaError) and error.code in APPEND_ERRORS:
        promise.set_exception(KafkaError(APPEND_ERRORS[error.code], error.message))
    else:
        promise.set_exception(error)


def _settle_end(promise: Promise[None], response: None, error: Exception | None) -> None:
    if promise.done():
        return
    if error is None:
        promise.set_result(None)
    elif isinstance(error, NotLeader) or (isinstance(error, KafkaError) and error.code in NOT_LEADING):
        promise.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)))
    elif isinstance(error, Overloaded):
        # The sender of a marker expects the errors of a partition's leader, and retries on this one.
        promise.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)))
    else:
        promise.set_exception(error)


# Coordinator errors, which are translated for the sender of a marker: it expects the errors of a partition's leader.
NOT_LEADING = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)

# Errors of a partition that refuses a write -> errors that a coordinator's clients expect.
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
