"""Whole rebalances of classic groups as transcripts: which member gets which response, in what order."""

import pytest
from classic_stage import GROUP, REBALANCE_MS, SESSION_MS, Cast, subscription

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.classic.joining import NEW_MEMBER_TIMEOUT_MS
from headrace.coordinators.group.classic.membership import heartbeat_at_a_glance
from headrace.coordinators.group.classic.states import TRANSITIONS, Event, State
from headrace.coordinators.group.groups import describe_group
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.stored.offsets import GroupMetadataKey
from headrace.protocol.messages.sync_group import SyncGroupRequest


def state(cast):
    return cast.stage.shard.classic.groups[GROUP].state


def test_every_state_can_be_left_and_only_preparing_ends_a_join_phase():
    assert {before for before, _ in TRANSITIONS} == set(State)
    assert {before for (before, event) in TRANSITIONS if event in (Event.ALL_JOINED, Event.ALL_GONE)} == {
        State.PREPARING
    }


def test_eager_rebalance_of_two():
    cast = Cast()
    a, b = cast.member("a"), cast.member("b")
    a.join()
    cast.stage.pass_time(0)
    a.sync()
    assert cast.heard() == ["a join: generation 1 range, leader a, of a", "a sync: 1:a"]
    b.join()
    a.beat()
    a.commit(5)
    assert cast.heard() == ["a beat: REBALANCE_IN_PROGRESS", "a commit: NONE"]
    a.join()
    assert cast.heard() == [
        "a join: generation 2 range, leader a, of a b",
        "b join: generation 2 range, leader a",
    ]
    b.sync()
    a.commit(6)
    a.beat()
    b.beat()
    assert cast.heard() == ["a commit: REBALANCE_IN_PROGRESS", "a beat: NONE", "b beat: NONE"]
    a.sync()
    assert cast.heard() == ["a sync: 2:a", "b sync: 2:b"]
    a.commit(7)
    assert cast.heard() == ["a commit: NONE"]


def test_cooperative_rebalance_takes_two_steps():
    """Partitions that move are revoked in the first generation and assigned in the second (KIP-429)."""
    cast = Cast()
    a, b = cast.member("a", protocols=("cooperative-sticky",)), cast.member("b", protocols=("cooperative-sticky",))
    a.join(metadata=subscription("orders", owned=()))
    cast.stage.pass_time(0)
    a.sync(a="0 1")
    b.join()
    a.join(metadata=subscription("orders", owned=(0, 1)))
    b.sync()
    a.sync(a="0")  # 1 is meant for b, but a still owns it
    assert cast.heard()[-2:] == ["a sync: 0", "b sync: nothing"]
    a.join(metadata=subscription("orders", owned=(0,)))
    b.beat()
    b.join()
    b.sync()
    a.sync(a="0", b="1")
    assert cast.heard() == [
        "b beat: REBALANCE_IN_PROGRESS",
        "a join: generation 3 cooperative-sticky, leader a, of a b",
        "b join: generation 3 cooperative-sticky, leader a",
        "a sync: 0",
        "b sync: 1",
    ]


def test_initial_delay_is_prolonged_by_joiners_until_the_rebalance_timeout():
    cast = Cast(group_initial_rebalance_delay_ms=3000)
    cast.member("a").join(rebalance=10_000)
    cast.stage.pass_time(2000)
    cast.member("b").join(rebalance=10_000)
    cast.stage.pass_time(1500)
    assert cast.heard() == [] and state(cast) is State.PREPARING  # b prolonged the initial delay
    cast.stage.pass_time(2500)
    assert cast.heard() == [
        "a join: generation 1 range, leader a, of a b",
        "b join: generation 1 range, leader a",
    ]
    late = Cast(group_initial_rebalance_delay_ms=3000)
    for second in range(12):
        late.member(f"m{second}").join(rebalance=10_000)
        late.stage.pass_time(1000)
    first = late.heard()
    assert len(first) == 10  # the delay ends after 3 + 3 + 3 + 1 seconds
    assert first[0].startswith("m0 join: generation 1")


def test_late_member_is_out_and_comes_back():
    cast = Cast()
    a, b = cast.stable("a", "b")
    c = cast.member("c").join()
    a.join()
    for _ in range(7):
        cast.stage.pass_time(SESSION_MS - 1)
        b.beat()  # alive, but does not join
    assert cast.heard()[-3:] == [
        "a join: generation 3 range, leader a, of a c",
        "c join: generation 3 range, leader a",
        "b beat: UNKNOWN_MEMBER_ID",
    ]
    a.sync()
    c.sync()
    b.id = ""
    b.join()
    a.join()
    c.join()
    assert cast.heard()[2:] == [
        "a join: generation 4 range, leader a, of a c b",
        "c join: generation 4 range, leader a",
        "b join: generation 4 range, leader a",
    ]


def test_leader_dies_in_completing():
    cast = Cast()
    a, b = cast.stable("a", "b")
    a.join()
    b.join()
    b.sync()
    assert cast.heard()[-1] == "b join: generation 3 range, leader a"
    cast.stage.pass_time(SESSION_MS)  # a's session expires, so b, which waits, must rejoin
    assert cast.heard() == ["b sync: REBALANCE_IN_PROGRESS"]
    b.join()
    b.sync()
    assert cast.heard() == ["b join: generation 4 range, leader b, of b", "b sync: 4:b"]


def test_members_that_never_sync_are_out():
    cast = Cast()
    a, b = cast.stable("a", "b")
    a.join()
    b.join()
    a.sync()
    for _ in range(7):
        cast.stage.pass_time(SESSION_MS - 1)
        a.beat()
        b.beat()
    assert cast.heard()[-2:] == ["a beat: REBALANCE_IN_PROGRESS", "b beat: UNKNOWN_MEMBER_ID"]


def test_session_ends_and_the_last_leaves_an_empty_generation():
    cast = Cast()
    a, b = cast.stable("a", "b")
    cast.stage.pass_time(SESSION_MS - 1)
    a.beat()
    cast.stage.pass_time(1)
    a.beat()
    assert cast.heard() == ["a beat: NONE", "a beat: REBALANCE_IN_PROGRESS"]
    a.leave()
    b.leave()
    assert cast.heard() == ["a leave: NONE", "b leave: UNKNOWN_MEMBER_ID"]
    group = cast.stage.shard.classic.groups[GROUP]
    assert (group.state, group.generation, group.protocol, group.leader) == (State.EMPTY, 3, None, None)
    [record] = [one for one in cast.stage.stored() if isinstance(one.key, GroupMetadataKey)]
    assert (record.version, record.value.generation, record.value.protocol_type) == (3, 3, "consumer")
    assert record.value.members == [] and record.value.current_state_timestamp == cast.stage.now_ms


def test_static_member_comes_back_without_a_rebalance():
    cast = Cast()
    a = cast.member("a", instance="i1").join()
    cast.stage.pass_time(0)
    a.sync()
    b = cast.member("b", instance="i2").join()
    a.join()
    b.sync()
    a.sync()
    cast.heard()
    old_a, old_b = a.id, b.id
    b.id = ""
    b.join()
    b.sync()
    a.beat()
    assert cast.heard() == ["b join: generation 2 range, leader a", "b sync: 2:b", "a beat: NONE"]
    assert b.id != old_b
    a.id = ""
    a.join()  # the leader skips the assignment (KIP-814)
    a.sync()
    assert cast.heard() == ["a join: generation 2 range, leader a, of b a, nothing to assign", "a sync: 2:a"]
    for request, version in (
        (HeartbeatRequest(GROUP, 2, old_a, "i1"), 4),
        (SyncGroupRequest(GROUP, 2, old_a, "i1", "consumer", "range"), 5),
    ):
        assert cast.stage.code(request, version) is ErrorCode.FENCED_INSTANCE_ID
    a.id = ""
    a.join(version=8)  # before version 9 there is no skip flag: the response names the old member id as leader
    assert cast.heard() == ["a join: generation 2 range, leader ?"]
    cast.stage.move()
    a.beat()
    b.beat()
    assert cast.heard() == ["a beat: NONE", "b beat: NONE"]  # the new ids were written to the log


def test_static_member_fences_itself_while_it_waits():
    cast = Cast()
    a, _ = cast.stable("a", "b")
    c = cast.member("c", instance="i").join()
    twin = cast.member("twin", instance="i").join()
    assert cast.heard() == ["c join: FENCED_INSTANCE_ID"]
    a.join()
    cast.by_name("b").join()
    assert cast.heard()[-1] == "twin join: generation 3 range, leader a"
    twin.sync()
    c.id = ""
    c.join()  # in Completing: the leader assigns to the old id, so the rebalance restarts
    assert cast.heard() == ["twin sync: FENCED_INSTANCE_ID"]
    assert state(cast) is State.PREPARING


def test_static_members_leave_by_session_or_by_their_instance():
    cast = Cast()
    a = cast.member("a", instance="i1").join()
    cast.stage.pass_time(0)
    a.sync()
    left = cast.stage.ask(
        LeaveGroupRequest(
            GROUP,
            members=[
                LeaveGroupRequest.MemberIdentity("", "i1"),
                LeaveGroupRequest.MemberIdentity("", "i9"),
                LeaveGroupRequest.MemberIdentity("who", None),
            ],
        ),
        5,
    )
    assert [one.error_code for one in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert state(cast) is State.EMPTY


def test_silent_static_members_alone_wait_for_their_sessions():
    cast = Cast()
    a = cast.member("a", instance="i1").join(session=200_000)
    cast.stage.pass_time(0)
    a.sync()
    b = cast.member("b").join()
    cast.stage.pass_time(REBALANCE_MS)
    assert cast.heard()[-1] == "b join: generation 2 range, leader b, of a b"
    b.leave()
    cast.stage.pass_time(REBALANCE_MS)
    assert state(cast) is State.PREPARING
    cast.stage.pass_time(200_000)
    assert state(cast) is State.EMPTY


def test_protocol_is_chosen_by_votes_among_those_that_all_know():
    cast = Cast()
    a = cast.member("a", protocols=("x", "range", "roundrobin")).join()
    cast.stage.pass_time(0)
    cast.member("b", protocols=("roundrobin", "range")).join()
    cast.member("c", protocols=("roundrobin", "range", "x")).join()
    cast.heard()
    a.join()
    assert "generation 2 roundrobin" in cast.heard()[0]
    strange = cast.member("d", protocols=("y",)).join()
    other = cast.member("e").join(kind="connect")
    assert cast.heard() == ["d join: INCONSISTENT_GROUP_PROTOCOL", "e join: INCONSISTENT_GROUP_PROTOCOL"]
    assert (strange.id, other.id) == ("", "")


def test_size_is_limited_also_for_a_group_that_was_larger():
    cast = Cast(group_max_size=2)
    a, b = cast.stable("a", "b")
    cast.member("c").join()
    assert cast.heard() == ["c join: GROUP_MAX_SIZE_REACHED"]
    cast.stage.settings = type(cast.stage.settings)(group_max_size=1, group_initial_rebalance_delay_ms=0)
    cast.stage.move()
    a.beat()
    a.join()
    b.join()
    assert cast.heard() == ["a beat: REBALANCE_IN_PROGRESS", "b join: GROUP_MAX_SIZE_REACHED"]
    cast.stage.pass_time(REBALANCE_MS)
    assert cast.heard() == ["a join: generation 3 range, leader a, of a"]


def test_bad_joins_are_refused_and_leave_nothing_behind():
    cast = Cast()
    stage = cast.stage

    def code(version=9, **more):
        request = JoinGroupRequest(GROUP, SESSION_MS, REBALANCE_MS, protocol_type="consumer")
        for name, value in more.items():
            setattr(request, name, value)
        return stage.code(request, version)

    assert code(session_timeout_ms=10) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert code(session_timeout_ms=2_000_000) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert code() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    offered = [JoinGroupRequest.JoinGroupRequestProtocol("range", b"")]
    assert code(protocol_type="", protocols=offered) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(member_id="who", protocols=offered) is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(stage.shard.classic.groups) == 0 and stage.journal.written == []
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        stage.ask(HeartbeatRequest(GROUP, 1, "who"), 4)


def test_pending_members_hold_the_join_phase_up_and_expire():
    cast = Cast()
    a, b = cast.stable("a", "b")
    offered = [JoinGroupRequest.JoinGroupRequestProtocol("range", subscription())]
    request = JoinGroupRequest(GROUP, SESSION_MS, REBALANCE_MS, "", None, "consumer", offered)
    assert cast.stage.code(request, 9) is ErrorCode.MEMBER_ID_REQUIRED
    a.join()
    b.join()
    assert cast.heard() == []
    cast.stage.pass_time(SESSION_MS)
    assert [one.split(",")[0] for one in cast.heard()] == [
        "a join: generation 3 range",
        "b join: generation 3 range",
    ]


def test_new_member_that_hung_up_is_forgotten():
    cast = Cast()
    a = cast.stable("a")[0]
    cast.member("ghost").join(rebalance=2 * NEW_MEMBER_TIMEOUT_MS)
    for _ in range(NEW_MEMBER_TIMEOUT_MS // (SESSION_MS - 1) + 1):
        cast.stage.pass_time(SESSION_MS - 1)
        a.beat()
    assert "ghost join: UNKNOWN_MEMBER_ID" in cast.heard()


def test_repeated_join_takes_the_place_of_the_parked_one():
    cast = Cast()
    a, b = cast.stable("a", "b")
    a.join()
    a.join()
    assert cast.heard() == ["a join: REBALANCE_IN_PROGRESS"]
    b.join()
    assert len(cast.heard()) == 2
    a.join()  # its response was lost: the same again
    b.sync()
    b.sync()
    assert cast.heard() == ["a join: generation 3 range, leader a, of a b", "b sync: REBALANCE_IN_PROGRESS"]


def test_description_shows_what_the_state_allows():
    cast = Cast()
    a = cast.stable("a")[0]
    described = describe_group(cast.stage.shard, GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    [member] = described.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("cl", "/h", b"1:a")
    assert member.member_metadata
    cast.member("b").join()
    described = describe_group(cast.stage.shard, GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [member.member_metadata for member in described.members] == [b"", b""]
    assert describe_group(cast.stage.shard, "nobody", 5).group_state == "Dead"
    assert describe_group(cast.stage.shard, "nobody", 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert a.id


# --- a journal that is late, refuses or is lost


def test_nobody_hears_of_an_assignment_before_it_is_committed():
    cast = Cast()
    a, b = cast.stable("a", "b")
    a.join()
    b.join()
    cast.heard()
    cast.stage.journal.late = True
    b.sync()
    a.sync()
    assert cast.heard() == []
    cast.stage.journal.commit()
    assert cast.heard() == ["a sync: 3:a", "b sync: 3:b"]


def test_lost_leadership_refuses_everybody_and_the_next_coordinator_goes_on_from_what_is_committed():
    cast = Cast()
    a, b = cast.stable("a", "b")
    c = cast.member("c").join()
    a.join()
    cast.stage.move()
    assert cast.heard() == ["c join: NotLeader", "a join: NotLeader"]
    a.beat()
    b.beat()
    assert cast.heard() == ["a beat: NONE", "b beat: NONE"]  # still generation 2, with new sessions
    cast.stage.pass_time(SESSION_MS - 1)
    a.beat()
    b.beat()
    c.id = ""
    c.join()
    a.join()
    b.join()
    assert [one.split(",")[0] for one in cast.heard()[-3:]] == [f"{name} join: generation 3 range" for name in "abc"]
    cast.stage.journal.late = True
    c.sync()
    b.sync()
    a.sync()
    cast.stage.move()  # written but never committed: no member got a response
    assert sorted(cast.heard()) == ["a sync: NotLeader", "b sync: NotLeader", "c sync: NotLeader"]
    group = cast.stage.shard.classic.groups[GROUP]
    assert (group.generation, [cast.who(one) for one in group.members]) == (2, ["a", "b"])


def test_refused_write_takes_the_decision_back():
    cast = Cast()
    a, b = cast.stable("a", "b")
    a.join()
    b.join()
    b.sync()
    cast.heard()
    cast.stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    a.sync()
    assert cast.heard() == ["a sync: NOT_ENOUGH_REPLICAS"] and state(cast) is State.COMPLETING
    cast.stage.journal.refusal = None
    a.sync()
    assert cast.heard() == ["a sync: 3:a", "b sync: 3:b"]


def test_session_that_could_not_be_ended_ends_later():
    cast = Cast()
    cast.stable("a")
    cast.stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    cast.stage.pass_time(SESSION_MS)
    assert state(cast) is State.STABLE
    cast.stage.journal.refusal = None
    cast.stage.pass_time(1000)
    assert state(cast) is State.EMPTY


def test_a_beat_at_a_glance_keeps_a_session_alive():
    cast = Cast()
    a, b = cast.stable("a", "b")
    stage = cast.stage
    for _ in range(3):
        stage.pass_time(SESSION_MS - 1)
        for member in (a, b):
            request = HeartbeatRequest(GROUP, member.generation, member.id)
            assert heartbeat_at_a_glance(stage.shard, request, stage.now_ms, stage.runtime.arm) == HeartbeatResponse()
    stage.pass_time(SESSION_MS - 1)
    assert state(cast) is State.STABLE
    stage.pass_time(1)
    assert state(cast) is State.EMPTY


def test_only_members_of_a_stable_generation_are_answered_at_a_glance():
    cast = Cast()
    a, b = cast.stable("a", "b")
    stage = cast.stage
    good = HeartbeatRequest(GROUP, a.generation, a.id)
    assert stage.glance(good) == HeartbeatResponse()
    for wrong in (
        HeartbeatRequest("others", a.generation, a.id),
        HeartbeatRequest(GROUP, a.generation + 1, a.id),
        HeartbeatRequest(GROUP, a.generation, "nobody"),
        HeartbeatRequest(GROUP, a.generation, a.id, "instance"),
    ):
        assert stage.glance(wrong) is None
    cast.member("c").join()
    assert stage.glance(good) is None
    b.leave()
    assert stage.glance(good) is None
