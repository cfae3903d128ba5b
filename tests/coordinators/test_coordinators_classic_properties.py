"""Members that join, sync, leave and fall silent in any order, on a journal that is late, refuses and is lost.

An assignment always belongs to one generation, and every request gets one response.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinators.classic_harness import GROUP, REBALANCE_MS, Scenario

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.classic.states import State

NAMES = ("a", "b", "c", "s", "t")  # the last two are static
STEPS = st.one_of(
    st.tuples(st.sampled_from(("join", "sync", "beat", "leave", "forget")), st.sampled_from(NAMES)),
    st.tuples(st.just("gather"), st.sampled_from(("ab", "abs", "abcst"))),
    st.tuples(st.just("advance"), st.sampled_from((1, 500, 4000, 10_000, 61_000))),
    st.tuples(st.sampled_from(("hold", "flush", "refuse", "allow", "move")), st.none()),
)


def check_group(scenario: Scenario) -> None:
    group = scenario.harness.shard.classic.groups.get(GROUP)
    if group is None:
        return
    waiting = [member for member in group.members.values() if member.joining is not None]
    assert group.joined == len(waiting)
    assert (group.state is State.EMPTY) == (not group.members) or group.state is State.PREPARING
    assert group.state is State.PREPARING or not waiting
    assert group.state is State.COMPLETING or all(member.syncing is None for member in group.members.values())
    assert group.leader is None or group.leader in group.members
    assert set(group.unsynced) <= set(group.members) and not set(group.pending) & set(group.members)
    assert {name for name, _ in group.instances.items()} == {
        member.instance_id for member in group.members.values() if member.instance_id is not None
    }
    for name, count in group.support.items():
        assert count == sum(name in dict(member.protocols) for member in group.members.values()) > 0
    assert scenario.harness.runtime.next_timer() is not None or not group.members


def take(scenario: Scenario, step: str, subject: Any) -> None:
    harness = scenario.harness
    if step in ("join", "sync"):
        getattr(scenario.by_name(subject), step)()
    elif step in ("beat", "leave"):
        if not harness.journal.late and harness.journal.refusal is None:
            getattr(scenario.by_name(subject), step)()
    elif step == "gather":
        for name in subject:
            scenario.by_name(name).join()
            harness.pass_time(1)
    elif step == "forget":
        scenario.by_name(subject).id = ""
    elif step == "advance":
        harness.pass_time(subject)
    elif step == "hold":
        harness.journal.late = True
    elif step == "flush":
        harness.journal.late = False
        harness.journal.commit()
    elif step == "refuse":
        harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    elif step == "allow":
        harness.journal.refusal = None
    else:
        harness.move()


@settings(deadline=None, max_examples=150)
@given(st.lists(STEPS, max_size=60), st.sampled_from((0, 3000)))
def test_assignments_match_their_generation_and_every_request_gets_one_response(
    steps: list[tuple[str, Any]], delay: int
) -> None:
    scenario = Scenario(group_initial_rebalance_delay_ms=delay)
    for name in NAMES:
        scenario.member(name, instance=name if name in "st" else None)
    for step, subject in steps:
        take(scenario, step, subject)
        check_group(scenario)
    for step in ("allow", "flush"):
        take(scenario, step, None)
    # Members that still wait do so for silent ones, which time out.
    for _ in range(12):
        scenario.harness.pass_time(REBALANCE_MS)
        check_group(scenario)
    assert set(scenario.harness.response_counts) <= {1}, "every request has one answer"
    for generation, name, piece in scenario.assigned:
        if piece:  # members that the leader did not know of get nothing
            assigned_generation, assigned_name = piece.decode().split(":")
            assert int(assigned_generation) == generation
            assert assigned_name in (name, "?")
    group = scenario.harness.shard.classic.groups.get(GROUP)
    assert group is None or group.state is State.EMPTY
