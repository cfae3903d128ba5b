"""Config changes: atomic per resource, with Kafka's error texts; with ELR, min.insync.replicas belongs to the cluster."""

import pytest
from controller_stage import Stage
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ErrorCode
from headrace.controller.configs import APPEND, DELETE, SET, SUBTRACT
from headrace.metadata.image import BROKER_CONFIG, GROUP_CONFIG, METRICS_CONFIG, TOPIC_CONFIG
from headrace.protocol.messages.alter_configs import AlterConfigsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord
from headrace.protocol.messages.stored.metadata_topics import ClearElrRecord, PartitionChangeRecord

Config = IncrementalAlterConfigsRequest.AlterableConfig


def made(**more):
    stage = Stage(**more)
    stage.create(CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1))
    return stage


def resource(kind, name, *changes):
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[Config(name=key, config_operation=operation, value=value) for key, operation, value in changes],
    )


def alter(stage, *resources, validate_only=False):
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return [(ErrorCode(one.error_code), one.error_message) for one in stage.ask(request).responses]


def test_set_delete_append_and_subtract():
    stage = made()
    assert alter(stage, resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")))[
        0
    ] == (ErrorCode.NONE, None)
    assert stage.context.state.config(TOPIC_CONFIG, "t") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    alter(stage, resource(TOPIC_CONFIG, "t", ("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")))
    assert stage.context.state.config(TOPIC_CONFIG, "t") == {"cleanup.policy": "compact"}


def test_what_stays_the_same_is_not_written_except_for_brokers_which_then_look_again():
    stage = made()
    alter(stage, resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5")))
    before = len(stage.journal.records)
    alter(stage, resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("flush.ms", DELETE, None)))
    assert len(stage.journal.records) == before
    alter(stage, resource(BROKER_CONFIG, "1", ("log.retention.ms", SET, "5")))
    alter(stage, resource(BROKER_CONFIG, "1", ("log.retention.ms", SET, "5")))
    assert len(stage.journal.records) == before + 2


def test_a_resource_changes_as_a_whole_or_not_at_all_and_others_are_not_touched_by_it():
    stage = made()
    answers = alter(
        stage,
        resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("segment.bytes", SET, "1")),
        resource(BROKER_CONFIG, "", ("message.max.bytes", SET, "5")),
    )
    assert [code for code, _ in answers] == [ErrorCode.INVALID_CONFIG, ErrorCode.NONE]
    assert stage.context.state.config(TOPIC_CONFIG, "t") == {}
    assert stage.context.state.config(BROKER_CONFIG, "")["message.max.bytes"] == "5"


def test_validation_only_says_the_same_and_writes_nothing():
    stage = made()
    before = len(stage.journal.records)
    for changes in ([("retention.ms", SET, "5")], [("retention.ms", SET, "x")]):
        said = alter(stage, resource(TOPIC_CONFIG, "t", *changes), validate_only=True)
        assert len(stage.journal.records) == before
        assert said == alter(stage, resource(TOPIC_CONFIG, "t", *changes))
        before = len(stage.journal.records)


@pytest.mark.parametrize(
    ("kind", "name", "change", "code", "words"),
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
def test_what_cannot_be_is_refused_in_kafkas_words(kind, name, change, code, words):
    stage = made()
    before = len(stage.journal.records)
    [(found, text)] = alter(stage, resource(kind, name, change))
    assert found is code and words in text
    assert len(stage.journal.records) == before


def test_each_resource_and_each_key_only_once():
    stage = made()
    one = resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"))
    assert [code for code, _ in alter(stage, one, one)] == [ErrorCode.INVALID_REQUEST] * 2
    twice = resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    assert alter(stage, twice) == [(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")]


def test_a_change_of_min_isr_forgets_who_was_eligible():
    stage = made()
    topic_id = stage.context.state.topic_ids["t"]
    key = (topic_id, 0)
    stage.runtime._decide(
        lambda tx: tx.emit(PartitionChangeRecord(partition_id=0, topic_id=topic_id, eligible_leader_replicas=[9])),
        _Nobody(),
    )
    epoch = stage.context.state.partitions[key].partition_epoch
    alter(stage, resource(TOPIC_CONFIG, "t", ("min.insync.replicas", SET, "1")))
    assert isinstance(stage.journal.records[-1], ClearElrRecord)
    cleared = stage.context.state.partitions[key]
    assert cleared.elr == () and cleared.partition_epoch == epoch + 1


class _Nobody:
    settled = True

    def answer(self, value):
        pass

    def fail(self, error):
        raise error


def test_without_elr_min_isr_is_like_any_other_option():
    stage = made(elr=False)
    assert alter(stage, resource(BROKER_CONFIG, "1", ("min.insync.replicas", SET, "1")))[0][0] is ErrorCode.NONE
    assert isinstance(stage.journal.records[-1], ConfigRecord)


def test_the_old_request_replaces_everything():
    stage = made()
    alter(stage, resource(TOPIC_CONFIG, "t", ("retention.ms", SET, "5"), ("flush.ms", SET, "6")))
    config = AlterConfigsRequest.AlterableConfig
    wanted = AlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC_CONFIG, resource_name="t", configs=[config(name="flush.ms", value="7")]
    )
    [answer] = stage.ask(AlterConfigsRequest(resources=[wanted])).responses
    assert answer.error_code == 0 and stage.context.state.config(TOPIC_CONFIG, "t") == {"flush.ms": "7"}
    broker = AlterConfigsRequest.AlterConfigsResource(resource_type=BROKER_CONFIG, resource_name="", configs=[])
    stage.context.state.configs[(BROKER_CONFIG, "")] = {"min.insync.replicas": "1"}
    [answer] = stage.ask(AlterConfigsRequest(resources=[broker])).responses
    assert "cannot be removed while ELR" in answer.error_message


def test_group_bounds_come_from_the_broker():
    bounds = {"group.consumer.min.session.timeout.ms": 45_000, "group.consumer.max.session.timeout.ms": 60_000}
    stage = made(settings=bounds)
    for value, words in (("10", "group.consumer.min"), ("99999", "group.consumer.max")):
        [(code, text)] = alter(stage, resource(GROUP_CONFIG, "g", ("consumer.session.timeout.ms", SET, value)))
        assert code is ErrorCode.INVALID_CONFIG and words in text
    assert (
        alter(stage, resource(GROUP_CONFIG, "g", ("consumer.session.timeout.ms", SET, "50000")))[0][0] is ErrorCode.NONE
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
def test_whatever_is_asked_the_options_that_are_kept_are_good_ones(changes):
    stage = made()
    for change in changes:
        alter(stage, resource(TOPIC_CONFIG, "t", change))
        for name, value in stage.context.state.config(TOPIC_CONFIG, "t").items():
            assert value.isdigit() if name.endswith(".ms") else set(value.split(",")) <= {"delete", "compact", ""}
