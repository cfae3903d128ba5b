"""A follower's half of a fetch session: only changes are sent, and the leader's half knows the same partitions."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Uuid
from headrace.replication.follower_session import EPOCH_MAX, FollowerSession, Position

TOPIC = Uuid(b"t" * 16)


def at(offset: int) -> Position:
    return Position(1, offset, 1, 0, 0)


def test_only_changed_and_forgotten_partitions_are_sent() -> None:
    session = FollowerSession()
    assert session.request({(TOPIC, 0): at(0), (TOPIC, 1): at(0)})[:2] == (0, 0)
    session.succeeded(7)
    request = session.request({(TOPIC, 0): at(5), (TOPIC, 1): at(0), (TOPIC, 2): at(0)})
    assert request == (7, 1, {(TOPIC, 0): at(5), (TOPIC, 2): at(0)}, [])
    session.succeeded(7)
    assert session.request({(TOPIC, 2): at(0)}) == (7, 2, {}, [(TOPIC, 0), (TOPIC, 1)])


def test_an_error_starts_a_new_session_with_all_partitions() -> None:
    session = FollowerSession()
    session.request({(TOPIC, 0): at(0)})
    session.succeeded(7)
    session.failed()
    assert session.request({(TOPIC, 0): at(0)}) == (7, 0, {(TOPIC, 0): at(0)}, [])


def test_a_leader_without_room_for_a_session_gets_full_requests() -> None:
    session = FollowerSession()
    for _ in range(3):
        assert session.request({(TOPIC, 0): at(0)}) == (0, 0, {(TOPIC, 0): at(0)}, [])
        session.succeeded(0)


def test_the_epoch_wraps_to_1() -> None:
    session = FollowerSession()
    session.request({})
    session.succeeded(7)
    session._epoch = EPOCH_MAX
    session.succeeded(7)
    assert session.request({}).epoch == 1


@given(st.integers(0, 2**32))
def test_the_leader_always_knows_what_the_follower_wants(seed: int) -> None:
    random, session = Random(seed), FollowerSession()
    known: dict[tuple[Uuid, int], Position] = {}
    for _ in range(30):
        wanted = {(TOPIC, index): at(random.randrange(3)) for index in range(5) if random.random() < 0.6}
        request = session.request(wanted)
        if random.random() < 0.2:
            session.failed()  # whether the leader has seen the request or not
            continue
        if request.epoch == 0:
            known = {}
        known |= request.changed
        for key in request.forgotten:
            del known[key]
        assert known == wanted
        session.succeeded(7)
