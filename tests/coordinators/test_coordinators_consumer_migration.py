"""Groups that change online from the classic protocol to the new one and back."""

import struct

import pytest
from consumer_clients import Client, settle
from group_stage import GroupStage

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.consumer.description import describe
from headrace.protocol.compiler import codec
from headrace.protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest


def embedded(message, version=3):
    return struct.pack(">h", version) + codec(type(message), version).encode(message)


def topics_of(message, owned):
    names = {}
    for name, partition in sorted(owned):
        names.setdefault(name, []).append(partition)
    return [message.TopicPartition(topic=name, partitions=indexes) for name, indexes in names.items()]


class ClassicClient:
    """A cooperative classic member, which reports what it owns when it joins; as leader it assigns `plan`."""

    def __init__(self, stage, *topics, plan=None, group="g", instance_id=None):
        self.stage, self.topics, self.plan, self.group = stage, topics, plan or {}, group
        self.instance_id = instance_id
        self.id, self.generation, self.owned = "", -1, set()
        self.joining = []

    def join(self):
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
        heard = []
        self.stage.submit(
            request, lambda answer, error: heard.append(error or answer), 9, client_id="c", client_host="/h"
        )
        self.joining = heard
        if heard and isinstance(heard[0], Exception):
            raise heard[0]
        if heard and heard[0].error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = heard[0].member_id
            self.join()
        elif heard:
            self.id = heard[0].member_id

    def sync(self):
        [answer] = self.joining
        if answer.error_code:
            return answer.error_code
        self.generation = answer.generation_id
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member.member_id,
                assignment=embedded(
                    ConsumerProtocolAssignment(assigned_partitions=topics_of(ConsumerProtocolAssignment, owned))
                ),
            )
            for member, owned in zip(answer.members, self.plan, strict=False)
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
        heard = []
        self.stage.submit(request, lambda answer, error: heard.append(error or answer), 5)
        self.syncing = heard
        return self.take()

    def take(self):
        if not self.syncing:
            return None
        [answer] = self.syncing
        if not answer.error_code:
            told = codec(ConsumerProtocolAssignment, 3).decode(answer.assignment, 2)
            self.owned = {(one.topic, index) for one in told.assigned_partitions for index in one.partitions}
        return answer.error_code

    def beat(self):
        return self.stage.ask(
            HeartbeatRequest(
                group_id=self.group,
                member_id=self.id,
                group_instance_id=self.instance_id,
                generation_id=self.generation,
            ),
            4,
        ).error_code

    def follow(self):
        """Send a heartbeat and, if the group rebalances, join and sync, as a client does."""
        if self.beat() == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            if self.joining:
                self.sync()


def named(stage, client):
    return {(stage.image.topic_names[topic], index) for topic, index in client.owned}


def classic_group(stage, first, second):
    plan = [{("orders", 0), ("orders", 1), ("orders", 2)}, {("orders", 3), ("orders", 4), ("orders", 5)}]
    for client in (first, second):
        client.plan = plan
        client.join()
    stage.pass_time(10_000)
    for client in (second, first):
        client.sync()
    for client in (first, second):
        client.take()
    assert stage.shard.classic.groups["g"].state.value == "Stable"
    return first.owned | second.owned


@pytest.fixture
def stage():
    return GroupStage({"orders": 6}, group_consumer_assignment_interval_ms=0)


def test_there_and_back(stage):
    first, second = ClassicClient(stage, "orders"), ClassicClient(stage, "orders")
    everything = classic_group(stage, first, second)
    assert len(everything) == 6
    new = Client(stage, "new", "orders")
    new.beat()
    assert stage.shard.consumers.has("g") and not stage.shard.classic.has("g")
    assert sorted(member.member_type for member in describe(stage.shard, "g").members) == [0, 0, 1]
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(4):
        first.follow()
        second.follow()
        new.beat()
        owned = [first.owned, second.owned, named(stage, new)]
        assert sum(map(len, owned)) == len(set().union(*owned)), "nobody has what another has"
    assert set().union(*owned) == everything and [len(one) for one in owned] == [2, 2, 2]
    assert first.beat() == second.beat() == ErrorCode.NONE
    assert describe(stage.shard, "g").group_state == "Stable"
    stage.move()
    assert first.beat() == ErrorCode.NONE, "a new coordinator knows its guests"
    new.leave()
    assert stage.shard.classic.has("g") and not stage.shard.consumers.has("g")
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    first.plan = second.plan = [{("orders", index) for index in range(4)}, {("orders", 4), ("orders", 5)}]
    first.join()
    second.join()
    for client in (second, first):
        client.sync()
    for client in (first, second):
        client.take()
    assert first.owned | second.owned == everything
    stage.move()
    assert stage.shard.classic.has("g") and not stage.shard.consumers.has("g"), "so it is in the log"


def test_a_classic_member_joins_a_consumer_group(stage):
    new, old = Client(stage, "new", "orders"), ClassicClient(stage, "orders")
    new.beat()
    old.join()
    assert old.sync() == ErrorCode.NONE and not old.owned
    for _ in range(3):
        new.beat()
        old.follow()
    assert len(old.owned) == len(new.owned) == 3
    old.stage.ask(LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.MemberIdentity(member_id=old.id)]), 5)
    new.beat()
    assert len(new.owned) == 6


def test_guests_that_do_not_follow_are_out(stage):
    new, old = Client(stage, "new", "orders"), ClassicClient(stage, "orders")
    new.beat()
    old.join()
    old.sync()
    new.beat()
    new.beat()
    for _ in range(7):
        stage.pass_time(10_000)
        new.beat()
        if old.id in stage.shard.consumers.groups["g"].members:
            assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert old.id not in stage.shard.consumers.groups["g"].members
    new.beat()
    assert len(new.owned) == 6


def test_guests_are_checked(stage):
    new, old = Client(stage, "new", "orders"), ClassicClient(stage, "orders")
    new.beat()
    old.join()
    old.sync()

    def code(request, version):
        with pytest.raises(KafkaError) as caught:
            stage.ask(request, version)
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
def test_no_way_there(policy):
    stage = GroupStage({"orders": 6}, group_consumer_migration_policy=policy)
    first, second = ClassicClient(stage, "orders"), ClassicClient(stage, "orders")
    classic_group(stage, first, second)
    with pytest.raises(KafkaError) as caught:
        Client(stage, "new", "orders").stage.ask(Client(stage, "new", "orders").request())
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    assert first.beat() == ErrorCode.NONE


def test_no_way_back():
    stage = GroupStage(
        {"orders": 6}, group_consumer_migration_policy="upgrade", group_consumer_assignment_interval_ms=0
    )
    new, old = Client(stage, "new", "orders"), ClassicClient(stage, "orders")
    new.beat()
    old.join()
    old.sync()
    new.leave()
    assert stage.shard.consumers.has("g")
    old.follow()
    assert len(old.owned) == 6, "it is served where it is"


@pytest.mark.parametrize("policy", ["disabled", "bidirectional"])
def test_the_classic_protocol_joins_a_consumer_group_only_if_groups_may_change_their_protocol(policy):
    stage = GroupStage({"orders": 6}, group_consumer_migration_policy=policy)
    Client(stage, "new", "orders").beat()
    old = ClassicClient(stage, "orders")
    if policy == "bidirectional":
        old.join()
        return
    with pytest.raises(KafkaError) as caught:
        old.join()
    assert caught.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "group.consumer.migration.policy" in caught.value.message


def test_members_of_the_consumer_protocol_leave_by_their_id(stage):
    clients = [Client(stage, name, "orders") for name in ("a", "b")]
    clients.append(Client(stage, "c", "orders", instance_id="c-1"))
    settle(stage, clients)
    identities = [
        LeaveGroupRequest.MemberIdentity(member_id="a"),
        LeaveGroupRequest.MemberIdentity(member_id="nobody"),
        LeaveGroupRequest.MemberIdentity(member_id="b", group_instance_id="c-1"),
        LeaveGroupRequest.MemberIdentity(member_id="c", group_instance_id="c-1"),
    ]
    answer = stage.ask(LeaveGroupRequest(group_id="g", members=identities), 5)
    assert [one.error_code for one in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
    ]
    assert [member.member_id for member in describe(stage.shard, "g").members] == ["b"]


def test_a_static_member_that_comes_back_with_the_classic_protocol_makes_the_group_classic(stage):
    new, old = Client(stage, "new", "orders", instance_id="i"), ClassicClient(stage, "orders")
    new.beat()
    old.join()
    old.sync()
    for _ in range(4):
        stage.pass_time(1000)
        new.beat()
        old.follow()
    assert len(new.owned) == len(old.owned) == 3
    held = named(stage, new)
    back = ClassicClient(stage, "orders", instance_id="i")
    back.owned = held
    back.join()
    assert stage.shard.classic.has("g") and not stage.shard.consumers.has("g")
    assert stage.shard.classic.groups["g"].state.value == "Stable", "each has what it had: nobody joins again"
    assert back.sync() == ErrorCode.NONE and back.owned == held
    assert old.beat() == back.beat() == ErrorCode.NONE
    stage.move()
    assert stage.shard.classic.has("g") and not stage.shard.consumers.has("g"), "so it is in the log"
    assert old.beat() == ErrorCode.NONE


def test_a_static_member_with_other_topics_makes_the_group_classic_and_lets_it_join_again():
    stage = GroupStage({"orders": 6, "clicks": 2}, group_consumer_assignment_interval_ms=0)
    new, old = Client(stage, "new", "orders", instance_id="i"), ClassicClient(stage, "orders")
    new.beat()
    old.join()
    old.sync()
    for _ in range(4):
        new.beat()
        old.follow()
    ClassicClient(stage, "clicks", instance_id="i").join()
    assert stage.shard.classic.groups["g"].state.value == "PreparingRebalance"
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("policy", ["upgrade"])
def test_a_static_member_leaves_the_group_what_it_is_where_there_is_no_way_back(policy):
    stage = GroupStage({"orders": 6}, group_consumer_migration_policy=policy, group_consumer_assignment_interval_ms=0)
    Client(stage, "new", "orders", instance_id="i").beat()
    ClassicClient(stage, "orders", instance_id="i").join()
    assert stage.shard.consumers.has("g") and not stage.shard.classic.has("g")


def test_a_guest_is_asked_to_join_when_there_is_something_to_have_for_it():
    """The group's epoch alone is no reason to rejoin: the assignment may be computed seconds later."""
    stage = GroupStage({"orders": 6}, group_consumer_assignment_interval_ms=5000)
    new, old = Client(stage, "new", "orders"), ClassicClient(stage, "orders")
    new.beat()
    old.join()
    old.sync()
    group = stage.shard.consumers.groups["g"]
    stage.pass_time(100)
    Client(stage, "another", "orders").beat()
    assert group.epochs.group > group.epochs.assignment
    member = group.members[old.id]
    assert member.epoch == group.epochs.assignment
    assert old.beat() == ErrorCode.NONE
    assert old.sync() == ErrorCode.NONE


def test_a_description_shows_what_a_member_has_not_given_up_yet(stage):
    first = Client(stage, "first", "orders")
    first.beat()
    first.beat()
    assert len(first.owned) == 6
    Client(stage, "second", "orders").beat()
    first.beat()
    [member] = [one for one in describe(stage.shard, "g").members if one.member_id == "first"]
    assert stage.shard.consumers.groups["g"].members["first"].revoking
    [topic] = member.assignment.topic_partitions
    assert topic.partitions == [0, 1, 2, 3, 4, 5]
    assert [len(one.partitions) for one in member.target_assignment.topic_partitions] == [3]


@pytest.mark.parametrize(
    "assignment, why",
    [
        (embedded(ConsumerProtocolAssignment(user_data=b"mine")), "because an unsupported custom assignor is in use"),
        (b"\x00\x03\xff", "because the embedded consumer protocol is malformed"),
    ],
)
def test_an_upgrade_that_would_lose_something_says_what(stage, assignment, why):
    old = ClassicClient(stage, "orders")
    old.join()
    stage.pass_time(10_000)
    [answer] = old.joining
    assignments = [SyncGroupRequest.SyncGroupRequestAssignment(member_id=old.id, assignment=assignment)]
    request = SyncGroupRequest(
        group_id="g",
        member_id=old.id,
        generation_id=answer.generation_id,
        protocol_type="consumer",
        protocol_name="cooperative-sticky",
        assignments=assignments,
    )
    assert stage.ask(request, 5).error_code == ErrorCode.NONE
    with pytest.raises(KafkaError) as caught:
        stage.ask(Client(stage, "new", "orders").request())
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND and why in caught.value.message
