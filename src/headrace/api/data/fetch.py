"""Fetch 4–18: sessions (v7), leader epochs (v9, v12), topic ids (v13), long poll.

The session plans which partitions to read. An attempt reads them in order until max_bytes is used up; the first that has records
returns at least one batch (KIP-74). If that is too little, the request is parked on its partitions until another attempt finds
min_bytes or an error, or until max_wait_ms is over. Then the records are read, from the page cache or in a thread, and sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.api.permissions import on_topics
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.broker.fetch_sessions import FetchPlan, FetchSessions, Key, SessionPartition
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.replication.partition import Partition
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


class FetchApi:
    def __init__(
        self,
        replicas: Replicas,
        sessions: FetchSessions,
        image: Callable[[], Image],
        loop: asyncio.AbstractEventLoop,
        fetch_max_bytes: int,
    ) -> None:
        self.replicas = replicas
        self.image = image
        self.loop = loop
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
        "_bytes_max", "_context", "_future", "_image", "_loop", "_plan", "_ranges", "_replicas", "_request", "_results", "_timer",
        "_watched",
    )  # fmt: skip

    def __init__(
        self, api: FetchApi, plan: FetchPlan, request: FetchRequest, context: RequestContext, bytes_max: int
    ) -> None:
        self._replicas = api.replicas
        self._image = api.image
        self._loop = api.loop
        self._plan = plan
        self._request = request
        self._context = context
        self._bytes_max = bytes_max
        self._results: dict[Key, Data] = {}
        self._ranges: list[tuple[Data, FileRange, TopicTraffic]] = []  # records to read for the response
        self._watched: list[Partition] = []
        self._future: asyncio.Future[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None

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
                data, found = self._plan_read(partition, requested, left, min_one)
            except KafkaError as error:
                data, found = self._failed(key, requested, error), None
                if error.code in _UNKNOWN:
                    unknown[key] = data
                    continue
                must_respond = True
            except (OSError, CorruptData) as error:
                traffic.failed_fetches += 1
                data, found = self._failed(key, requested, self._unreadable_log(error)), None
                must_respond = True
            self._results[key] = data
            if data.diverging_epoch.epoch >= 0:
                must_respond = True
            if found is not None:
                self._ranges.append((data, found, traffic))
                total += found.size
                left = max(0, left - found.size)
                min_one = False
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
        request = self._request
        if max(request.replica_id, request.replica_state.replica_id) >= 0:
            permitted = self._context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        else:
            permitted = self._context.may(Operation.READ, Resource.TOPIC, topic)
        if not permitted:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _plan_read(
        self, partition: Partition, requested: SessionPartition, left: int, min_one: bool
    ) -> tuple[Data, FileRange | None]:
        fetch, request = requested.fetch, self._request
        partition.check_leader(fetch.current_leader_epoch)
        if max(request.replica_id, request.replica_state.replica_id) >= 0:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the requesting broker is not a replica of this partition"
            )
        committed_only = request.isolation_level == READ_COMMITTED
        plan = partition.plan_read(
            fetch.fetch_offset,
            min(max(fetch.partition_max_bytes, 0), left),
            committed_only=committed_only,
            last_fetched_epoch=fetch.last_fetched_epoch,
            min_one=min_one,
        )
        data = Data(
            partition_index=fetch.partition,
            high_watermark=plan.high_watermark,
            last_stable_offset=plan.last_stable_offset,
            log_start_offset=plan.log_start,
            aborted_transactions=[] if committed_only and not plan.incomplete and plan.diverging is None else None,
            records=_EMPTY,
        )
        if plan.diverging is not None:
            data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=plan.diverging[0], end_offset=plan.diverging[1])
        if committed_only and plan.range is not None:
            data.aborted_transactions = [
                FetchResponse.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in partition.log.aborted_transactions(
                    fetch.fetch_offset, plan.last_stable_offset, plan.range
                )
            ]
        return data, plan.range

    def _failed(self, key: Key, requested: SessionPartition, error: KafkaError) -> Data:
        data = Data(
            partition_index=requested.fetch.partition,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=[] if error.code in _UNREAD else None,
            records=_EMPTY,
        )
        if self._context.api_version >= 16 and error.code in _LEADER_HINTS:
            partition = self._replicas.get(self._topic_name(key), key[1])
            data.current_leader = FetchResponse.LeaderIdAndEpoch(
                leader_id=partition.leader, leader_epoch=partition.leader_epoch
            )
        return data

    def _unreadable_log(self, error: OSError | CorruptData) -> KafkaError:
        """Report an index or batch header that cannot be read or is corrupt, and return the error for it."""
        self._replicas.report_read_error(error)
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
            traffic.bytes_out += len(data.records or _EMPTY)
        return FetchResponse(session_id=plan.session_id, responses=topics)

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
        if self._future is None or self._future.done():
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
