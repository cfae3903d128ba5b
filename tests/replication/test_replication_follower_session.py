"""A follower's half of a fetch session: only changes are sent, and the leader's half knows the same partitions."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Uuid
from headrace.replication.follower_session import EPOCH_MAX, FollowerSession, Position, SessionRequest

TOPIC = Uuid(b"t" * 16)


def at(offset: int) -> Position:
    return Position(1, offset, 1, 0, 0)


Wanted = dict[tuple[Uuid, int], Position]


def request(session: FollowerSession, wanted: Wanted) -> SessionRequest | None:
    """Return the next request of a fetcher that wants these partitions and regards all partitions as touched."""
    if session.is_new:
        return session.begin(wanted)
    return session.proceed([(TOPIC, index) for index in range(5)], wanted.get)


def sent(session: FollowerSession, wanted: Wanted) -> SessionRequest:
    found = request(session, wanted)
    assert found is not None
    return found


def test_only_changed_and_forgotten_partitions_are_sent() -> None:
    session = FollowerSession()
    assert sent(session, {(TOPIC, 0): at(0), (TOPIC, 1): at(0)})[:2] == (0, 0)
    session.succeeded(7)
    second = sent(session, {(TOPIC, 0): at(5), (TOPIC, 1): at(0), (TOPIC, 2): at(0)})
    assert second == (7, 1, {(TOPIC, 0): at(5), (TOPIC, 2): at(0)}, [])
    session.succeeded(7)
    assert sent(session, {(TOPIC, 2): at(0)}) == (7, 2, {}, [(TOPIC, 0), (TOPIC, 1)])


def test_only_touched_partitions_are_looked_at() -> None:
    session = FollowerSession()
    session.begin({(TOPIC, index): at(0) for index in range(1000)})
    session.succeeded(7)
    seen: list[tuple[Uuid, int]] = []

    def position_of(key: tuple[Uuid, int]) -> Position:
        seen.append(key)
        return at(1)

    assert session.proceed([(TOPIC, 8)], position_of) == (7, 1, {(TOPIC, 8): at(1)}, [])
    assert seen == [(TOPIC, 8)] and len(session) == 1000


def test_a_session_without_partitions_to_fetch_is_kept_for_the_next_ones() -> None:
    session = FollowerSession()
    session.begin({(TOPIC, 0): at(0)})
    session.succeeded(7)
    assert request(session, {}) is None
    assert sent(session, {(TOPIC, 1): at(0)}) == (7, 1, {(TOPIC, 1): at(0)}, [(TOPIC, 0)])
    session.succeeded(7)
    assert request(session, {}) is None
    assert sent(session, {(TOPIC, 1): at(0)}) == (7, 2, {(TOPIC, 1): at(0)}, [])


def test_an_error_starts_a_new_session_with_all_partitions() -> None:
    session = FollowerSession()
    session.begin({(TOPIC, 0): at(0)})
    session.succeeded(7)
    session.failed()
    assert sent(session, {(TOPIC, 0): at(0)}) == (7, 0, {(TOPIC, 0): at(0)}, [])


def test_a_leader_without_room_for_a_session_gets_full_requests() -> None:
    session = FollowerSession()
    for _ in range(3):
        assert sent(session, {(TOPIC, 0): at(0)}) == (0, 0, {(TOPIC, 0): at(0)}, [])
        session.succeeded(0)


def test_the_epoch_wraps_to_1() -> None:
    session = FollowerSession()
    session.begin({(TOPIC, 0): at(0)})
    session.succeeded(7)
    session._epoch = EPOCH_MAX
    session.succeeded(7)
    assert sent(session, {(TOPIC, 0): at(0)}).epoch == 1


@given(st.integers(0, 2**32))
def test_the_leader_always_knows_what_the_follower_wants(seed: int) -> None:
    random, session = Random(seed), FollowerSession()
    known: Wanted = {}
    for _ in range(30):
        wanted = {(TOPIC, index): at(random.randrange(3)) for index in range(5) if random.random() < 0.4}
        next_request = request(session, wanted)
        if next_request is None:
            assert not wanted
            continue
        if random.random() < 0.2:
            session.failed()  # whether the leader has seen the request or not
            continue
        if next_request.epoch == 0:
            known = {}
        known |= next_request.changed
        for key in next_request.forgotten:
            del known[key]
        assert known == wanted
        session.succeeded(7)
