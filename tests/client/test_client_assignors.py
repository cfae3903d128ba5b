"""Assignors: examples of range and round-robin, properties of any assignment, and how little sticky ones move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition
from headrace.client.group.assignors import Layout, assignors_named, is_cooperative
from headrace.client.group.assignors.balance import balance, valid_holders
from headrace.client.group.assignors.cooperative import CooperativeStickyAssignor
from headrace.client.group.assignors.range import RangeAssignor
from headrace.client.group.assignors.roundrobin import RoundRobinAssignor
from headrace.client.group.assignors.sticky import StickyAssignor
from headrace.client.group.classic_protocol import Subscribed, encode_generation, encode_sticky_data

TOPICS = ("a", "b", "c")
REBALANCES_MAX = 4  # the limit in Kafka's own tests
ASSIGNORS = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()]


def parts(text: str) -> list[TopicPartition]:
    return [TopicPartition(one[0], int(one[1:])) for one in text.split()]


def members(*names: str, topics: str = "a b") -> dict[str, Subscribed]:
    return {name: Subscribed(frozenset(topics.split())) for name in names}


def test_range_assigns_contiguous_partitions_of_each_topic() -> None:
    assigned = RangeAssignor().assign(Layout({"a": 3, "b": 3}), members("m1", "m0"))
    assert assigned == {"m0": parts("a0 a1 b0 b1"), "m1": parts("a2 b2")}


def test_round_robin_alternates_partitions_between_members() -> None:
    assigned = RoundRobinAssignor().assign(Layout({"a": 3, "b": 3}), members("m1", "m0"))
    assert assigned == {"m0": parts("a0 a2 b1"), "m1": parts("a1 b0 b2")}


def test_round_robin_skips_members_that_do_not_subscribe_to_a_topic() -> None:
    subscriptions = {
        "m0": Subscribed(frozenset("a")),
        "m1": Subscribed(frozenset("ab")),
        "m2": Subscribed(frozenset("abc")),
    }
    assigned = RoundRobinAssignor().assign(Layout({"a": 1, "b": 2, "c": 3}), subscriptions)
    assert assigned == {"m0": parts("a0"), "m1": parts("b0"), "m2": parts("b1 c0 c1 c2")}


@pytest.mark.parametrize("assignor", [RangeAssignor(), RoundRobinAssignor()])
def test_static_members_keep_their_partitions_under_a_new_member_id(
    assignor: RangeAssignor | RoundRobinAssignor,
) -> None:
    def subscriptions(first: str, second: str) -> dict[str, Subscribed]:
        return {
            first: Subscribed(frozenset("a"), instance_id="one"),
            second: Subscribed(frozenset("a"), instance_id="two"),
        }

    before = assignor.assign(Layout({"a": 5}), subscriptions("x", "y"))
    after = assignor.assign(Layout({"a": 5}), subscriptions("z", "b"))
    assert (before["x"], before["y"]) == (after["z"], after["b"])


def test_range_prefers_partitions_in_the_rack_of_the_member() -> None:
    racks = {TopicPartition("a", index): frozenset({rack}) for index, rack in enumerate("zyx")}
    subscriptions = {f"m{rack}": Subscribed(frozenset("a"), rack=rack) for rack in "xyz"}
    assert RangeAssignor().assign(Layout({"a": 3}, racks), subscriptions) == {
        "mx": parts("a2"),
        "my": parts("a1"),
        "mz": parts("a0"),
    }


def test_range_co_partitions_topics_within_a_rack() -> None:
    racks = {TopicPartition(topic, index): frozenset({rack}) for topic in "ab" for index, rack in enumerate("yx")}
    subscriptions = {f"m{rack}": Subscribed(frozenset("ab"), rack=rack) for rack in "xy"}
    assert RangeAssignor().assign(Layout({"a": 2, "b": 2}, racks), subscriptions) == {
        "mx": parts("a1 b1"),
        "my": parts("a0 b0"),
    }


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_unknown_topics_are_not_assigned(assignor: Any) -> None:
    assert assignor.assign(Layout({}), members("m0")) == {"m0": []}


# --- properties of any group


@st.composite
def groups(draw: st.DrawFn, same: bool = False) -> tuple[Layout, dict[str, Subscribed]]:
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 6), min_size=1))
    names = [f"m{number}" for number in range(draw(st.integers(1, 6)))]
    some_topics = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    same_topics = draw(some_topics)
    everything = [TopicPartition(topic, index) for topic in TOPICS for index in range(7)]
    subscriptions: dict[str, Subscribed] = {}
    free = set(everything)
    for name in names:
        topics = same_topics if same else draw(some_topics)
        owned = draw(st.lists(st.sampled_from(sorted(free)), unique=True, max_size=8)) if free else []
        free -= set(owned)
        subscriptions[name] = Subscribed(topics, tuple(owned), 3, user_data=encode_sticky_data(owned, 3))
    return Layout(counts), subscriptions


def subscribed_partitions(layout: Layout, subscriptions: Mapping[str, Subscribed]) -> set[TopicPartition]:
    topics = frozenset().union(*(one.topics for one in subscriptions.values()))
    return {TopicPartition(topic, index) for topic in topics for index in range(layout.counts.get(topic, 0))}


@given(groups(), st.sampled_from(ASSIGNORS[:3]))
@settings(deadline=None, max_examples=150)
def test_every_subscribed_partition_is_assigned_to_exactly_one_subscriber(
    group: tuple[Layout, dict[str, Subscribed]], assignor: Any
) -> None:
    layout, subscriptions = group
    assigned = assignor.assign(layout, subscriptions)
    assert assigned.keys() == subscriptions.keys()
    all_given = Counter(one for some in assigned.values() for one in some)
    assert all_given == Counter(subscribed_partitions(layout, subscriptions))
    assert all(one.topic in subscriptions[member].topics for member, some in assigned.items() for one in some)


@given(groups())
@settings(deadline=None, max_examples=150)
def test_sticky_is_balanced(group: tuple[Layout, dict[str, Subscribed]]) -> None:
    """A member with at least two partitions fewer than another can take none of the other's."""
    layout, subscriptions = group
    assigned = StickyAssignor().assign(layout, subscriptions)
    for giver, some in assigned.items():
        for taker in subscriptions:
            if len(assigned[taker]) <= len(some) - 2:
                assert not any(one.topic in subscriptions[taker].topics for one in some), (giver, taker)


@given(groups(same=True))
@settings(deadline=None, max_examples=150)
def test_sticky_moves_as_few_partitions_as_possible(group: tuple[Layout, dict[str, Subscribed]]) -> None:
    """Check that with equal subscriptions, members with the most partitions get the larger shares, and each keeps all that fit."""
    layout, subscriptions = group
    assigned = StickyAssignor().assign(layout, subscriptions)
    everything = subscribed_partitions(layout, subscriptions)
    had = {member: set(one.owned) & everything for member, one in subscriptions.items()}
    least, larger = divmod(len(everything), len(subscriptions))
    shares = [least + (place < larger) for place in range(len(subscriptions))]
    sizes = sorted((len(some) for some in had.values()), reverse=True)
    kept = sum(len(had[member] & set(some)) for member, some in assigned.items())
    assert kept == sum(map(min, sizes, shares))


@given(groups(), st.sampled_from([StickyAssignor(), CooperativeStickyAssignor()]))
@settings(deadline=None, max_examples=150)
def test_sticky_assignors_move_nothing_when_nothing_has_changed(
    group: tuple[Layout, dict[str, Subscribed]], assignor: CooperativeStickyAssignor | StickyAssignor
) -> None:
    layout, subscriptions = group
    first = balance(layout, subscriptions, {})
    again = {
        member: Subscribed(one.topics, tuple(first[member]), 4, user_data=encode_sticky_data(first[member], 4))
        for member, one in subscriptions.items()
    }
    assert assignor.assign(layout, again) == first


# --- cooperative


@given(groups())
@settings(deadline=None, max_examples=150)
def test_cooperative_never_assigns_owned_partitions_and_converges_within_the_rebalance_limit(
    group: tuple[Layout, dict[str, Subscribed]],
) -> None:
    """Two rebalances suffice unless subscriptions differ and one revocation causes another."""
    layout, subscriptions = group
    cooperative = CooperativeStickyAssignor()
    everything = Counter(subscribed_partitions(layout, subscriptions))
    for _ in range(REBALANCES_MAX):
        assigned = cooperative.assign(layout, subscriptions)
        for member, some in assigned.items():
            others = {one for other, claim in subscriptions.items() if other != member for one in claim.owned}
            assert others.isdisjoint(some)
        # Members give up partitions that are no longer theirs and rejoin.
        subscriptions = _rejoined(subscriptions, assigned)
        if Counter(one for some in assigned.values() for one in some) == everything:
            break
    assert cooperative.assign(layout, subscriptions) == assigned
    assert Counter(one for some in assigned.values() for one in some) == everything


@given(groups(same=True))
@settings(deadline=None, max_examples=150)
def test_cooperative_converges_in_two_rebalances_with_equal_subscriptions(
    group: tuple[Layout, dict[str, Subscribed]],
) -> None:
    layout, subscriptions = group
    cooperative = CooperativeStickyAssignor()
    second = cooperative.assign(layout, _rejoined(subscriptions, cooperative.assign(layout, subscriptions)))
    assert Counter(one for some in second.values() for one in some) == Counter(
        subscribed_partitions(layout, subscriptions)
    )


def _rejoined(
    subscriptions: Mapping[str, Subscribed], assigned: Mapping[str, list[TopicPartition]]
) -> dict[str, Subscribed]:
    return {member: one._replace(owned=tuple(assigned[member]), generation=4) for member, one in subscriptions.items()}


def test_the_newest_generation_holds_a_partition_and_a_tie_leaves_no_holder() -> None:
    claims = {"m0": (parts("a0 a1 a2"), 3), "m1": (parts("a0 a1"), 4), "m2": (parts("a1"), 4)}
    assert valid_holders(claims) == {TopicPartition("a", 0): "m1", TopicPartition("a", 2): "m0"}


def test_a_partition_claimed_by_two_members_is_first_assigned_to_neither() -> None:
    subscriptions = {name: Subscribed(frozenset("a"), tuple(parts("a0")), 4) for name in ("m0", "m1")}
    first = CooperativeStickyAssignor().assign(Layout({"a": 1}), subscriptions)
    assert first == {"m0": [], "m1": []}


def test_the_generation_of_an_older_member_is_read_from_its_user_data() -> None:
    subscriptions = {
        "m0": Subscribed(frozenset("a"), tuple(parts("a0 a1")), user_data=encode_generation(7)),
        "m1": Subscribed(frozenset("a"), tuple(parts("a0")), 6),
    }
    assert CooperativeStickyAssignor().assign(Layout({"a": 2}), subscriptions) == {"m0": parts("a0"), "m1": []}


def test_a_large_group_is_balanced_with_minimal_movement() -> None:
    layout = Layout({f"t{number}": 100 for number in range(50)})
    topics = frozenset(layout.counts)
    first = balance(layout, {f"m{number:03}": Subscribed(topics) for number in range(100)}, {})
    holders = {one: member for member, some in first.items() for one in some}
    more = balance(layout, {f"m{number:03}": Subscribed(topics) for number in range(125)}, holders)
    assert {len(some) for some in more.values()} == {40}
    assert sum(len(set(some) & set(first.get(member, ()))) for member, some in more.items()) == 4000


# --- partition.assignment.strategy


def test_assignors_are_found_by_java_class_name_and_by_short_name() -> None:
    java = ["org.apache.kafka.clients.consumer.RangeAssignor", "org.apache.kafka.clients.consumer.StickyAssignor"]
    assert [one.name for one in assignors_named(java)] == ["range", "sticky"]
    assert [one.name for one in assignors_named(["cooperative-sticky", "RoundRobinAssignor"])] == [
        "cooperative-sticky",
        "roundrobin",
    ]


def test_a_group_is_cooperative_if_all_its_assignors_are() -> None:
    assert is_cooperative(assignors_named(["cooperative-sticky"]))
    assert not is_cooperative(assignors_named(["range", "cooperative-sticky"]))


@pytest.mark.parametrize(
    ("names", "message"),
    [([], "no assignor"), (["fair"], "'fair'.*range, roundrobin"), (["range", "RangeAssignor"], "range twice")],
)
def test_invalid_assignment_strategies_raise_config_error(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assignors_named(names)
