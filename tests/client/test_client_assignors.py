"""Assignors: examples of range and round-robin, properties of any assignment, and how little sticky ones move."""

from __future__ import annotations

from collections import Counter

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


def parts(text):
    return [TopicPartition(one[0], int(one[1:])) for one in text.split()]


def members(*names, topics="a b"):
    return {name: Subscribed(frozenset(topics.split())) for name in names}


def test_range_lays_partitions_side_by_side():
    assigned = RangeAssignor().assign(Layout({"a": 3, "b": 3}), members("m1", "m0"))
    assert assigned == {"m0": parts("a0 a1 b0 b1"), "m1": parts("a2 b2")}


def test_round_robin_deals_them_out():
    assigned = RoundRobinAssignor().assign(Layout({"a": 3, "b": 3}), members("m1", "m0"))
    assert assigned == {"m0": parts("a0 a2 b1"), "m1": parts("a1 b0 b2")}


def test_round_robin_goes_on_where_it_was_when_subscriptions_differ():
    told = {
        "m0": Subscribed(frozenset("a")),
        "m1": Subscribed(frozenset("ab")),
        "m2": Subscribed(frozenset("abc")),
    }
    assigned = RoundRobinAssignor().assign(Layout({"a": 1, "b": 2, "c": 3}), told)
    assert assigned == {"m0": parts("a0"), "m1": parts("b0"), "m2": parts("b1 c0 c1 c2")}


@pytest.mark.parametrize("assignor", [RangeAssignor(), RoundRobinAssignor()])
def test_static_members_keep_their_place_under_a_new_member_id(assignor):
    def told(first, second):
        return {
            first: Subscribed(frozenset("a"), instance_id="one"),
            second: Subscribed(frozenset("a"), instance_id="two"),
        }

    before = assignor.assign(Layout({"a": 5}), told("x", "y"))
    after = assignor.assign(Layout({"a": 5}), told("z", "b"))
    assert (before["x"], before["y"]) == (after["z"], after["b"])


def test_range_prefers_the_rack():
    racks = {TopicPartition("a", index): frozenset({rack}) for index, rack in enumerate("zyx")}
    told = {f"m{rack}": Subscribed(frozenset("a"), rack=rack) for rack in "xyz"}
    assert RangeAssignor().assign(Layout({"a": 3}, racks), told) == {
        "mx": parts("a2"),
        "my": parts("a1"),
        "mz": parts("a0"),
    }


def test_range_keeps_partitions_of_one_number_together_in_a_rack():
    racks = {TopicPartition(topic, index): frozenset({rack}) for topic in "ab" for index, rack in enumerate("yx")}
    told = {f"m{rack}": Subscribed(frozenset("ab"), rack=rack) for rack in "xy"}
    assert RangeAssignor().assign(Layout({"a": 2, "b": 2}, racks), told) == {
        "mx": parts("a1 b1"),
        "my": parts("a0 b0"),
    }


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_topics_that_are_not_there_are_nobodys(assignor):
    assert assignor.assign(Layout({}), members("m0")) == {"m0": []}


# --- properties of any group


@st.composite
def groups(draw, same=False):
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 6), min_size=1))
    names = [f"m{number}" for number in range(draw(st.integers(1, 6)))]
    wanted = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    all_want = draw(wanted)
    everything = [TopicPartition(topic, index) for topic in TOPICS for index in range(7)]
    told = {}
    free = set(everything)
    for name in names:
        topics = all_want if same else draw(wanted)
        owned = draw(st.lists(st.sampled_from(sorted(free)), unique=True, max_size=8)) if free else []
        free -= set(owned)
        told[name] = Subscribed(topics, tuple(owned), 3, user_data=encode_sticky_data(owned, 3))
    return Layout(counts), told


def wanted_partitions(layout, told):
    wanted = frozenset().union(*(one.topics for one in told.values()))
    return {TopicPartition(topic, index) for topic in wanted for index in range(layout.counts.get(topic, 0))}


@given(groups(), st.sampled_from(ASSIGNORS[:3]))
@settings(deadline=None, max_examples=150)
def test_everything_that_is_wanted_has_one_reader_who_wants_it(group, assignor):
    layout, told = group
    assigned = assignor.assign(layout, told)
    assert assigned.keys() == told.keys()
    all_given = Counter(one for some in assigned.values() for one in some)
    assert all_given == Counter(wanted_partitions(layout, told))
    assert all(one.topic in told[member].topics for member, some in assigned.items() for one in some)


@given(groups())
@settings(deadline=None, max_examples=150)
def test_sticky_is_balanced(group):
    """A member with at least two partitions fewer than another can take none of the other's."""
    layout, told = group
    assigned = StickyAssignor().assign(layout, told)
    for giver, some in assigned.items():
        for taker in told:
            if len(assigned[taker]) <= len(some) - 2:
                assert not any(one.topic in told[taker].topics for one in some), (giver, taker)


@given(groups(same=True))
@settings(deadline=None, max_examples=150)
def test_sticky_moves_as_little_as_can_be(group):
    """With equal subscriptions, members that had most keep the larger shares; each keeps all that fits its share."""
    layout, told = group
    assigned = StickyAssignor().assign(layout, told)
    everything = wanted_partitions(layout, told)
    had = {member: set(one.owned) & everything for member, one in told.items()}
    least, larger = divmod(len(everything), len(told))
    shares = [least + (place < larger) for place in range(len(told))]
    sizes = sorted((len(some) for some in had.values()), reverse=True)
    kept = sum(len(had[member] & set(some)) for member, some in assigned.items())
    assert kept == sum(map(min, sizes, shares))


@given(groups(), st.sampled_from([StickyAssignor(), CooperativeStickyAssignor()]))
@settings(deadline=None, max_examples=150)
def test_nothing_moves_when_nothing_has_changed(group, assignor):
    layout, told = group
    first = balance(layout, told, {})
    again = {
        member: Subscribed(one.topics, tuple(first[member]), 4, user_data=encode_sticky_data(first[member], 4))
        for member, one in told.items()
    }
    assert assignor.assign(layout, again) == first


# --- cooperative


@given(groups())
@settings(deadline=None, max_examples=150)
def test_cooperative_gives_nothing_out_that_another_still_owns_and_gets_there_in_a_few_rebalances(group):
    """Two rebalances suffice unless subscriptions differ and one revocation causes another."""
    layout, told = group
    cooperative = CooperativeStickyAssignor()
    everything = Counter(wanted_partitions(layout, told))
    for _ in range(REBALANCES_MAX):
        assigned = cooperative.assign(layout, told)
        for member, some in assigned.items():
            others = {one for other, claim in told.items() if other != member for one in claim.owned}
            assert others.isdisjoint(some)
        # Members give up partitions that are no longer theirs and rejoin.
        told = _rejoined(told, assigned)
        if Counter(one for some in assigned.values() for one in some) == everything:
            break
    assert cooperative.assign(layout, told) == assigned
    assert Counter(one for some in assigned.values() for one in some) == everything


@given(groups(same=True))
@settings(deadline=None, max_examples=150)
def test_cooperative_gets_there_in_two_rebalances_where_all_want_the_same(group):
    layout, told = group
    cooperative = CooperativeStickyAssignor()
    second = cooperative.assign(layout, _rejoined(told, cooperative.assign(layout, told)))
    assert Counter(one for some in second.values() for one in some) == Counter(wanted_partitions(layout, told))


def _rejoined(told, assigned):
    return {member: one._replace(owned=tuple(assigned[member]), generation=4) for member, one in told.items()}


def test_the_newer_generation_has_it_and_of_two_in_one_neither():
    claims = {"m0": (parts("a0 a1 a2"), 3), "m1": (parts("a0 a1"), 4), "m2": (parts("a1"), 4)}
    assert valid_holders(claims) == {TopicPartition("a", 0): "m1", TopicPartition("a", 2): "m0"}


def test_what_two_claim_is_given_up_by_both_first():
    told = {name: Subscribed(frozenset("a"), tuple(parts("a0")), 4) for name in ("m0", "m1")}
    first = CooperativeStickyAssignor().assign(Layout({"a": 1}), told)
    assert first == {"m0": [], "m1": []}


def test_the_generation_of_an_older_member_is_in_its_user_data():
    told = {
        "m0": Subscribed(frozenset("a"), tuple(parts("a0 a1")), user_data=encode_generation(7)),
        "m1": Subscribed(frozenset("a"), tuple(parts("a0")), 6),
    }
    assert CooperativeStickyAssignor().assign(Layout({"a": 2}), told) == {"m0": parts("a0"), "m1": []}


def test_a_large_group_is_assigned_in_a_moment():
    layout = Layout({f"t{number}": 100 for number in range(50)})
    topics = frozenset(layout.counts)
    first = balance(layout, {f"m{number:03}": Subscribed(topics) for number in range(100)}, {})
    holders = {one: member for member, some in first.items() for one in some}
    more = balance(layout, {f"m{number:03}": Subscribed(topics) for number in range(125)}, holders)
    assert {len(some) for some in more.values()} == {40}
    assert sum(len(set(some) & set(first.get(member, ()))) for member, some in more.items()) == 4000


# --- partition.assignment.strategy


def test_assignors_go_by_javas_names_and_by_short_ones():
    java = ["org.apache.kafka.clients.consumer.RangeAssignor", "org.apache.kafka.clients.consumer.StickyAssignor"]
    assert [one.name for one in assignors_named(java)] == ["range", "sticky"]
    assert [one.name for one in assignors_named(["cooperative-sticky", "RoundRobinAssignor"])] == [
        "cooperative-sticky",
        "roundrobin",
    ]


def test_a_group_is_cooperative_if_all_its_assignors_are():
    assert is_cooperative(assignors_named(["cooperative-sticky"]))
    assert not is_cooperative(assignors_named(["range", "cooperative-sticky"]))


@pytest.mark.parametrize(
    ("names", "complaint"),
    [([], "no assignor"), (["fair"], "'fair'.*range, roundrobin"), (["range", "RangeAssignor"], "range twice")],
)
def test_a_strategy_that_cannot_be(names, complaint):
    with pytest.raises(ConfigError, match=complaint):
        assignors_named(names)
