"""Fetch 4–18: sessions (v7), leader epochs (v9, v12), topic ids (v13), long poll.

The session plans which partitions to read. An attempt reads them in order until max_bytes is used up; the first that has records
returns at least one batch (KIP-74). If that is too little, the request is parked on its partitions until another attempt finds
min_bytes or an error, or until max_wait_ms is over. Then the records are read, from the page cache or in a thread, and sent.

A follower reads up to the log end, and what it requests tells its leader how far it is. It is answered at once when records are
appended, or when the high watermark or the log start moves past what it knows. A consumer may read from a follower, too; a leader
with a replica selector sends it to one in its rack (KIP-392).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.api.data.leader_hints import endpoints_of
from headrace.api.permissions import on_topics
from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.broker.fetch_sessions import FetchPlan, FetchSessions, Key, SessionPartition
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.replication.partition import FollowerFetch, Partition, ReadPlan
from headrace.replication.replicas import Replicas
from headrace.replication.traffic import TopicTraffic
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.storage.file_range import FileRange

READ_COMMITTED = 1
MAX_WAIT_MS_MAX = 600_000  # longer waits are shortened to this
Data = FetchResponse.PartitionData
_EMPTY = b""
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # in their order in the response
_UNREAD = (*_UNKNOWN, ErrorCode.TOPIC_AUTHORIZATION_FAILED)  # errors from before the log is read
_LEADER_HINTS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
FOLLOWER_READ_VERSION_MIN = 11  # consumers of earlier versions read from the leader only
LEADER_HINT_VERSION_MIN = 16


class FetchApi:
    def __init__(
        self,
        replicas: Replicas,
        sessions: FetchSessions,
        image: Callable[[], Image],
        loop: asyncio.AbstractEventLoop,
        fetch_max_bytes: int,
        clock: Clock,
        selects_by_rack: bool = False,
    ) -> None:
        """Serve the replicas; with `selects_by_rack`, send consumers to an in-sync follower in their rack."""
        self.replicas = replicas
        self.image = image
        self.loop = loop
        self.clock = clock
        self.selects_by_rack = selects_by_rack
        self._sessions = sessions
        self._fetch_max_bytes = fetch_max_bytes

    def services(self) -> list[Service]:
        return [Service(ApiKey.FETCH, (4, 18), self.handle, on_topics(Operation.READ))]

    def handle(self, context: RequestContext, request: FetchRequest) -> FetchResponse | asyncio.Future[FetchResponse]:
        try:
            plan = self._sessions.plan(request, context.api_version, self.loop.time())
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        fetch = _Fetch(self, plan, request, context, min(max(request.max_bytes, 0), self._fetch_max_bytes))
        if fetch.attempt() or request.max_wait_ms <= 0 or not plan.partitions:
            return fetch.respond()
        return fetch.park(min(request.max_wait_ms, MAX_WAIT_MS_MAX) / 1000)


class _Fetch:
    """One request in progress: `attempt`, then `respond`, or `park` until a later attempt succeeds."""

    __slots__ = (
        "_api", "_bytes_max", "_context", "_future", "_hinted", "_image", "_is_recorded", "_is_responding", "_loop", "_plan",
        "_ranges", "_replica", "_replicas", "_request", "_results", "_timer", "_watched",
    )  # fmt: skip

    def __init__(
        self, api: FetchApi, plan: FetchPlan, request: FetchRequest, context: RequestContext, bytes_max: int
    ) -> None:
        self._api = api
        self._replicas = api.replicas
        self._image = api.image
        self._loop = api.loop
        self._plan = plan
        self._request = request
        self._context = context
        self._bytes_max = bytes_max
        self._replica = max(request.replica_id, request.replica_state.replica_id)  # negative for a consumer
        self._is_recorded = False  # whether the leader has recorded the follower's offsets
        self._hinted: set[int] = set()  # leaders that the response names
        self._results: dict[Key, Data] = {}
        self._ranges: list[tuple[Data, FileRange, TopicTraffic]] = []  # records to read for the response
        self._watched: list[Partition] = []
        self._future: asyncio.Future[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_responding = False  # a parked request has what it waited for, but a thread may still read the records

    # --- attempt

    def attempt(self) -> bool:
        """Find the records of all partitions and return whether there is enough to respond. No record is read yet."""
        self._results, self._ranges = {}, []
        left, total, must_respond, min_one = self._bytes_max, 0, False, True
        unknown: dict[Key, Data] = {}
        for key, requested in self._plan.partitions.items():
            try:
                partition = self._partition(key)
                traffic = partition.traffic
                traffic.fetches += 1
                data, found, is_news = self._plan_read(partition, requested, left, min_one)
                must_respond = must_respond or is_news
            except KafkaError as error:
                data, found = self._failed(key, requested, error), None
                if error.code in _UNKNOWN:
                    unknown[key] = data
                    continue
                must_respond = True
            except (OSError, CorruptData) as error:
                traffic.failed_fetches += 1
                data, found = self._failed(key, requested, self._unreadable_log(partition, error)), None
                must_respond = True
            self._results[key] = data
            if found is not None:
                self._ranges.append((data, found, traffic))
                total += found.size
                left = max(0, left - found.size)
                min_one = False
        self._is_recorded = True
        # Unknown partitions come last and do not end the wait: a consumer of a deleted topic would fetch in a tight loop.
        must_respond = must_respond or not self._results
        for code in _UNKNOWN:
            self._results |= {key: data for key, data in unknown.items() if data.error_code == code}
        return must_respond or total >= self._request.min_bytes

    def _partition(self, key: Key) -> Partition:
        """Return a partition that the client may read. Raise KafkaError if it may not, or if this node has none."""
        topic = self._topic_name(key)
        if not self._context.peer.authority.unrestricted:
            self._check_permission(topic)
        return self._replicas.get(topic, key[1])

    def _topic_name(self, key: Key) -> str:
        name, _ = key
        if isinstance(name, str):
            return name
        topic = self._image().topic_by_id(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic.name

    def _check_permission(self, topic: str) -> None:
        if self._replica >= 0:
            permitted = self._context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        else:
            permitted = self._context.may(Operation.READ, Resource.TOPIC, topic)
        if not permitted:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _plan_read(
        self, partition: Partition, requested: SessionPartition, left: int, min_one: bool
    ) -> tuple[Data, FileRange | None, bool]:
        """Return the response without its records, where they are, and whether the response must not wait."""
        fetch = requested.fetch
        bytes_max = min(max(fetch.partition_max_bytes, 0), left)
        if self._replica >= 0:
            return self._plan_replica_read(partition, fetch, bytes_max, min_one)
        if self._context.api_version >= FOLLOWER_READ_VERSION_MIN:
            partition.check_readable(fetch.current_leader_epoch)
        else:
            partition.check_leader(fetch.current_leader_epoch)
        committed_only = self._request.isolation_level == READ_COMMITTED
        plan = partition.plan_read(
            fetch.fetch_offset,
            bytes_max,
            committed_only=committed_only,
            last_fetched_epoch=fetch.last_fetched_epoch,
            min_one=min_one,
        )
        data = _data(fetch, plan)
        data.aborted_transactions = [] if committed_only and not plan.incomplete and plan.diverging is None else None
        if plan.diverging is not None:
            return data, None, True
        if self._api.selects_by_rack and partition.followers is not None:
            preferred = self._preferred_replica(partition, fetch.fetch_offset)
            if preferred is not None:
                data.preferred_read_replica = preferred
                return data, None, True
        if committed_only and plan.range is not None:
            data.aborted_transactions = [
                FetchResponse.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in partition.log.aborted_transactions(
                    fetch.fetch_offset, plan.last_stable_offset, plan.range
                )
            ]
        return data, plan.range, False

    def _plan_replica_read(
        self, partition: Partition, fetch: FetchRequest.FetchPartition, bytes_max: int, min_one: bool
    ) -> tuple[Data, FileRange | None, bool]:
        partition.check_leader(fetch.current_leader_epoch)
        progress = FollowerFetch(
            self._replica,
            self._request.replica_state.replica_epoch,
            fetch.fetch_offset,
            fetch.log_start_offset,
            fetch.last_fetched_epoch,
        )
        plan = partition.plan_replica_read(progress, bytes_max, min_one=min_one)
        if plan.diverging is None and not self._is_recorded:
            # Recorded once: when a parked fetch is answered, the follower is where it was when it sent the request.
            partition.record_fetch(progress, self._api.clock.now_ms())
            plan = plan._replace(high_watermark=partition.high_watermark)
        if plan.range is not None and partition.followers is not None:
            partition.followers.sent(self._replica, fetch.fetch_offset)
        data = _data(fetch, plan)
        data.aborted_transactions = None
        is_news = plan.high_watermark > fetch.high_watermark or plan.log_start > fetch.log_start_offset
        return data, plan.range, is_news or plan.diverging is not None

    def _preferred_replica(self, partition: Partition, offset: int) -> int | None:
        """Return the in-sync follower in the consumer's rack that has the offset and the most records, if there is one."""
        rack = self._request.rack_id
        brokers = self._image().brokers
        leader = brokers.get(partition.node_id)
        if not rack or (leader is not None and leader.rack == rack) or partition.followers is None:
            return None
        candidates = [
            (follower.log_end, -replica)
            for replica in partition.isr
            if (follower := partition.followers.get(replica)) is not None
            and follower.log_start <= offset <= follower.log_end
            and (broker := brokers.get(replica)) is not None
            and broker.rack == rack
            and not broker.fenced
        ]
        return -max(candidates)[1] if candidates else None

    def _failed(self, key: Key, requested: SessionPartition, error: KafkaError) -> Data:
        data = Data(
            partition_index=requested.fetch.partition,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=[] if error.code in _UNREAD else None,
            records=_EMPTY,
        )
        if self._context.api_version >= LEADER_HINT_VERSION_MIN and error.code in _LEADER_HINTS:
            known = self._image().partition(self._topic_name(key), key[1])
            if known is not None:
                data.current_leader = FetchResponse.LeaderIdAndEpoch(
                    leader_id=known.leader, leader_epoch=known.leader_epoch
                )
                self._hinted.add(known.leader)
        return data

    def _unreadable_log(self, partition: Partition, error: OSError | CorruptData) -> KafkaError:
        """Report an index or batch header that cannot be read or is corrupt, and return the error for it."""
        self._replicas.report_unreadable(partition, error)
        code = ErrorCode.CORRUPT_MESSAGE if isinstance(error, CorruptData) else ErrorCode.KAFKA_STORAGE_ERROR
        return KafkaError(code, str(error))

    # --- respond

    def respond(self) -> FetchResponse | asyncio.Future[FetchResponse]:
        """Return the response if all records are in memory, otherwise a future while a thread reads them."""
        for data, found, _ in self._ranges:
            try:
                records = found.read_cached()
            except OSError as error:
                self._unreadable_records(data, error)
                continue
            if records is None:
                return asyncio.ensure_future(self._respond_from_disk(), loop=self._loop)
            data.records = records
        return self._assemble()

    async def _respond_from_disk(self) -> FetchResponse:
        for data, found, _ in self._ranges:
            if not data.records and data.error_code == ErrorCode.NONE:
                try:
                    data.records = await self._loop.run_in_executor(None, found.read)
                except OSError as error:
                    self._unreadable_records(data, error)
                except ValueError:
                    # The file was closed because its topic was deleted; this error makes the client refresh its metadata.
                    data.error_code, data.records = ErrorCode.NOT_LEADER_OR_FOLLOWER, _EMPTY
        return self._assemble()

    def _unreadable_records(self, data: Data, error: OSError) -> None:
        """Report that the records cannot be read; this partition gets an error, the others are served."""
        data.error_code, data.records = ErrorCode.KAFKA_STORAGE_ERROR, _EMPTY
        self._replicas.report_read_error(error)

    def _assemble(self) -> FetchResponse:
        """Build the response in the order in which partitions were read; topics that are interleaved are repeated."""
        plan = self._plan
        topics: list[FetchResponse.FetchableTopicResponse] = []
        last: str | bytes | None = None
        for key, data in self._results.items():
            if not plan.keep(key, data):
                continue
            name, _ = key
            if name != last:
                last = name
                topic = FetchResponse.FetchableTopicResponse()
                if isinstance(name, bytes):
                    topic.topic_id = name  # type: ignore[assignment]
                else:
                    topic.topic = name
                topics.append(topic)
            topics[-1].partitions.append(data)
        for data, _, traffic in self._ranges:
            size = len(data.records or _EMPTY)
            if self._replica >= 0:
                traffic.replication_bytes_out += size
            else:
                traffic.bytes_out += size
        response = FetchResponse(session_id=plan.session_id, responses=topics)
        if self._hinted:
            response.node_endpoints = [
                FetchResponse.NodeEndpoint(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
                for broker, endpoint in endpoints_of(self._hinted, self._image(), self._context.peer.listener)
            ]
        return response

    # --- park

    def park(self, wait_s: float) -> asyncio.Future[FetchResponse]:
        """Return a future of the response: after the next successful attempt, or in `wait_s` with what there is."""
        self._future = self._loop.create_future()
        self._future.add_done_callback(lambda _: self._end())
        self._timer = self._loop.call_later(wait_s, self._time_out)
        self._watch()
        return self._future

    def _watch(self) -> None:
        for key in self._plan.partitions:
            try:
                partition = self._replicas.get(self._topic_name(key), key[1])
            except KafkaError:
                continue
            if self._replica >= 0:
                partition.watch_end(self._wake)
            else:
                partition.watch(self._wake)
            self._watched.append(partition)

    def _unwatch(self) -> None:
        for partition in self._watched:
            partition.unwatch(self._wake)
        self._watched.clear()

    def _wake(self) -> None:
        """Schedule another attempt; called during an append, so it runs later, after the producer's response."""
        if self._future is not None and not self._future.done():
            self._loop.call_soon(self._attempt_again)

    def _attempt_again(self) -> None:
        if self._future is None or self._future.done() or self._is_responding:
            return
        self._unwatch()
        if self.attempt():
            self._respond_to_parked(self._future)
        else:
            self._watch()

    def _time_out(self) -> None:
        if self._future is not None and not self._future.done():
            self.attempt()
            self._respond_to_parked(self._future)

    def _respond_to_parked(self, future: asyncio.Future[FetchResponse]) -> None:
        """Respond once: another attempt while a thread reads would replace the results that are being read."""
        self._is_responding = True
        self._end()
        response = self.respond()
        if isinstance(response, FetchResponse):
            future.set_result(response)
            return

        def copy(done: asyncio.Future[FetchResponse]) -> None:
            if not future.done():
                if done.exception() is not None:
                    future.set_exception(done.exception() or RuntimeError())
                else:
                    future.set_result(done.result())

        response.add_done_callback(copy)

    def _end(self) -> None:
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()


def _data(fetch: FetchRequest.FetchPartition, plan: ReadPlan) -> Data:
    data = Data(
        partition_index=fetch.partition,
        high_watermark=plan.high_watermark,
        last_stable_offset=plan.last_stable_offset,
        log_start_offset=plan.log_start,
        records=_EMPTY,
    )
    if plan.diverging is not None:
        epoch, end_offset = plan.diverging
        data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return data
