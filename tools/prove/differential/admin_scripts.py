"""Requests of administrators: endpoint types by listener, cordoned directories, cleaner memory, internal topics."""

from __future__ import annotations

from typing import Any

from headrace.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.delete_records import DeleteRecordsRequest
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.records.builder import build_batch
from headrace.records.record import Record
from tools.prove.differential.scripts import GROUP_KEY, Script, ScriptRun, Step, Steps, find

TOPIC = "plain"
BROKER_CONFIG = 4
SET, DELETE = 0, 1
GROUPS_TOPIC = "__consumer_offsets"


def alter_broker(operation: int, name: str, value: str | None, broker: str = "1") -> Step:
    config = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER_CONFIG, resource_name=broker, configs=[config]
    )
    return Step(f"{name}={value}", IncrementalAlterConfigsRequest(resources=[resource]), 1)


def move_to(path: str, name: str) -> Step:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])
    target = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=[topic])
    return Step(f"move to {name}", AlterReplicaLogDirsRequest(dirs=[target]), 2)


def produce_to(topic: str) -> Step:
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(build_batch([Record(0, 1, b"k", b"v")])))
    request = ProduceRequest(
        acks=1,
        timeout_ms=5000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    return Step(f"produce to {topic}", request, 9)


def nodes_of_the_wrong_type(run: ScriptRun) -> Steps:
    for version in (1, 2):
        for kind in (2, 99):
            yield Step(f"nodes of type {kind}", DescribeClusterRequest(endpoint_type=kind), version)


def cordoned_directories(run: ScriptRun) -> Steps:
    found: Any = yield Step("directories", DescribeLogDirsRequest(topics=[]), 4)
    path = run.name_id(found.results[0].log_dir, "the directory")
    yield move_to("/nowhere", "an unknown directory")
    yield alter_broker(SET, "cordoned.log.dirs", path)
    yield Step(
        "until the directory is cordoned",
        DescribeLogDirsRequest(topics=[]),
        5,
        lambda response: response.results[0].is_cordoned,
    )
    yield move_to(path, "a cordoned directory")
    yield alter_broker(DELETE, "cordoned.log.dirs", None)


def memory_of_the_cleaner(run: ScriptRun) -> Steps:
    yield alter_broker(SET, "log.cleaner.threads", "1000", broker="")
    yield alter_broker(SET, "log.cleaner.dedupe.buffer.size", "1048576", broker="")


def internal_topics(run: ScriptRun) -> Steps:
    yield find(["a group"], GROUP_KEY)
    yield produce_to(GROUPS_TOPIC)
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=GROUPS_TOPIC, partitions=[partition])
    yield Step("delete records", DeleteRecordsRequest(topics=[topic], timeout_ms=5000), 2)


def versions_in_the_middle_of_a_login(run: ScriptRun) -> Steps:
    yield Step("handshake", SaslHandshakeRequest(mechanism="PLAIN"), 1)
    yield Step("versions again", ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)


ADMIN_SCRIPTS: tuple[Script, ...] = (
    nodes_of_the_wrong_type,
    cordoned_directories,
    memory_of_the_cleaner,
    internal_topics,
)
SASL_SCRIPTS: tuple[Script, ...] = (versions_in_the_middle_of_a_login,)
