"""The controller's decisions: requests, and the records and replies that follow, on a journal that commits at once."""

import random

import pytest
from controller_stage import Stage

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.controller.placement import place
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.stored.metadata_brokers import RegisterBrokerRecord
from headrace.statemachine.runtime import Runtime

Topic = CreateTopicsRequest.CreatableTopic


def test_a_broker_epoch_is_the_offset_of_its_registration_and_it_starts_fenced():
    stage = Stage(brokers=())
    stage.register(1, active=False)
    epoch = stage.epochs[1]
    assert isinstance(stage.journal.records[epoch], RegisterBrokerRecord) and stage.context.state.brokers[1].fenced
    answer = stage.ask(BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=-1))
    assert answer.is_fenced and not answer.is_caught_up
    assert not stage.beat(1).is_fenced


def test_another_incarnation_is_refused_while_the_first_is_alive_and_taken_when_it_is_silent():
    stage = Stage()
    with pytest.raises(KafkaError) as caught:
        stage.register(1, b"b" * 16, now_ms=8_999)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    stage.register(1, b"b" * 16, now_ms=9_000)
    with pytest.raises(KafkaError) as caught:
        stage.ask(BrokerHeartbeatRequest(broker_id=1, broker_epoch=0))
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_strangers_are_refused():
    stage = Stage()
    for request, code in (
        (BrokerRegistrationRequest(broker_id=2, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (BrokerHeartbeatRequest(broker_id=9), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (AllocateProducerIdsRequest(broker_id=1, broker_epoch=77), ErrorCode.STALE_BROKER_EPOCH),
    ):
        with pytest.raises(KafkaError) as caught:
            stage.ask(request)
        assert caught.value.code is code


def test_creation_by_counts_and_defaults_with_options():
    stage = Stage()
    made, default = stage.create(
        Topic(
            name="a",
            num_partitions=3,
            replication_factor=1,
            configs=[CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="5")],
        ),
        Topic(name="b", num_partitions=-1, replication_factor=-1),
    )
    assert (made.error_code, made.num_partitions, default.num_partitions) == (0, 3, 1)
    assert {option.name: (option.value, option.config_source) for option in made.configs}["retention.ms"] == ("5", 1)
    assert stage.partition("a", 2).leader == 1 and stage.partition("a", 2).directories == (b"d" * 16,)
    assert dict(stage.context.state.config(2, "a")) == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (Topic(name="../etc", num_partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (Topic(name="", num_partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (Topic(name="x" * 250, num_partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (Topic(name="there", num_partitions=1, replication_factor=1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (Topic(name="with.dot", num_partitions=1, replication_factor=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (Topic(name="a", num_partitions=0, replication_factor=1), ErrorCode.INVALID_PARTITIONS),
        (Topic(name="a", num_partitions=1, replication_factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            Topic(
                name="a",
                num_partitions=1,
                replication_factor=1,
                configs=[CreateTopicsRequest.CreatableTopicConfig(name="no.such", value="1")],
            ),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            Topic(
                name="a",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreateTopicsRequest.CreatableReplicaAssignment(partition_index=1, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            Topic(
                name="a",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[7])],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_a_bad_topic_is_refused_alone(topic, code):
    stage = Stage()
    stage.create(
        Topic(name="there", num_partitions=1, replication_factor=1),
        Topic(name="with_dot", num_partitions=1, replication_factor=1),
    )
    before = len(stage.journal.records)
    refused, good = stage.create(topic, Topic(name="good", num_partitions=1, replication_factor=1))
    assert refused.error_code == code and good.error_code == 0
    assert len(stage.journal.records) == before + 2  # a topic and its one partition


def test_a_name_twice_in_one_request_and_validation_only():
    stage = Stage()
    twin = Topic(name="twin", num_partitions=1, replication_factor=1)
    [answer] = stage.create(twin, twin)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    [answer] = stage.create(twin, validate_only=True)
    assert answer.error_code == 0 and "twin" not in stage.context.state.topic_ids


def test_deletion_by_name_and_by_id():
    stage = Stage()
    stage.create(
        Topic(name="a", num_partitions=2, replication_factor=1), Topic(name="b", num_partitions=1, replication_factor=1)
    )
    state = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(
        topics=[
            state(name="a"),
            state(topic_id=stage.context.state.topic_ids["b"]),
            state(name="c"),
            state(topic_id=b"z" * 16),
        ]
    )
    answers = stage.ask(request).responses
    assert [answer.error_code for answer in answers] == [
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert stage.context.topic_names() == [] and stage.context.partitions() == []


def test_producer_ids_never_repeat():
    stage = Stage()
    blocks = [stage.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=stage.epochs[1])) for _ in range(3)]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]


def test_leadership_goes_with_a_controlled_shutdown_and_comes_back():
    stage = Stage()
    stage.create(Topic(name="a", num_partitions=1, replication_factor=1))
    assert not stage.beat(1, want_shut_down=True).should_shut_down
    gone = stage.partition("a")
    assert (gone.leader, gone.isr, gone.elr, gone.last_known_elr, gone.leader_epoch) == (-1, (), (1,), (1,), 1)
    assert stage.beat(1, want_shut_down=True).should_shut_down
    stage.register(1, b"c" * 16, now_ms=20_000)
    back = stage.partition("a")
    assert (back.leader, back.isr, back.elr, back.last_known_elr, back.leader_epoch) == (1, (1,), (), (), 2)


def test_a_silent_broker_is_fenced_by_its_session_timer_and_another_replica_leads():
    stage = Stage(brokers=(1, 2))
    stage.create(Topic(name="a", num_partitions=4, replication_factor=2))
    stage.beat(2, now_ms=8_000)
    stage.runtime.tick(9_000)
    assert stage.context.state.brokers[1].fenced and not stage.context.state.brokers[2].fenced
    assert all(partition.leader == 2 and partition.isr == (2,) for _, partition in stage.context.partitions())


def test_the_log_alone_gives_the_state_back():
    stage = Stage()
    stage.create(Topic(name="a", num_partitions=2, replication_factor=1))
    stage.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=stage.epochs[1]))
    again = ControllerContext("cluster", random.Random(1))
    runtime = Runtime(Controller(again, []), stage.journal)
    assert list(runtime.load(stage.journal.read(0))) == [len(stage.journal.records)]
    assert again.partitions() == stage.context.partitions() and again.brokers() == stage.context.brokers()
    assert again.state.next_producer_id() == 1000


def test_placement_spreads_leaders_and_never_doubles_a_replica():
    for seed in range(20):
        placed = place(12, 3, [1, 2, 3, 4], random.Random(seed))
        assert all(len(set(replicas)) == 3 for replicas in placed)
        leaders = [replicas[0] for replicas in placed]
        assert {leaders.count(broker) for broker in (1, 2, 3, 4)} == {3}
