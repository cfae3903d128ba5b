"""Brokers' log directories: where replicas are, and how elections treat a directory that is offline."""

import pytest
from controller_stage import FEATURES, Stage

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.metadata.image import UNASSIGNED
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest

A, B, GONE = (Uuid(name * 16) for name in (b"a", b"b", b"g"))
Topic = CreateTopicsRequest.CreatableTopic


class TwoDirs(Stage):
    """Brokers with two directories, which must report where they put each replica."""

    log_dirs = (A, B)

    def register(self, broker, incarnation=b"i" * 16, now_ms=0, active=True):
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
        )
        self.epochs[broker] = self.ask(request, now_ms).broker_epoch
        if active:
            self.beat(broker, now_ms)

    def assign(self, directory, topic="t", *indexes, epoch=None, broker=1):
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
        [told] = self.ask(request).directories
        assert told.id == directory
        return [partition.error_code for partition in told.topics[0].partitions]


def stage_with_topic():
    stage = TwoDirs()
    stage.create(Topic(name="t", num_partitions=3, replication_factor=1))
    assert stage.partition("t").directories == (UNASSIGNED,)
    return stage


def test_a_broker_says_where_its_replicas_lie():
    stage = stage_with_topic()
    assert stage.assign(A, "t", 0, 2) == [0, 0]
    assert stage.assign(B, "t", 1) == [0]
    assert [stage.partition("t", index).directories for index in range(3)] == [(A,), (B,), (A,)]
    before = len(stage.journal.records)
    assert stage.assign(A, "t", 0) == [0]
    assert len(stage.journal.records) == before  # the assignment was already known
    assert stage.partition("t").leader_epoch == 0  # the leader did not change


def test_what_nobody_knows_is_refused_one_by_one():
    stage = stage_with_topic()
    assert stage.assign(A, "t", 0, 9) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert stage.assign(A, "nowhere", 0) == [ErrorCode.UNKNOWN_TOPIC_ID]
    stage.register(2)
    assert stage.assign(A, "t", 0, broker=2) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    for broker, epoch, code in ((1, 7, ErrorCode.STALE_BROKER_EPOCH), (5, 0, ErrorCode.BROKER_ID_NOT_REGISTERED)):
        with pytest.raises(KafkaError) as caught:
            stage.assign(A, "t", 0, epoch=epoch, broker=broker)
        assert caught.value.code is code


def test_a_failed_directory_costs_the_broker_what_it_led_there_and_no_more():
    stage = stage_with_topic()
    stage.assign(A, "t", 0)
    stage.assign(B, "t", 1)
    stage.beat(1, offline_log_dirs=[B])
    assert [stage.partition("t", index).leader for index in range(3)] == [1, -1, 1]
    assert stage.context.state.brokers[1].log_dirs == (A,)
    before = len(stage.journal.records)
    stage.beat(1, offline_log_dirs=[B])  # reported again with every heartbeat
    assert len(stage.journal.records) == before
    assert stage.assign(B, "t", 2) == [0]  # the assignment to the failed directory arrives late
    assert stage.partition("t", 2).leader == -1


def test_a_broker_that_comes_back_without_a_directory_leads_only_the_rest():
    stage = stage_with_topic()
    stage.assign(A, "t", 0)
    stage.assign(B, "t", 1)
    stage.log_dirs = (A,)
    stage.register(1, b"j" * 16, now_ms=9_000)
    assert [stage.partition("t", index).leader for index in range(3)] == [1, -1, 1]
    stage.log_dirs = (A, B)
    stage.register(1, b"k" * 16, now_ms=18_000)
    assert [stage.partition("t", index).leader for index in range(3)] == [1, 1, 1]


def test_a_replica_that_was_moved_gets_its_leader_back():
    stage = stage_with_topic()
    stage.assign(B, "t", 1)
    stage.beat(1, offline_log_dirs=[B])
    assert stage.partition("t", 1).leader == -1
    assert stage.assign(A, "t", 1) == [0]
    assert stage.partition("t", 1).leader == 1 and stage.partition("t", 1).directories == (A,)
    assert stage.assign(GONE, "t", 1) == [0]
    assert stage.partition("t", 1).leader == -1
