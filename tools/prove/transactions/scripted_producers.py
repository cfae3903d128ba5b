"""Transactional producers with explicit requests, which can leave a transaction open, continue it or let it hang.

A transaction can be continued on another server. Clients before transaction version 2 add partitions explicitly before
writing; clients since do not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection
from headrace.client.wire.coordinator_lookup import GROUP, TRANSACTION, find_coordinator
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.records.builder import BatchBuilder

WAIT_S = 30.0
RETRY_S = 0.05
# By transaction version of the client: before 2, and since.
PRODUCE = {1: 11, 2: 12}
END_TXN = {1: 4, 2: 5}
TXN_OFFSET_COMMIT = {1: 4, 2: 5}
INIT_PRODUCER_ID = {False: 5, True: 6}
ADD_PARTITIONS, ADD_OFFSETS = 3, 3  # only for clients before version 2

T = TypeVar("T")
OffsetTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
OffsetPartition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition


@dataclass
class ScriptedProducer:
    """A producer whose state outlives every connection and server."""

    transactional_id: str
    version: int = 2
    timeout_ms: int = 60_000
    two_phase: bool = False  # its transactions wait for an external decision (KIP-939)
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    async def init(self, cluster: Cluster) -> None:
        """Initialize like a newly started producer, which aborts any open transaction of its id."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms, enable2_pc=self.two_phase
        )
        version = INIT_PRODUCER_ID[self.two_phase]

        async def send() -> int:
            response = await (await self._coordinator(cluster)).request(request, version=version)
            if response.error_code == ErrorCode.NONE:
                self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                self.sequences.clear()
            return int(response.error_code)

        await _retry(send, f"InitProducerId of {self.transactional_id}")

    async def write(
        self, cluster: Cluster, partition: TopicPartition, values: Sequence[bytes], timestamp_ms: int | None = None
    ) -> None:
        if self.version < 2:
            await self._add(cluster, partition)
        await self.write_unadded(cluster, partition, values, timestamp_ms)

    async def _add(self, cluster: Cluster, partition: TopicPartition) -> None:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(partition.topic, [partition.partition])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )

        async def send() -> int:
            response = await (await self._coordinator(cluster)).request(request, version=ADD_PARTITIONS)
            return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        await _retry(send, f"AddPartitionsToTxn of {self.transactional_id}")

    async def write_unadded(
        self, cluster: Cluster, partition: TopicPartition, values: Sequence[bytes], timestamp_ms: int | None = None
    ) -> None:
        """Write without adding the partition. If the broker does not verify that, the transaction hangs forever."""
        records = BatchBuilder()
        for value in values:
            records.append(int(time.time() * 1000) if timestamp_ms is None else timestamp_ms, None, value)
        sequence = self.sequences.get(partition, 0)
        batch = records.build(
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence, transactional=True
        )
        data = ProduceRequest.PartitionProduceData(partition.partition, bytes(batch))
        topic = ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[data])
        request = ProduceRequest(self.transactional_id, -1, int(WAIT_S * 1000), [topic])

        async def send() -> int:
            response = await (await cluster.leader(partition)).request(request, version=PRODUCE[self.version])
            return int(response.responses[0].partition_responses[0].error_code)

        await _retry(send, f"Produce of {self.transactional_id}")
        self.sequences[partition] = sequence + len(values)

    async def send_offsets(self, cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self.version < 2:
            await self._add_offsets(cluster, group)
        topics: dict[str, list[OffsetPartition]] = {}
        for partition, offset in offsets.items():
            one = OffsetPartition(partition_index=partition.partition, committed_offset=offset)
            topics.setdefault(partition.topic, []).append(one)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[OffsetTopic(name, partitions) for name, partitions in topics.items()],
        )

        async def send() -> int:
            _, connection = await find_coordinator(cluster, group, GROUP)
            response = await connection.request(request, version=TXN_OFFSET_COMMIT[self.version])
            return max(int(one.error_code) for topic in response.topics for one in topic.partitions)

        await _retry(send, f"TxnOffsetCommit of {self.transactional_id}")

    async def _add_offsets(self, cluster: Cluster, group: str) -> None:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)

        async def send() -> int:
            response = await (await self._coordinator(cluster)).request(request, version=ADD_OFFSETS)
            return int(response.error_code)

        await _retry(send, f"AddOffsetsToTxn of {self.transactional_id}")

    async def end(self, cluster: Cluster, *, commit: bool) -> None:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)

        async def send() -> int:
            response = await (await self._coordinator(cluster)).request(request, version=END_TXN[self.version])
            if response.error_code == ErrorCode.NONE and self.version >= 2:
                if (response.producer_id, response.producer_epoch) != (self.producer_id, self.epoch):
                    self.sequences.clear()
                self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            return int(response.error_code)

        await _retry(send, f"EndTxn of {self.transactional_id}")

    async def _coordinator(self, cluster: Cluster) -> Connection:
        return (await find_coordinator(cluster, self.transactional_id, TRANSACTION))[1]


async def _retry(send: Callable[[], Awaitable[int]], what: str) -> None:
    """Repeat the request while its error is retriable. Raise KafkaError for any other error."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while (code := ErrorCode(await send())) is not ErrorCode.NONE:
        if code not in RETRIABLE or asyncio.get_running_loop().time() > deadline:
            raise KafkaError(code, what)
        await asyncio.sleep(RETRY_S)


def run_on(bootstrap: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` with a cluster that is closed afterwards."""
    host, _, port = bootstrap.rpartition(":")

    async def run() -> T:
        async with Cluster([(host, int(port))], timeout_s=WAIT_S) as cluster:
            return await work(cluster)

    return asyncio.run(run())
