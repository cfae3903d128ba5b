"""Fetch 4–18: sessions (v7), leader epochs (v9, v12), topic ids (v13), long poll.

The session plans which partitions to read. An attempt reads them in order until max_bytes is used up; the first that has records
returns at least one batch (KIP-74). If that is too little, the request is parked on its partitions until another attempt finds
min_bytes or an error, or until max_wait_ms is over. Then the records are read, from the page cache or in a thread, and sent.

A follower reads up to the log end, and what it requests tells its leader how far it is. It is answered at once when records are
appended, and soon when only the high watermark has moved past what it knows: under load the next records carry that along, which
halves the number of fetches. A consumer may read from a follower, too; a leader with a replica selector sends it to one in its
rack (KIP-392). `fetch_planning` has the difference between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.api.data.fetch_planning import EMPTY, Data, Urgency, Wake, reads_for
from headrace.api.data.leader_hints import endpoints_of
from headrace.api.permissions import on_topics
from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.base.promise import Awaited, Promise
from headrace.base.turn_end import turn_end_of
from headrace.broker.fetching.due_partitions import Key
from headrace.broker.fetching.fetch_sessions import FetchPlan, FetchSessions, SessionPartition, replica_of
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.replication.traffic import TopicTraffic
from headrace.security.resources import Operation
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.storage.file_range import FileRange

MAX_WAIT_MS_MAX = 600_000  # longer waits are shortened to this
SOON_S = 0.005  # how long news of the high watermark wait for records
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # in their order in the response
_UNREAD = (*_UNKNOWN, ErrorCode.TOPIC_AUTHORIZATION_FAILED)  # errors from before the log is read
_LEADER_HINTS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
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
        self.turn_end = turn_end_of(loop)
        self._sessions = sessions
        self._fetch_max_bytes = fetch_max_bytes

    def services(self) -> list[Service]:
        return [Service(ApiKey.FETCH, (4, 18), self.handle, on_topics(Operation.READ))]

    def handle(self, context: RequestContext, request: FetchRequest) -> FetchResponse | Awaited[FetchResponse]:
        try:
            plan = self._sessions.plan(request, context.api_version, self.loop.time(), self.clock.now_ms())
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        fetch = _Fetch(self, plan, request, context, min(max(request.max_bytes, 0), self._fetch_max_bytes))
        urgency = fetch.attempt()
        if urgency is Urgency.NOW or request.max_wait_ms <= 0 or plan.is_empty:
            return fetch.respond()
        wait_s = min(request.max_wait_ms, MAX_WAIT_MS_MAX) / 1000
        return fetch.park(min(wait_s, SOON_S) if urgency is Urgency.SOON else wait_s)


class _Fetch:
    """One request in progress: `attempt`, then `respond`, or `park` until a later attempt succeeds."""

    __slots__ = (
        "_api", "_bytes_max", "_context", "_hinted", "_image", "_is_responding", "_is_scheduled", "_loop", "_parked", "_plan",
        "_ranges", "_reads", "_replica", "_replicas", "_request", "_results", "_timer",
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
        self._replica = replica_of(request)  # negative for a consumer
        self._reads = reads_for(
            request, context, self._replica, plan, api.image, api.clock, selects_by_rack=api.selects_by_rack
        )
        self._hinted: set[int] = set()  # leaders that the response names
        self._results: dict[Key, Data] = {}
        self._ranges: list[tuple[Data, FileRange, TopicTraffic]] = []  # records to read for the response
        self._parked: Promise[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False  # whether another attempt is under way
        self._is_responding = False  # a parked request has what it waited for, but a thread may still read the records

    # --- attempt

    def attempt(self) -> Urgency:
        """Find the records of all partitions and return whether the response may wait. No record is read yet."""
        self._results, self._ranges = {}, []
        left, total, urgency, min_one = self._bytes_max, 0, self._reads.urgency, True
        unknown: dict[Key, Data] = {}
        for key, requested in self._plan.partitions.items():
            try:
                partition = self._partition(key)
                traffic = partition.traffic
                traffic.fetches += 1
                bytes_max = min(max(requested.fetch.partition_max_bytes, 0), left)
                data, found, need = self._reads.plan(key, partition, requested, bytes_max, min_one=min_one)
                urgency = max(urgency, need)
            except KafkaError as error:
                data, found = self._failed(key, requested, error), None
                if error.code in _UNKNOWN:
                    unknown[key] = data
                    continue
                urgency = Urgency.NOW
            except (OSError, CorruptData) as error:
                traffic.failed_fetches += 1
                data, found = self._failed(key, requested, self._unreadable_log(partition, error)), None
                urgency = Urgency.NOW
            self._results[key] = data
            if found is not None:
                self._ranges.append((data, found, traffic))
                total += found.size
                left = max(0, left - found.size)
                min_one = False
        # Unknown partitions come last and do not end a consumer's wait: one of a deleted topic would fetch in a tight loop.
        if unknown and (self._replica >= 0 or not self._results):
            urgency = Urgency.NOW
        if unknown:
            for code in _UNKNOWN:
                self._results |= {key: data for key, data in unknown.items() if data.error_code == code}
        return Urgency.NOW if total >= self._request.min_bytes else urgency

    def _partition(self, key: Key) -> Partition:
        """Return a partition that the client may read. Raise KafkaError if it may not, or if this node has none."""
        topic = self._topic_name(key)
        if not self._context.peer.authority.unrestricted:
            self._reads.check_permission(topic)
        return self._replicas.get(topic, key[1])

    def _topic_name(self, key: Key) -> str:
        name, _ = key
        if isinstance(name, str):
            return name
        topic = self._image().topic_by_id(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic.name

    def _failed(self, key: Key, requested: SessionPartition, error: KafkaError) -> Data:
        data = Data(
            partition_index=requested.fetch.partition,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=[] if error.code in _UNREAD else None,
            records=EMPTY,
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
                    data.error_code, data.records = ErrorCode.NOT_LEADER_OR_FOLLOWER, EMPTY
        return self._assemble()

    def _unreadable_records(self, data: Data, error: OSError) -> None:
        """Report that the records cannot be read; this partition gets an error, the others are served."""
        data.error_code, data.records = ErrorCode.KAFKA_STORAGE_ERROR, EMPTY
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
            size = len(data.records or EMPTY)
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

    def park(self, wait_s: float) -> Promise[FetchResponse]:
        """Return a promise of the response: after the next successful attempt, or in `wait_s` with what there is."""
        self._parked = Promise()
        self._parked.add_done_callback(lambda _: self._end())
        self._timer = self._loop.call_later(wait_s, self._time_out)
        self._watch()
        return self._parked

    def _watch(self) -> None:
        self._reads.watch(self._plan, self._partition_to_watch, Wake(self._wake, self._shorten_wait))

    def _partition_to_watch(self, key: Key) -> Partition:
        return self._replicas.get(self._topic_name(key), key[1])

    def _wake(self) -> None:
        """Schedule another attempt; called during an append, so it runs later, for all appends of this turn."""
        if self._parked is not None and not self._parked.done() and not self._is_scheduled:
            self._is_scheduled = True
            self._api.turn_end.call(self._attempt_again)

    def _attempt_again(self) -> None:
        self._is_scheduled = False
        if self._parked is None or self._parked.done() or self._is_responding:
            return
        self._reads.unwatch()
        self._plan.refresh()
        urgency = self.attempt()
        if urgency is Urgency.NOW:
            self._respond_to_parked(self._parked)
            return
        self._watch()
        if urgency is Urgency.SOON:
            self._shorten_wait()

    def _shorten_wait(self) -> None:
        """Respond soon, unless the wait is over before."""
        if self._timer is None or self._parked is None or self._parked.done() or self._is_responding:
            return
        at = self._loop.time() + SOON_S
        if at < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(at, self._time_out)

    def _time_out(self) -> None:
        if self._parked is not None and not self._parked.done():
            self._plan.refresh()
            self.attempt()
            self._respond_to_parked(self._parked)

    def _respond_to_parked(self, parked: Promise[FetchResponse]) -> None:
        """Respond once: another attempt while a thread reads would replace the results that are being read."""
        self._is_responding = True
        self._end()
        response = self.respond()
        if isinstance(response, FetchResponse):
            parked.set_result(response)
            return

        def copy(done: asyncio.Future[FetchResponse]) -> None:
            if not parked.done():
                error = done.exception()
                if isinstance(error, Exception):
                    parked.set_exception(error)
                else:
                    parked.set_result(done.result())

        response.add_done_callback(copy)

    def _end(self) -> None:
        self._reads.unwatch()
        if self._timer is not None:
            self._timer.cancel()
