"""Whole rebalances of classic groups as transcripts: which member gets which response, in what order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.coordinators.classic_harness import GROUP, REBALANCE_MS, SESSION_MS, Scenario, subscription

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.classic.joining import NEW_MEMBER_TIMEOUT_MS
from headrace.coordinators.group.classic.membership import heartbeat_without_decision
from headrace.coordinators.group.classic.states import TRANSITIONS, Event, State
from headrace.coordinators.group.groups import describe_group
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.stored.offsets import GroupMetadataKey
from headrace.protocol.messages.sync_group import SyncGroupRequest


def state(scenario: Scenario) -> State:
    return scenario.harness.shard.classic.groups[GROUP].state


def test_every_state_has_a_transition_and_only_preparing_ends_a_join_phase() -> None:
    assert {before for before, _ in TRANSITIONS} == set(State)
    assert {before for (before, event) in TRANSITIONS if event in (Event.ALL_JOINED, Event.ALL_LEFT)} == {
        State.PREPARING
    }


def test_eager_rebalance_of_two_members() -> None:
    scenario = Scenario()
    a, b = scenario.member("a"), scenario.member("b")
    a.join()
    scenario.harness.pass_time(0)
    a.sync()
    assert scenario.responses() == ["a join: generation 1 range, leader a, of a", "a sync: 1:a"]
    b.join()
    a.beat()
    a.commit(5)
    assert scenario.responses() == ["a beat: REBALANCE_IN_PROGRESS", "a commit: NONE"]
    a.join()
    assert scenario.responses() == [
        "a join: generation 2 range, leader a, of a b",
        "b join: generation 2 range, leader a",
    ]
    b.sync()
    a.commit(6)
    a.beat()
    b.beat()
    assert scenario.responses() == ["a commit: REBALANCE_IN_PROGRESS", "a beat: NONE", "b beat: NONE"]
    a.sync()
    assert scenario.responses() == ["a sync: 2:a", "b sync: 2:b"]
    a.commit(7)
    assert scenario.responses() == ["a commit: NONE"]


def test_cooperative_rebalance_takes_two_generations() -> None:
    """Partitions that move are revoked in the first generation and assigned in the second (KIP-429)."""
    scenario = Scenario()
    a, b = (
        scenario.member("a", protocols=("cooperative-sticky",)),
        scenario.member("b", protocols=("cooperative-sticky",)),
    )
    a.join(metadata=subscription("orders", owned=()))
    scenario.harness.pass_time(0)
    a.sync(a="0 1")
    b.join()
    a.join(metadata=subscription("orders", owned=(0, 1)))
    b.sync()
    a.sync(a="0")  # 1 is meant for b, but a still owns it
    assert scenario.responses()[-2:] == ["a sync: 0", "b sync: nothing"]
    a.join(metadata=subscription("orders", owned=(0,)))
    b.beat()
    b.join()
    b.sync()
    a.sync(a="0", b="1")
    assert scenario.responses() == [
        "b beat: REBALANCE_IN_PROGRESS",
        "a join: generation 3 cooperative-sticky, leader a, of a b",
        "b join: generation 3 cooperative-sticky, leader a",
        "a sync: 0",
        "b sync: 1",
    ]


def test_new_members_extend_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    scenario = Scenario(group_initial_rebalance_delay_ms=3000)
    scenario.member("a").join(rebalance=10_000)
    scenario.harness.pass_time(2000)
    scenario.member("b").join(rebalance=10_000)
    scenario.harness.pass_time(1500)
    assert scenario.responses() == [] and state(scenario) is State.PREPARING  # b prolonged the initial delay
    scenario.harness.pass_time(2500)
    assert scenario.responses() == [
        "a join: generation 1 range, leader a, of a b",
        "b join: generation 1 range, leader a",
    ]
    late = Scenario(group_initial_rebalance_delay_ms=3000)
    for second in range(12):
        late.member(f"m{second}").join(rebalance=10_000)
        late.harness.pass_time(1000)
    first = late.responses()
    assert len(first) == 10  # the delay ends after 3 + 3 + 3 + 1 seconds
    assert first[0].startswith("m0 join: generation 1")


def test_a_member_that_misses_the_join_phase_is_removed_and_can_rejoin() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    c = scenario.member("c").join()
    a.join()
    for _ in range(7):
        scenario.harness.pass_time(SESSION_MS - 1)
        b.beat()  # alive, but does not join
    assert scenario.responses()[-3:] == [
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
    assert scenario.responses()[2:] == [
        "a join: generation 4 range, leader a, of a c b",
        "c join: generation 4 range, leader a",
        "b join: generation 4 range, leader a",
    ]


def test_losing_the_leader_before_it_syncs_starts_another_rebalance() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    a.join()
    b.join()
    b.sync()
    assert scenario.responses()[-1] == "b join: generation 3 range, leader a"
    scenario.harness.pass_time(SESSION_MS)  # a's session expires, so b, which waits, must rejoin
    assert scenario.responses() == ["b sync: REBALANCE_IN_PROGRESS"]
    b.join()
    b.sync()
    assert scenario.responses() == ["b join: generation 4 range, leader b, of b", "b sync: 4:b"]


def test_members_that_never_sync_are_removed() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    a.join()
    b.join()
    a.sync()
    for _ in range(7):
        scenario.harness.pass_time(SESSION_MS - 1)
        a.beat()
        b.beat()
    assert scenario.responses()[-2:] == ["a beat: REBALANCE_IN_PROGRESS", "b beat: UNKNOWN_MEMBER_ID"]


def test_removing_the_last_member_writes_an_empty_generation() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    scenario.harness.pass_time(SESSION_MS - 1)
    a.beat()
    scenario.harness.pass_time(1)
    a.beat()
    assert scenario.responses() == ["a beat: NONE", "a beat: REBALANCE_IN_PROGRESS"]
    a.leave()
    b.leave()
    assert scenario.responses() == ["a leave: NONE", "b leave: UNKNOWN_MEMBER_ID"]
    group = scenario.harness.shard.classic.groups[GROUP]
    assert (group.state, group.generation, group.protocol, group.leader) == (State.EMPTY, 3, None, None)
    [record] = [one for one in scenario.harness.stored() if isinstance(one.key, GroupMetadataKey)]
    assert (record.version, record.value.generation, record.value.protocol_type) == (3, 3, "consumer")
    assert record.value.members == [] and record.value.current_state_timestamp == scenario.harness.now_ms


def test_a_static_member_returns_without_a_rebalance() -> None:
    scenario = Scenario()
    a = scenario.member("a", instance="i1").join()
    scenario.harness.pass_time(0)
    a.sync()
    b = scenario.member("b", instance="i2").join()
    a.join()
    b.sync()
    a.sync()
    scenario.responses()
    old_a, old_b = a.id, b.id
    b.id = ""
    b.join()
    b.sync()
    a.beat()
    assert scenario.responses() == ["b join: generation 2 range, leader a", "b sync: 2:b", "a beat: NONE"]
    assert b.id != old_b
    a.id = ""
    a.join()  # the leader skips the assignment (KIP-814)
    a.sync()
    assert scenario.responses() == ["a join: generation 2 range, leader a, of b a, nothing to assign", "a sync: 2:a"]
    for request, version in (
        (HeartbeatRequest(GROUP, 2, old_a, "i1"), 4),
        (SyncGroupRequest(GROUP, 2, old_a, "i1", "consumer", "range"), 5),
    ):
        assert scenario.harness.code(request, version) is ErrorCode.FENCED_INSTANCE_ID
    a.id = ""
    a.join(version=8)  # before version 9 there is no skip flag: the response names the old member id as leader
    assert scenario.responses() == ["a join: generation 2 range, leader ?"]
    scenario.harness.move()
    a.beat()
    b.beat()
    assert scenario.responses() == ["a beat: NONE", "b beat: NONE"]  # the new ids were written to the log


def test_a_second_join_with_the_same_instance_id_fences_the_waiting_member() -> None:
    scenario = Scenario()
    a, _ = scenario.stable("a", "b")
    c = scenario.member("c", instance="i").join()
    replacement = scenario.member("twin", instance="i").join()
    assert scenario.responses() == ["c join: FENCED_INSTANCE_ID"]
    a.join()
    scenario.by_name("b").join()
    assert scenario.responses()[-1] == "twin join: generation 3 range, leader a"
    replacement.sync()
    c.id = ""
    c.join()  # in Completing: the leader assigns to the old id, so the rebalance restarts
    assert scenario.responses() == ["twin sync: FENCED_INSTANCE_ID"]
    assert state(scenario) is State.PREPARING


def test_static_members_can_be_removed_by_instance_id() -> None:
    scenario = Scenario()
    a = scenario.member("a", instance="i1").join()
    scenario.harness.pass_time(0)
    a.sync()
    left = scenario.harness.execute(
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
    assert state(scenario) is State.EMPTY


def test_silent_static_members_stay_until_their_session_expires() -> None:
    scenario = Scenario()
    a = scenario.member("a", instance="i1").join(session=200_000)
    scenario.harness.pass_time(0)
    a.sync()
    b = scenario.member("b").join()
    scenario.harness.pass_time(REBALANCE_MS)
    assert scenario.responses()[-1] == "b join: generation 2 range, leader b, of a b"
    b.leave()
    scenario.harness.pass_time(REBALANCE_MS)
    assert state(scenario) is State.PREPARING
    scenario.harness.pass_time(200_000)
    assert state(scenario) is State.EMPTY


def test_the_protocol_is_chosen_by_votes_among_those_all_members_support() -> None:
    scenario = Scenario()
    a = scenario.member("a", protocols=("x", "range", "roundrobin")).join()
    scenario.harness.pass_time(0)
    scenario.member("b", protocols=("roundrobin", "range")).join()
    scenario.member("c", protocols=("roundrobin", "range", "x")).join()
    scenario.responses()
    a.join()
    assert "generation 2 roundrobin" in scenario.responses()[0]
    strange = scenario.member("d", protocols=("y",)).join()
    other = scenario.member("e").join(kind="connect")
    assert scenario.responses() == ["d join: INCONSISTENT_GROUP_PROTOCOL", "e join: INCONSISTENT_GROUP_PROTOCOL"]
    assert (strange.id, other.id) == ("", "")


def test_group_max_size_also_limits_a_loaded_group_that_is_larger() -> None:
    scenario = Scenario(group_max_size=2)
    a, b = scenario.stable("a", "b")
    scenario.member("c").join()
    assert scenario.responses() == ["c join: GROUP_MAX_SIZE_REACHED"]
    scenario.harness.settings = type(scenario.harness.settings)(group_max_size=1, group_initial_rebalance_delay_ms=0)
    scenario.harness.move()
    a.beat()
    a.join()
    b.join()
    assert scenario.responses() == ["a beat: REBALANCE_IN_PROGRESS", "b join: GROUP_MAX_SIZE_REACHED"]
    scenario.harness.pass_time(REBALANCE_MS)
    assert scenario.responses() == ["a join: generation 3 range, leader a, of a"]


def test_invalid_joins_are_refused_without_creating_a_group() -> None:
    scenario = Scenario()
    harness = scenario.harness

    def code(version: int = 9, **more: Any) -> ErrorCode:
        request = JoinGroupRequest(GROUP, SESSION_MS, REBALANCE_MS, protocol_type="consumer")
        for name, value in more.items():
            setattr(request, name, value)
        return harness.code(request, version)

    assert code(session_timeout_ms=10) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert code(session_timeout_ms=2_000_000) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert code() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    offered = [JoinGroupRequest.JoinGroupRequestProtocol("range", b"")]
    assert code(protocol_type="", protocols=offered) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(member_id="who", protocols=offered) is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(harness.shard.classic.groups) == 0 and harness.journal.written == []
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        harness.execute(HeartbeatRequest(GROUP, 1, "who"), 4)


def test_pending_members_delay_the_join_phase_until_they_expire() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    offered = [JoinGroupRequest.JoinGroupRequestProtocol("range", subscription())]
    request = JoinGroupRequest(GROUP, SESSION_MS, REBALANCE_MS, "", None, "consumer", offered)
    assert scenario.harness.code(request, 9) is ErrorCode.MEMBER_ID_REQUIRED
    a.join()
    b.join()
    assert scenario.responses() == []
    scenario.harness.pass_time(SESSION_MS)
    assert [one.split(",")[0] for one in scenario.responses()] == [
        "a join: generation 3 range",
        "b join: generation 3 range",
    ]


def test_a_new_member_that_is_silent_is_removed_after_the_new_member_timeout() -> None:
    scenario = Scenario()
    a = scenario.stable("a")[0]
    scenario.member("ghost").join(rebalance=2 * NEW_MEMBER_TIMEOUT_MS)
    for _ in range(NEW_MEMBER_TIMEOUT_MS // (SESSION_MS - 1) + 1):
        scenario.harness.pass_time(SESSION_MS - 1)
        a.beat()
    assert "ghost join: UNKNOWN_MEMBER_ID" in scenario.responses()


def test_a_repeated_join_replaces_the_parked_one() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    a.join()
    a.join()
    assert scenario.responses() == ["a join: REBALANCE_IN_PROGRESS"]
    b.join()
    assert len(scenario.responses()) == 2
    a.join()  # its response was lost: the same again
    b.sync()
    b.sync()
    assert scenario.responses() == ["a join: generation 3 range, leader a, of a b", "b sync: REBALANCE_IN_PROGRESS"]


def test_describe_shows_protocol_and_metadata_only_for_a_stable_group() -> None:
    scenario = Scenario()
    a = scenario.stable("a")[0]
    described = describe_group(scenario.harness.shard, GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    [member] = described.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("cl", "/h", b"1:a")
    assert member.member_metadata
    scenario.member("b").join()
    described = describe_group(scenario.harness.shard, GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [member.member_metadata for member in described.members] == [b"", b""]
    assert describe_group(scenario.harness.shard, "nobody", 5).group_state == "Dead"
    assert describe_group(scenario.harness.shard, "nobody", 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert a.id


# --- a journal that is late, refuses or is lost


def test_assignments_are_not_sent_before_they_are_committed() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    a.join()
    b.join()
    scenario.responses()
    scenario.harness.journal.late = True
    b.sync()
    a.sync()
    assert scenario.responses() == []
    scenario.harness.journal.commit()
    assert scenario.responses() == ["a sync: 3:a", "b sync: 3:b"]


def test_losing_leadership_fails_parked_requests_and_keeps_the_committed_generation() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    c = scenario.member("c").join()
    a.join()
    scenario.harness.move()
    assert scenario.responses() == ["c join: NotLeader", "a join: NotLeader"]
    a.beat()
    b.beat()
    assert scenario.responses() == ["a beat: NONE", "b beat: NONE"]  # still generation 2, with new sessions
    scenario.harness.pass_time(SESSION_MS - 1)
    a.beat()
    b.beat()
    c.id = ""
    c.join()
    a.join()
    b.join()
    assert [one.split(",")[0] for one in scenario.responses()[-3:]] == [
        f"{name} join: generation 3 range" for name in "abc"
    ]
    scenario.harness.journal.late = True
    c.sync()
    b.sync()
    a.sync()
    scenario.harness.move()  # written but never committed: no member got a response
    assert sorted(scenario.responses()) == ["a sync: NotLeader", "b sync: NotLeader", "c sync: NotLeader"]
    group = scenario.harness.shard.classic.groups[GROUP]
    assert (group.generation, [scenario.name_by_id(one) for one in group.members]) == (2, ["a", "b"])


def test_a_refused_write_undoes_the_decision() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    a.join()
    b.join()
    b.sync()
    scenario.responses()
    scenario.harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    a.sync()
    assert scenario.responses() == ["a sync: NOT_ENOUGH_REPLICAS"] and state(scenario) is State.COMPLETING
    scenario.harness.journal.refusal = None
    a.sync()
    assert scenario.responses() == ["a sync: 3:a", "b sync: 3:b"]


def test_a_session_expiry_is_retried_after_a_refused_write() -> None:
    scenario = Scenario()
    scenario.stable("a")
    scenario.harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    scenario.harness.pass_time(SESSION_MS)
    assert state(scenario) is State.STABLE
    scenario.harness.journal.refusal = None
    scenario.harness.pass_time(1000)
    assert state(scenario) is State.EMPTY


def test_a_heartbeat_without_a_decision_keeps_the_session_alive() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    harness = scenario.harness
    for _ in range(3):
        harness.pass_time(SESSION_MS - 1)
        for member in (a, b):
            request = HeartbeatRequest(GROUP, member.generation, member.id)
            assert (
                heartbeat_without_decision(harness.shard, request, harness.now_ms, harness.runtime.arm)
                == HeartbeatResponse()
            )
    harness.pass_time(SESSION_MS - 1)
    assert state(scenario) is State.STABLE
    harness.pass_time(1)
    assert state(scenario) is State.EMPTY


def test_only_heartbeats_in_a_stable_generation_need_no_decision() -> None:
    scenario = Scenario()
    a, b = scenario.stable("a", "b")
    harness = scenario.harness
    good = HeartbeatRequest(GROUP, a.generation, a.id)
    assert harness.heartbeat_without_decision(good) == HeartbeatResponse()
    for wrong in (
        HeartbeatRequest("others", a.generation, a.id),
        HeartbeatRequest(GROUP, a.generation + 1, a.id),
        HeartbeatRequest(GROUP, a.generation, "nobody"),
        HeartbeatRequest(GROUP, a.generation, a.id, "instance"),
    ):
        assert harness.heartbeat_without_decision(wrong) is None
    scenario.member("c").join()
    assert harness.heartbeat_without_decision(good) is None
    b.leave()
    assert harness.heartbeat_without_decision(good) is None
