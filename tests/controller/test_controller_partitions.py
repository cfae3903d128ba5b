"""Partition creation, elections on demand, features, and unregistering brokers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controller.controller_harness import ELR, ControllerHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller.elections import Rules, preferred, unclean, with_broker, without_broker
from headrace.metadata.image import BROKER_CONFIG, RECOVERING, Partition
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

ID = Uuid(b"t" * 16)
Update = UpdateFeaturesRequest.FeatureUpdateKey


def make_harness(brokers: tuple[int, ...] = (1,), factor: int = 1, **more: Any) -> ControllerHarness:
    harness = ControllerHarness(brokers, **more)
    harness.create(CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=factor))
    return harness


def add_partitions(
    harness: ControllerHarness,
    name: str,
    count: int,
    assignments: list[list[int]] | None = None,
    validate_only: bool = False,
) -> tuple[ErrorCode, str | None]:
    assignment_type = CreatePartitionsRequest.CreatePartitionsAssignment
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None if assignments is None else [assignment_type(broker_ids=one) for one in assignments],
    )
    [result] = harness.send_request(CreatePartitionsRequest(topics=[wanted], validate_only=validate_only)).results
    return ErrorCode(result.error_code), result.error_message


def test_create_partitions_can_only_increase_the_count() -> None:
    harness = make_harness()
    assert add_partitions(harness, "t", 4, validate_only=True) == (ErrorCode.NONE, None)
    assert len(list(harness.context.state.partitions_of(harness.context.state.topic_ids["t"]))) == 2
    assert add_partitions(harness, "t", 4) == (ErrorCode.NONE, None)
    assert harness.partition("t", 3).leader == 1 and harness.partition("t", 3).directories == (b"d" * 16,)
    assert add_partitions(harness, "t", 4) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 4 partition(s).")
    assert "would not be an increase" in add_partitions(harness, "t", 1)[1]


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
def test_invalid_create_partitions_requests_are_refused(
    name: str, count: int, assignments: list[list[int]] | None, code: ErrorCode
) -> None:
    harness = make_harness()
    before = len(harness.journal.written)
    assert add_partitions(harness, name, count, assignments)[0] is code
    assert len(harness.journal.written) == before


def elect(harness: ControllerHarness, kind: int, indexes: list[int] | None) -> ElectLeadersResponse:
    partitions = None if indexes is None else [ElectLeadersRequest.TopicPartitions(topic="t", partitions=indexes)]
    return harness.send_request(ElectLeadersRequest(election_type=kind, topic_partitions=partitions))


def test_election_not_needed_is_returned_only_for_named_partitions() -> None:
    harness = make_harness()
    for kind in (0, 1):
        [topic] = elect(harness, kind, [0, 1, 9]).replica_election_results
        codes = [ErrorCode(one.error_code) for one in topic.partition_result]
        assert codes == [ErrorCode.ELECTION_NOT_NEEDED] * 2 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        [topic] = elect(harness, kind, None).replica_election_results
        assert topic.partition_result == []
    assert elect(harness, 5, [0]).error_code == ErrorCode.INVALID_REQUEST


def test_a_preferred_election_returns_leadership_to_the_preferred_replica() -> None:
    harness = make_harness((1, 2), 2)
    first = harness.partition("t").replicas[0]
    harness.heartbeat(first, want_fence=True)
    assert harness.partition("t").leader not in (first, -1)
    harness.heartbeat(first)
    partition = harness.partition("t")
    harness.context.state.partitions[(harness.context.state.topic_ids["t"], 0)] = Partition(
        **{**{name: getattr(partition, name) for name in Partition.__slots__}, "isr": partition.replicas}  # type: ignore[attr-defined]
    )
    [topic] = elect(harness, 0, [0]).replica_election_results
    assert topic.partition_result[0].error_code == 0 and harness.partition("t").leader == first


def rules(active: set[int], *, elr: bool = True, unclean: bool = False) -> Rules:
    return Rules(min_isr=2, elr=elr, unclean=unclean, is_active=lambda replica: replica in active)


LED = Partition(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=4, partition_epoch=7)


def test_without_elr_the_last_in_sync_replica_stays_in_the_isr() -> None:
    change = without_broker(ID, 0, LED, 1, rules({2}, elr=False))
    assert (change.leader, change.isr, change.eligible_leader_replicas, change.last_known_elr) == (-1, None, None, None)
    change = without_broker(ID, 0, LED, 1, rules({2}))
    assert (change.leader, change.isr, change.eligible_leader_replicas, change.last_known_elr) == (-1, [], [1], [1])


def test_an_unclean_election_picks_an_active_replica_and_marks_it_recovering() -> None:
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


def test_unregistering_a_broker_moves_its_leadership_to_other_replicas() -> None:
    harness = make_harness((1, 2), 2)
    harness.send_request(UnregisterBrokerRequest(broker_id=1))
    assert 1 not in harness.context.state.brokers and all(harness.partition("t", i).leader == 2 for i in (0, 1))
    with pytest.raises(KafkaError) as caught:
        harness.send_request(UnregisterBrokerRequest(broker_id=1))
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def update(harness: ControllerHarness, *updates: Any, validate_only: bool = False) -> UpdateFeaturesResponse:
    wanted = [Update(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in updates]
    return harness.send_request(UpdateFeaturesRequest(feature_updates=wanted, validate_only=validate_only))


def test_feature_updates_are_atomic_and_may_upgrade_or_downgrade() -> None:
    harness = make_harness()
    update(harness, ("group.version", 1, 1), validate_only=True)
    assert "group.version" not in harness.context.features()
    update(harness, ("group.version", 1, 1))
    assert harness.context.features()["group.version"] == 1
    with pytest.raises(KafkaError):
        update(harness, ("group.version", 0, 2), ("nope", 1, 1))
    assert harness.context.features()["group.version"] == 1
    update(harness, ("group.version", 0, 2))
    assert "group.version" not in harness.context.features()


@pytest.mark.parametrize(
    ("feature_update", "expected_message"),
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
def test_invalid_feature_levels_are_refused_with_kafkas_messages(
    feature_update: tuple[str, int, int], expected_message: str
) -> None:
    harness = make_harness()
    before = len(harness.journal.written)
    with pytest.raises(KafkaError) as caught:
        update(harness, feature_update)
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION and expected_message in caught.value.message
    assert len(harness.journal.written) == before


def test_enabling_elr_moves_min_insync_replicas_to_the_cluster_default() -> None:
    harness = make_harness(elr=False, static={"min.insync.replicas": "2"})
    harness.context.state.configs[(BROKER_CONFIG, "1")] = {"min.insync.replicas": "3"}
    update(harness, (ELR, 1, 1))
    assert harness.context.state.config(BROKER_CONFIG, "")["min.insync.replicas"] == "2"
    assert "min.insync.replicas" not in harness.context.state.config(BROKER_CONFIG, "1")
