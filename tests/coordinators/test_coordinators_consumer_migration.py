"""Groups that change online from the classic protocol to the new one and back."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.coordinators.consumer_clients import Client, settle
from tests.coordinators.group_harness import GroupHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.consumer.description import describe
from headrace.protocol.compiler import codec
from headrace.protocol.declare import Struct
from headrace.protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def embedded(message: Struct, version: int = 3) -> bytes:
    return struct.pack(">h", version) + codec(type(message), version).encode(message)


def topics_of(message: type[Struct], owned: set[tuple[str, int]]) -> list[Any]:
    names: dict[str, list[int]] = {}
    for name, partition in sorted(owned):
        names.setdefault(name, []).append(partition)
    return [message.TopicPartition(topic=name, partitions=indexes) for name, indexes in names.items()]  # type: ignore[attr-defined]


class ClassicClient:
    """A cooperative classic member, which reports what it owns when it joins; as leader it assigns `plan`."""

    def __init__(
        self, harness: GroupHarness, *topics: str, plan: Any = None, group: str = "g", instance_id: str | None = None
    ) -> None:
        self.harness, self.topics, self.plan, self.group = harness, topics, plan or {}, group
        self.instance_id = instance_id
        self.id = ""
        self.generation = -1
        self.owned: set[tuple[str, int]] = set()
        self.joining: list[JoinGroupResponse] = []

    def join(self) -> None:
        subscription = ConsumerProtocolSubscription(
            topics=list(self.topics), owned_partitions=topics_of(ConsumerProtocolSubscription, self.owned)
        )
        offered = [
            JoinGroupRequest.JoinGroupRequestProtocol(name="cooperative-sticky", metadata=embedded(subscription))
        ]
        request = JoinGroupRequest(
            group_id=self.group,
            member_id=self.id,
            group_instance_id=self.instance_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=offered,
        )
        responses: list[JoinGroupResponse] = []
        self.harness.submit(
            request, lambda response, error: responses.append(error or response), 9, client_id="c", client_host="/h"
        )
        self.joining = responses
        if responses and isinstance(responses[0], Exception):
            raise responses[0]
        if responses and responses[0].error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = responses[0].member_id
            self.join()
        elif responses:
            self.id = responses[0].member_id

    def sync(self) -> int | None:
        [response] = self.joining
        if response.error_code:
            return response.error_code
        self.generation = response.generation_id
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member.member_id,
                assignment=embedded(
                    ConsumerProtocolAssignment(assigned_partitions=topics_of(ConsumerProtocolAssignment, owned))
                ),
            )
            for member, owned in zip(response.members, self.plan, strict=False)
        ]
        request = SyncGroupRequest(
            group_id=self.group,
            member_id=self.id,
            group_instance_id=self.instance_id,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name="cooperative-sticky",
            assignments=assignments,
        )
        responses: list[SyncGroupResponse] = []
        self.harness.submit(request, lambda response, error: responses.append(error or response), 5)
        self.syncing = responses
        return self.take()

    def take(self) -> int | None:
        if not self.syncing:
            return None
        [response] = self.syncing
        if not response.error_code:
            decoded = codec(ConsumerProtocolAssignment, 3).decode(response.assignment, 2)
            self.owned = {(one.topic, index) for one in decoded.assigned_partitions for index in one.partitions}
        return response.error_code

    def beat(self) -> ErrorCode:
        return self.harness.execute(
            HeartbeatRequest(
                group_id=self.group,
                member_id=self.id,
                group_instance_id=self.instance_id,
                generation_id=self.generation,
            ),
            4,
        ).error_code

    def follow(self) -> None:
        """Send a heartbeat and, if the group rebalances, join and sync, as a client does."""
        if self.beat() == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            if self.joining:
                self.sync()


def owned_by_topic_name(harness: GroupHarness, client: Client) -> set[tuple[str, int]]:
    return {(harness.image.topic_names[topic], index) for topic, index in client.owned}


def classic_group(harness: GroupHarness, first: ClassicClient, second: ClassicClient) -> set[tuple[str, int]]:
    plan = [{("orders", 0), ("orders", 1), ("orders", 2)}, {("orders", 3), ("orders", 4), ("orders", 5)}]
    for client in (first, second):
        client.plan = plan
        client.join()
    harness.pass_time(10_000)
    for client in (second, first):
        client.sync()
    for client in (first, second):
        client.take()
    assert harness.shard.classic.groups["g"].state.value == "Stable"
    return first.owned | second.owned


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness({"orders": 6}, group_consumer_assignment_interval_ms=0)


def test_a_classic_group_upgrades_to_a_consumer_group_and_downgrades_again(harness: GroupHarness) -> None:
    first, second = ClassicClient(harness, "orders"), ClassicClient(harness, "orders")
    everything = classic_group(harness, first, second)
    assert len(everything) == 6
    new = Client(harness, "new", "orders")
    new.beat()
    assert harness.shard.consumers.has("g") and not harness.shard.classic.has("g")
    assert sorted(member.member_type for member in describe(harness.shard, "g").members) == [0, 0, 1]
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(4):
        first.follow()
        second.follow()
        new.beat()
        owned = [first.owned, second.owned, owned_by_topic_name(harness, new)]
        assert sum(map(len, owned)) == len(set().union(*owned)), "nobody has what another has"
    assert set().union(*owned) == everything and [len(one) for one in owned] == [2, 2, 2]
    assert first.beat() == second.beat() == ErrorCode.NONE
    assert describe(harness.shard, "g").group_state == "Stable"
    harness.move()
    assert first.beat() == ErrorCode.NONE, "a new coordinator knows its classic members"
    new.leave()
    assert harness.shard.classic.has("g") and not harness.shard.consumers.has("g")
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    first.plan = second.plan = [{("orders", index) for index in range(4)}, {("orders", 4), ("orders", 5)}]
    first.join()
    second.join()
    for client in (second, first):
        client.sync()
    for client in (first, second):
        client.take()
    assert first.owned | second.owned == everything
    harness.move()
    assert harness.shard.classic.has("g") and not harness.shard.consumers.has("g"), "so it is in the log"


def test_a_classic_member_joins_a_consumer_group(harness: GroupHarness) -> None:
    new, old = Client(harness, "new", "orders"), ClassicClient(harness, "orders")
    new.beat()
    old.join()
    assert old.sync() == ErrorCode.NONE and not old.owned
    for _ in range(3):
        new.beat()
        old.follow()
    assert len(old.owned) == len(new.owned) == 3
    old.harness.execute(
        LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.MemberIdentity(member_id=old.id)]), 5
    )
    new.beat()
    assert len(new.owned) == 6


def test_classic_members_that_do_not_rejoin_are_removed(harness: GroupHarness) -> None:
    new, old = Client(harness, "new", "orders"), ClassicClient(harness, "orders")
    new.beat()
    old.join()
    old.sync()
    new.beat()
    new.beat()
    for _ in range(7):
        harness.pass_time(10_000)
        new.beat()
        if old.id in harness.shard.consumers.groups["g"].members:
            assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert old.id not in harness.shard.consumers.groups["g"].members
    new.beat()
    assert len(new.owned) == 6


def test_invalid_requests_of_classic_members_are_refused(harness: GroupHarness) -> None:
    new, old = Client(harness, "new", "orders"), ClassicClient(harness, "orders")
    new.beat()
    old.join()
    old.sync()

    def code(request: Struct, version: int) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            harness.execute(request, version)
        return caught.value.code

    assert code(HeartbeatRequest(group_id="g", member_id="x"), 4) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(HeartbeatRequest(group_id="g", member_id="new"), 4) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(HeartbeatRequest(group_id="g", member_id=old.id, generation_id=99), 4) == ErrorCode.ILLEGAL_GENERATION
    wrong = SyncGroupRequest(group_id="g", member_id=old.id, generation_id=old.generation, protocol_name="other")
    assert code(wrong, 5) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="cooperative-sticky", metadata=b"\x00")
    bad = JoinGroupRequest(
        group_id="g", member_id=old.id, session_timeout_ms=30_000, protocol_type="consumer", protocols=[protocol]
    )
    assert code(bad, 9) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_the_migration_policy_can_forbid_upgrades(policy: str) -> None:
    harness = GroupHarness({"orders": 6}, group_consumer_migration_policy=policy)
    first, second = ClassicClient(harness, "orders"), ClassicClient(harness, "orders")
    classic_group(harness, first, second)
    with pytest.raises(KafkaError) as caught:
        Client(harness, "new", "orders").harness.execute(Client(harness, "new", "orders").request())
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    assert first.beat() == ErrorCode.NONE


def test_the_migration_policy_can_forbid_downgrades() -> None:
    harness = GroupHarness(
        {"orders": 6}, group_consumer_migration_policy="upgrade", group_consumer_assignment_interval_ms=0
    )
    new, old = Client(harness, "new", "orders"), ClassicClient(harness, "orders")
    new.beat()
    old.join()
    old.sync()
    new.leave()
    assert harness.shard.consumers.has("g")
    old.follow()
    assert len(old.owned) == 6, "it is served where it is"


@pytest.mark.parametrize("policy", ["disabled", "bidirectional"])
def test_classic_members_join_a_consumer_group_only_if_the_policy_allows_it(policy: str) -> None:
    harness = GroupHarness({"orders": 6}, group_consumer_migration_policy=policy)
    Client(harness, "new", "orders").beat()
    old = ClassicClient(harness, "orders")
    if policy == "bidirectional":
        old.join()
        return
    with pytest.raises(KafkaError) as caught:
        old.join()
    assert caught.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "group.consumer.migration.policy" in caught.value.message


def test_leave_group_removes_consumer_members_by_member_id(harness: GroupHarness) -> None:
    clients = [Client(harness, name, "orders") for name in ("a", "b")]
    clients.append(Client(harness, "c", "orders", instance_id="c-1"))
    settle(harness, clients)
    identities = [
        LeaveGroupRequest.MemberIdentity(member_id="a"),
        LeaveGroupRequest.MemberIdentity(member_id="nobody"),
        LeaveGroupRequest.MemberIdentity(member_id="b", group_instance_id="c-1"),
        LeaveGroupRequest.MemberIdentity(member_id="c", group_instance_id="c-1"),
    ]
    response = harness.execute(LeaveGroupRequest(group_id="g", members=identities), 5)
    assert [one.error_code for one in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
    ]
    assert [member.member_id for member in describe(harness.shard, "g").members] == ["b"]


def test_a_static_member_that_returns_with_the_classic_protocol_downgrades_the_group(harness: GroupHarness) -> None:
    new, old = Client(harness, "new", "orders", instance_id="i"), ClassicClient(harness, "orders")
    new.beat()
    old.join()
    old.sync()
    for _ in range(4):
        harness.pass_time(1000)
        new.beat()
        old.follow()
    assert len(new.owned) == len(old.owned) == 3
    held = owned_by_topic_name(harness, new)
    back = ClassicClient(harness, "orders", instance_id="i")
    back.owned = held
    back.join()
    assert harness.shard.classic.has("g") and not harness.shard.consumers.has("g")
    assert harness.shard.classic.groups["g"].state.value == "Stable", "each has what it had: nobody joins again"
    assert back.sync() == ErrorCode.NONE and back.owned == held
    assert old.beat() == back.beat() == ErrorCode.NONE
    harness.move()
    assert harness.shard.classic.has("g") and not harness.shard.consumers.has("g"), "so it is in the log"
    assert old.beat() == ErrorCode.NONE


def test_a_downgrade_by_a_static_member_with_other_topics_starts_a_rebalance() -> None:
    harness = GroupHarness({"orders": 6, "clicks": 2}, group_consumer_assignment_interval_ms=0)
    new, old = Client(harness, "new", "orders", instance_id="i"), ClassicClient(harness, "orders")
    new.beat()
    old.join()
    old.sync()
    for _ in range(4):
        new.beat()
        old.follow()
    ClassicClient(harness, "clicks", instance_id="i").join()
    assert harness.shard.classic.groups["g"].state.value == "PreparingRebalance"
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("policy", ["upgrade"])
def test_a_static_member_does_not_downgrade_the_group_under_the_upgrade_policy(policy: str) -> None:
    harness = GroupHarness(
        {"orders": 6}, group_consumer_migration_policy=policy, group_consumer_assignment_interval_ms=0
    )
    Client(harness, "new", "orders", instance_id="i").beat()
    ClassicClient(harness, "orders", instance_id="i").join()
    assert harness.shard.consumers.has("g") and not harness.shard.classic.has("g")


def test_a_classic_member_rejoins_only_for_a_new_assignment() -> None:
    """The group's epoch alone is no reason to rejoin: the assignment may be computed seconds later."""
    harness = GroupHarness({"orders": 6}, group_consumer_assignment_interval_ms=5000)
    new, old = Client(harness, "new", "orders"), ClassicClient(harness, "orders")
    new.beat()
    old.join()
    old.sync()
    group = harness.shard.consumers.groups["g"]
    harness.pass_time(100)
    Client(harness, "another", "orders").beat()
    assert group.epochs.group > group.epochs.assignment
    member = group.members[old.id]
    assert member.epoch == group.epochs.assignment
    assert old.beat() == ErrorCode.NONE
    assert old.sync() == ErrorCode.NONE


def test_describe_includes_partitions_that_a_member_has_not_revoked_yet(harness: GroupHarness) -> None:
    first = Client(harness, "first", "orders")
    first.beat()
    first.beat()
    assert len(first.owned) == 6
    Client(harness, "second", "orders").beat()
    first.beat()
    [member] = [one for one in describe(harness.shard, "g").members if one.member_id == "first"]
    assert harness.shard.consumers.groups["g"].members["first"].revoking
    [topic] = member.assignment.topic_partitions
    assert topic.partitions == [0, 1, 2, 3, 4, 5]
    assert [len(one.partitions) for one in member.target_assignment.topic_partitions] == [3]


@pytest.mark.parametrize(
    "assignment, reason",
    [
        (embedded(ConsumerProtocolAssignment(user_data=b"mine")), "because an unsupported custom assignor is in use"),
        (b"\x00\x03\xff", "because the embedded consumer protocol is malformed"),
    ],
)
def test_an_upgrade_refused_for_its_assignments_states_the_reason(
    harness: GroupHarness, assignment: bytes, reason: str
) -> None:
    old = ClassicClient(harness, "orders")
    old.join()
    harness.pass_time(10_000)
    [response] = old.joining
    assignments = [SyncGroupRequest.SyncGroupRequestAssignment(member_id=old.id, assignment=assignment)]
    request = SyncGroupRequest(
        group_id="g",
        member_id=old.id,
        generation_id=response.generation_id,
        protocol_type="consumer",
        protocol_name="cooperative-sticky",
        assignments=assignments,
    )
    assert harness.execute(request, 5).error_code == ErrorCode.NONE
    with pytest.raises(KafkaError) as caught:
        harness.execute(Client(harness, "new", "orders").request())
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND and reason in caught.value.message
