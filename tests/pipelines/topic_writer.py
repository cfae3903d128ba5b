"""Topics for pipeline tests: created, filled, truncated and deleted with plain requests, on any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.admin.groups import committed_offsets
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_records import DeleteRecordsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import build_batch
from headrace.records.compression import Codec
from headrace.records.record import Record

TIMEOUT_MS = 10_000
BY_NAME_VERSION_MAX = 12
NOT_YET = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # the topic was just created


class TopicWriter:
    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = host, int(port)

    def _do(self, work: Callable[..., Any]) -> dict[str, int] | None:
        async def run() -> dict[str, int] | None:
            async with Cluster([self._address]) as cluster:
                return await work(cluster)

        return asyncio.run(run())

    def create(self, name: str, partitions: int = 1, **configs: Any) -> str:
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )

        async def work(cluster: Cluster) -> None:
            response = await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS))
            assert response.topics[0].error_code == ErrorCode.NONE, response
            while (await cluster.refresh([name])).topics[0].error_code in NOT_YET:
                await asyncio.sleep(0.02)
            await cluster.partitions(name)

        self._do(work)
        return name

    def grow(self, name: str, partitions: int) -> None:
        grown = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=partitions, assignments=None)

        async def work(cluster: Cluster) -> None:
            response = await cluster.request(CreatePartitionsRequest(topics=[grown], timeout_ms=TIMEOUT_MS))
            assert response.results[0].error_code == ErrorCode.NONE, response
            while len(await cluster.partitions(name)) < partitions:
                await asyncio.sleep(0.02)

        self._do(work)

    def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], topic_names=[name], timeout_ms=TIMEOUT_MS
        )

        async def work(cluster: Cluster) -> None:
            response = await cluster.request(request)
            assert response.responses[0].error_code == ErrorCode.NONE, response
            while (await cluster.refresh([name])).topics[0].error_code == ErrorCode.NONE:
                await asyncio.sleep(0.02)

        self._do(work)

    def put(
        self,
        name: str,
        partition: int,
        records: Sequence[tuple[Any, ...]],
        codec: Codec = Codec.NONE,
    ) -> None:
        """Write records, given as (key, value), (key, value, timestamp) or (key, value, timestamp, headers)."""
        made = [
            Record(-1, timestamp, key, value, headers)
            for key, value, timestamp, headers in (
                (*one, 1000, ())[:4] if len(one) == 2 else (*one, ())[:4] for one in records
            )
        ]
        data = ProduceRequest.PartitionProduceData(index=partition, records=bytes(build_batch(made, codec=codec)))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[ProduceRequest.TopicProduceData(name=name, partition_data=[data])],
        )

        async def work(cluster: Cluster) -> None:
            while True:
                connection = await cluster.leader(TopicPartition(name, partition))
                version = connection.version_for(ProduceRequest, BY_NAME_VERSION_MAX)
                response = await connection.request(request, version=version)
                code = response.responses[0].partition_responses[0].error_code
                if code not in NOT_YET:
                    break
                await asyncio.sleep(0.02)
            assert code == ErrorCode.NONE, response

        self._do(work)

    def fill(self, name: str, partition: int, count: int, first: int = 0) -> None:
        self.put(name, partition, [(b"k%d" % n, b"v%d" % n, 1000 + n) for n in range(first, first + count)])

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[requested])], timeout_ms=TIMEOUT_MS
        )

        async def work(cluster: Cluster) -> None:
            response = await (await cluster.leader(TopicPartition(name, partition))).request(request)
            assert response.topics[0].partitions[0].error_code == ErrorCode.NONE, response

        self._do(work)

    def committed(self, group: str) -> dict[str, int]:
        async def work(cluster: Cluster) -> dict[str, int]:
            return {str(one): found.offset for one, found in (await committed_offsets(cluster, group)).items()}

        return self._do(work)
