"""Fetch 4–18: sessions (v7), leader epochs (v9, v12), topic ids (v13), long poll.

Partitions are read in order until max_bytes is used up; the first that has records returns at least one batch (KIP-74). If there is
too little to return, the request is parked on its partitions until min_bytes, an error or max_wait_ms.
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
_NOWHERE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # in their order in the response
_UNREAD = (*_NOWHERE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)  # errors from before the log is read
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
        self._replicas = replicas
        self._sessions = sessions
        self._image = image
        self._loop = loop
        self._fetch_max_bytes = fetch_max_bytes

    def services(self) -> list[Service]:
        return [Service(ApiKey.FETCH, (4, 18), self.handle, on_topics(Operation.READ))]

    def handle(self, context: RequestContext, request: FetchRequest) -> FetchResponse | asyncio.Future[FetchResponse]:
        try:
            plan = self._sessions.plan(request, context.api_version, self._loop.time())
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        fetch = _Fetch(self, plan, request, context)
        if fetch.attempt() or request.max_wait_ms <= 0 or not plan.partitions:
            return self.answer(fetch)
        return fetch.park(self._loop, min(request.max_wait_ms, MAX_WAIT_MS_MAX) / 1000)

    def topic_name(self, key: Key) -> str:
        name, _ = key
        if isinstance(name, str):
            return name
        topic = self._image().topic_by_id(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic.name

    def partition(self, key: Key) -> Partition:
        return self._replicas.get(self.topic_name(key), key[1])

    def limit(self, request: FetchRequest) -> int:
        return min(max(request.max_bytes, 0), self._fetch_max_bytes)

    def answer(self, fetch: _Fetch) -> FetchResponse | asyncio.Future[FetchResponse]:
        """Return the response if all records are in memory, otherwise a future while a thread reads them."""
        for data, read, _ in fetch.reads:
            try:
                found = read.read_cached()
            except OSError as error:
                self._unreadable(data, error)
                continue
            if found is None:
                return asyncio.ensure_future(self._answer_from_disk(fetch), loop=self._loop)
            data.records = found
        return self._assemble(fetch)

    async def _answer_from_disk(self, fetch: _Fetch) -> FetchResponse:
        for data, read, _ in fetch.reads:
            if not data.records and data.error_code == ErrorCode.NONE:
                try:
                    data.records = await self._loop.run_in_executor(None, read.read)
                except OSError as error:
                    self._unreadable(data, error)
                except ValueError:
                    # The file was closed because its topic was deleted; this error makes the client refresh its metadata.
                    data.error_code, data.records = ErrorCode.NOT_LEADER_OR_FOLLOWER, _EMPTY
        return self._assemble(fetch)

    def _unreadable(self, data: Data, error: OSError) -> None:
        """Report that the records cannot be read; this partition gets an error, the others are served."""
        data.error_code, data.records = ErrorCode.KAFKA_STORAGE_ERROR, _EMPTY
        self._replicas.report_read_error(error)

    def refusal(self, error: OSError | CorruptData) -> KafkaError:
        """Report an index or batch header that cannot be read or is corrupt, and return the error for it."""
        self._replicas.report_read_error(error)
        code = ErrorCode.CORRUPT_MESSAGE if isinstance(error, CorruptData) else ErrorCode.KAFKA_STORAGE_ERROR
        return KafkaError(code, str(error))

    def _assemble(self, fetch: _Fetch) -> FetchResponse:
        """Build the response in the order in which partitions were read; topics that are interleaved are repeated."""
        plan = fetch.plan
        topics: list[FetchResponse.FetchableTopicResponse] = []
        last: str | bytes | None = None
        for key, data in fetch.answers.items():
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
        for data, _, traffic in fetch.reads:
            traffic.bytes_out += len(data.records or _EMPTY)
        return FetchResponse(session_id=plan.session_id, responses=topics)


class _Fetch:
    """One request in progress. `attempt` reads all partitions and returns whether there is enough to respond."""

    __slots__ = ("_api", "_context", "_future", "_request", "_timer", "_watched", "answers", "plan", "reads")

    def __init__(self, api: FetchApi, plan: FetchPlan, request: FetchRequest, context: RequestContext) -> None:
        self._api = api
        self.plan = plan
        self._request = request
        self._context = context
        self.answers: dict[Key, Data] = {}
        self.reads: list[tuple[Data, FileRange, TopicTraffic]] = []
        self._watched: list[Partition] = []
        self._future: asyncio.Future[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def attempt(self) -> bool:
        request = self._request
        self.answers, self.reads = {}, []
        left, total, must_answer, min_one = self._api.limit(request), 0, False, True
        nowhere: dict[Key, Data] = {}
        for key, wanted in self.plan.partitions.items():
            try:
                partition = self._partition(key)
                traffic = partition.traffic
                traffic.fetches += 1
                data, read = self._read(partition, wanted, left, min_one)
            except KafkaError as error:
                data, read = self._failed(key, wanted, error), None
                if error.code in _NOWHERE:
                    nowhere[key] = data
                    continue
                must_answer = True
            except (OSError, CorruptData) as error:
                traffic.failed_fetches += 1
                data, read = self._failed(key, wanted, self._api.refusal(error)), None
                must_answer = True
            self.answers[key] = data
            if data.diverging_epoch.epoch >= 0:
                must_answer = True
            if read is not None:
                self.reads.append((data, read, traffic))
                total += read.size
                left = max(0, left - read.size)
                min_one = False
        # Unknown partitions come last and do not end the wait: a consumer of a deleted topic would fetch in a tight loop.
        must_answer = must_answer or not self.answers
        for code in _NOWHERE:
            self.answers |= {key: data for key, data in nowhere.items() if data.error_code == code}
        return must_answer or total >= request.min_bytes

    def _partition(self, key: Key) -> Partition:
        if not self._context.peer.authority.unrestricted:
            self._check_permission(key)
        return self._api.partition(key)

    def _read(
        self, partition: Partition, wanted: SessionPartition, left: int, min_one: bool
    ) -> tuple[Data, FileRange | None]:
        fetch = wanted.fetch
        partition.check_leader(fetch.current_leader_epoch)
        request = self._request
        if max(request.replica_id, request.replica_state.replica_id) >= 0:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the asking broker is no replica of this partition")
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

    def _check_permission(self, key: Key) -> None:
        request, name = self._request, self._api.topic_name(key)
        if max(request.replica_id, request.replica_state.replica_id) >= 0:
            permitted = self._context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        else:
            permitted = self._context.may(Operation.READ, Resource.TOPIC, name)
        if not permitted:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _failed(self, key: Key, wanted: SessionPartition, error: KafkaError) -> Data:
        data = Data(
            partition_index=wanted.fetch.partition,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=[] if error.code in _UNREAD else None,
            records=_EMPTY,
        )
        if self._context.api_version >= 16 and error.code in _LEADER_HINTS:
            partition = self._api.partition(key)
            data.current_leader = FetchResponse.LeaderIdAndEpoch(
                leader_id=partition.leader, leader_epoch=partition.leader_epoch
            )
        return data

    # --- waiting

    def park(self, loop: asyncio.AbstractEventLoop, wait_s: float) -> asyncio.Future[FetchResponse]:
        self._future = loop.create_future()
        self._future.add_done_callback(lambda _: self._unwatch())
        self._timer = loop.call_later(wait_s, self._finish)
        self._watch()
        return self._future

    def _watch(self) -> None:
        for key in self.plan.partitions:
            try:
                partition = self._api.partition(key)
            except KafkaError:
                continue
            partition.watch(self._wake)
            self._watched.append(partition)

    def _unwatch(self) -> None:
        for partition in self._watched:
            partition.unwatch(self._wake)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        """Schedule another attempt; called during an append, so it runs later, after the producer's response."""
        if self._future is not None and not self._future.done():
            self._future.get_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        if self._future is None or self._future.done():
            return
        for partition in self._watched:
            partition.unwatch(self._wake)
        self._watched.clear()
        if self.attempt():
            self._finish_with_reads()
        else:
            self._watch()

    def _finish(self) -> None:
        if self._future is not None and not self._future.done():
            self.attempt()
            self._finish_with_reads()

    def _finish_with_reads(self) -> None:
        assert self._future is not None
        future = self._future
        answer = self._api.answer(self)
        if isinstance(answer, FetchResponse):
            future.set_result(answer)
            return

        def copy(done: asyncio.Future[FetchResponse]) -> None:
            if not future.done():
                if done.exception() is not None:
                    future.set_exception(done.exception() or RuntimeError())
                else:
                    future.set_result(done.result())

        answer.add_done_callback(copy)
