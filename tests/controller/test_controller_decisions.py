"""The controller's decisions: requests, and the records and replies that follow, on a journal that commits at once."""

from __future__ import annotations

import random

import pytest
from tests.controller.controller_harness import ControllerHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.stored.metadata_brokers import RegisterBrokerRecord
from headrace.statemachine.runtime import Runtime

Topic = CreateTopicsRequest.CreatableTopic


def test_a_new_broker_starts_fenced_with_its_registration_offset_as_epoch() -> None:
    harness = ControllerHarness(brokers=())
    harness.register(1, active=False)
    epoch = harness.epochs[1]
    assert isinstance(harness.journal.written[epoch], RegisterBrokerRecord) and harness.context.state.brokers[1].fenced
    answer = harness.send_request(BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=-1))
    assert answer.is_fenced and not answer.is_caught_up
    assert not harness.heartbeat(1).is_fenced


def test_a_second_incarnation_is_refused_until_the_session_of_the_first_expires() -> None:
    harness = ControllerHarness()
    with pytest.raises(KafkaError) as caught:
        harness.register(1, Uuid(b"b" * 16), now_ms=8_999)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    harness.register(1, Uuid(b"b" * 16), now_ms=9_000)
    with pytest.raises(KafkaError) as caught:
        harness.send_request(BrokerHeartbeatRequest(broker_id=1, broker_epoch=0))
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_requests_with_a_wrong_cluster_id_broker_id_or_epoch_are_refused() -> None:
    harness = ControllerHarness()
    for request, code in (
        (BrokerRegistrationRequest(broker_id=2, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (BrokerHeartbeatRequest(broker_id=9), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (AllocateProducerIdsRequest(broker_id=1, broker_epoch=77), ErrorCode.STALE_BROKER_EPOCH),
    ):
        with pytest.raises(KafkaError) as caught:
            harness.send_request(request)
        assert caught.value.code is code


def test_topics_are_created_with_explicit_or_default_counts_and_configs() -> None:
    harness = ControllerHarness()
    made, default = harness.create(
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
    assert harness.partition("a", 2).leader == 1 and harness.partition("a", 2).directories == (b"d" * 16,)
    assert dict(harness.context.state.config(2, "a")) == {"retention.ms": "5"}


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
def test_an_invalid_topic_is_refused_without_affecting_the_others(
    topic: CreateTopicsRequest.CreatableTopic, code: ErrorCode
) -> None:
    harness = ControllerHarness()
    harness.create(
        Topic(name="there", num_partitions=1, replication_factor=1),
        Topic(name="with_dot", num_partitions=1, replication_factor=1),
    )
    before = len(harness.journal.written)
    refused, good = harness.create(topic, Topic(name="good", num_partitions=1, replication_factor=1))
    assert refused.error_code == code and good.error_code == 0
    assert len(harness.journal.written) == before + 2  # a topic and its one partition


def test_duplicate_topic_names_are_refused_and_validate_only_creates_nothing() -> None:
    harness = ControllerHarness()
    duplicate = Topic(name="twin", num_partitions=1, replication_factor=1)
    [answer] = harness.create(duplicate, duplicate)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    [answer] = harness.create(duplicate, validate_only=True)
    assert answer.error_code == 0 and "twin" not in harness.context.state.topic_ids


def test_topics_are_deleted_by_name_or_id() -> None:
    harness = ControllerHarness()
    harness.create(
        Topic(name="a", num_partitions=2, replication_factor=1), Topic(name="b", num_partitions=1, replication_factor=1)
    )
    state = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(
        topics=[
            state(name="a"),
            state(topic_id=harness.context.state.topic_ids["b"]),
            state(name="c"),
            state(topic_id=Uuid(b"z" * 16)),
        ]
    )
    answers = harness.send_request(request).responses
    assert [answer.error_code for answer in answers] == [
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert harness.context.topic_names() == [] and harness.context.partitions() == []


def test_producer_ids_never_repeat() -> None:
    harness = ControllerHarness()
    blocks = [
        harness.send_request(AllocateProducerIdsRequest(broker_id=1, broker_epoch=harness.epochs[1])) for _ in range(3)
    ]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]


def test_a_controlled_shutdown_gives_up_leadership_until_the_broker_returns() -> None:
    harness = ControllerHarness()
    harness.create(Topic(name="a", num_partitions=1, replication_factor=1))
    assert not harness.heartbeat(1, want_shut_down=True).should_shut_down
    gone = harness.partition("a")
    assert (gone.leader, gone.isr, gone.elr, gone.last_known_elr, gone.leader_epoch) == (-1, (), (1,), (1,), 1)
    assert harness.heartbeat(1, want_shut_down=True).should_shut_down
    harness.register(1, Uuid(b"c" * 16), now_ms=20_000)
    back = harness.partition("a")
    assert (back.leader, back.isr, back.elr, back.last_known_elr, back.leader_epoch) == (1, (1,), (), (), 2)


def test_a_broker_without_heartbeats_is_fenced_and_another_replica_leads() -> None:
    harness = ControllerHarness(brokers=(1, 2))
    harness.create(Topic(name="a", num_partitions=4, replication_factor=2))
    harness.heartbeat(2, now_ms=8_000)
    harness.runtime.tick(9_000)
    assert harness.context.state.brokers[1].fenced and not harness.context.state.brokers[2].fenced
    assert all(partition.leader == 2 and partition.isr == (2,) for _, partition in harness.context.partitions())


def test_the_controller_state_is_rebuilt_from_the_log() -> None:
    harness = ControllerHarness()
    harness.create(Topic(name="a", num_partitions=2, replication_factor=1))
    harness.send_request(AllocateProducerIdsRequest(broker_id=1, broker_epoch=harness.epochs[1]))
    again = ControllerContext("cluster", random.Random(1))
    runtime = Runtime(Controller(again, []), harness.journal)
    assert list(runtime.load([(0, harness.journal.written)])) == [len(harness.journal.written)]
    assert again.partitions() == harness.context.partitions() and again.brokers() == harness.context.brokers()
    assert again.state.next_producer_id() == 1000
