"""A consumer's part in its group: membership, commits, and positions as partitions are assigned and revoked."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.metrics import ConsumerSensors
from headrace.client.consumer.options import ConsumerSettings
from headrace.client.consumer.positions import Positions
from headrace.client.group.classic_member import ClassicMember
from headrace.client.group.commits import Commits
from headrace.client.group.consumer_member import ConsumerMember
from headrace.client.group.membership import CommittedOffset, GroupMetadata, Member, Subscription
from headrace.client.group.settings import CONSUMER, group_settings
from headrace.client.tasks import end_tasks
from headrace.client.wire.cluster import Cluster
from headrace.options.table import Value

_LOG = logging.getLogger("headrace.client")

Callback = Callable[[frozenset[TopicPartition]], Awaitable[object] | object]


class Callbacks(NamedTuple):
    """The application's callbacks; each may be a coroutine function.

    Without `on_lost`, `on_revoked` is called for lost partitions too, as in Kafka.
    """

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


class GroupReading:
    def __init__(
        self,
        cluster: Cluster,
        values: Mapping[str, Value],
        settings: ConsumerSettings,
        positions: Positions,
        sensors: ConsumerSensors,
        wake: Callable[[], None],
    ) -> None:
        assert settings.group_id is not None
        self._cluster = cluster
        self._values = values
        self._settings = settings
        self._positions = positions
        self._sensors = sensors
        self._loop = asyncio.get_running_loop()
        self._commits = Commits(cluster, values)
        self._in_order = asyncio.Lock()  # keeps commits in order: an older one must not follow a newer one
        self._member: Member | None = None
        self._callbacks = Callbacks()
        self._auto: asyncio.Task[None] | None = None
        self._auto_at = self._loop.time() + (settings.auto_commit_s or 0.0)
        self.wake = wake

    @property
    def metadata(self) -> GroupMetadata:
        assert self._settings.group_id is not None
        return GroupMetadata(self._settings.group_id) if self._member is None else self._member.group_metadata

    def subscribe(self, subscription: Subscription, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        if self._member is None:
            is_modern = group_settings(self._values).protocol == CONSUMER
            self._member = (ConsumerMember if is_modern else ClassicMember)(self._cluster, self._values, self)
        self._member.subscribe(subscription)

    async def poll(self, timeout_s: float) -> None:
        """Join and hand over partitions if that is due; commit if the interval has passed."""
        self._auto_commit()
        if self._member is not None:
            await self._member.poll(timeout_s)

    async def leave(self, timeout_s: float) -> None:
        """Leave the group, if a member; `revoked` commits what was read if automatic commits are on."""
        if self._member is not None:
            await self._member.leave(timeout_s)
            self._member = None

    async def close(self, timeout_s: float) -> None:
        if self._auto is not None:
            await end_tasks([self._auto])
        if self._member is None:
            await self._commit_before(timeout_s)
        await self.leave(timeout_s)

    # --- commits

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], timeout_s: float) -> None:
        if not offsets:
            return
        begun = self._loop.time()
        async with self._in_order:
            await self._commits.commit(offsets, self.metadata, timeout_s, lambda: self.metadata)
        self._sensors.commits.record()
        self._sensors.commit_latency.record((self._loop.time() - begun) * 1000)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset]:
        return await self._commits.committed(partitions, self.metadata, timeout_s, lambda: self.metadata)

    def _auto_commit(self) -> None:
        """Start a commit of what earlier polls returned, if it is time.

        Only one runs at a time: the next one commits all that this one does, and more.
        """
        every_s = self._settings.auto_commit_s
        if every_s is None or self._auto is not None or self._loop.time() < self._auto_at:
            return
        self._auto_at = self._loop.time() + every_s
        offsets = self._positions.to_commit()
        if offsets:
            self._auto = self._loop.create_task(self._commit_in_background(offsets))

    async def _commit_in_background(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        try:
            await self.commit(offsets, self._settings.api_timeout_s)
        except HeadraceError as error:
            _LOG.warning("the positions could not be committed: %s", error)
        finally:
            self._auto = None

    async def _commit_before(self, timeout_s: float) -> None:
        """Commit before partitions are given up. If that fails, their next owner reads the records again."""
        if self._settings.auto_commit_s is None:
            return
        if self._auto is not None:
            await asyncio.wait([self._auto], timeout=timeout_s)
        try:
            await self.commit(self._positions.to_commit(), timeout_s)
        except HeadraceError as error:
            _LOG.warning("the positions could not be committed: %s", error)

    # --- RebalanceListener

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            await self._commit_before(self._settings.api_timeout_s)
        try:
            await self._call(self._callbacks.on_revoked, partitions)
        finally:  # even if the callback raises, they are no longer ours
            self._positions.remove(partitions)

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        try:
            await self._call(self._callbacks.on_lost or self._callbacks.on_revoked, partitions)
        finally:
            self._positions.remove(partitions)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._sensors.rebalances.record()
        self._positions.add(sorted(partitions))
        await self._call(self._callbacks.on_assigned, partitions)

    async def _call(self, callback: Callback | None, partitions: frozenset[TopicPartition]) -> None:
        if callback is not None:
            result = callback(partitions)
            if inspect.isawaitable(result):
                await result
