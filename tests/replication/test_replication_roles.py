"""The roles of a partition: what begins and ends with a leader epoch, and the reports of a recovering leader."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from testkit.simulator.loop import SimulatedLoop
from tests.replication.replication_samples import NODE, NOW_MS, append, make_files, make_partition

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NO_NODE
from headrace.metadata.image import RECOVERING
from headrace.metadata.image import Partition as PartitionState
from headrace.replication.isr import Accepted, Proposal
from headrace.replication.local_replica import LocalReplica, ReplicationPort
from headrace.replication.partition import FollowerFetch, Partition

OTHER, THIRD = 2, 3
LED = PartitionState((NODE, OTHER, THIRD), (NODE, OTHER), NODE, 1, 1)


class RecordingPort(ReplicationPort):
    lag_ms_max = 1000

    def __init__(self) -> None:
        self.proposals: list[Proposal] = []

    def eligible_epoch(self, broker_id: int) -> int | None:
        return 100 + broker_id

    def propose(self, partition: LocalReplica, proposal: Proposal) -> None:
        self.proposals.append(proposal)


def make_led(state: PartitionState = LED) -> tuple[Partition, RecordingPort]:
    partition, port = make_partition(make_files(), SimulatedLoop(Random(1))), RecordingPort()
    partition.port = port
    partition.lead(state, NOW_MS)
    return partition, port


def fetched(partition: Partition, replica: int, offset: int, now_ms: int = NOW_MS) -> None:
    fetch = FollowerFetch(replica, 100 + replica, offset, 0, -1)
    partition.plan_replica_read(fetch, 1000, min_one=True)
    partition.record_fetch(fetch, now_ms)


def test_the_high_watermark_follows_the_slowest_in_sync_replica() -> None:
    partition, _ = make_led()
    append(partition, 5)
    assert partition.high_watermark == 0
    fetched(partition, OTHER, 3)
    assert partition.high_watermark == 3
    fetched(partition, OTHER, 2)  # a follower that was truncated does not move it back
    assert partition.high_watermark == 3


def test_a_partition_without_followers_has_nothing_to_wait_for() -> None:
    partition, _ = make_led(PartitionState((NODE,), (NODE,), NODE, 1, 1))
    info = append(partition, 5)
    assert partition.high_watermark == 5 and partition.followers is None
    assert not partition.defers_responses and partition.acknowledged(info.last_offset) is None


def test_a_follower_that_has_caught_up_is_proposed_and_counts_at_once() -> None:
    partition, port = make_led()
    append(partition, 5)
    fetched(partition, OTHER, 5)
    fetched(partition, THIRD, 4)
    assert port.proposals == []  # it lacks a committed record
    fetched(partition, THIRD, 5)
    (proposal,) = port.proposals
    assert proposal.broker_ids == (NODE, OTHER, THIRD) and partition.isr == (NODE, OTHER)
    append(partition)
    fetched(partition, OTHER, 6)
    assert partition.high_watermark == 5
    partition.isr_accepted(proposal, Accepted((NODE, OTHER, THIRD), 1, 2), NOW_MS)
    assert partition.isr == (NODE, OTHER, THIRD) and partition.partition_epoch == 2
    fetched(partition, THIRD, 6)
    assert partition.high_watermark == 6


def test_a_follower_that_lags_counts_until_the_controller_has_accepted_its_removal() -> None:
    partition, port = make_led()
    append(partition, 5)
    partition.review_isr(NOW_MS + 1001)
    (proposal,) = port.proposals
    assert proposal.broker_ids == (NODE,) and partition.high_watermark == 0
    partition.isr_accepted(proposal, Accepted((NODE,), 1, 2), NOW_MS + 1001)
    assert (partition.isr, partition.high_watermark) == ((NODE,), 5)


def test_a_follower_that_was_removed_for_its_lag_does_not_return_before_it_has_caught_up() -> None:
    partition, port = make_led()
    partition.min_isr = 2  # the high watermark stays where the follower is
    append(partition, 5)
    fetched(partition, OTHER, 5)
    append(partition, 2)
    partition.review_isr(NOW_MS + 1001)
    partition.isr_accepted(port.proposals[-1], Accepted((NODE,), 1, 2), NOW_MS + 1002)
    fetched(partition, OTHER, 6, NOW_MS + 1003)
    assert [proposal.broker_ids for proposal in port.proposals] == [(NODE,)] and partition.high_watermark == 5
    fetched(partition, OTHER, 7, NOW_MS + 1004)
    assert port.proposals[-1].broker_ids == (NODE, OTHER)


def test_a_recovering_leader_reports_back_even_without_followers() -> None:
    for replicas in ((NODE,), (NODE, OTHER)):
        state = PartitionState(replicas, (NODE,), NODE, 1, 1, leader_recovery_state=RECOVERING)
        partition, port = make_led(state)
        (proposal,) = port.proposals
        assert proposal.broker_ids == (NODE,)
        partition.isr_accepted(proposal, Accepted((NODE,), 1, 2), NOW_MS)
        assert len(port.proposals) == 1
        append(partition, 2)
        assert partition.high_watermark == 2
        partition.lead(PartitionState(replicas, (NODE,), NODE, 1, 2), NOW_MS)
        assert (partition.followers is None) == (len(replicas) == 1)


def test_an_older_state_is_ignored() -> None:
    partition, _ = make_led(replace(LED, leader_epoch=3, partition_epoch=7))
    partition.follow(replace(LED, leader=OTHER, leader_epoch=2, partition_epoch=9))
    assert partition.is_leader
    partition.lead(replace(LED, isr=(NODE,), leader_epoch=3, partition_epoch=6), NOW_MS)
    assert partition.isr == (NODE, OTHER)


def test_waiting_producers_keep_waiting_if_their_leader_is_elected_again() -> None:
    partition, _ = make_led()
    info = append(partition, 5)
    ack = partition.acknowledged(info.last_offset)
    partition.lead(replace(LED, leader_epoch=2, partition_epoch=2), NOW_MS)
    assert not ack.done()
    fetched(partition, OTHER, 5)
    assert ack.result() is None


def test_waiting_producers_get_an_error_if_another_broker_leads_or_none() -> None:
    for leader in (OTHER, NO_NODE):
        partition, _ = make_led()
        ack = partition.acknowledged(append(partition, 5).last_offset)
        partition.follow(replace(LED, leader=leader, leader_epoch=2, partition_epoch=2))
        assert ack.result().code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_offsets_are_not_available_before_a_new_leader_knows_what_was_committed() -> None:
    partition, _ = make_led()
    append(partition, 5)
    partition.lead(replace(LED, leader_epoch=2, partition_epoch=2), NOW_MS)
    assert (partition.high_watermark, partition.epoch_start) == (0, 5)
    for timestamp in (-1, NOW_MS):
        with pytest.raises(KafkaError) as caught:
            partition.find_offset(timestamp, committed_only=False)
        assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    assert partition.find_offset(-1, committed_only=False, for_replica=True).offset == 5
    fetched(partition, OTHER, 5)
    assert partition.find_offset(-1, committed_only=False).offset == 5
