"""Access to a whole cluster: connections to its brokers, and metadata about topics and leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, Uuid
from headrace.client.retry import Retry, RetryPolicy
from headrace.client.wire.connection import Connection, Disconnected, NoResponse
from headrace.client.wire.security import ClientSecurity
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse

Address = tuple[str, int]  # host and port


class Cluster:
    """The connections and metadata of one client; close it at the end.

    Connections are made when first needed and made again when lost. Responses arrive in request order, so a caller that
    waits long for one (a fetch, a join) names a `purpose` and gets a separate connection to that broker.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        client_id: str = "headrace",
        timeout_s: float = 30.0,
        security: ClientSecurity = ClientSecurity(),  # noqa: B008 -- immutable
        random: Random | None = None,
    ) -> None:
        if not bootstrap:
            raise ValueError("bootstrap needs at least one host and port")
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self.timeout_s = timeout_s
        self._security = security
        self.random = random or Random()  # jitter of retries
        self._connections: dict[tuple[str, int, str], Connection] = {}
        self._connecting: dict[tuple[str, int, str], asyncio.Lock] = {}
        self._brokers: dict[int, Address] = {}
        self._silent: dict[Address, float] = {}  # when these brokers last did not respond, by the event loop's time
        self._leaders: dict[TopicPartition, tuple[int, int]] = {}
        self._counts: dict[str, int] = {}
        self._ids: dict[str, Uuid] = {}
        self._names: dict[Uuid, str] = {}

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def any_broker(self) -> Connection:
        """Return a connection to any reachable broker. Raise Disconnected if there is none."""
        _, connection = await self._any_broker()
        return connection

    async def _any_broker(self) -> tuple[Address, Connection]:
        """Try bootstrap servers first, then the brokers in metadata; those that did not respond come last."""
        failed: Disconnected | None = None
        for address in sorted([*self._bootstrap, *self._brokers.values()], key=lambda one: self._silent.get(one, 0.0)):
            try:
                return address, await self._connection(address)
            except Disconnected as error:
                failed = error
        assert failed is not None
        raise failed

    async def request(self, message: Any) -> Any:
        """Send a request to any broker. If it does not respond in time, later requests go to the others first."""
        address, connection = await self._any_broker()
        try:
            response = await connection.request(message, timeout_s=self.timeout_s)
        except NoResponse:
            self._silent[address] = asyncio.get_running_loop().time()
            raise
        self._silent.pop(address, None)
        return response

    async def refresh(self, topics: Sequence[str] | None, *, create: bool = False) -> MetadataResponse:
        """Request metadata of these topics (None: all) and update what is cached about brokers, topics and leaders."""
        requested = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        response: MetadataResponse = await self.request(
            MetadataRequest(topics=requested, allow_auto_topic_creation=create)
        )
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                self._learn(topic.name, topic)
        return response

    def _learn(self, name: str, topic: MetadataResponse.MetadataResponseTopic) -> None:
        before = self._ids.get(name)
        if before is not None and before != topic.topic_id:
            self._names.pop(before, None)  # the topic was deleted and recreated
        self._ids[name] = topic.topic_id
        self._names[topic.topic_id] = name
        self._counts[name] = len(topic.partitions)
        for partition in topic.partitions:
            leader = partition.leader_id, partition.leader_epoch
            self._leaders[TopicPartition(name, partition.partition_index)] = leader

    async def partitions(self, topic: str, *, create: bool = False) -> list[int]:
        """Return the topic's partitions, waiting up to the timeout until all have leaders.

        Raise KafkaError if that does not happen; at once if the topic does not exist and `create` is not set.
        """

        async def attempt() -> list[int]:
            found = (await self.refresh([topic], create=create)).topics[0]
            codes = [found.error_code, *(partition.error_code for partition in found.partitions)]
            wrong = next((ErrorCode(code) for code in codes if code != ErrorCode.NONE), None)
            if wrong is not None:
                raise KafkaError(wrong, f"topic {topic}")
            return sorted(partition.partition_index for partition in found.partitions)

        codes = RETRIABLE if create else RETRIABLE - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        policy = RetryPolicy(codes=codes, exceptions=())
        return await Retry(policy, self.timeout_s, random=self.random).run(attempt)

    async def partition_count(self, topic: str, *, create: bool = False) -> int:
        """Return the cached partition count, requesting metadata if there is none."""
        if topic not in self._counts:
            await self.partitions(topic, create=create)
        return self._counts[topic]

    def topic_id(self, topic: str) -> Uuid:
        return self._ids[topic]

    def topic_name(self, topic_id: Uuid) -> str | None:
        """Return the topic's name, or None if no known topic has this id now."""
        return self._names.get(topic_id)

    def leader_epoch(self, partition: TopicPartition) -> int:
        return self._leaders.get(partition, (-1, -1))[1]

    def forget_leader(self, partition: TopicPartition) -> None:
        """Forget the partition's leader, so that the next lookup requests metadata."""
        self._leaders.pop(partition, None)

    def forget_topic(self, topic: str) -> None:
        """Forget the topic's partition count and leaders, because it was deleted or recreated."""
        self._counts.pop(topic, None)
        for partition in [known for known in self._leaders if known.topic == topic]:
            del self._leaders[partition]

    async def brokers(self) -> list[int]:
        """Return the broker ids from fresh metadata."""
        await self.refresh([])
        return sorted(self._brokers)

    async def broker(self, node_id: int, purpose: str = "") -> Connection:
        if node_id not in self._brokers:
            await self.refresh([])
        address = self._brokers.get(node_id)
        if address is None:
            known = ", ".join(map(str, sorted(self._brokers))) or "none"
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {node_id}; alive: {known}")
        return await self._connection(address, purpose)

    def known_leader(self, partition: TopicPartition) -> int | None:
        """Return the cached leader, or None; never sends a request."""
        leader = self._leaders.get(partition, (-1, -1))[0]
        return leader if leader in self._brokers else None

    async def leader_id(self, partition: TopicPartition) -> int:
        """Return the leader, cached if possible. Raise KafkaError LEADER_NOT_AVAILABLE if there is none now.

        Call `forget_leader` after a NOT_LEADER_OR_FOLLOWER.
        """
        leader = self._leaders.get(partition, (-1, -1))[0]
        if leader not in self._brokers:
            await self.refresh([partition.topic])
            leader = self._leaders.get(partition, (-1, -1))[0]
        if leader not in self._brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        return leader

    async def leader(self, partition: TopicPartition) -> Connection:
        return await self.broker(await self.leader_id(partition))

    async def _connection(self, address: tuple[str, int], purpose: str = "") -> Connection:
        where = *address, purpose
        connection = self._connections.get(where)
        if connection is not None and connection.is_open:
            return connection
        async with self._connecting.setdefault(where, asyncio.Lock()):  # one of the waiting callers connects for all
            connection = self._connections.get(where)
            if connection is None or not connection.is_open:
                if connection is not None:
                    connection.retire()
                connection = await Connection.connect(
                    *address, client_id=self._client_id, timeout_s=self.timeout_s, security=self._security
                )
                self._connections[where] = connection
        return connection
