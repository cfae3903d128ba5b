"""Fetches ahead of the application: at most one request in flight to each leader, and a bounded amount waiting."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.decoding import Constants, FetchedBatches
from headrace.client.consumer.fetching import TRANSIENT, FetchedPartition, FetchTarget, fetch_from
from headrace.client.consumer.metrics import ConsumerSensors
from headrace.client.consumer.options import ConsumerSettings
from headrace.client.consumer.position_lookup import now_ms
from headrace.client.consumer.positions import Position, Positions
from headrace.client.tasks import end_tasks
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Disconnected, NoResponse

FETCHES_AHEAD_MAX = 2  # per partition: the one being read, and the next one
FAILURES_MAX = 100

_LOG = logging.getLogger("headrace.client")


class _Ready(NamedTuple):
    batches: FetchedBatches
    serial: int  # serial of the position when the request was sent


class Prefetcher:
    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        settings: ConsumerSettings,
        sensors: ConsumerSensors,
        wake: Callable[[], None],
    ) -> None:
        """Create a prefetcher, which does nothing before `send`.

        `wake` is called when there is something to take, an error to raise, or a request to retry.
        """
        self._cluster = cluster
        self._positions = positions
        self._settings = settings
        self._sensors = sensors
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._ready: deque[_Ready] = deque()
        self._constants: dict[TopicPartition, Constants] = {}
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._failures: deque[Exception] = deque(maxlen=FAILURES_MAX)

    async def close(self) -> None:
        tasks = [*self._in_flight.values(), *([self._looking] if self._looking else [])]
        self._ready.clear()
        await end_tasks(tasks)

    def failure(self) -> Exception | None:
        """Remove and return the next error for the application, if there is one."""
        return self._failures.popleft() if self._failures else None

    def fail(self, error: Exception) -> None:
        self._failures.append(error)
        self._wake()

    def take(self) -> FetchedBatches | None:
        """Return the oldest batches that are not spent and may be read now. They stay queued until they are spent."""
        for batches, serial in self._ready:
            position = self._positions.get(batches.partition)
            if position is not None and position.serial == serial and not position.paused and not batches.is_spent:
                return batches
        return None

    def _sweep(self) -> None:
        """Remove what is spent, and what was fetched before a jump."""
        self._ready = deque(
            one
            for one in self._ready
            if not one.batches.is_spent
            and (position := self._positions.get(one.batches.partition)) is not None
            and position.serial == one.serial
        )

    def drop(self, batches: FetchedBatches) -> None:
        """Drop what was fetched of a partition with a damaged batch, and fetch it again from its position."""
        self._ready = deque(one for one in self._ready if one.batches.partition != batches.partition)
        position = self._positions.get(batches.partition)
        if position is not None and position.offset is not None:
            position.fetch_offset, position.fetch_epoch = position.offset, position.epoch
            self._later(position)

    # --- requests

    def send(self) -> None:
        """Send a fetch to each leader that has none in flight and partitions to read."""
        self._sweep()
        now = self._loop.time()
        by_leader: dict[int, list[FetchTarget]] = {}
        lost: set[str] = set()
        crowded: set[int] = set()
        ahead, size = self._waiting()
        for partition, position in self._positions.items():
            if position.offset is None or position.paused:
                continue
            leader = self._cluster.known_leader(partition)
            if leader is None:
                if position.retry_at <= now:
                    lost.add(partition.topic)
            elif ahead[partition] >= FETCHES_AHEAD_MAX or size >= self._settings.fetch.max_bytes:
                crowded.add(leader)
            elif position.retry_at <= now:
                by_leader.setdefault(leader, []).append(self._target(partition, position))
        for leader, targets in by_leader.items():
            if leader not in self._in_flight:
                serials = {target.partition: self._positions.of(target.partition).serial for target in targets}
                task = self._loop.create_task(self._fetch(leader, targets, serials, is_crowded=leader in crowded))
                self._in_flight[leader] = task
        if lost and self._looking is None:
            self._looking = self._loop.create_task(self._find_leaders(sorted(lost)))

    def _waiting(self) -> tuple[Counter[TopicPartition], int]:
        ahead: Counter[TopicPartition] = Counter()
        size = 0
        for batches, _ in self._ready:
            ahead[batches.partition] += 1
            size += batches.size
        return ahead, size

    def _target(self, partition: TopicPartition, position: Position) -> FetchTarget:
        # Only a new leader's log can differ from the one that was read.
        is_new_leader = -1 < position.fetch_epoch < self._cluster.leader_epoch(partition)
        return FetchTarget(partition, position.fetch_offset, position.fetch_epoch if is_new_leader else -1)

    async def _fetch(
        self, leader: int, targets: list[FetchTarget], serials: Mapping[TopicPartition, int], *, is_crowded: bool
    ) -> None:
        settings = self._settings.fetch
        if is_crowded:
            # This leader has partitions whose buffers are full and may be empty soon: a fetch that waits for data of
            # others would delay them.
            settings = settings._replace(max_wait_ms=0)
        begun = self._loop.time()
        try:
            answers = await fetch_from(self._cluster, leader, targets, settings)
        except (Disconnected, NoResponse) as error:
            _LOG.info("fetch from broker %d failed, retrying: %s", leader, error)
            self._forget_leaders(serials)
        except HeadraceError as error:
            if not (isinstance(error, KafkaError) and error.code in TRANSIENT):
                self._failures.append(error)
            self._forget_leaders(serials)
        else:
            self._sensors.fetches.record()
            self._sensors.fetch_latency.record((self._loop.time() - begun) * 1000)
            self._sensors.fetch_size.record(sum(len(one.data) for one in answers))
            rows = 0
            for fetched in answers:
                position = self._positions.get(fetched.partition)
                if position is None or position.serial != serials[fetched.partition]:
                    continue
                if position.fetch_offset == fetched.fetch_offset:
                    rows += self._take_in(fetched, position)
            self._sensors.records_per_request.record(rows)
        finally:
            del self._in_flight[leader]
            self._wake()

    async def _find_leaders(self, topics: list[str]) -> None:
        try:
            await self._cluster.refresh(topics, create=self._settings.create_topics)
        except HeadraceError as error:
            _LOG.info("metadata of %s could not be refreshed, retrying: %s", ", ".join(topics), error)
        finally:
            self._looking = None
            for partition, position in self._positions.items():
                if partition.topic in topics and self._cluster.known_leader(partition) is None:
                    self._later(position)
            self._wake()

    # --- responses

    def _take_in(self, fetched: FetchedPartition, position: Position) -> int:
        """Process the response for one partition and return the number of records to be taken."""
        if fetched.error is not ErrorCode.NONE:
            self._refused(fetched, position)
        elif fetched.diverges_at is not None:
            self._truncated(fetched, position)
        else:
            position.failures = 0
            self._positions.update_log(fetched)
            if len(fetched.data):
                return self._keep(fetched, position)
        return 0

    def _keep(self, fetched: FetchedPartition, position: Position) -> int:
        partition = fetched.partition
        constants = self._constants.setdefault(partition, Constants(partition))
        try:
            batches = FetchedBatches(fetched, check_crcs=self._settings.check_crcs, constants=constants)
        except KafkaError as error:
            self._failures.append(error)
            self._later(position)
            return 0
        self._positions.fetched(partition, batches.next_offset, batches.last_epoch)
        self._positions.had_its_turn(partition)
        self._ready.append(_Ready(batches, position.serial))
        return batches.rows

    def _refused(self, fetched: FetchedPartition, position: Position) -> None:
        if fetched.error in TRANSIENT:
            _LOG.info(
                "fetch of %s at offset %d failed, retrying: %s",
                fetched.partition,
                fetched.fetch_offset,
                fetched.error.name,
            )
            self._forget_leaders([fetched.partition])
        elif fetched.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
            self._failures.append(KafkaError(fetched.error, f"{fetched.partition} at offset {fetched.fetch_offset}"))
            self._later(position)
        elif self._is_ahead(position):
            position.failures = 0
            self._later(position)  # what was fetched before is valid; decide when it has been read
        else:
            self._reset(fetched, position, "does not exist (any more)")

    def _truncated(self, fetched: FetchedPartition, position: Position) -> None:
        """Handle a truncation (KIP-320): a new leader lacks records that the old one returned."""
        assert fetched.diverges_at is not None and position.offset is not None
        if position.offset <= fetched.diverges_at:
            # The application's position is still valid, but not what was fetched ahead.
            position.jump(position.offset, position.epoch)
        elif self._settings.reset.text == "none":
            self._reset(fetched, position, f"was truncated away, the log agrees up to {fetched.diverges_at}")
        else:
            _LOG.warning(
                "%s was truncated on the leader; resuming at offset %d", fetched.partition, fetched.diverges_at
            )
            position.jump(fetched.diverges_at)

    def _reset(self, fetched: FetchedPartition, position: Position, why: str) -> None:
        what = f"{fetched.partition}: offset {fetched.fetch_offset} {why}"
        if self._settings.reset.text == "none":
            self._failures.append(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{what}; auto.offset.reset is none"))
            self._later(position)
            return
        _LOG.warning("%s; resuming by auto.offset.reset=%s", what, self._settings.reset.text)
        position.jump(None, reset_to=self._settings.reset.timestamp(now_ms()))

    def _is_ahead(self, position: Position) -> bool:
        return position.offset is not None and position.fetch_offset > position.offset

    def _forget_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._cluster.forget_leader(partition)
            position = self._positions.get(partition)
            if position is not None:
                self._later(position)

    def _later(self, position: Position) -> None:
        position.failures += 1
        pause_s = self._settings.backoff.pause_s(position.failures)
        position.retry_at = self._loop.time() + pause_s
        self._loop.call_later(pause_s, self._wake)
