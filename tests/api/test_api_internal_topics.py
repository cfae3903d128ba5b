"""Clients may not write to the coordinators' topics: Kafka's errors, on the short path of Produce and on the long one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from headrace.base.errors import ErrorCode
from headrace.client.wire.connection import Connection, Disconnected
from headrace.coordinators.partitioning import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_records import DeleteRecordsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.builder import BatchBuilder
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

ADMIN_CLIENT = "__admin_client"
ORDINARY = "orders"
SETTINGS = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "4"}


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(SETTINGS) as made:

        async def create(connection: Connection) -> None:
            topic = CreateTopicsRequest.CreatableTopic(name=ORDINARY, num_partitions=1, replication_factor=1)
            await connection.request(CreateTopicsRequest(topics=[topic]))
            for key_type in (0, 1):
                await connection.request(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]), version=6)

        run(made, create)
        yield made


def run(node: EmbeddedNode, work: Callable[..., Any], client_id: str = "client") -> Any:
    async def run_connected() -> Any:
        connection = await Connection.connect(LOOPBACK, node.port, client_id=client_id)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(asyncio.wait_for(run_connected(), 20))


def produce(
    node: EmbeddedNode, names: Sequence[str], version: int, client_id: str = "client", acks: int = -1, index: int = 0
) -> list[ProduceResponse.PartitionProduceResponse]:
    builder = BatchBuilder()
    builder.append(0, b"key", b"value")
    image = node.node.broker.image

    def topic(name: str) -> ProduceRequest.TopicProduceData:
        which = {"topic_id": image.topics[name].id} if version >= 13 else {"name": name}
        data = ProduceRequest.PartitionProduceData(index=index, records=bytes(builder.build()))
        return ProduceRequest.TopicProduceData(**which, partition_data=[data])

    request = ProduceRequest(acks=acks, topic_data=[topic(name) for name in names])
    answer = run(node, lambda connection: connection.request(request, version=version), client_id)
    return [one for topic in answer.responses for one in topic.partition_responses]


def end(node: EmbeddedNode, name: str) -> int:
    return node.node.broker.replicas.get(name, 0).log.log_end


@pytest.mark.parametrize("name", [GROUPS_TOPIC, TRANSACTIONS_TOPIC])
@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_clients_cannot_produce_to_internal_topics(node: EmbeddedNode, name: str, version: int) -> None:
    before = end(node, name)
    (answer,) = produce(node, [name], version)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (answer.error_message, answer.base_offset, answer.log_start_offset) == (None, -1, -1)
    assert end(node, name) == before


def test_ordinary_partitions_of_a_mixed_produce_request_are_appended(node: EmbeddedNode) -> None:
    before = end(node, ORDINARY)
    codes = [one.error_code for one in produce(node, [ORDINARY, GROUPS_TOPIC], 12)]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert end(node, ORDINARY) == before + 1


def test_an_unknown_partition_of_an_internal_topic_returns_unknown_topic_or_partition(node: EmbeddedNode) -> None:
    (answer,) = produce(node, [GROUPS_TOPIC], 12, index=99)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_produce_to_an_internal_topic_with_acks_0_closes_the_connection(node: EmbeddedNode) -> None:
    before = end(node, GROUPS_TOPIC)
    with pytest.raises(Disconnected):
        produce(node, [GROUPS_TOPIC], 12, acks=0)
    assert end(node, GROUPS_TOPIC) == before


@pytest.mark.parametrize("version", [3, 12, 13])
def test_kafkas_admin_client_id_may_produce_to_internal_topics(version: int) -> None:
    """Check that the client id grants it, as in Kafka."""
    with EmbeddedNode(SETTINGS) as made:
        run(made, lambda c: c.request(FindCoordinatorRequest(key_type=0, coordinator_keys=["x"]), version=6))
        (answer,) = produce(made, [GROUPS_TOPIC], version, client_id=ADMIN_CLIENT)
        assert answer.error_code == ErrorCode.NONE and end(made, GROUPS_TOPIC) == 1


@pytest.mark.parametrize("client_id", ["client", ADMIN_CLIENT])
def test_delete_records_of_internal_topics_is_refused(node: EmbeddedNode, client_id: str) -> None:
    def requested(name: str, index: int = 0) -> DeleteRecordsRequest.DeleteRecordsTopic:
        partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=0)
        return DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[partition])

    topics = [requested(GROUPS_TOPIC), requested(TRANSACTIONS_TOPIC), requested(GROUPS_TOPIC, 99), requested(ORDINARY)]
    answer = run(node, lambda connection: connection.request(DeleteRecordsRequest(topics=topics)), client_id)
    invalid, unknown = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [one.error_code for topic in answer.topics for one in topic.partitions]
    assert codes == [invalid, invalid, unknown, ErrorCode.NONE]


def test_internal_topics_cannot_be_added_to_transactions(node: EmbeddedNode) -> None:
    async def work(connection: Connection) -> AddPartitionsToTxnResponse:
        made = await connection.request(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=9999))
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=made.producer_id,
            v3_and_below_producer_epoch=made.producer_epoch,
            v3_and_below_topics=[topic(name=name, partitions=[0]) for name in (GROUPS_TOPIC, ORDINARY)],
        )
        return await connection.request(request, version=3)

    answer = run(node, work)
    codes = {
        topic.name: topic.results_by_partition[0].partition_error_code for topic in answer.results_by_topic_v3_and_below
    }
    assert codes == {
        GROUPS_TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ORDINARY: ErrorCode.OPERATION_NOT_ATTEMPTED,
    }


def test_metadata_auto_creates_internal_topics_with_coordinator_settings() -> None:
    names = [GROUPS_TOPIC, TRANSACTIONS_TOPIC, "__cluster_metadata", "ordinary"]
    with EmbeddedNode(SETTINGS) as made:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        answer = run(made, lambda connection: connection.request(MetadataRequest(topics=topics), version=12))
        found = {topic.name: (topic.error_code, len(topic.partitions)) for topic in answer.topics}
        none, unknown = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [found[name] for name in names] == [(none, 3), (none, 4), (unknown, 0), (none, 1)]
        for name in names[:2]:
            assert made.node.broker.replicas.get(name, 0).log.config.is_compacted
