"""Admin requests to a running node over its socket: the responses and what changes on the node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.admin_client import BROKER, DELETE, GROUP, LOGGER, METRICS, SET, TOPIC, Admin

from headrace.base.errors import ErrorCode
from headrace.protocol.apis import APIS, ApiKey
from headrace.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.delete_records import DeleteRecordsRequest
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.describe_producers import DescribeProducersRequest
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from headrace.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from headrace.testing.cluster import EmbeddedNode


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode() as running:
        yield running


@pytest.fixture
def admin(node: EmbeddedNode) -> Admin:
    return Admin(node.port)


def test_every_advertised_api_version_gets_a_response(node: EmbeddedNode, admin: Admin) -> None:
    """Send every request with its default values: even an invalid one gets a response."""
    listed = {api.api_key: api for api in admin.send_request(ApiVersionsRequest(), 0).api_keys}
    for key in sorted(listed.keys() - {ApiKey.PRODUCE, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}):
        api = APIS[ApiKey(key)]
        for version in range(listed[key].min_version, listed[key].max_version + 1):
            request = (
                ApiVersionsRequest(client_software_name="a", client_software_version="1")
                if key == ApiKey.API_VERSIONS
                else api.request()
            )
            assert type(admin.send_request(request, version)) is api.response, f"{api.key.name} {version}"


def end(admin: Admin, topic: str, index: int = 0) -> int:
    requested = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[requested])]
    return admin.send_request(ListOffsetsRequest(replica_id=-1, topics=topics)).topics[0].partitions[0].offset


def delete_records(admin: Admin, topic: str, index: int, offset: int) -> tuple[ErrorCode, int]:
    requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=offset)
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[requested])]
    answer = admin.send_request(DeleteRecordsRequest(topics=topics, timeout_ms=1000)).topics[0].partitions[0]
    return ErrorCode(answer.error_code), answer.low_watermark


def test_records_are_deleted_up_to_an_offset(admin: Admin) -> None:
    admin.create("deleted")
    admin.produce("deleted", 0, b"a", b"b", b"c")
    assert delete_records(admin, "deleted", 0, 2) == (ErrorCode.NONE, 2)
    assert delete_records(admin, "deleted", 0, 1) == (ErrorCode.NONE, 2)
    assert delete_records(admin, "deleted", 0, 4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete_records(admin, "deleted", 0, -1) == (ErrorCode.NONE, 3) and end(admin, "deleted") == 3
    assert delete_records(admin, "deleted", 9, 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_offset_for_leader_epoch_returns_the_end_offset_of_an_epoch(admin: Admin) -> None:
    admin.create("epochs")
    admin.produce("epochs", 0, b"a", b"b")

    def send_request(epoch: int, current: int = -1, index: int = 0) -> tuple[ErrorCode, int, int]:
        requested = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=index, current_leader_epoch=current, leader_epoch=epoch
        )
        topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="epochs", partitions=[requested])]
        answer = admin.send_request(OffsetForLeaderEpochRequest(topics=topics)).topics[0].partitions[0]
        return ErrorCode(answer.error_code), answer.leader_epoch, answer.end_offset

    assert send_request(0) == (ErrorCode.NONE, 0, 2)
    assert send_request(7) == (ErrorCode.NONE, -1, -1)
    assert send_request(0, current=5) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert send_request(0, index=4) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


def test_describe_producers_returns_the_state_of_active_producers(admin: Admin) -> None:
    admin.create("written")
    assert admin.produce("written", 0, b"a", b"b", producer=(4000, 3, 0)).error_code == 0
    requested = DescribeProducersRequest.TopicRequest(name="written", partition_indexes=[0, 5])
    known, unknown = admin.send_request(DescribeProducersRequest(topics=[requested])).topics[0].partitions
    [state] = known.active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence, state.current_txn_start_offset) == (
        4000,
        3,
        1,
        -1,
    )
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_describe_topic_partitions_pages_through_topics_with_a_cursor(admin: Admin) -> None:
    for name, partitions in (("page-a", 2), ("page-b", 4), ("page-c", 1)):
        admin.create(name, partitions)
    names = [
        DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in ("page-c", "page-a", "page-b", "page-x")
    ]
    pages: list[list[tuple[str, list[Any]]]] = []
    cursor = None
    while True:
        request = DescribeTopicPartitionsRequest(topics=names, response_partition_limit=3)
        if cursor is not None:
            request.cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=cursor.topic_name, partition_index=cursor.partition_index
            )
        answer = admin.send_request(request)
        pages.append([(topic.name, [one.partition_index for one in topic.partitions]) for topic in answer.topics])
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert pages == [
        [("page-a", [0, 1]), ("page-b", [0])],
        [("page-b", [1, 2, 3])],
        [("page-c", [0]), ("page-x", [])],
    ]


def test_new_partitions_accept_records_once_create_partitions_responds(admin: Admin) -> None:
    admin.create("grown")
    requested = CreatePartitionsRequest.CreatePartitionsTopic(name="grown", count=3, assignments=None)
    assert admin.send_request(CreatePartitionsRequest(topics=[requested], timeout_ms=5000)).results[0].error_code == 0
    assert admin.produce("grown", 2, b"a").error_code == 0


def test_topic_config_changes_take_effect_immediately(admin: Admin) -> None:
    admin.create("tuned")
    assert admin.alter(TOPIC, "tuned", ("max.message.bytes", SET, "100")) == (0, None)
    assert admin.produce("tuned", 0, b"x" * 200).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert admin.alter(TOPIC, "tuned", ("max.message.bytes", DELETE, None)) == (0, None)
    assert admin.produce("tuned", 0, b"x" * 200).error_code == 0


def test_broker_config_changes_take_effect_immediately_and_survive_a_restart() -> None:
    with EmbeddedNode() as node:
        admin = Admin(node.port)
        admin.create("small")
        assert admin.alter(BROKER, "", ("message.max.bytes", SET, "300")) == (0, None)
        assert admin.produce("small", 0, b"x" * 400).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert admin.alter(BROKER, "1", ("message.max.bytes", SET, "600")) == (0, None)
        assert admin.produce("small", 0, b"x" * 400).error_code == 0
        node.restart()
        assert admin.produce("small", 0, b"x" * 700).error_code == ErrorCode.MESSAGE_TOO_LARGE
        shown = admin.describe(TOPIC, "small", "max.message.bytes")["max.message.bytes"]
        assert (shown.value, shown.config_source) == ("600", 2)
        assert [(one.name, one.value, one.source) for one in shown.synonyms] == [
            ("message.max.bytes", "600", 2),
            ("message.max.bytes", "300", 3),
            ("message.max.bytes", "1048588", 5),
        ]


def test_describe_configs_never_returns_sensitive_values(admin: Admin) -> None:
    name = "listener.name.plaintext.ssl.keystore.password"
    assert admin.alter(BROKER, "1", (name, SET, "hunter2")) == (0, None)
    shown = admin.describe(BROKER, "1", name)[name]
    assert shown.is_sensitive and shown.value is None and [one.value for one in shown.synonyms] == [None]
    assert admin.alter(BROKER, "1", (name, DELETE, None)) == (0, None)


def test_static_configs_and_configs_of_other_brokers_cannot_be_altered(admin: Admin) -> None:
    code, text = admin.alter(BROKER, "1", ("num.partitions", SET, "3"))
    assert code == ErrorCode.INVALID_REQUEST and text == "Cannot update these configs dynamically: [num.partitions]"
    assert admin.alter(BROKER, "7", ("log.retention.ms", SET, "3"))[0] == ErrorCode.INVALID_REQUEST
    assert admin.alter(LOGGER, "1", ("headrace.api", SET, "DEBUG"))[0] in (0, ErrorCode.INVALID_CONFIG)
    assert admin.describe(LOGGER, "1", "root")["root"].config_source == 6


def test_list_config_resources_lists_every_resource_that_has_configs(admin: Admin) -> None:
    admin.create("listed")
    admin.alter(METRICS, "m", ("interval.ms", SET, "1000"))
    admin.alter(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    listed = {
        (one.resource_type, one.resource_name)
        for one in admin.send_request(ListConfigResourcesRequest()).config_resources
    }
    assert {(TOPIC, "listed"), (BROKER, "1"), (LOGGER, "1"), (METRICS, "m"), (GROUP, "g")} <= listed
    assert [one.resource_name for one in admin.send_request(ListConfigResourcesRequest(), 0).config_resources] == ["m"]
    assert (
        admin.send_request(ListConfigResourcesRequest(resource_types=[3])).error_code == ErrorCode.UNSUPPORTED_VERSION
    )
    assert admin.describe(METRICS, "m")["interval.ms"].config_source == 7
    assert admin.describe(GROUP, "g")["consumer.session.timeout.ms"].config_source == 8


def test_describe_quorum_returns_the_voters_and_describe_client_quotas_is_empty(admin: Admin) -> None:
    partition = DescribeQuorumRequest.PartitionData(partition_index=0)
    topics = [DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[partition])]
    for version in (0, 1, 2):
        found = admin.send_request(DescribeQuorumRequest(topics=topics), version).topics[0].partitions[0]
        assert found.leader_id == 1 and found.high_watermark > 0 and found.current_voters[0].replica_id == 1
    assert admin.send_request(DescribeClientQuotasRequest()).entries == []


def replica_sizes(admin: Admin) -> dict[tuple[str, int, bool], tuple[str, int]]:
    found: dict[tuple[str, int, bool], tuple[str, int]] = {}
    for directory in admin.send_request(DescribeLogDirsRequest(topics=None)).results:
        assert directory.error_code == 0 and directory.total_bytes > directory.usable_bytes > 0
        for topic in directory.topics:
            for one in topic.partitions:
                found[(topic.name, one.partition_index, one.is_future_key)] = (directory.log_dir, one.partition_size)
    return found


def move(admin: Admin, path: str, topic: str, index: int = 0) -> ErrorCode:
    requested = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=[index])
    dirs = [AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=[requested])]
    return ErrorCode(admin.send_request(AlterReplicaLogDirsRequest(dirs=dirs)).results[0].partitions[0].error_code)


def test_a_replica_moved_to_another_log_directory_keeps_its_records_and_producer_state(tmp_path: Path) -> None:
    dirs = [str(tmp_path / name) for name in ("a", "b")]
    with EmbeddedNode({"log.dirs": ",".join(dirs)}, data_dir=tmp_path) as node:
        admin = Admin(node.port)
        admin.create("moved", retention_ms="-1")
        for number in range(20):
            assert admin.produce("moved", 0, b"x" * 5000, producer=(7, 0, number)).error_code == 0
        was, size = replica_sizes(admin)[("moved", 0, False)]
        [target] = [path for path in dirs if path != was]
        assert move(admin, was, "moved") is ErrorCode.NONE
        assert move(admin, "/nowhere", "moved") is ErrorCode.LOG_DIR_NOT_FOUND
        assert move(admin, target, "moved", 9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert move(admin, target, "moved") is ErrorCode.NONE
        while replica_sizes(admin)[("moved", 0, False)][0] == was:
            pass
        assert replica_sizes(admin)[("moved", 0, False)] == (target, size)
        assert admin.produce("moved", 0, b"x" * 5000, producer=(7, 0, 19)).base_offset == 19  # producer state is kept
        assert admin.produce("moved", 0, b"y", producer=(7, 0, 20)).base_offset == 20
        node.restart()
        assert end(admin, "moved") == 21 and replica_sizes(admin)[("moved", 0, False)][0] == target


def cordoned(admin: Admin) -> set[str]:
    return {one.log_dir for one in admin.send_request(DescribeLogDirsRequest(topics=None)).results if one.is_cordoned}


def test_moving_a_replica_to_a_cordoned_directory_is_refused(tmp_path: Path) -> None:
    dirs = [str(tmp_path / name) for name in ("a", "b")]
    with EmbeddedNode({"log.dirs": ",".join(dirs)}, data_dir=tmp_path) as node:
        admin = Admin(node.port)
        admin.create("kept")
        was, _ = replica_sizes(admin)[("kept", 0, False)]
        [target] = [path for path in dirs if path != was]
        assert admin.alter(BROKER, "1", ("cordoned.log.dirs", SET, target))[0] == ErrorCode.NONE
        while cordoned(admin) != {target}:
            pass
        assert move(admin, target, "kept") is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert replica_sizes(admin)[("kept", 0, False)][0] == was
        assert admin.alter(BROKER, "1", ("cordoned.log.dirs", DELETE, None))[0] == ErrorCode.NONE
        while cordoned(admin):
            pass
        assert move(admin, target, "kept") is ErrorCode.NONE


def test_cordoned_log_dirs_require_a_metadata_version_that_supports_them(tmp_path: Path) -> None:
    dirs = [str(tmp_path / name) for name in ("a", "b")]
    settings = {"log.dirs": ",".join(dirs), "cordoned.log.dirs": dirs[1]}
    flags = [f"{name}={value}" for name, value in settings.items()]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "format", "-r", "4.2", *(part for flag in flags for part in ("-c", flag))],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    with EmbeddedNode(settings, data_dir=tmp_path) as node:
        admin = Admin(node.port)
        assert cordoned(admin) == set()
        assert admin.alter(BROKER, "1", ("cordoned.log.dirs", SET, dirs[0]))[0] == ErrorCode.INVALID_CONFIG


def test_metadata_survives_a_restart_from_a_snapshot(tmp_path: Path) -> None:
    settings = {"metadata.log.max.record.bytes.between.snapshots": "1"}
    with EmbeddedNode(settings, data_dir=tmp_path) as node:
        admin = Admin(node.port)
        admin.create("kept", retention_ms="12345")
        admin.alter(BROKER, "", ("log.segment.bytes", SET, "2000000"))
        directory = tmp_path / "__cluster_metadata-0"
        while not list(directory.glob("*.checkpoint")):
            pass
        node.restart()
        assert admin.describe(TOPIC, "kept", "retention.ms")["retention.ms"].value == "12345"
        assert admin.describe(TOPIC, "kept", "segment.bytes")["segment.bytes"].value == "2000000"
        admin.create("more")
        node.kill()
        node.start()
        assert admin.produce("more", 0, b"a").error_code == 0 and admin.produce("kept", 0, b"a").error_code == 0
