"""Fetch and ListOffsets requests: to all partitions, with every limit, with and without sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from tools.prove.differential.batches import FIRST_MS
from tools.prove.differential.operations import PLACES, UNKNOWN_PLACES, Model, Operation, Place
from tools.prove.differential.wire import Target

VERSIONS = range(4, 19)
SESSION_VERSIONS = range(7, 19)
OFFSET_VERSIONS = range(1, 12)
TOPIC_ID_VERSION_MIN = 13
SPECIAL_TIMES = (-1, -2, -3, -4, -5, -6, -7, -100)
SESSIONS_OPEN_MAX = 5
CLOSING, FIRST = -1, 0


@dataclass
class _Wanted:
    place: Place
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    fetched_epoch: int = -1


@dataclass
class _Session:
    name: str
    version: int
    epoch: int
    places: list[Place]


class Fetches:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._random: Random = model.random
        self._sessions: list[_Session] = []
        self._named = 0

    def operation(self) -> Operation:
        kinds = (
            self.single,
            self.full,
            self.open_session,
            self.continue_session,
            self.wrong_session,
            self.close_session,
            self.offsets,
        )
        return self._random.choices(kinds, (20, 30, 6, 34, 6, 3, 35))[0]()

    def _wanted(self, place: Place, version: int) -> _Wanted:
        random = self._random
        return _Wanted(
            place,
            self._model.offset(place),
            random.choice((0, 1, 61, 100, 1000, 10_000, 1 << 20)),
            random.choice((-1, -1, -1, 0, 0, 1, 7)) if version >= 9 else -1,
            random.choice((-1, -1, -1, 0, 3)) if version >= 12 else -1,
        )

    def _request(
        self, wanted: list[_Wanted], version: int, forgotten: list[Place], epoch: int, session: str | None
    ) -> Callable[[Target], tuple[Any, int]]:
        random = self._random
        max_wait, min_bytes = random.choice((0, 0, 1, 15)), random.choice((0, 1, 1, 100, 10_000_000))
        max_bytes, isolation = random.choice((0, 1, 500, 5000, 1 << 20, 2**31 - 1)), random.choice((0, 0, 1))

        def build(target: Target) -> tuple[Any, int]:
            topics: list[FetchRequest.FetchTopic] = []
            for one in wanted:
                topic, index = one.place
                if not topics or topics[-1].topic != topic:
                    topics.append(FetchRequest.FetchTopic(topic=topic, topic_id=_id(target, topic, version)))
                topics[-1].partitions.append(
                    FetchRequest.FetchPartition(
                        partition=index,
                        current_leader_epoch=one.leader_epoch,
                        fetch_offset=one.offset,
                        last_fetched_epoch=one.fetched_epoch,
                        partition_max_bytes=one.max_bytes,
                    )
                )
            message = FetchRequest(
                max_wait_ms=max_wait,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                isolation_level=isolation,
                topics=topics,
                session_id=0 if session is None else target.sessions.get(session, 12_345),
                session_epoch=epoch,
                forgotten_topics_data=[
                    FetchRequest.ForgottenTopic(topic=topic, topic_id=_id(target, topic, version), partitions=[index])
                    for topic, index in forgotten
                ],
            )
            return message, version

        return build

    def single(self) -> Operation:
        version = self._random.choice(VERSIONS)
        place = self._random.choice((*PLACES, *PLACES, *UNKNOWN_PLACES))
        return Operation("fetch/single", self._request([self._wanted(place, version)], version, [], CLOSING, None))

    def full(self) -> Operation:
        version = self._random.choice(VERSIONS)
        places = self._random.sample([*PLACES, *UNKNOWN_PLACES], self._random.randrange(7))
        wanted = [self._wanted(place, version) for place in places]
        return Operation("fetch/several", self._request(wanted, version, [], CLOSING, None))

    # --- sessions

    def open_session(self) -> Operation:
        version = self._random.choice(SESSION_VERSIONS)
        self._named += 1
        places = self._random.sample(PLACES, self._random.randrange(1, 6))
        session = _Session(f"session-{self._named}", version, 1, places)
        wanted = [self._wanted(place, version) for place in places]

        def learn(response: Any) -> None:
            if isinstance(response, dict) and response["session"] != "none":
                self._sessions.append(session)
                if len(self._sessions) > SESSIONS_OPEN_MAX:
                    self._sessions.pop(0)

        build = self._request(wanted, version, [], FIRST, session.name)

        def first(target: Target) -> tuple[Any, int]:
            message, number = build(target)
            message.session_id = 0
            return message, number

        return Operation("fetch/open-session", first, session=session.name, learn=learn)

    def continue_session(self) -> Operation:
        if not self._sessions:
            return self.open_session()
        session = self._random.choice(self._sessions)
        changed = [place for place in (*session.places, self._model.place()) if self._random.random() < 0.3]
        forgotten = [place for place in session.places if place not in changed and self._random.random() < 0.05]
        wanted = [self._wanted(place, session.version) for place in dict.fromkeys(changed)]
        epoch = session.epoch

        def learn(response: Any) -> None:
            if isinstance(response, dict) and response["error"] == 0:
                session.epoch = epoch + 1
                session.places = [p for p in dict.fromkeys((*session.places, *changed)) if p not in forgotten]

        build = self._request(wanted, session.version, forgotten, epoch, session.name)
        return Operation("fetch/incremental", build, session=session.name, learn=learn)

    def wrong_session(self) -> Operation:
        if not self._sessions or self._random.random() < 0.3:
            build = self._request([], self._random.choice(SESSION_VERSIONS), [], self._random.choice((1, 5)), "unknown")
            return Operation("fetch/unknown-session", build, session="unknown")
        session = self._random.choice(self._sessions)
        if self._random.random() < 0.5:
            epoch = session.epoch + self._random.choice((-1, 1, 7))
            build = self._request([], session.version, [], max(1, epoch), session.name)
            same = max(1, epoch) == session.epoch
            if same:
                return self.continue_session()
            return Operation("fetch/wrong-epoch", build, session=session.name)
        other = 12 if session.version >= TOPIC_ID_VERSION_MIN else 13
        build = self._request([], other, [], session.epoch, session.name)
        return Operation("fetch/other-naming", build, session=session.name)

    def close_session(self) -> Operation:
        if not self._sessions:
            return self.open_session()
        session = self._sessions.pop(self._random.randrange(len(self._sessions)))
        wanted = [self._wanted(self._model.place(), session.version)]
        build = self._request(wanted, session.version, [], CLOSING, session.name)
        return Operation("fetch/close-session", build, session=session.name)

    # --- offsets

    def offsets(self) -> Operation:
        random = self._random
        version = random.choice(OFFSET_VERSIONS)
        places = random.choices((*PLACES, *PLACES, *UNKNOWN_PLACES), k=random.choice((1, 1, 2, 4)))
        requested = [
            (place, random.choice((-1, -1, 0, 1, 7)) if version >= 4 else -1, self._time(place)) for place in places
        ]
        isolation = random.choice((0, 1)) if version >= 2 else 0

        def build(target: Target) -> tuple[Any, int]:
            topics: list[ListOffsetsRequest.ListOffsetsTopic] = []
            for (topic, index), epoch, time in requested:
                if not topics or topics[-1].name != topic:
                    topics.append(ListOffsetsRequest.ListOffsetsTopic(name=topic))
                topics[-1].partitions.append(
                    ListOffsetsRequest.ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=epoch, timestamp=time
                    )
                )
            return (
                ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics, timeout_ms=10_000),
                version,
            )

        return Operation("list-offsets", build)

    def _time(self, place: Place) -> int:
        random = self._random
        if random.random() < 0.5:
            return random.choice(SPECIAL_TIMES)
        if place[0] == "window":
            return self._model.now_ms + random.randrange(-3_600_000, 3_600_000)
        if place[0] == "append-time":
            return random.choice((0, FIRST_MS, 2**62))  # the append time differs between the servers
        return FIRST_MS + random.randrange(-1000, 1_100_000)


def _id(target: Target, topic: str, version: int) -> Any:
    return target.topic_id(topic) if version >= TOPIC_ID_VERSION_MIN else target.topic_id("")
