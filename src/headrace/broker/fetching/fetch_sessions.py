"""Incremental fetch sessions (KIP-227): a client sends its partitions once and afterwards only the changes.

A session remembers each partition's last response, and an incremental response contains only partitions that have changed. A
follower's session also knows which partitions are due, so that a fetch costs what has changed, not what is followed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from random import Random

from msgspec import Struct, field

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NO_NODE
from headrace.broker.fetching.due_partitions import DuePartitions, Key
from headrace.metadata.image import Image
from headrace.metadata.loader import Changes
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse

SESSIONS_MAX = 1000
EVICT_AFTER_S = 120.0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 0x7FFFFFFF
NO_REPLICA = -1


class SessionPartition(Struct):
    """What the client requests from one partition, and what it was last sent."""

    fetch: FetchRequest.FetchPartition
    high_watermark: int = -1
    log_start: int = -1


class FetchSession(Struct):
    id: int
    uses_ids: bool
    epoch: int = INITIAL_EPOCH
    last_used: float = 0.0
    partitions: OrderedDict[Key, SessionPartition] = field(default_factory=OrderedDict)
    due: DuePartitions | None = None  # None for a consumer, whose partitions are all looked at


class FetchPlan:
    """The partitions of one request in the order to serve them, and which of them the response includes."""

    __slots__ = ("due", "incremental", "partitions", "session", "uses_ids")

    def __init__(
        self,
        partitions: OrderedDict[Key, SessionPartition],
        session: FetchSession | None,
        uses_ids: bool,
        incremental: bool,
    ) -> None:
        self.partitions = partitions
        self.session = session
        self.uses_ids = uses_ids
        self.incremental = incremental
        self.due = None if session is None else session.due

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to wait for."""
        return not self.partitions and self.due is None

    def refresh(self) -> None:
        """Take up the partitions of a follower's session that became due while the request was parked."""
        if self.session is not None and self.due is not None and self.incremental:
            self.partitions = _due(self.session, self.due)

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.id

    def keep(self, key: Key, response: FetchResponse.PartitionData) -> bool:
        """Return whether the response must include this partition, and remember what was sent."""
        known = self.partitions[key]
        has_data = response.records is not None and len(response.records) > 0
        changed = response.high_watermark != known.high_watermark or response.log_start_offset != known.log_start
        failed = response.error_code != ErrorCode.NONE
        diverges = response.diverging_epoch.epoch >= 0
        # After an error the next response must include the partition in any case, so that the client learns that it recovered.
        known.high_watermark = -1 if failed else response.high_watermark
        known.log_start = response.log_start_offset
        # A later request of the session may have removed the partition while this one waited: its client has given up on it.
        if self.session is not None and key in self.session.partitions and (has_data or not self.incremental):
            # A partition served now goes last next time, so that a busy one starves no other. A new session starts in response order.
            self.session.partitions.move_to_end(key)
            if self.due is not None:
                self.due.served(key)
        redirects = response.preferred_read_replica >= 0
        return not self.incremental or has_data or changed or failed or diverges or redirects


class FetchSessions:
    def __init__(self, random: Random, slots: int = SESSIONS_MAX, node_id: int = NO_NODE) -> None:
        self._random = random
        self._node_id = node_id
        self._slots = slots
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        """Expect the followers of partitions that this node begins to lead to name them soon."""
        expected: dict[int, list[Key]] = {}
        for name in changes.partitions:
            was, now = old.partition(*name), new.partition(*name)
            if now is not None and now.leader == self._node_id and (was is None or was.leader_epoch < now.leader_epoch):
                key = (new.topics[name.topic].id, name.partition)
                for replica in now.replicas:
                    expected.setdefault(replica, []).append(key)
        for session in self._sessions.values() if expected else ():
            if session.due is not None and session.uses_ids and session.due.replica in expected:
                session.due.expect(expected[session.due.replica])

    def plan(self, request: FetchRequest, version: int, now: float, now_ms: int = 0) -> FetchPlan:
        """Return the plan for a request. Raise KafkaError with a session error, to which a client reacts with a full fetch.

        `now` is the time of the event loop, `now_ms` that of the clock.
        """
        uses_ids = version >= 13
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            if request.session_id:
                self._close(request.session_id)
            return FetchPlan(_full(request, uses_ids), None, uses_ids, incremental=False)
        if request.session_epoch == INITIAL_EPOCH:
            self._close(request.session_id)
            requested = _full(request, uses_ids)
            replica = replica_of(request)
            session = self._open(requested, uses_ids, now, from_follower=replica >= 0) if requested else None
            if session is not None and replica >= 0:
                session.due = DuePartitions(replica, requested, now_ms)
            return FetchPlan(requested, session, uses_ids, incremental=False)
        return self._continue(request, uses_ids, now, now_ms)

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.due is not None:
            session.due.close()

    def _continue(self, request: FetchRequest, uses_ids: bool, now: float, now_ms: int) -> FetchPlan:
        session = self._sessions.get(request.session_id)
        if session is None or replica_of(request) != (NO_REPLICA if session.due is None else session.due.replica):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.uses_ids != uses_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        due = session.due
        if due is not None:
            due.requested(now_ms)
        for key, fetch in _requested(request, uses_ids):
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = SessionPartition(fetch)
            else:
                known.fetch = fetch
            if due is not None:
                due.add(key)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                key = (topic.topic_id if uses_ids else topic.topic, index)
                session.partitions.pop(key, None)
                if due is not None:
                    due.forget(key)
        if not session.partitions:
            # The client has removed all partitions: the session ends, and the client may open another one.
            self._close(session.id)
            return FetchPlan(OrderedDict(), None, uses_ids, incremental=False)
        session.epoch = _next_epoch(session.epoch)
        session.last_used = now
        self._sessions.move_to_end(session.id)
        partitions = OrderedDict(session.partitions) if due is None else _due(session, due)
        return FetchPlan(partitions, session, uses_ids, incremental=True)

    def _open(
        self, requested: OrderedDict[Key, SessionPartition], uses_ids: bool, now: float, *, from_follower: bool
    ) -> FetchSession | None:
        if len(self._sessions) >= self._slots:
            replaceable = self._find_replaceable(now, from_follower=from_follower)
            if replaceable is None:
                return None  # the client continues without a session
            self._close(replaceable.id)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._random.randrange(1, EPOCH_MAX)
        session = FetchSession(session_id, uses_ids, _next_epoch(INITIAL_EPOCH), now, OrderedDict(requested))
        self._sessions[session_id] = session
        return session

    def _find_replaceable(self, now: float, *, from_follower: bool) -> FetchSession | None:
        """Return the session that has been unused for long, or for a follower the least recently used one of a consumer."""
        oldest = next(iter(self._sessions.values()))
        if now - oldest.last_used >= EVICT_AFTER_S:
            return oldest
        if not from_follower:
            return None
        return next((session for session in self._sessions.values() if session.due is None), None)


def replica_of(request: FetchRequest) -> int:
    """Return the id of the follower that sent the request, or a negative number for a consumer."""
    return max(request.replica_id, request.replica_state.replica_id, NO_REPLICA)


def _due(session: FetchSession, due: DuePartitions) -> OrderedDict[Key, SessionPartition]:
    return OrderedDict((key, session.partitions[key]) for key in due)


def _next_epoch(epoch: int) -> int:
    return 1 if epoch >= EPOCH_MAX else epoch + 1


def _requested(request: FetchRequest, uses_ids: bool) -> Iterable[tuple[Key, FetchRequest.FetchPartition]]:
    for topic in request.topics:
        name: str | bytes = topic.topic_id if uses_ids else topic.topic
        for partition in topic.partitions:
            yield (name, partition.partition), partition


def _full(request: FetchRequest, uses_ids: bool) -> OrderedDict[Key, SessionPartition]:
    return OrderedDict((key, SessionPartition(fetch)) for key, fetch in _requested(request, uses_ids))
