"""Brokers' log directories: where replicas are, and how elections treat a directory that is offline."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controller.controller_harness import FEATURES, ControllerHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.metadata.image import LOST, UNASSIGNED
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest

INCARNATION = Uuid(b"i" * 16)
A, B, UNKNOWN_DIRECTORY = (Uuid(name * 16) for name in (b"a", b"b", b"g"))
Topic = CreateTopicsRequest.CreatableTopic


class TwoDirectoryHarness(ControllerHarness):
    """Brokers with two directories, which must report where they put each replica."""

    log_dirs: tuple[Uuid, ...] = (A, B)

    def register(
        self,
        broker: int,
        incarnation: Uuid = INCARNATION,
        now_ms: int = 0,
        active: bool = True,
        **registration_fields: Any,
    ) -> None:
        features = [
            BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in FEATURES.items()
        ]
        request = BrokerRegistrationRequest(
            broker_id=broker,
            cluster_id="cluster",
            incarnation_id=incarnation,
            log_dirs=list(self.log_dirs),
            features=features,
            **registration_fields,
        )
        self.epochs[broker] = self.send_request(request, now_ms).broker_epoch
        if active:
            self.heartbeat(broker, now_ms)

    def assign(
        self, directory: Uuid, topic: str = "t", *indexes: int, epoch: int | None = None, broker: int = 1
    ) -> list[ErrorCode]:
        request = AssignReplicasToDirsRequest(
            broker_id=broker,
            broker_epoch=self.epochs[broker] if epoch is None else epoch,
            directories=[
                AssignReplicasToDirsRequest.DirectoryData(
                    id=directory,
                    topics=[
                        AssignReplicasToDirsRequest.TopicData(
                            topic_id=self.context.state.topic_ids.get(topic) or Uuid(b"x" * 16),
                            partitions=[
                                AssignReplicasToDirsRequest.PartitionData(partition_index=index) for index in indexes
                            ],
                        )
                    ],
                )
            ],
        )
        [assigned] = self.send_request(request).directories
        assert assigned.id == directory
        return [partition.error_code for partition in assigned.topics[0].partitions]


def make_harness_with_topic() -> TwoDirectoryHarness:
    harness = TwoDirectoryHarness()
    harness.create(Topic(name="t", num_partitions=3, replication_factor=1))
    assert harness.partition("t").directories == (UNASSIGNED,)
    return harness


def test_replica_directories_reported_by_a_broker_are_recorded() -> None:
    harness = make_harness_with_topic()
    assert harness.assign(A, "t", 0, 2) == [0, 0]
    assert harness.assign(B, "t", 1) == [0]
    assert [harness.partition("t", index).directories for index in range(3)] == [(A,), (B,), (A,)]
    before = len(harness.journal.written)
    assert harness.assign(A, "t", 0) == [0]
    assert len(harness.journal.written) == before  # the assignment was already known
    assert harness.partition("t").leader_epoch == 0  # the leader did not change


def test_invalid_directory_assignments_are_refused_individually() -> None:
    harness = make_harness_with_topic()
    assert harness.assign(A, "t", 0, 9) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert harness.assign(A, "nowhere", 0) == [ErrorCode.UNKNOWN_TOPIC_ID]
    harness.register(2)
    assert harness.assign(A, "t", 0, broker=2) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    for broker, epoch, code in ((1, 7, ErrorCode.STALE_BROKER_EPOCH), (5, 0, ErrorCode.BROKER_ID_NOT_REGISTERED)):
        with pytest.raises(KafkaError) as caught:
            harness.assign(A, "t", 0, epoch=epoch, broker=broker)
        assert caught.value.code is code


def test_a_broker_loses_leadership_only_of_replicas_in_a_failed_directory() -> None:
    harness = make_harness_with_topic()
    harness.assign(A, "t", 0)
    harness.assign(B, "t", 1)
    harness.heartbeat(1, offline_log_dirs=[B])
    assert [harness.partition("t", index).leader for index in range(3)] == [1, -1, 1]
    assert harness.context.state.brokers[1].log_dirs == (A,)
    before = len(harness.journal.written)
    harness.heartbeat(1, offline_log_dirs=[B])  # reported again with every heartbeat
    assert len(harness.journal.written) == before
    assert harness.assign(B, "t", 2) == [0]  # the assignment to the failed directory arrives late
    assert harness.partition("t", 2).leader == -1


def test_a_broker_that_returns_without_a_directory_leads_only_its_other_replicas() -> None:
    harness = make_harness_with_topic()
    harness.assign(A, "t", 0)
    harness.assign(B, "t", 1)
    harness.log_dirs = (A,)
    harness.register(1, Uuid(b"j" * 16), now_ms=9_000)
    assert [harness.partition("t", index).leader for index in range(3)] == [1, -1, 1]
    harness.log_dirs = (A, B)
    harness.register(1, Uuid(b"k" * 16), now_ms=18_000)
    assert [harness.partition("t", index).leader for index in range(3)] == [1, 1, 1]


def test_a_lost_replica_leaves_the_isr_and_is_not_eligible_to_lead() -> None:
    harness = TwoDirectoryHarness()
    harness.register(2)
    config = CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value="2")
    harness.create(Topic(name="t", num_partitions=1, replication_factor=2, configs=[config]))
    leader = harness.partition("t").leader
    assert harness.assign(LOST, "t", 0, broker=leader) == [0]
    partition = harness.partition("t")
    assert (partition.leader, partition.isr, partition.elr) == (3 - leader, (3 - leader,), ())
    assert harness.assign(A, "t", 0, broker=leader) == [0]  # the new copy
    assert harness.partition("t").leader == 3 - leader


def test_a_replica_reassigned_to_an_online_directory_regains_its_leader() -> None:
    harness = make_harness_with_topic()
    harness.assign(B, "t", 1)
    harness.heartbeat(1, offline_log_dirs=[B])
    assert harness.partition("t", 1).leader == -1
    assert harness.assign(A, "t", 1) == [0]
    assert harness.partition("t", 1).leader == 1 and harness.partition("t", 1).directories == (A,)
    assert harness.assign(UNKNOWN_DIRECTORY, "t", 1) == [0]
    assert harness.partition("t", 1).leader == -1
