"""Fetches the partitions that this broker follows from one other broker, in one task with one incremental fetch session.

An error of one partition delays only that partition. A log that diverges from its leader's is truncated, and the recovery point is
on disk BEFORE the next append. With `flush.messages` a partition is fetched again only when its records are on disk. A batch that is
corrupt is fetched once more; then its partition is reported as failed and fetched only now and then, because the leader's disk is
probably damaged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import Struct

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import NodeId, Uuid
from headrace.base.metrics import Counter, RecentRate
from headrace.broker.channels.broker_channel import UNREACHABLE, BrokerChannel
from headrace.client.consumer.fetching import known_code
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from headrace.replication.follower_session import FollowerSession, Key, Position, SessionRequest
from headrace.replication.follower_state import METADATA_DELAY_MS, FollowerState, Reaction, reaction_to
from headrace.replication.group_commit import Synced
from headrace.replication.partition import EARLIEST, LATEST, Partition
from headrace.storage.append import UnexpectedBatch
from headrace.storage.leader_epochs import EpochEnd

log = logging.getLogger(__name__)

SLICE_S = 0.004  # time for appends before other tasks get to run
# How long a leader may hold back a fetch while this broker syncs a partition that is not part of it: producers wait for the next fetch.
SYNCING_WAIT_MS = 10


class FetchOptions(Struct, frozen=True):
    """The options `replica.fetch.*`."""

    wait_ms: int = 500
    bytes_min: int = 1
    partition_bytes_max: int = 1 << 20
    response_bytes_max: int = 10 << 20
    backoff_ms: int = 1000


class FollowerIdentity(Struct, frozen=True):
    """The broker that fetches, and its services for fetchers."""

    node_id: NodeId
    broker_epoch: Callable[[], int]
    clock: Clock
    # Makes the recovery points durable, which a truncation has moved back.
    checkpoint: Callable[[], Awaitable[None]]
    # Called with the id of a broker that does not answer any more.
    on_lost: Callable[[int], None] = lambda node_id: None


class Followed:
    """One partition that is fetched, with the lag that the last response showed."""

    __slots__ = ("lag", "partition", "state", "sync")

    def __init__(self, partition: Partition, backoff_ms: int) -> None:
        self.partition = partition
        self.state = FollowerState(partition.leader_epoch, backoff_ms)
        self.lag = 0  # offsets up to the leader's high watermark
        self.sync: Synced | None = None  # what the next fetch waits for

    @property
    def is_current(self) -> bool:
        """Return whether the partition still follows in the leader epoch for which it was added."""
        return self.partition.is_follower and self.partition.leader_epoch == self.state.leader_epoch

    def position(self) -> Position:
        log = self.partition.log
        return Position(
            self.state.leader_epoch, log.log_end, log.epochs.latest, log.log_start, self.partition.high_watermark
        )


class ReplicaFetcher:
    def __init__(
        self, source: int, number: int, identity: FollowerIdentity, channel: BrokerChannel, options: FetchOptions
    ) -> None:
        self.source = source
        self._lane = f"fetcher-{number}"
        self._identity = identity
        self._channel = channel
        self._options = options
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
        request = self._request(session_request, self._wait_ms())
        try:
            response: FetchResponse = await self._channel.request(self.source, request, lane=self._lane)
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
        code = known_code(response.error_code)
        if code is not ErrorCode.NONE:
            log.info("broker %d ended the fetch session: %s; opening a new one", self.source, code.name)
            self._session.failed()
            await asyncio.sleep(0)
            return
        self.responses.value += 1
        self._session.succeeded(response.session_id)
        await self._handle(response)

    def _wait_ms(self) -> int:
        """Return how long the leader may wait for records: not longer than until another partition is due."""
        wait_ms = self._options.wait_ms
        if any(one.sync is not None for one in self._held.values()):
            wait_ms = min(wait_ms, SYNCING_WAIT_MS)
        due_s = self._next_due_s()
        return wait_ms if due_s is None else min(wait_ms, max(int(due_s * 1000), 1))

    def _request(self, session: SessionRequest, wait_ms: int) -> FetchRequest:
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
            max_wait_ms=wait_ms,
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
                key = (topic.topic_id, data.partition_index)
                self._touched[key] = None
                one = self._requested.get(key)
                # It may have been removed, or the leader may have changed, while the request was under way.
                if one is None or self._followed.get(key) is not one or not one.is_current:
                    continue
                try:
                    truncated = self._handle_partition(one, data, outside) or truncated
                except KafkaError:  # the disk refuses, which the partition has logged
                    one.state.delay(self._identity.clock.now_ms())
                if loop.time() > slice_end:
                    await asyncio.sleep(0)
                    slice_end = loop.time() + SLICE_S
        for one in outside:
            truncated = await self._find_range(one) or truncated
        if truncated:
            await self._identity.checkpoint()

    def _handle_partition(self, one: Followed, data: FetchResponse.PartitionData, outside: list[Followed]) -> bool:
        """Apply the leader's response, and return whether the log was truncated."""
        partition, state, now_ms = one.partition, one.state, self._identity.clock.now_ms()
        code = known_code(data.error_code)
        if code is not ErrorCode.NONE:
            self._react(one, code, outside, now_ms)
            return False
        if data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0:
            return self._truncate(one, EpochEnd(data.diverging_epoch.epoch, max(data.diverging_epoch.end_offset, 0)))
        records = data.records
        if records is not None and len(records):
            try:
                assert isinstance(records, bytes | memoryview), "a decoded response has bytes"
                partition.traffic.replication_bytes_in += partition.append_as_follower(records, now_ms)
            except (CorruptData, UnexpectedBatch) as error:
                self._corrupt(one, str(error), now_ms)
                return False
        state.succeeded()
        one.lag = max(data.high_watermark - partition.log.log_end, 0)
        partition.learn_offsets(data.high_watermark, data.log_start_offset, now_ms)
        return False

    def _truncate(self, one: Followed, leader: EpochEnd) -> bool:
        partition, end = one.partition, one.partition.log.log_end
        truncated = partition.truncate_after_divergence(leader, self._identity.clock.now_ms())
        if truncated:
            log.info(
                "%s diverged from its leader %d in epoch %d and was truncated from offset %d to %d",
                partition.name,
                self.source,
                leader.epoch,
                end,
                partition.log.log_end,
            )
        return truncated

    def _react(self, one: Followed, code: ErrorCode, outside: list[Followed], now_ms: int) -> None:
        match reaction_to(code):
            case Reaction.FIND_RANGE:
                outside.append(one)
            case Reaction.AWAIT_METADATA:
                one.state.await_metadata()
            case Reaction.COUNT_CORRUPTION:
                self._corrupt(one, "its leader cannot read it", now_ms)
            case Reaction.RETRY_SOON:
                one.state.delay(now_ms, METADATA_DELAY_MS)
            case Reaction.DELAY:
                one.state.delay(now_ms)

    def _corrupt(self, one: Followed, why: str, now_ms: int) -> None:
        if one.state.corrupt(now_ms):
            log.error(
                "%s cannot be replicated from offset %d on: %s; check the disk of its leader, broker %d",
                one.partition.name,
                one.partition.log.log_end,
                why,
                self.source,
            )

    # --- a fetch offset outside the leader's log

    async def _find_range(self, one: Followed) -> bool:
        """Continue within the leader's log, and return whether this one was truncated."""
        partition = one.partition
        try:
            end = await self._list_offset(one, LATEST)
            start = await self._list_offset(one, EARLIEST)
            if not one.is_current or self._followed.get(_key(partition)) is not one:
                return False
            was = partition.log.log_end
            truncated = partition.restart_in_range(start, end, self._identity.clock.now_ms())
        except HeadraceError as error:
            log.info("the offsets of %s on broker %d are not known: %s", partition.name, self.source, error)
            one.state.delay(self._identity.clock.now_ms())
            return False
        log.warning(
            "%s ends at %d, outside its leader's offsets %d to %d; continuing at %d",
            partition.name,
            was,
            start,
            end,
            partition.log.log_end,
        )
        return truncated

    async def _list_offset(self, one: Followed, timestamp: int) -> int:
        topic, index = one.partition.name
        request = ListOffsetsRequest(
            replica_id=self._identity.node_id,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=index, current_leader_epoch=one.state.leader_epoch, timestamp=timestamp
                        )
                    ],
                )
            ],
        )
        response: ListOffsetsResponse = await self._channel.request(self.source, request, lane=self._lane)
        for result in response.topics:
            for found in result.partitions:
                code = known_code(found.error_code)
                if code is not ErrorCode.NONE or found.offset < 0:
                    raise KafkaError(code, f"offset {found.offset}")
                return found.offset
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the response is empty")


def _key(partition: Partition) -> Key:
    return (partition.topic_id, partition.name.partition)
