"""Partition creation, elections on demand, reassignments, features, and unregistering brokers."""

import pytest
from controller_stage import ELR, Stage

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller.elections import Rules, preferred, unclean, with_broker, without_broker
from headrace.metadata.image import BROKER_CONFIG, RECOVERING, Partition
from headrace.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest
from headrace.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import UpdateFeaturesRequest

ID = Uuid(b"t" * 16)
Update = UpdateFeaturesRequest.FeatureUpdateKey


def made(brokers=(1,), factor=1, **more):
    stage = Stage(brokers, **more)
    stage.create(CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=factor))
    return stage


def grow(stage, name, count, assignments=None, validate_only=False):
    hand = CreatePartitionsRequest.CreatePartitionsAssignment
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(
        name=name, count=count, assignments=assignments and [hand(broker_ids=one) for one in assignments]
    )
    [result] = stage.ask(CreatePartitionsRequest(topics=[wanted], validate_only=validate_only)).results
    return ErrorCode(result.error_code), result.error_message


def test_a_topic_grows_and_never_shrinks():
    stage = made()
    assert grow(stage, "t", 4, validate_only=True) == (ErrorCode.NONE, None)
    assert len(list(stage.context.state.partitions_of(stage.context.state.topic_ids["t"]))) == 2
    assert grow(stage, "t", 4) == (ErrorCode.NONE, None)
    assert stage.partition("t", 3).leader == 1 and stage.partition("t", 3).directories == (b"d" * 16,)
    assert grow(stage, "t", 4) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 4 partition(s).")
    assert "would not be an increase" in grow(stage, "t", 1)[1]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("no", 5, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 5, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[1, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 20_000, None, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_partitions_that_cannot_be(name, count, assignments, code):
    stage = made()
    before = len(stage.journal.records)
    assert grow(stage, name, count, assignments)[0] is code
    assert len(stage.journal.records) == before


def elect(stage, kind, indexes):
    partitions = None if indexes is None else [ElectLeadersRequest.TopicPartitions(topic="t", partitions=indexes)]
    return stage.ask(ElectLeadersRequest(election_type=kind, topic_partitions=partitions))


def test_an_election_that_is_not_needed_is_said_for_each_partition_that_was_named():
    stage = made()
    for kind in (0, 1):
        [topic] = elect(stage, kind, [0, 1, 9]).replica_election_results
        codes = [ErrorCode(one.error_code) for one in topic.partition_result]
        assert codes == [ErrorCode.ELECTION_NOT_NEEDED] * 2 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        [topic] = elect(stage, kind, None).replica_election_results
        assert topic.partition_result == []
    assert elect(stage, 5, [0]).error_code == ErrorCode.INVALID_REQUEST


def test_the_preferred_replica_gets_its_lead_back():
    stage = made((1, 2), 2)
    first = stage.partition("t").replicas[0]
    stage.beat(first, want_fence=True)
    assert stage.partition("t").leader not in (first, -1)
    stage.beat(first)
    partition = stage.partition("t")
    stage.context.state.partitions[(stage.context.state.topic_ids["t"], 0)] = Partition(
        **{**{name: getattr(partition, name) for name in Partition.__slots__}, "isr": partition.replicas}
    )
    [topic] = elect(stage, 0, [0]).replica_election_results
    assert topic.partition_result[0].error_code == 0 and stage.partition("t").leader == first


def rules(active, *, elr=True, unclean=False):
    return Rules(min_isr=2, elr=elr, unclean=unclean, is_active=lambda replica: replica in active)


LED = Partition(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=4, partition_epoch=7)


def test_without_elr_the_last_of_the_isr_stays_in_it():
    change = without_broker(ID, 0, LED, 1, rules({2}, elr=False))
    assert (change.leader, change.isr, change.eligible_leader_replicas, change.last_known_elr) == (-1, None, None, None)
    change = without_broker(ID, 0, LED, 1, rules({2}))
    assert (change.leader, change.isr, change.eligible_leader_replicas, change.last_known_elr) == (-1, [], [1], [1])


def test_an_unclean_election_takes_whoever_is_there_and_says_that_it_has_to_recover():
    gone = Partition(replicas=(1, 2), isr=(1,), leader=-1, leader_epoch=4, partition_epoch=7)
    assert with_broker(ID, 0, gone, rules({2}, elr=False)) is None
    for change in (
        with_broker(ID, 0, gone, rules({2}, elr=False, unclean=True)),
        unclean(ID, 0, gone, rules({2})),
        without_broker(ID, 0, LED, 1, rules({2}, unclean=True)),
    ):
        assert (change.leader, change.isr, change.leader_recovery_state) == (2, [2], RECOVERING)
    assert unclean(ID, 0, gone, rules(set())) is None
    assert preferred(ID, 0, LED, rules({2})) is None


def test_there_are_no_reassignments_but_of_the_order():
    stage = made((1, 2), 2)
    assert stage.ask(ListPartitionReassignmentsRequest()).topics == []

    def reassign(index, replicas):
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic(
            name="t",
            partitions=[
                AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=index, replicas=replicas)
            ],
        )
        answer = stage.ask(AlterPartitionReassignmentsRequest(topics=[topic]))
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    before = stage.partition("t").replicas
    assert reassign(0, list(before)[::-1]) is ErrorCode.NONE and stage.partition("t").replicas == before[::-1]
    assert reassign(0, [1]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(0, [1, 9]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(0, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(9, [1, 2]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broker_is_struck_off_and_what_it_led_goes_elsewhere():
    stage = made((1, 2), 2)
    stage.ask(UnregisterBrokerRequest(broker_id=1))
    assert 1 not in stage.context.state.brokers and all(stage.partition("t", i).leader == 2 for i in (0, 1))
    with pytest.raises(KafkaError) as caught:
        stage.ask(UnregisterBrokerRequest(broker_id=1))
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def update(stage, *updates, validate_only=False):
    wanted = [Update(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in updates]
    return stage.ask(UpdateFeaturesRequest(feature_updates=wanted, validate_only=validate_only))


def test_features_go_up_and_down_together():
    stage = made()
    update(stage, ("group.version", 1, 1), validate_only=True)
    assert "group.version" not in stage.context.features()
    update(stage, ("group.version", 1, 1))
    assert stage.context.features()["group.version"] == 1
    with pytest.raises(KafkaError):
        update(stage, ("group.version", 0, 2), ("nope", 1, 1))
    assert stage.context.features()["group.version"] == 1
    update(stage, ("group.version", 0, 2))
    assert "group.version" not in stage.context.features()


@pytest.mark.parametrize(
    ("update_of", "words"),
    [
        (("metadata.version", 29, 1), "without setting the upgrade type"),
        (("metadata.version", 29, 2), "might delete metadata information"),
        (("metadata.version", 29, 3), "Unsafe metadata downgrade is not supported"),
        (("metadata.version", 31, 1), "Local controller 1 only supports versions 7-30"),
        (("nope", 1, 1), "Local controller 1 does not support this feature."),
        (("nope", 0, 2), "Feature nope not found."),
        (("group.version", 1, 2), "Can't downgrade to a newer version."),
        (("group.version", 1, 0), "does not support the given upgrade type"),
        (("group.version", -1, 1), "cannot be less than 0"),
    ],
)
def test_levels_that_cannot_be(update_of, words):
    stage = made()
    before = len(stage.journal.records)
    with pytest.raises(KafkaError) as caught:
        update(stage, update_of)
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION and words in caught.value.message
    assert len(stage.journal.records) == before


def test_switching_elr_on_makes_min_isr_the_clusters():
    stage = made(elr=False, static={"min.insync.replicas": "2"})
    stage.context.state.configs[(BROKER_CONFIG, "1")] = {"min.insync.replicas": "3"}
    update(stage, (ELR, 1, 1))
    assert stage.context.state.config(BROKER_CONFIG, "")["min.insync.replicas"] == "2"
    assert "min.insync.replicas" not in stage.context.state.config(BROKER_CONFIG, "1")
