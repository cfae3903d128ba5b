"""Speaking to a whole cluster: a connection per broker, and metadata that says who leads what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, Uuid
from headrace.client.connection import Connection, Disconnected
from headrace.client.security import ClientSecurity
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse

RETRY_BACKOFF_S = 0.1


class Cluster:
    """One per program; close it at the end. Connections are made when first needed and made again when lost."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        client_id: str = "headrace",
        timeout_s: float = 30.0,
        security: ClientSecurity = ClientSecurity(),  # noqa: B008 -- it cannot change
    ) -> None:
        if not bootstrap:
            raise ValueError("bootstrap needs at least one host and port")
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self.timeout_s = timeout_s
        self._security = security
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._ids: dict[str, Uuid] = {}

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def any_broker(self) -> Connection:
        """Any that answers: the ones of the bootstrap list first, then the ones that metadata told."""
        failed: Disconnected | None = None
        for address in [*self._bootstrap, *self._brokers.values()]:
            try:
                return await self._connection(address)
            except Disconnected as error:
                failed = error
        assert failed is not None
        raise failed

    async def request(self, message: Any) -> Any:
        """To any broker."""
        return await (await self.any_broker()).request(message, timeout_s=self.timeout_s)

    async def refresh(self, topics: Sequence[str] | None, *, create: bool = False) -> MetadataResponse:
        """Metadata of these topics (None: all), which also renews what `leader` knows."""
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        answer: MetadataResponse = await self.request(MetadataRequest(topics=wanted, allow_auto_topic_creation=create))
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                self._ids[topic.name] = topic.topic_id
                for partition in topic.partitions:
                    self._leaders[TopicPartition(topic.name, partition.partition_index)] = partition.leader_id
        return answer

    async def partitions(self, topic: str, *, create: bool = False) -> list[int]:
        """Waits, within the timeout, until the topic exists with leaders; KafkaError if it does not."""
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        while True:
            found = (await self.refresh([topic], create=create)).topics[0]
            codes = [found.error_code, *(partition.error_code for partition in found.partitions)]
            wrong = next((ErrorCode(code) for code in codes if code != ErrorCode.NONE), None)
            if wrong is None:
                return sorted(partition.partition_index for partition in found.partitions)
            may_retry = wrong in RETRIABLE and (create or wrong is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not may_retry or asyncio.get_running_loop().time() > deadline:
                raise KafkaError(wrong, f"topic {topic}")
            await asyncio.sleep(RETRY_BACKOFF_S)

    def topic_id(self, topic: str) -> Uuid:
        return self._ids[topic]

    async def brokers(self) -> list[int]:
        """Their ids, as metadata tells now."""
        await self.refresh([])
        return sorted(self._brokers)

    async def broker(self, node_id: int) -> Connection:
        if node_id not in self._brokers:
            await self.refresh([])
        address = self._brokers.get(node_id)
        if address is None:
            known = ", ".join(map(str, sorted(self._brokers))) or "none"
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {node_id}; alive: {known}")
        return await self._connection(address)

    async def leader(self, partition: TopicPartition) -> Connection:
        """The connection to the leader as metadata last told; `refresh` after a NOT_LEADER_OR_FOLLOWER."""
        leader = self._leaders.get(partition, -1)
        if leader not in self._brokers:
            await self.refresh([partition.topic])
            leader = self._leaders.get(partition, -1)
        address = self._brokers.get(leader)
        if address is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        return await self._connection(address)

    async def _connection(self, address: tuple[str, int]) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            if connection is not None:
                connection.retire()
            connection = await Connection.connect(
                *address, client_id=self._client_id, timeout_s=self.timeout_s, security=self._security
            )
            self._connections[address] = connection
        return connection
