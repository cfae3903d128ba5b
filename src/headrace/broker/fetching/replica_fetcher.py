"""Fetches the partitions that this broker follows from one other broker, in one task with one incremental fetch session.

An error of one partition delays only that partition. After a truncation the recovery point is on disk BEFORE the next append. With
`flush.messages` a partition is fetched again only when its records are on disk. As long as responses bring nothing but a few
records, they are appended and the next request is sent in the call that received the response: producers wait for that request.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.base.metrics import Counter, RecentRate
from headrace.base.promise import Promise
from headrace.broker.channels.broker_channel import UNREACHABLE, ExchangeChannel
from headrace.broker.fetching.followed import FetchOptions, Followed, FollowerIdentity
from headrace.broker.fetching.leader_responses import LeaderResponses
from headrace.client.consumer.fetching import known_code
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.replication.follower_session import FollowerSession, Key, Position, SessionRequest
from headrace.replication.group_commit import Synced
from headrace.replication.partition import Partition

log = logging.getLogger(__name__)

# What the task has to do: handle a response, send a request over a link that must be opened first, or wait until there is one to send.
Left = asyncio.Future[FetchResponse | SessionRequest | None]

SLICE_S = 0.004  # time for appends before other tasks get to run
INLINE_BYTES_MAX = 1 << 20  # records in a response that is handled in the call that receives it: less than a slice
PARTITION_COST_BYTES = 16 << 10  # bytes that can be appended in the time that an additional partition takes
# How long a leader may hold back a fetch while this broker syncs a partition that is not part of it: producers wait for the next fetch.
SYNCING_WAIT_MS = 10


class ReplicaFetcher:
    def __init__(
        self, source: int, number: int, identity: FollowerIdentity, channel: ExchangeChannel, options: FetchOptions
    ) -> None:
        self.source = source
        self._lane = f"fetcher-{number}"
        self._identity = identity
        self._channel = channel
        self._options = options
        self._leader_responses = LeaderResponses(source, self._lane, identity, channel)
        self._session = FollowerSession()
        self._followed: dict[Key, Followed] = {}
        self._requested: dict[Key, Followed] = {}  # those that the session is about
        self._touched: dict[Key, None] = {}  # partitions whose position may differ from the one that the leader knows
        self._held: dict[Key, Followed] = {}  # partitions that are delayed, or wait for metadata or for a sync
        self._changed = asyncio.Event()
        self._is_reachable = True
        self.responses = Counter()
        self.fetch_rate = RecentRate(self.responses, asyncio.get_running_loop().time)

    # --- which partitions

    def add(self, partition: Partition) -> None:
        """Fetch a partition from its current leader epoch on; an earlier epoch of it is replaced."""
        key = _key(partition)
        known = self._followed.get(key)
        if known is None or known.partition is not partition or not known.is_current:
            self._followed[key] = Followed(partition, self._options.backoff_ms)
            self._touch(key)

    def remove(self, partition: Partition) -> None:
        key = _key(partition)
        if self._followed.pop(key, None) is not None:
            self._held.pop(key, None)
            self._touch(key)

    def _touch(self, key: Key) -> None:
        self._touched[key] = None
        self._changed.set()

    def __len__(self) -> int:
        return len(self._followed)

    def followed(self) -> list[Followed]:
        return list(self._followed.values())

    # --- fetching

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            self._changed.clear()
            request = self._next_request()
            if request is not None:
                await self._fetch(request)
            else:
                await self._pause(self._next_due_s())

    def _next_request(self) -> SessionRequest | None:
        now_ms = self._identity.clock.now_ms()
        for key, one in self._held.items():
            if one.state.is_due(now_ms) and one.sync is None:
                self._touched[key] = None
        touched, self._touched = self._touched, {}
        if not self._session.is_new:
            return self._session.proceed(touched, partial(self._position_of, now_ms))
        self._requested = {}
        positions = {key: self._position_of(now_ms, key) for key in self._followed}
        return self._session.begin({key: position for key, position in positions.items() if position is not None})

    def _position_of(self, now_ms: int, key: Key) -> Position | None:
        """Return the position to request, or None if the partition is not to be fetched now."""
        one = self._followed.get(key)
        if one is None or not one.is_current:
            self._held.pop(key, None)
            self._requested.pop(key, None)
            return None
        if not (one.state.is_due(now_ms) and self._is_on_disk(key, one)):
            self._held[key] = one
            self._requested.pop(key, None)
            return None
        self._held.pop(key, None)
        self._requested[key] = one
        return one.position()

    def _is_on_disk(self, key: Key, one: Followed) -> bool:
        """Return whether the partition may be fetched again; otherwise fetch it when the sync is done."""
        sync = one.partition.unsynced()
        if sync is not None and sync is not one.sync:
            sync.add_done_callback(partial(self._synced, key, one))
        one.sync = sync
        return sync is None

    def _synced(self, key: Key, one: Followed, sync: Synced) -> None:
        if not sync.cancelled() and sync.result() is not None:
            one.state.delay(self._identity.clock.now_ms())
        if one.sync is sync:
            one.sync = None
        self._touch(key)

    def _next_due_s(self) -> float | None:
        now_ms = self._identity.clock.now_ms()
        waiting = [
            one.state.delayed_until_ms
            for one in self._held.values()
            if one.is_current and not one.state.is_waiting and one.sync is None
        ]
        return max(min(waiting) - now_ms, 1) / 1000 if waiting else None

    async def _pause(self, seconds: float | None) -> None:
        """Wait for a change of the partitions, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _fetch(self, session_request: SessionRequest) -> None:
        """Fetch, and go on fetching as long as responses need nothing but a few appends."""
        try:
            left = await self._exchange(session_request)
        except UNREACHABLE as error:
            self._session.failed()
            if self._is_reachable:  # logged once, not for each attempt
                self._is_reachable = False
                self._identity.on_lost(self.source)
                log.warning(
                    "broker %d does not answer fetches of %d partitions: %s; trying again",
                    self.source,
                    len(self._session),
                    error,
                )
            await asyncio.sleep(self._options.backoff_ms / 1000)
            return
        if not self._is_reachable:
            self._is_reachable = True
            log.info("broker %d answers fetches again", self.source)
        if left is None:
            return
        code = known_code(left.error_code)
        if code is not ErrorCode.NONE:
            log.info("broker %d ended the fetch session: %s; opening a new one", self.source, code.name)
            self._session.failed()
            await asyncio.sleep(0)
            return
        self.responses.value += 1
        self._session.succeeded(left.session_id)
        await self._handle(left)

    async def _exchange(self, session_request: SessionRequest) -> FetchResponse | None:
        """Return the first response that takes more than a call to handle; None if there is nothing to request now."""
        left: Left = asyncio.get_running_loop().create_future()
        left.add_done_callback(_observe)
        self._send(session_request, left)
        unsent = await left
        if not isinstance(unsent, SessionRequest):
            return unsent
        response: FetchResponse = await self._channel.request(self.source, self._request(unsent), lane=self._lane)
        return response

    def _send(self, request: SessionRequest, left: Left) -> None:
        """Send a request; leave it to the task if the link has to be opened first."""
        promise = self._channel.exchange(self.source, self._request(request), lane=self._lane)
        if promise is None:
            left.set_result(request)
        else:
            promise.add_done_callback(partial(self._received, left))

    def _received(self, left: Left, promise: Promise[FetchResponse]) -> None:
        """Append the records of a response and send the next request, in the call that received the response.

        The leader's producers wait for that request. What may take longer, or fails, is left to the task.
        """
        if left.done():
            return  # the task was cancelled
        try:
            response = promise.result()
            if not (self._is_reachable and _is_small(response)):
                left.set_result(response)
                return
            self.responses.value += 1
            self._session.succeeded(response.session_id)
            for topic in response.responses:
                for data in topic.partitions:
                    self._handle_data(topic.topic_id, data, [])
            request = self._next_request()
            if request is None:
                left.set_result(None)
            else:
                self._send(request, left)
        except Exception as error:
            left.set_exception(error)

    def _wait_ms(self) -> int:
        """Return how long the leader may wait for records: not longer than until another partition is due."""
        wait_ms = self._options.wait_ms
        if any(one.sync is not None for one in self._held.values()):
            wait_ms = min(wait_ms, SYNCING_WAIT_MS)
        due_s = self._next_due_s()
        return wait_ms if due_s is None else min(wait_ms, max(int(due_s * 1000), 1))

    def _request(self, session: SessionRequest) -> FetchRequest:
        options = self._options
        topics: dict[Uuid, FetchRequest.FetchTopic] = {}
        for (topic_id, index), position in session.changed.items():
            topic = topics.setdefault(topic_id, FetchRequest.FetchTopic(topic_id=topic_id, partitions=[]))
            topic.partitions.append(
                FetchRequest.FetchPartition(
                    partition=index,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start,
                    partition_max_bytes=options.partition_bytes_max,
                    high_watermark=position.high_watermark,
                )
            )
        forgotten: dict[Uuid, list[int]] = {}
        for topic_id, index in session.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=self._identity.node_id, replica_epoch=self._identity.broker_epoch()
            ),
            max_wait_ms=self._wait_ms(),
            min_bytes=options.bytes_min,
            max_bytes=options.response_bytes_max,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in forgotten.items()
            ],
        )

    # --- responses

    async def _handle(self, response: FetchResponse) -> None:
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + SLICE_S
        truncated = False
        outside: list[Followed] = []  # partitions whose fetch offset is outside the leader's log
        for topic in response.responses:
            for data in topic.partitions:
                truncated = self._handle_data(topic.topic_id, data, outside) or truncated
                if loop.time() > slice_end:
                    await asyncio.sleep(0)
                    slice_end = loop.time() + SLICE_S
        for one in outside:
            truncated = await self._leader_responses.find_range(one, self._is_followed) or truncated
        if truncated:
            await self._identity.checkpoint()

    def _is_followed(self, one: Followed) -> bool:
        return self._followed.get(_key(one.partition)) is one

    def _handle_data(self, topic_id: Uuid, data: FetchResponse.PartitionData, outside: list[Followed]) -> bool:
        """Apply one partition's part of a response if it is still followed, and return whether its log was truncated."""
        key = (topic_id, data.partition_index)
        self._touched[key] = None
        one = self._requested.get(key)
        # It may have been removed, or the leader may have changed, while the request was under way.
        if one is None or not one.is_current or not self._is_followed(one):
            return False
        try:
            return self._leader_responses.apply(one, data, outside)
        except KafkaError:  # the disk refuses, which the partition has logged
            one.state.delay(self._identity.clock.now_ms())
            return False


def _observe(left: Left) -> None:
    """Read the result, so that the failure of a fetch is not reported as never retrieved when the fetcher is stopped then."""
    if not left.cancelled():
        left.exception()


def _is_small(response: FetchResponse) -> bool:
    """Return whether the response has no errors and so few records that other tasks need not run in between."""
    size = 0
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code or data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0:
                return False
            size += len(data.records or b"") + PARTITION_COST_BYTES
    return not response.error_code and size <= INLINE_BYTES_MAX


def _key(partition: Partition) -> Key:
    return (partition.topic_id, partition.name.partition)
