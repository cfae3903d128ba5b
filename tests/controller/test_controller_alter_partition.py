"""AlterPartition and the life of in-sync and eligible leader replicas, on a cluster of three brokers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.controller.controller_harness import ControllerHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller.partitions import PREFERRED, UNCLEAN
from headrace.metadata.image import RECOVERED, RECOVERING, TOPIC_CONFIG, Partition
from headrace.protocol.messages.alter_partition import AlterPartitionRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest

BROKERS = (1, 2, 3)


def make_harness(min_isr: int = 2, unclean: bool = False, **more: Any) -> ControllerHarness:
    """Return a harness with the topic `t`, of one partition with replicas 1, 2, 3, all in sync and led by 1."""
    harness = ControllerHarness(BROKERS, **more)
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=list(BROKERS))
    config = CreateTopicsRequest.CreatableTopicConfig
    [result] = harness.create(
        CreateTopicsRequest.CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment],
            configs=[
                config(name="min.insync.replicas", value=str(min_isr)),
                config(name="unclean.leader.election.enable", value=str(unclean).lower()),
            ],
        )
    )
    assert result.error_code == 0 and harness.context.state.config(TOPIC_CONFIG, "t")
    return harness


def fence(harness: ControllerHarness, broker: int) -> None:
    assert harness.heartbeat(broker, want_fence=True).is_fenced


def sets(harness: ControllerHarness) -> tuple[int, set[int], set[int], tuple[int, ...]]:
    partition = harness.partition("t")
    return partition.leader, set(partition.isr), set(partition.elr), partition.last_known_elr


# --- AlterPartition


def test_the_leader_shrinks_and_expands_the_isr_and_gets_the_new_state() -> None:
    harness = make_harness()
    before = harness.partition("t")
    result = harness.alter_isr("t", [1, 2])
    after = harness.partition("t")
    assert result.error_code == ErrorCode.NONE and result.isr == [1, 2] and after.isr == (1, 2)
    assert (result.leader_id, result.leader_epoch) == (1, before.leader_epoch)
    assert result.partition_epoch == after.partition_epoch == before.partition_epoch + 1
    result = harness.alter_isr("t", [1, 2, 3])
    assert result.isr == [1, 2, 3] and result.partition_epoch == before.partition_epoch + 2
    assert harness.alter_isr("t", [1, 2, 3]).partition_epoch == before.partition_epoch + 2  # nothing changed


def test_version_2_names_the_members_without_epochs() -> None:
    harness = make_harness()
    result = harness.alter_isr("t", [], new_isr=[1, 3])
    assert result.error_code == ErrorCode.NONE and harness.partition("t").isr == (1, 3)


def test_the_leader_epoch_increases_on_a_shrink_only_before_3_6() -> None:
    harness = make_harness()
    harness.context.state.features["metadata.version"] = 11
    before = harness.partition("t").leader_epoch
    assert harness.alter_isr("t", [1, 2]).leader_epoch == before + 1
    assert harness.alter_isr("t", [1, 2, 3]).leader_epoch == before + 1


@pytest.mark.parametrize(
    ("proposal", "code"),
    [
        ({"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader": 2}, ErrorCode.INVALID_REQUEST),
        ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"isr": [1, 9]}, ErrorCode.INVALID_REQUEST),
        ({"isr": [2, 3]}, ErrorCode.INVALID_REQUEST),
        ({"isr": []}, ErrorCode.INVALID_REQUEST),
        ({"isr": [1, 2, 2]}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 7}, ErrorCode.INVALID_REQUEST),
        ({"index": 4}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=str,
)
def test_an_invalid_proposal_is_refused_with_kafkas_code(proposal: dict[str, Any], code: ErrorCode) -> None:
    harness = make_harness()
    before, written = harness.partition("t"), len(harness.journal.written)
    fields = {"isr": [1, 2], **proposal}
    isr = fields.pop("isr")
    index = fields.pop("index", 0)
    if index:
        topic_id = harness.context.state.topic_ids["t"]
        partition = AlterPartitionRequest.PartitionData(partition_index=index)
        request = AlterPartitionRequest(
            broker_id=1,
            broker_epoch=harness.epochs[1],
            topics=[AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[partition])],
        )
        result = harness.send_request(request).topics[0].partitions[0]
    else:
        result = harness.alter_isr("t", isr, **fields)
    assert result.error_code == code
    assert harness.partition("t") == before and len(harness.journal.written) == written


def test_fenced_restarted_and_leaving_members_are_ineligible() -> None:
    harness = make_harness()
    fence(harness, 3)
    assert harness.alter_isr("t", [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    old_epoch = harness.epochs[3]
    harness.restart(3, clean=True)
    states = [(1, harness.epochs[1]), (3, old_epoch)]
    members = [AlterPartitionRequest.BrokerState(broker_id=one, broker_epoch=epoch) for one, epoch in states]
    assert harness.alter_isr("t", [], new_isr_with_epochs=members).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert harness.alter_isr("t", [1, 3]).error_code == ErrorCode.NONE
    harness.create(CreateTopicsRequest.CreatableTopic(name="led", num_partitions=9, replication_factor=3))
    assert not harness.heartbeat(3, want_shut_down=True).should_shut_down
    assert harness.alter_isr("t", [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_leader_with_a_stale_epoch_is_refused_as_a_whole() -> None:
    harness = make_harness()
    for request, code in (
        (AlterPartitionRequest(broker_id=1, broker_epoch=999), ErrorCode.STALE_BROKER_EPOCH),
        (AlterPartitionRequest(broker_id=8, broker_epoch=1), ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(KafkaError) as caught:
            harness.send_request(request)
        assert caught.value.code is code


def test_a_deleted_topic_fails_alone_and_the_other_partitions_are_changed() -> None:
    harness = make_harness()
    gone = Uuid(b"g" * 16)
    kept = harness.context.state.topic_ids["t"]
    old = harness.partition("t")
    proposal = AlterPartitionRequest.PartitionData(
        leader_epoch=old.leader_epoch,
        partition_epoch=old.partition_epoch,
        new_isr_with_epochs=[AlterPartitionRequest.BrokerState(broker_id=1, broker_epoch=harness.epochs[1])],
    )
    topics = [AlterPartitionRequest.TopicData(topic_id=one, partitions=[proposal]) for one in (gone, kept)]
    request = AlterPartitionRequest(broker_id=1, broker_epoch=harness.epochs[1], topics=topics)
    results = [topic.partitions[0].error_code for topic in harness.send_request(request).topics]
    assert results == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE] and harness.partition("t").isr == (1,)
    harness.send_request(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")]))
    results = [topic.partitions[0].error_code for topic in harness.send_request(request).topics]
    assert results == [ErrorCode.UNKNOWN_TOPIC_ID] * 2


def test_the_leader_reports_the_end_of_a_recovery() -> None:
    harness = make_harness(min_isr=1, unclean=True)
    harness.alter_isr("t", [1])
    fence(harness, 1)
    partition = harness.partition("t")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (2, (2,), RECOVERING)
    assert harness.alter_isr("t", [2, 3], leader_recovery_state=RECOVERING).error_code == ErrorCode.INVALID_REQUEST
    assert harness.alter_isr("t", [2], leader_recovery_state=RECOVERING).error_code == ErrorCode.NONE
    result = harness.alter_isr("t", [2], leader_recovery_state=RECOVERED)
    assert result.error_code == ErrorCode.NONE and result.leader_recovery_state == RECOVERED
    assert harness.alter_isr("t", [2, 3]).isr == [2, 3]


# --- eligible leader replicas


def test_members_that_leave_an_isr_below_the_minimum_stay_eligible() -> None:
    harness = make_harness()
    harness.alter_isr("t", [1, 2])
    assert sets(harness) == (1, {1, 2}, set(), ())
    harness.alter_isr("t", [1])
    assert sets(harness) == (1, {1}, {2}, ())
    fence(harness, 1)
    # Replica 2 has all acknowledged records, because the high watermark did not advance without it; 3 may lack some.
    assert sets(harness) == (2, {2}, {1}, ())
    assert harness.alter_isr("t", [2, 3]).error_code == ErrorCode.NONE
    assert sets(harness) == (2, {2, 3}, set(), ())


def test_a_partition_without_a_leader_waits_for_an_eligible_replica() -> None:
    harness = make_harness()
    for broker in (3, 2, 1):
        fence(harness, broker)
    assert sets(harness) == (-1, set(), {1, 2}, (1,))
    harness.heartbeat(3)
    assert sets(harness) == (-1, set(), {1, 2}, (1,))
    harness.heartbeat(2)
    assert sets(harness) == (2, {2}, {1}, ())


def test_an_unclean_restart_makes_a_replica_ineligible_but_the_last_leader_may_still_lead() -> None:
    harness = make_harness()
    for broker in (3, 2, 1):
        fence(harness, broker)
    harness.restart(2, clean=False)
    assert sets(harness) == (-1, set(), {1}, (1,))
    harness.restart(1, clean=False)
    assert sets(harness) == (1, {1}, set(), ())
    assert harness.partition("t").leader_recovery_state == RECOVERING


def test_a_clean_restart_keeps_a_replica_eligible() -> None:
    harness = make_harness()
    for broker in (3, 2, 1):
        fence(harness, broker)
    harness.restart(2, clean=True)
    assert sets(harness) == (2, {2}, {1}, ()) and harness.partition("t").leader_recovery_state == RECOVERED


def test_an_unclean_restart_of_a_member_removes_it_from_the_isr_before_it_is_active_again() -> None:
    harness = make_harness()
    harness.restart(2, clean=False, now_ms=20_000)
    assert sets(harness) == (1, {1, 3}, set(), ())
    harness.restart(1, clean=False, now_ms=20_000)
    assert sets(harness)[:2] == (3, {3})


# --- elections on request


def elect(harness: ControllerHarness, election_type: int) -> ErrorCode:
    partitions = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])]
    response = harness.send_request(ElectLeadersRequest(election_type=election_type, topic_partitions=partitions))
    return ErrorCode(response.replica_election_results[0].partition_result[0].error_code)


def test_a_preferred_election_needs_the_first_replica_in_sync() -> None:
    harness = make_harness()
    fence(harness, 1)
    assert harness.partition("t").leader == 2
    assert elect(harness, PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    harness.heartbeat(1)
    assert elect(harness, PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    harness.alter_isr("t", [1, 2, 3])
    assert elect(harness, PREFERRED) is ErrorCode.NONE
    assert sets(harness) == (1, {1, 2, 3}, set(), ())


def test_an_unclean_election_takes_a_replica_that_is_not_eligible_only_on_request() -> None:
    harness = make_harness()
    harness.alter_isr("t", [1, 2])
    for broker in (2, 1):
        fence(harness, broker)
    assert sets(harness) == (-1, set(), {1, 2}, (1,))
    assert elect(harness, UNCLEAN) is ErrorCode.NONE
    assert sets(harness) == (3, {3}, set(), ()) and harness.partition("t").leader_recovery_state == RECOVERING
    fence(harness, 3)
    assert elect(harness, UNCLEAN) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


# --- properties


class IsrMachine(RuleBasedStateMachine):
    """Brokers that fail, restart and change the ISR at random."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = make_harness()
        self.epochs: list[tuple[int, int]] = []

    @property
    def partition(self) -> Partition:
        return self.harness.partition("t")

    def active(self) -> set[int]:
        return {one for one, broker in self.harness.context.brokers() if not broker.fenced}

    @rule(broker=st.sampled_from(BROKERS))
    def fence(self, broker: int) -> None:
        if broker in self.active():
            self.harness.heartbeat(broker, want_fence=True)

    @rule(broker=st.sampled_from(BROKERS))
    def unfence(self, broker: int) -> None:
        self.harness.heartbeat(broker)

    @rule(broker=st.sampled_from(BROKERS), clean=st.booleans())
    def restart(self, broker: int, clean: bool) -> None:
        if broker in self.active():
            self.harness.heartbeat(broker, want_fence=True)
        self.harness.restart(broker, clean=clean)

    @precondition(lambda self: self.partition.has_leader)
    @rule(members=st.sets(st.sampled_from(BROKERS)))
    def alter(self, members: set[int]) -> None:
        isr = sorted((members & self.active()) | {self.partition.leader})
        assert self.harness.alter_isr("t", isr).error_code == ErrorCode.NONE

    @invariant()
    def sets_are_disjoint_parts_of_the_replicas(self) -> None:
        isr, elr = set(self.partition.isr), set(self.partition.elr)
        assert isr | elr <= set(self.partition.replicas) and not isr & elr
        assert isr <= self.active()

    @invariant()
    def the_leader_is_in_sync_and_active(self) -> None:
        leader = self.partition.leader
        assert leader == -1 or (leader in self.partition.isr and leader in self.active())

    @invariant()
    def eligible_replicas_exist_only_while_the_isr_is_too_small(self) -> None:
        assert len(self.partition.isr) < 2 or not self.partition.elr

    @invariant()
    def epochs_never_decrease_and_each_names_one_leader(self) -> None:
        self.epochs.append((self.partition.leader_epoch, self.partition.leader))
        assert self.epochs == sorted(self.epochs, key=lambda one: one[0])
        assert len({leader for epoch, leader in self.epochs if epoch == self.partition.leader_epoch}) == 1

    @invariant()
    def an_active_eligible_replica_leads(self) -> None:
        eligible = set(self.partition.isr) or set(self.partition.elr)
        assert self.partition.has_leader or not eligible & self.active()

    def teardown(self) -> None:
        for broker in BROKERS:
            self.harness.heartbeat(broker)
        assert self.partition.has_leader


TestIsrMachine = IsrMachine.TestCase
