"""Looks up where to start reading, in the background: the committed offset, else as auto.offset.reset says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping

from headrace.base.errors import RETRIABLE, ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.fetching import TRANSIENT
from headrace.client.consumer.list_offsets import LATEST, NO_OFFSET, ListedOffset, list_offsets
from headrace.client.consumer.options import ConsumerSettings
from headrace.client.consumer.positions import Positions
from headrace.client.group.membership import CommittedOffset
from headrace.client.retry import RetryPolicy
from headrace.client.tasks import end_tasks
from headrace.client.wire.cluster import Cluster

_LOG = logging.getLogger("headrace.client")
# The coordinator no longer knows the member, or its epoch. The next heartbeat finds that out, and the member joins again with another
# assignment; until then the application has nothing to decide.
_FENCED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH})
_POLICY = RetryPolicy(codes=TRANSIENT | RETRIABLE | _FENCED)

Committed = Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, CommittedOffset]]]


class NoOffset(KafkaError):
    """There is no position to start from: nothing is committed, and auto.offset.reset is none."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition}: nothing is committed, and auto.offset.reset is none"
        )


def now_ms() -> int:
    return int(time.time() * 1000)


class PositionLookup:
    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        settings: ConsumerSettings,
        committed: Committed | None,
        fail: Callable[[Exception], None],
        wake: Callable[[], None],
    ) -> None:
        """Create the lookup, which does nothing before `start`.

        `committed` is None without a group, `fail` is called with errors for the application, and `wake` when a lookup
        has ended or is due again.
        """
        self._cluster = cluster
        self._positions = positions
        self._settings = settings
        self._committed = committed
        self._fail = fail
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a lookup if one is due and none is running."""
        now = self._loop.time()
        if self._task is None and (self._positions.unknown(now) or self._positions.resets(now)):
            self._task = self._loop.create_task(self._look_up())

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])

    async def _look_up(self) -> None:
        try:
            await self._find_committed(self._positions.unknown(self._loop.time()))
            await self._find_by_time(self._positions.resets(self._loop.time()))
        finally:
            self._task = None
            self._wake()

    async def _find_committed(self, partitions: list[TopicPartition]) -> None:
        before = self._serials(partitions)
        found: Mapping[TopicPartition, CommittedOffset] = {}
        if partitions and self._committed is not None:
            try:
                found = await self._committed(partitions)
            except HeadraceError as error:
                self._failed(before, error)
                return
        for partition in self._unmoved(before):
            position = self._positions.of(partition)
            reset_to = self._settings.reset.timestamp(now_ms())
            if partition in found:
                position.jump(found[partition].offset, found[partition].leader_epoch)
            elif reset_to is not None:
                position.jump(None, reset_to=reset_to)
            else:
                self._later([partition])
                self._fail(NoOffset(partition))

    async def _find_by_time(self, times: dict[TopicPartition, int]) -> None:
        """Look up topic by topic, so that a missing topic does not block the others."""
        by_topic: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, timestamp in times.items():
            by_topic[partition.topic][partition] = timestamp
        await asyncio.gather(*map(self._find_in_topic, by_topic.values()))

    async def _find_in_topic(self, times: dict[TopicPartition, int]) -> None:
        before = self._serials(times)
        try:
            found = await list_offsets(self._cluster, times, isolation=self._settings.fetch.isolation)
        except HeadraceError as error:
            self._failed(before, error)
            return
        for partition in self._unmoved(before):
            self._settle(partition, found[partition])

    def _settle(self, partition: TopicPartition, listed: ListedOffset) -> None:
        position = self._positions.of(partition)
        if listed.offset == NO_OFFSET:
            position.jump(None, reset_to=LATEST)  # no record is that recent: start at the end
        else:
            position.jump(listed.offset)
            _LOG.info("%s starts at offset %d", partition, listed.offset)

    def _serials(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._positions.of(partition).serial for partition in partitions}

    def _unmoved(self, before: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions that have neither moved nor been unassigned meanwhile."""
        return [
            partition
            for partition, serial in before.items()
            if (position := self._positions.get(partition)) is not None and position.serial == serial
        ]

    def _failed(self, before: Mapping[TopicPartition, int], error: HeadraceError) -> None:
        if _POLICY.is_retriable(error):
            _LOG.info("looking up positions failed, retrying: %s", error)
        else:
            self._fail(error)
        self._later(self._unmoved(before))

    def _later(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            position = self._positions.of(partition)
            position.failures += 1
            pause_s = self._settings.backoff.pause_s(position.failures)
            position.retry_at = self._loop.time() + pause_s
            self._loop.call_later(pause_s, self._wake)
