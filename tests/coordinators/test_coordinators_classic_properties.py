"""Members that join, sync, leave and fall silent in any order, on a journal that is late, refuses and is lost.

An assignment always belongs to one generation, and every request gets one response.
"""

from classic_stage import GROUP, REBALANCE_MS, Cast
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.classic.states import State

NAMES = ("a", "b", "c", "s", "t")  # the last two are static
STEPS = st.one_of(
    st.tuples(st.sampled_from(("join", "sync", "beat", "leave", "forget")), st.sampled_from(NAMES)),
    st.tuples(st.just("gather"), st.sampled_from(("ab", "abs", "abcst"))),
    st.tuples(st.just("advance"), st.sampled_from((1, 500, 4000, 10_000, 61_000))),
    st.tuples(st.sampled_from(("hold", "flush", "refuse", "allow", "move")), st.none()),
)


def check_group(cast):
    group = cast.stage.shard.classic.groups.get(GROUP)
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
    assert cast.stage.runtime.next_timer() is not None or not group.members


def take(cast, step, subject):
    stage = cast.stage
    if step in ("join", "sync"):
        getattr(cast.by_name(subject), step)()
    elif step in ("beat", "leave"):
        if not stage.journal.late and stage.journal.refusal is None:
            getattr(cast.by_name(subject), step)()
    elif step == "gather":
        for name in subject:
            cast.by_name(name).join()
            stage.pass_time(1)
    elif step == "forget":
        cast.by_name(subject).id = ""
    elif step == "advance":
        stage.pass_time(subject)
    elif step == "hold":
        stage.journal.late = True
    elif step == "flush":
        stage.journal.late = False
        stage.journal.commit()
    elif step == "refuse":
        stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    elif step == "allow":
        stage.journal.refusal = None
    else:
        stage.move()


@settings(deadline=None, max_examples=150)
@given(st.lists(STEPS, max_size=60), st.sampled_from((0, 3000)))
def test_assignments_are_of_one_generation_and_everybody_is_answered_once(steps, delay):
    cast = Cast(group_initial_rebalance_delay_ms=delay)
    for name in NAMES:
        cast.member(name, instance=name if name in "st" else None)
    for step, subject in steps:
        take(cast, step, subject)
        check_group(cast)
    for step in ("allow", "flush"):
        take(cast, step, None)
    # Members that still wait do so for silent ones, which time out.
    for _ in range(12):
        cast.stage.pass_time(REBALANCE_MS)
        check_group(cast)
    assert set(cast.stage.answers) <= {1}, "every request has one answer"
    for generation, name, piece in cast.assigned:
        if piece:  # members that the leader did not know of get nothing
            told_generation, told_name = piece.decode().split(":")
            assert int(told_generation) == generation
            assert told_name in (name, "?")
    group = cast.stage.shard.classic.groups.get(GROUP)
    assert group is None or group.state is State.EMPTY
