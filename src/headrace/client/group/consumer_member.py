"""A member of a consumer group (KIP-848): the coordinator assigns, and each member reconciles by itself.

One task sends heartbeats and receives target assignments. `poll`, in the application's task, revokes what is no longer
in the target, adds what is new, and lets the next heartbeat report it. Members do not wait for each other, except for a
partition that another has yet to give up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from enum import Enum

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition, Uuid, new_uuid, uuid_text
from headrace.client.group.consumer_heartbeat import (
    JOINING,
    LEAVING,
    LEAVING_TO_RETURN,
    REGEX_VERSION_MIN,
    Heartbeats,
    given,
)
from headrace.client.group.coordinator import GroupCoordinator
from headrace.client.group.membership import GroupMetadata, RebalanceListener, Subscription
from headrace.client.group.poll_timer import PollTimer
from headrace.client.group.settings import DEFAULT_OPERATION, LEAVE_GROUP, REMAIN_IN_GROUP, group_settings
from headrace.client.retry import Retry, RetryPolicy
from headrace.client.tasks import end_tasks
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import COORDINATOR_MOVED, COORDINATOR_TRANSIENT
from headrace.options.table import Value
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

UNNAMED_TOPIC_S = 1.0  # seconds until metadata is requested again for an unknown topic id
FENCED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})

logger = logging.getLogger(__name__)


class State(Enum):
    OUT = "out"  # `poll` starts joining
    JOINING = "joining"
    IN = "in"


class ConsumerMember:
    def __init__(self, cluster: Cluster, values: Mapping[str, Value], listener: RebalanceListener) -> None:
        self._settings = group_settings(values)
        self._cluster = cluster
        self._coordinator = GroupCoordinator(cluster, self._settings)
        self._listener = listener
        self._heartbeats = Heartbeats(self._settings)
        self._timer = PollTimer(self._settings.max_poll_interval_ms)
        self._subscription = Subscription()
        self._state = State.OUT
        self._member_id = uuid_text(new_uuid(random.SystemRandom()))
        self._epoch = JOINING
        self._last = GroupMetadata(self._settings.group_id, instance_id=self._settings.instance_id)
        self._owned: dict[TopicPartition, Uuid] = {}
        self._target: frozenset[tuple[Uuid, int]] = frozenset()
        self._named: dict[TopicPartition, Uuid] = {}  # the target, as far as topic names are known
        self._is_lost = False
        self._failure: KafkaError | None = None
        self._beat_now = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset() if self._is_lost else frozenset(self._owned)

    @property
    def group_metadata(self) -> GroupMetadata:
        return self._last

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._beat_now.set()

    # --- in the application's task

    @property
    def _is_settled(self) -> bool:
        return self._state is State.IN and not self._is_lost and self._failure is None and self._owned == self._named

    async def poll(self, timeout_s: float) -> bool:
        if self._is_settled:
            self._timer.polled()
            return True
        with self._timer.polling():
            return await self._settle(asyncio.get_running_loop().time() + timeout_s)

    async def _settle(self, deadline: float) -> bool:
        while not self._is_settled:
            self._changed.clear()
            if self._is_lost:
                await self._lose()
            elif self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            elif self._state is State.OUT:
                self._join()
            elif self._state is State.IN:
                await self._reconcile()
            elif self._owned:
                return False
            else:
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._changed.wait()
                except TimeoutError:
                    return False
        return True

    def _join(self) -> None:
        self._state, self._epoch = State.JOINING, JOINING
        self._beat_now.set()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_alive(), name="group heartbeats")

    async def _lose(self) -> None:
        lost, self._owned, self._is_lost = frozenset(self._owned), {}, False
        if lost:
            await self._listener.lost(lost)

    async def _reconcile(self) -> None:
        target = self._named
        gone = frozenset(one for one, topic_id in self._owned.items() if target.get(one) != topic_id)
        new = frozenset(one for one, topic_id in target.items() if self._owned.get(one) != topic_id)
        try:
            if gone:
                await self._revoke(gone)
                if self._is_lost or target is not self._named:
                    return
            self._owned = dict(target)
            await self._listener.assigned(new)
        finally:
            self._beat_now.set()  # another member may be waiting for what we gave up

    async def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        try:
            await self._listener.revoked(partitions)
        finally:
            self._owned = {one: topic_id for one, topic_id in self._owned.items() if one not in partitions}

    # --- in the background

    async def _keep_alive(self) -> None:
        retry = Retry(RetryPolicy(self._settings.backoff, exceptions=(HeadraceError,)))
        while True:
            if self._state is State.OUT:
                await self._beat_now.wait()
            self._beat_now.clear()
            if self._state is State.OUT:
                continue
            if self._timer.is_over:
                await self._drop_out()
                continue
            try:
                pause_s = await self._beat()
            except KafkaError as error:
                self._fail(error)
            except HeadraceError as error:
                logger.info("group %s: the heartbeat failed, retrying: %s", self._settings.group_id, error)
                self._heartbeats.forget()
                await retry.pause(error)
            else:
                retry.reset()
                await self._pause(min(pause_s, self._timer.left_s))

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._beat_now.wait()
        except TimeoutError:
            pass

    async def _beat(self) -> float:
        """Send a heartbeat and return the seconds until the next one.

        Raise KafkaError for errors that a retry does not fix, HeadraceError if the heartbeat should be retried.
        """
        response: ConsumerGroupHeartbeatResponse = await self._coordinator.request_by_version(
            ConsumerGroupHeartbeatRequest, self._request
        )
        code = ErrorCode(response.error_code)
        if code in FENCED:
            self._be_fenced(code)
            return 0.0
        if code in COORDINATOR_TRANSIENT:
            if code in COORDINATOR_MOVED:
                self._coordinator.forget()
            raise HeadraceError(code.name)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, response.error_message or f"group {self._settings.group_id}")
        await self._accept(response)
        return response.heartbeat_interval_ms / 1000 if len(self._target) == len(self._named) else UNNAMED_TOPIC_S

    def _request(self, version: int) -> ConsumerGroupHeartbeatRequest:
        if self._subscription.pattern is not None and version < REGEX_VERSION_MIN:
            what = "the brokers are too old to be given a pattern: name the topics, or use group.protocol=classic"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, what)
        member_id = "" if version < REGEX_VERSION_MIN and self._epoch == JOINING else self._member_id
        return self._heartbeats.next(member_id, self._epoch, self._subscription, self._owned)

    async def _accept(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self._member_id = response.member_id or self._member_id
        self._epoch = response.member_epoch
        self._last = GroupMetadata(self._settings.group_id, self._epoch, self._member_id, self._settings.instance_id)
        if response.assignment is not None:
            self._target = given(response.assignment.topic_partitions)
        await self._name_topics()
        self._state = State.IN
        self._notify()

    async def _name_topics(self) -> None:
        """Resolve the topic ids of the target to names, requesting metadata if necessary."""
        if any(self._cluster.topic_name(topic_id) is None for topic_id, _ in self._target):
            names = None if self._subscription.pattern is not None else sorted(self._subscription.topics)
            try:
                await self._cluster.refresh(names)
            except HeadraceError as error:
                logger.info("group %s: topics of the assignment are not known yet: %s", self._settings.group_id, error)
        named = {
            TopicPartition(name, partition): topic_id
            for topic_id, partition in self._target
            if (name := self._cluster.topic_name(topic_id)) is not None
        }
        if named != self._named:
            self._named = named

    def _notify(self) -> None:
        self._changed.set()
        if not self._is_settled:
            self._listener.wake()

    def _be_fenced(self, code: ErrorCode) -> None:
        """Mark the partitions as lost, and rejoin as soon as the application has been notified."""
        logger.info("group %s: fenced (%s), joining again", self._settings.group_id, code.name)
        self._go_out()
        if not self._is_lost:
            self._join()

    def _fail(self, error: KafkaError) -> None:
        self._failure = error
        self._go_out()

    def _go_out(self) -> None:
        self._state, self._epoch = State.OUT, JOINING
        self._target, self._named = frozenset(), {}
        self._is_lost = bool(self._owned)
        self._heartbeats.forget()
        self._notify()

    async def _drop_out(self) -> None:
        logger.warning(
            "group %s: no poll within max.poll.interval.ms (%d): the member leaves the group; poll more often or lower max.poll.records",
            self._settings.group_id,
            self._settings.max_poll_interval_ms,
        )
        epoch = LEAVING_TO_RETURN if self._settings.is_static else LEAVING
        self._go_out()
        await self._send_leave(epoch, self._settings.request_timeout_s)

    async def _send_leave(self, epoch: int, timeout_s: float) -> None:
        request = self._heartbeats.last(self._member_id, epoch)
        try:
            response: ConsumerGroupHeartbeatResponse = await self._coordinator.request(request, timeout_s=timeout_s)
        except HeadraceError as error:  # the session expires by itself
            logger.info(
                "group %s: the coordinator did not confirm that the member left; its session will expire: %s",
                self._settings.group_id,
                error,
            )
        else:
            if response.error_code not in (ErrorCode.NONE, *FENCED):
                code = ErrorCode(response.error_code)
                logger.info(
                    "group %s: the coordinator refused the request to leave; the session will expire: %s",
                    self._settings.group_id,
                    code.name,
                )

    # --- leaving

    async def leave(self, timeout_s: float, operation: str = DEFAULT_OPERATION) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            if self._is_lost:
                await self._lose()
            elif self._owned:
                await self._revoke(frozenset(self._owned))
        finally:
            was_known = self._state is not State.OUT
            await end_tasks([self._task] if self._task is not None else [])
            self._task, self._owned = None, {}
            self._go_out()
            epoch = self._last_epoch(operation)
            if was_known and epoch is not None:
                left_s = max(0.0, deadline - asyncio.get_running_loop().time())
                await self._send_leave(epoch, left_s)

    def _last_epoch(self, operation: str) -> int | None:
        """Return the epoch to leave with, or None to send nothing and let the session expire."""
        if self._settings.is_static and operation != LEAVE_GROUP:
            return LEAVING_TO_RETURN
        return None if operation == REMAIN_IN_GROUP else LEAVING
