"""Config changes: atomic per resource, with Kafka's error texts; with ELR, min.insync.replicas belongs to the cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controller.controller_harness import ControllerHarness

from headrace.base.errors import ErrorCode
from headrace.controller.configs import APPEND, DELETE, SET, SUBTRACT
from headrace.metadata.image import BROKER_CONFIG, GROUP_CONFIG, METRICS_CONFIG, TOPIC_CONFIG
from headrace.protocol.messages.alter_configs import AlterConfigsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord
from headrace.protocol.messages.stored.metadata_topics import ClearElrRecord, PartitionChangeRecord

Config = IncrementalAlterConfigsRequest.AlterableConfig


def make_harness(**more: Any) -> ControllerHarness:
    harness = ControllerHarness(**more)
    harness.create(CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1))
    return harness


def resource(kind: int, name: str, *changes: Any) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[Config(name=key, config_operation=operation, value=value) for key, operation, value in changes],
    )


def alter(
    harness: ControllerHarness,
    *resources: IncrementalAlterConfigsRequest.AlterConfigsResource,
    validate_only: bool = False,
) -> list[tuple[ErrorCode, str | None]]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return [(ErrorCode(one.error_code), one.error_message) for one in harness.send_request(request).responses]


def test_topic_configs_can_be_set_deleted_appended_and_subtracted() -> None:
    harness = make_harness()
    assert alter(
        harness, resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact"))
    )[0] == (ErrorCode.NONE, None)
    assert harness.context.state.config(TOPIC_CONFIG, "t") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    alter(harness, resource(TOPIC_CONFIG, "t", ("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")))
    assert harness.context.state.config(TOPIC_CONFIG, "t") == {"cleanup.policy": "compact"}


def test_unchanged_configs_are_not_written_except_for_brokers() -> None:
    harness = make_harness()
    alter(harness, resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5")))
    before = len(harness.journal.written)
    alter(harness, resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("flush.ms", DELETE, None)))
    assert len(harness.journal.written) == before
    alter(harness, resource(BROKER_CONFIG, "1", ("log.retention.ms", SET, "5")))
    alter(harness, resource(BROKER_CONFIG, "1", ("log.retention.ms", SET, "5")))
    assert len(harness.journal.written) == before + 2


def test_each_resource_is_altered_atomically_and_independently() -> None:
    harness = make_harness()
    answers = alter(
        harness,
        resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("segment.bytes", SET, "1")),
        resource(BROKER_CONFIG, "", ("message.max.bytes", SET, "5")),
    )
    assert [code for code, _ in answers] == [ErrorCode.INVALID_CONFIG, ErrorCode.NONE]
    assert harness.context.state.config(TOPIC_CONFIG, "t") == {}
    assert harness.context.state.config(BROKER_CONFIG, "")["message.max.bytes"] == "5"


def test_validate_only_returns_the_same_result_and_writes_nothing() -> None:
    harness = make_harness()
    before = len(harness.journal.written)
    for changes in ([("retention.ms", SET, "5")], [("retention.ms", SET, "x")]):
        results = alter(harness, resource(TOPIC_CONFIG, "t", *changes), validate_only=True)
        assert len(harness.journal.written) == before
        assert results == alter(harness, resource(TOPIC_CONFIG, "t", *changes))
        before = len(harness.journal.written)


@pytest.mark.parametrize(
    ("kind", "name", "change", "code", "expected_message"),
    [
        (
            TOPIC_CONFIG,
            "no",
            ("retention.ms", SET, "1"),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'no' does not",
        ),
        (TOPIC_CONFIG, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "Default topic resources"),
        (TOPIC_CONFIG, "a b", ("retention.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        (TOPIC_CONFIG, "t", ("nokey", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown topic config name: nokey"),
        (TOPIC_CONFIG, "t", ("retention.ms", SET, "-2"), ErrorCode.INVALID_CONFIG, "Value must be at least -1"),
        (TOPIC_CONFIG, "t", ("segment.bytes", SET, "9" * 14), ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        (
            TOPIC_CONFIG,
            "t",
            ("min.cleanable.dirty.ratio", SET, "NaN"),
            ErrorCode.INVALID_CONFIG,
            "Not a number of type DOUBLE",
        ),
        (TOPIC_CONFIG, "t", ("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG, "its type is not LIST"),
        (TOPIC_CONFIG, "t", ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "Null value not supported"),
        (TOPIC_CONFIG, "t", ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
        (TOPIC_CONFIG, "t", ("compression.gzip.level", SET, "0"), ErrorCode.INVALID_CONFIG, "between 1 and 9"),
        (TOPIC_CONFIG, "t", ("remote.storage.enable", SET, "true"), ErrorCode.INVALID_CONFIG, "Tiered Storage"),
        (TOPIC_CONFIG, "t", ("leader.replication.throttled.replicas", SET, "a"), ErrorCode.INVALID_CONFIG, "'*' or a"),
        (TOPIC_CONFIG, "t", ("retention.ms", SET, "1" * 40_000), ErrorCode.INVALID_CONFIG, "maximum value size"),
        (BROKER_CONFIG, "7", ("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED, "No broker with id 7"),
        (BROKER_CONFIG, "x", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "base 10 number"),
        (BROKER_CONFIG, "", ("log.retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG, "log.retention.ms: Not a number"),
        (
            BROKER_CONFIG,
            "1",
            ("min.insync.replicas", SET, "1"),
            ErrorCode.INVALID_CONFIG,
            "cannot be altered while ELR",
        ),
        (
            BROKER_CONFIG,
            "",
            ("min.insync.replicas", DELETE, ""),
            ErrorCode.INVALID_CONFIG,
            "cannot be removed while ELR",
        ),
        (METRICS_CONFIG, "", ("interval.ms", SET, "1000"), ErrorCode.INVALID_REQUEST, "can't be empty"),
        (METRICS_CONFIG, "m", ("interval.ms", SET, "99"), ErrorCode.INVALID_REQUEST, "between 100 and 3600000"),
        (METRICS_CONFIG, "m", ("match", SET, "client_id=["), ErrorCode.INVALID_CONFIG, "Illegal client matching"),
        (GROUP_CONFIG, "", ("consumer.session.timeout.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "Default group"),
        (
            GROUP_CONFIG,
            "g",
            ("share.auto.offset.reset", SET, "by_duration:-P1D"),
            ErrorCode.INVALID_CONFIG,
            "by_duration",
        ),
        (GROUP_CONFIG, "g", ("consumer.session.timeout.ms", SET, "10"), ErrorCode.INVALID_CONFIG, "must be greater"),
        (8, "1", ("root", SET, "DEBUG"), ErrorCode.INVALID_REQUEST, "Unknown resource type 8"),
    ],
)
def test_invalid_config_changes_are_refused_with_kafkas_messages(
    kind: int, name: str, change: tuple[str, int, str | None], code: ErrorCode, expected_message: str
) -> None:
    harness = make_harness()
    before = len(harness.journal.written)
    [(found, text)] = alter(harness, resource(kind, name, change))
    assert found is code and expected_message in text
    assert len(harness.journal.written) == before


def test_duplicate_resources_and_config_keys_are_refused() -> None:
    harness = make_harness()
    one = resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"))
    assert [code for code, _ in alter(harness, one, one)] == [ErrorCode.INVALID_REQUEST] * 2
    twice = resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    assert alter(harness, twice) == [(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")]


def test_changing_min_insync_replicas_clears_the_eligible_leader_replicas() -> None:
    harness = make_harness()
    topic_id = harness.context.state.topic_ids["t"]
    key = (topic_id, 0)
    harness.runtime._decide(
        lambda tx: tx.emit(PartitionChangeRecord(partition_id=0, topic_id=topic_id, eligible_leader_replicas=[9])),
        _IgnoredReply(),  # type: ignore[arg-type]
    )
    epoch = harness.context.state.partitions[key].partition_epoch
    alter(harness, resource(TOPIC_CONFIG, "t", ("min.insync.replicas", SET, "1")))
    assert isinstance(harness.journal.written[-1], ClearElrRecord)
    cleared = harness.context.state.partitions[key]
    assert cleared.elr == () and cleared.partition_epoch == epoch + 1


class _IgnoredReply:
    settled = True

    def answer(self, value: Any) -> None:
        pass

    def fail(self, error: Any) -> None:
        raise error


def test_min_insync_replicas_of_a_broker_can_be_set_without_elr() -> None:
    harness = make_harness(elr=False)
    assert alter(harness, resource(BROKER_CONFIG, "1", ("min.insync.replicas", SET, "1")))[0][0] is ErrorCode.NONE
    assert isinstance(harness.journal.written[-1], ConfigRecord)


def test_alter_configs_replaces_all_configs_of_a_resource() -> None:
    harness = make_harness()
    alter(harness, resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("flush.ms", SET, "6")))
    config = AlterConfigsRequest.AlterableConfig
    wanted = AlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC_CONFIG, resource_name="t", configs=[config(name="flush.ms", value="7")]
    )
    [answer] = harness.send_request(AlterConfigsRequest(resources=[wanted])).responses
    assert answer.error_code == 0 and harness.context.state.config(TOPIC_CONFIG, "t") == {"flush.ms": "7"}
    broker = AlterConfigsRequest.AlterConfigsResource(resource_type=BROKER_CONFIG, resource_name="", configs=[])
    harness.context.state.configs[(BROKER_CONFIG, "")] = {"min.insync.replicas": "1"}
    [answer] = harness.send_request(AlterConfigsRequest(resources=[broker])).responses
    assert "cannot be removed while ELR" in answer.error_message


def test_group_config_bounds_come_from_the_broker_settings() -> None:
    bounds = {"group.consumer.min.session.timeout.ms": 45_000, "group.consumer.max.session.timeout.ms": 60_000}
    harness = make_harness(settings=bounds)
    for value, expected_message in (("10", "group.consumer.min"), ("99999", "group.consumer.max")):
        [(code, text)] = alter(harness, resource(GROUP_CONFIG, "g", ("consumer.session.timeout.ms", SET, value)))
        assert code is ErrorCode.INVALID_CONFIG and expected_message in text
    assert (
        alter(harness, resource(GROUP_CONFIG, "g", ("consumer.session.timeout.ms", SET, "50000")))[0][0]
        is ErrorCode.NONE
    )


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["retention.ms", "cleanup.policy", "flush.ms"]),
            st.sampled_from([SET, DELETE, APPEND, SUBTRACT]),
            st.sampled_from(["1", "delete", "compact", "compact,delete", ""]),
        ),
        max_size=12,
    )
)
def test_any_sequence_of_changes_leaves_only_valid_configs(changes: list[tuple[str, int, str]]) -> None:
    harness = make_harness()
    for change in changes:
        alter(harness, resource(TOPIC_CONFIG, "t", change))
        for name, value in harness.context.state.config(TOPIC_CONFIG, "t").items():
            assert value.isdigit() if name.endswith(".ms") else set(value.split(",")) <= {"delete", "compact", ""}
