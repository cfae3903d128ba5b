"""Server-side assignors: properties that hold for any group, and Kafka's own examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import Uuid
from headrace.coordinators.group.assignors import ASSIGNORS
from headrace.coordinators.group.assignors.range import assign_range
from headrace.coordinators.group.assignors.spec import MemberSpec
from headrace.coordinators.group.assignors.uniform import assign_uniform


def topic(number: int) -> Uuid:
    return Uuid(number.to_bytes(16, "big"))


T1, T2, T3 = topic(1), topic(2), topic(3)


def member(
    name: str, *topics: Uuid, target: Mapping[Uuid, tuple[int, int, int]] | None = None, instance: str | None = None
) -> MemberSpec:
    return MemberSpec(name, tuple(sorted(topics)), target or {}, instance)


@st.composite
def groups(draw: st.DrawFn, same_topics: bool | None = None) -> tuple[list[MemberSpec], dict[Uuid, int]]:
    """Draw members and topics; the members' targets are from an earlier assignment."""
    partitions = {topic(n): draw(st.integers(1, 9)) for n in range(draw(st.integers(1, 6)))}
    names = [f"m{n}" for n in range(draw(st.integers(1, 7)))]
    subscription = st.lists(st.sampled_from(sorted(partitions)), unique=True).map(lambda ids: tuple(sorted(ids)))
    same = draw(st.booleans()) if same_topics is None else same_topics
    shared = draw(subscription)
    members = [
        MemberSpec(name, shared if same else draw(subscription), {}, draw(st.sampled_from([None, f"i{name}"])))
        for name in names
    ]
    earlier = {one: max(1, count + draw(st.integers(-2, 2))) for one, count in partitions.items()}
    assignor = draw(st.sampled_from(sorted(ASSIGNORS)))
    before = ASSIGNORS[assignor](draw(st.permutations(members)), earlier)
    kept = draw(st.sets(st.sampled_from(names)))
    return [
        MemberSpec(one.member_id, one.topics, before[one.member_id] if one.member_id in kept else {}, one.instance_id)
        for one in members
    ], partitions


def check_complete(
    members: Sequence[MemberSpec],
    partitions: Mapping[Uuid, int],
    assignment: Mapping[str, Mapping[Uuid, tuple[int, ...]]],
) -> dict[tuple[Uuid, int], str]:
    """Check that each partition that any member wants has exactly one owner, which wants it; return the owners."""
    owners: dict[tuple[Uuid, int], str] = {}
    for one in members:
        for topic_id, indexes in assignment[one.member_id].items():
            assert indexes == tuple(sorted(indexes)) and indexes
            assert topic_id in one.topics
            for index in indexes:
                assert (topic_id, index) not in owners
                owners[(topic_id, index)] = one.member_id
    expected = {
        (topic_id, index) for one in members for topic_id in one.topics for index in range(partitions[topic_id])
    }
    assert owners.keys() == expected
    return owners


def with_targets(
    members: Sequence[MemberSpec], assignment: Mapping[str, Mapping[Uuid, tuple[int, ...]]]
) -> list[MemberSpec]:
    return [MemberSpec(one.member_id, one.topics, assignment[one.member_id], one.instance_id) for one in members]


@settings(deadline=None, max_examples=150)
@given(groups(), st.sampled_from(sorted(ASSIGNORS)), st.randoms(use_true_random=False))
def test_assignments_are_complete_deterministic_and_stable(
    group: tuple[list[MemberSpec], dict[Uuid, int]], name: str, random_source: Random
) -> None:
    members, partitions = group
    assignment = ASSIGNORS[name](members, partitions)
    check_complete(members, partitions, assignment)
    shuffled = random_source.sample(members, len(members))
    assert (
        ASSIGNORS[name](shuffled, dict(random_source.sample(sorted(partitions.items()), len(partitions)))) == assignment
    )
    assert ASSIGNORS[name](with_targets(members, assignment), partitions) == assignment, (
        "it moved though nothing changed"
    )


@settings(deadline=None, max_examples=150)
@given(groups())
def test_uniform_is_balanced(group: tuple[list[MemberSpec], dict[Uuid, int]]) -> None:
    members, partitions = group
    assignment = assign_uniform(members, partitions)
    sizes = {one.member_id: sum(map(len, assignment[one.member_id].values())) for one in members}
    for giver in members:
        for taker in members:
            could_take = any(topic_id in taker.topics for topic_id in assignment[giver.member_id])
            assert not could_take or sizes[giver.member_id] - sizes[taker.member_id] < 2


@settings(deadline=None, max_examples=150)
@given(groups(same_topics=True))
def test_uniform_moves_as_few_partitions_as_possible(group: tuple[list[MemberSpec], dict[Uuid, int]]) -> None:
    """Check that members keep as many of their subscribed partitions as their shares allow."""
    members, partitions = group
    assignment = assign_uniform(members, partitions)
    total = sum(partitions[one] for one in members[0].topics)
    share, extra = divmod(total, len(members))
    had: dict[str, set[tuple[Uuid, int]]] = {}
    for one in sorted(members, key=lambda one: one.member_id):
        mine: set[tuple[Uuid, int]] = set()
        for topic_id, indexes in one.target.items():
            mine |= {(topic_id, index) for index in indexes if topic_id in one.topics and index < partitions[topic_id]}
        had[one.member_id] = mine - set().union(*had.values())
    above = sum(len(mine) > share for mine in had.values())
    could_stay = sum(min(len(mine), share) for mine in had.values()) + min(above, extra)
    stayed = sum(
        (topic_id, index) in had[one.member_id]
        for one in members
        for topic_id, indexes in assignment[one.member_id].items()
        for index in indexes
    )
    assert stayed == could_stay


def test_range_assigns_the_same_ranges_in_every_topic() -> None:
    assignment = assign_range([member("m0", T1, T2), member("m1", T1, T2)], {T1: 3, T2: 3})
    assert assignment == {"m0": {T1: (0, 1), T2: (0, 1)}, "m1": {T1: (2,), T2: (2,)}}


def test_range_assigns_each_topic_to_its_subscribers() -> None:
    members = [member("a", T1, T2), member("b", T3), member("c", T2, T3)]
    assert assign_range(members, {T1: 3, T2: 3, T3: 2}) == {
        "a": {T1: (0, 1, 2), T2: (0, 1)},
        "b": {T3: (0,)},
        "c": {T2: (2,), T3: (1,)},
    }


def test_range_leaves_extra_members_without_partitions() -> None:
    assert assign_range([member("a", T1), member("b", T1), member("c", T1)], {T1: 2}) == {
        "a": {T1: (0,)},
        "b": {T1: (1,)},
        "c": {},
    }


def test_range_orders_static_members_by_instance_id() -> None:
    before = assign_range([member("x", T1, instance="i0"), member("a", T1, instance="i1"), member("b", T1)], {T1: 3})
    after = assign_range([member("a", T1, instance="i0"), member("x", T1, instance="i1"), member("b", T1)], {T1: 3})
    assert before["x"] == after["a"] == {T1: (0,)}
    assert before["b"] == {T1: (2,)}


def test_uniform_moves_only_the_share_of_a_new_member() -> None:
    before = {"a": {T1: (0, 1, 2)}, "b": {T1: (3, 4, 5)}}
    members = [member("a", T1, target=before["a"]), member("b", T1, target=before["b"]), member("c", T1)]
    assignment = assign_uniform(members, {T1: 6})
    assert [len(assignment[name][T1]) for name in "abc"] == [2, 2, 2]
    assert set(assignment["a"][T1]) < {0, 1, 2} and set(assignment["b"][T1]) < {3, 4, 5}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_assignors_accept_groups_without_members_or_topics(name: str) -> None:
    assert ASSIGNORS[name]([], {}) == {}
    assert ASSIGNORS[name]([member("a")], {}) == {"a": {}}
