"""A member of a classic group: rebalances inside `poll`, and sends heartbeats in a background task.

Eager: everything is revoked, then the group joins, then everything is assigned. Cooperative (KIP-429): the group joins
while partitions are still being read; those that move are revoked at the end, and a second rebalance assigns them to
their new members.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.group.assignors import assignors_named, is_cooperative
from headrace.client.group.classic_session import EVICTED, ClassicSession, Evicted, Phase
from headrace.client.group.coordinator import GroupCoordinator
from headrace.client.group.membership import NO_GENERATION, GroupMetadata, RebalanceListener, Subscription
from headrace.client.group.poll_timer import PollTimer
from headrace.client.group.settings import DEFAULT_OPERATION, LEAVE_GROUP, group_settings
from headrace.client.group.subscribed_topics import SubscribedTopics
from headrace.client.tasks import end_tasks
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import COORDINATOR_TRANSIENT
from headrace.options.table import Value

NOTHING: frozenset[TopicPartition] = frozenset()

logger = logging.getLogger(__name__)


class ClassicMember:
    def __init__(self, cluster: Cluster, values: Mapping[str, Value], listener: RebalanceListener) -> None:
        self._settings = group_settings(values)
        assignors = assignors_named(self._settings.strategy)
        self._is_cooperative = is_cooperative(assignors)
        self._listener = listener
        self._topics = SubscribedTopics(cluster, self._settings, self._want_rejoin)
        coordinator = GroupCoordinator(cluster, self._settings)
        self._session = ClassicSession(coordinator, self._settings, assignors, self._topics)
        self._timer = PollTimer(self._settings.max_poll_interval_ms)
        self._assignment = self._held = NOTHING
        self._rejoin: str | None = None  # reason for joining again; None: not needed
        self._is_lost = False  # the assignment is lost, but the listener has not been notified yet
        self._failure: KafkaError | None = None
        self._joining: asyncio.Task[frozenset[TopicPartition]] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return NOTHING if self._is_lost else self._assignment

    @property
    def group_metadata(self) -> GroupMetadata:
        return self._session.last

    def subscribe(self, subscription: Subscription) -> None:
        self._topics.subscribe(subscription)
        self._want_rejoin("the subscription changed")

    def _want_rejoin(self, reason: str) -> None:
        if self._rejoin is None:
            self._rejoin = reason
            self._listener.wake()

    @property
    def _is_settled(self) -> bool:
        return (
            self._rejoin is None
            and self._joining is None
            and not self._is_lost
            and self._failure is None
            and self._session.phase is Phase.IN
        )

    async def poll(self, timeout_s: float) -> bool:
        if self._is_settled:
            self._timer.polled()
            return True
        with self._timer.polling():
            self._start_tasks()
            return await self._settle(asyncio.get_running_loop().time() + timeout_s)

    async def _settle(self, deadline: float) -> bool:
        while not self._is_settled:
            if self._is_lost:
                await self._lose()
            if self._failure is not None:
                failure = self._failure
                if failure.code is not ErrorCode.FENCED_INSTANCE_ID:  # otherwise another member has our instance id now
                    self._failure = None
                raise failure
            if self._joining is None:
                await self._prepare()
                self._start_joining()
            assert self._joining is not None
            left_s = 0.0 if self._assignment else max(0.0, deadline - asyncio.get_running_loop().time())
            done, _ = await asyncio.wait([self._joining], timeout=left_s)
            if not done:
                return False
            await self._complete()
        return True

    # --- rebalancing

    async def _prepare(self) -> None:
        """Revoke what has to be given up before the group joins."""
        if self._session.generation == NO_GENERATION:
            return  # the first join, or everything was lost
        if not self._is_cooperative:
            await self._revoke(self._assignment)
        elif unwanted := frozenset(one for one in self._assignment if not self._topics.wants(one.topic)):
            await self._revoke(unwanted)

    async def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        try:
            await self._listener.revoked(partitions)
        finally:
            self._assignment -= partitions

    async def _lose(self) -> None:
        lost, self._assignment, self._is_lost = self._assignment, NOTHING, False
        if lost:
            await self._listener.lost(lost)

    def _start_joining(self) -> None:
        reason, self._rejoin = self._rejoin or "rejoining", None
        self._joining = asyncio.create_task(self._session.join(self._assignment, self._held, reason), name="group join")
        self._joining.add_done_callback(lambda _: self._listener.wake())

    async def _complete(self) -> None:
        assert self._joining is not None
        joining, self._joining = self._joining, None
        try:
            assigned = joining.result()
        except Evicted as error:
            self._want_rejoin(f"the coordinator returned {error}")
            self._is_lost = bool(self._assignment)
            return
        except BaseException as error:
            self._want_rejoin("the last try failed")
            if isinstance(error, KafkaError) and error.code is ErrorCode.FENCED_INSTANCE_ID:
                self._give_up(error)
            raise
        if not all(self._topics.wants(partition.topic) for partition in assigned):
            self._want_rejoin("the assignment is for another subscription")
            return
        self._held = assigned
        gone, new = self._assignment - assigned, assigned - self._assignment
        if gone:
            self._want_rejoin("partitions were given up for others to take")  # BEFORE the callback, which may raise
            await self._revoke(gone)
        self._assignment = assigned
        await self._listener.assigned(new)

    def _give_up(self, error: KafkaError) -> None:
        self._session.reset(keep_member_id=True)
        self._failure = error
        self._is_lost = bool(self._assignment)
        self._listener.wake()

    # --- heartbeats

    def _start_tasks(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._keep_alive(), name="group heartbeats"),
                asyncio.create_task(self._topics.watch(), name="group topics"),
            ]

    async def _keep_alive(self) -> None:
        failures = 0
        while True:
            pause_s = self._settings.backoff.pause_s(failures) if failures else self._settings.heartbeat_interval_s
            if self._session.may_beat:
                pause_s = min(pause_s, self._timer.left_s)
            await asyncio.sleep(pause_s)
            if self._session.phase is not Phase.OUT and self._timer.is_over:
                failures = 0
                await self._drop_out()
            elif self._session.may_beat:
                failures = 0 if await self._beat() else failures + 1
            else:
                failures = 0

    async def _beat(self) -> bool:
        """Send a heartbeat; return False if it should be retried soon."""
        generation = self._session.generation
        try:
            code = await self._session.beat()
        except KafkaError as error:
            code = error.code
        except HeadraceError as error:
            logger.debug("group %s: the heartbeat failed, retrying: %s", self._settings.group_id, error)
            return False
        if code in COORDINATOR_TRANSIENT:
            return False
        if code is ErrorCode.NONE or generation != self._session.generation or self._session.phase is not Phase.IN:
            return True
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._want_rejoin("the group is rebalancing")
        elif code in EVICTED:
            self._session.reset(keep_member_id=code is ErrorCode.ILLEGAL_GENERATION)
            self._is_lost = bool(self._assignment)
            self._want_rejoin(f"the coordinator returned {code.name}")
        else:
            self._give_up(KafkaError(code, f"heartbeat in group {self._settings.group_id}"))
        return True

    async def _drop_out(self) -> None:
        limit_ms = self._settings.max_poll_interval_ms
        logger.warning(
            "group %s: no poll within max.poll.interval.ms (%d): the member leaves the group; poll more often or lower max.poll.records",
            self._settings.group_id,
            limit_ms,
        )
        self._is_lost = bool(self._assignment)
        self._want_rejoin("the application polls again")
        await self._stop_joining()
        if self._settings.is_static:
            self._session.reset()
        else:
            await self._send_leave("consumer poll timeout has expired", self._settings.request_timeout_s)

    async def _stop_joining(self) -> None:
        joining, self._joining = self._joining, None
        if joining is not None:
            await end_tasks([joining])

    async def _send_leave(self, reason: str, timeout_s: float) -> None:
        try:
            await self._session.leave(reason, timeout_s)
        except HeadraceError as error:  # the session expires by itself
            logger.info(
                "group %s: the coordinator did not confirm that the member left; its session will expire: %s",
                self._settings.group_id,
                error,
            )

    # --- leaving

    async def leave(self, timeout_s: float, operation: str = DEFAULT_OPERATION) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self._stop_joining()
        try:
            if self._is_lost:
                await self._lose()
            elif self._assignment:
                await self._revoke(self._assignment)
        finally:
            await end_tasks(self._tasks)
            self._tasks, self._is_lost, self._assignment = [], False, NOTHING
            if operation == LEAVE_GROUP or (operation == DEFAULT_OPERATION and not self._settings.is_static):
                left_s = max(0.0, deadline - asyncio.get_running_loop().time())
                await self._send_leave("the consumer is being closed", left_s)
            self._session.reset()
            self._topics.not_leading()
