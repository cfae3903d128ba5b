"""Administration of a cluster: topics, configs, groups and their offsets, transactions, ACLs and quotas.

    async with AsyncAdmin({"bootstrap.servers": "localhost:9092"}) as admin:
        await admin.create_topics([NewTopic("orders", partitions=6)])

A call retries for up to default.api.timeout.ms (or its own `timeout_s`) while brokers, leaders and coordinators change.
Failures raise KafkaError; calls for several items raise `ItemsFailed`, which names each failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.admin import acls, configs, groups, quotas, topic_changes, transactions
from headrace.client.admin.calls import Calls
from headrace.client.admin.configs import OptionInfo
from headrace.client.admin.groups import Committed, GroupInfo, ListedGroup
from headrace.client.admin.hanging_transactions import abort_hanging
from headrace.client.admin.topic_changes import NewPartitions, NewTopic
from headrace.client.admin.topics import TopicInfo, describe_topics
from headrace.client.admin.transactions import ActiveProducer, ListedTransaction, TransactionFilter, TransactionInfo
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, ListedOffset, list_offsets
from headrace.client.retry import Backoff
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.opening import client_values, open_cluster
from headrace.client.wire.options import CONNECTION_OPTIONS
from headrace.options.table import Kind, Option, OptionTable, unused
from headrace.security.acls import Acl, AclFilter

ADMIN_OPTIONS = OptionTable(
    *CONNECTION_OPTIONS,
    Option("client.id", Kind.STRING, "headrace-admin", "the name that brokers log"),
    Option("default.api.timeout.ms", Kind.INT, 60_000, "time limit of a call", at_least=0),
    Option("retry.backoff.ms", Kind.LONG, 100, "pause before the first retry; it doubles with each one", at_least=0),
    Option("retry.backoff.max.ms", Kind.LONG, 1000, "longest pause between retries", at_least=0),
    *unused(
        "calls are retried until default.api.timeout.ms",
        Option("retries", Kind.INT, 2_147_483_647, "number of retries", at_least=0),
    ),
)
# Kind of a resource that has options. Its name is a topic, a broker's id, a client metrics subscription or a group.
ResourceKind = Literal["topic", "broker", "broker_logger", "client_metrics", "group"]
# Timestamp in milliseconds since the epoch, or: the first offset, the end, the offset of the largest timestamp.
OffsetAt = int | Literal["earliest", "latest", "max_timestamp"]
RESOURCES: dict[ResourceKind, int] = {
    "topic": configs.TOPIC,
    "broker": configs.BROKER,
    "broker_logger": configs.LOGGER,
    "client_metrics": configs.CLIENT_METRICS,
    "group": configs.GROUP,
}
TIMES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": -3}
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


class Broker(NamedTuple):
    """The address of a broker, as its listener advertises it."""

    id: int
    host: str
    port: int
    rack: str | None  # the broker's broker.rack; None if it is not set


class ClusterInfo(NamedTuple):
    """The brokers of a cluster, as one of them reports."""

    id: str | None  # None if the broker does not report it
    controller: int  # broker that accepts changes; -1 if unknown
    brokers: list[Broker]


class AsyncAdmin:
    """An admin client for asyncio, configured with Kafka's options. A `cluster` passed in is not closed."""

    def __init__(self, options: Mapping[str, object], *, cluster: Cluster | None = None) -> None:
        values = client_values(options, ADMIN_OPTIONS)
        timeout_ms = values["default.api.timeout.ms"]
        assert isinstance(timeout_ms, int)
        self._calls = Calls(timeout_ms / 1000, Backoff.of(values))
        self._owns_cluster = cluster is None
        self._cluster = open_cluster(values) if cluster is None else cluster

    async def __aenter__(self) -> AsyncAdmin:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster. Raise Disconnected if no broker of bootstrap.servers responds.

        Calling this is optional, but reports a wrong address early.
        """
        await self._cluster.refresh([])

    async def close(self) -> None:
        """Close all connections; a `cluster` that was passed in stays open."""
        if self._owns_cluster:
            await self._cluster.close()

    # --- the cluster

    async def describe_cluster(self, timeout_s: float | None = None) -> ClusterInfo:
        """Return the cluster's id, its controller and its brokers, sorted by id."""
        response = await self._calls.run(lambda: self._cluster.refresh([]), timeout_s)
        brokers = sorted(Broker(one.node_id, one.host, one.port, one.rack) for one in response.brokers)
        return ClusterInfo(response.cluster_id, response.controller_id, brokers)

    # --- topics

    async def list_topics(self, *, internal: bool = False, timeout_s: float | None = None) -> list[str]:
        """Return the names of all topics; internal topics only if `internal` is set."""
        found = await self._calls.run(lambda: self._cluster.refresh(None), timeout_s)
        return sorted(one.name for one in found.topics if one.name and (internal or not one.is_internal))

    async def describe_topics(self, names: Iterable[str], timeout_s: float | None = None) -> dict[str, TopicInfo]:
        """Return the topics with their partitions, by name.

        Raise KafkaError with UNKNOWN_TOPIC_OR_PARTITION if one does not exist.
        """
        requested = _names(names)
        found = await self._calls.run(lambda: describe_topics(self._cluster, requested), timeout_s)
        return {one.name: one for one in found}

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, timeout_s: float | None = None
    ) -> None:
        """Create topics, or only check the request if `validate_only` is set.

        Raise ItemsFailed with TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION …
        """
        requested = {one.name: one for one in (NewTopic(each) if isinstance(each, str) else each for each in topics)}

        async def attempt(some: Sequence[str]) -> Mapping[str, KafkaError | None]:
            chosen = [requested[name] for name in some]
            return await topic_changes.create_topics(self._cluster, chosen, validate_only=validate_only)

        await self._calls.for_each(list(requested), attempt, timeout_s)

    async def create_partitions(
        self,
        topics: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Add partitions; each topic is given with its new total."""
        requested = {name: NewPartitions(one) if isinstance(one, int) else one for name, one in topics.items()}

        async def attempt(some: Sequence[str]) -> Mapping[str, KafkaError | None]:
            chosen = {name: requested[name] for name in some}
            return await topic_changes.create_partitions(self._cluster, chosen, validate_only=validate_only)

        await self._calls.for_each(list(requested), attempt, timeout_s)

    async def delete_topics(self, names: Iterable[str], timeout_s: float | None = None) -> None:
        """Delete topics with all their records.

        Raise ItemsFailed with UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED …
        """
        await self._calls.for_each(
            _names(names), lambda some: topic_changes.delete_topics(self._cluster, some), timeout_s
        )

    # --- records

    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, OffsetAt],
        *,
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """Return an offset of each partition.

        That is the first offset, the end, the offset of the largest timestamp, or the first offset at or after a
        timestamp in ms (-1 if there is none).
        """
        requested = {TopicPartition(*one): TIMES[at] if isinstance(at, str) else at for one, at in partitions.items()}
        limit_s = self._calls.limit_s(timeout_s)
        return await list_offsets(self._cluster, requested, isolation=ISOLATION[isolation], timeout_s=limit_s)

    async def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before these offsets (-1: all records) and return the new first offsets."""
        firsts: dict[TopicPartition, int] = {}

        async def attempt(some: Sequence[TopicPartition]) -> Mapping[TopicPartition, KafkaError | None]:
            outcomes = await topic_changes.delete_records(self._cluster, {one: before[one] for one in some})
            firsts.update({one: outcome for one, outcome in outcomes.items() if isinstance(outcome, int)})
            return {one: None if isinstance(outcome, int) else outcome for one, outcome in outcomes.items()}

        await self._calls.for_each([TopicPartition(*one) for one in before], attempt, timeout_s)
        return firsts

    # --- configs

    async def describe_configs(
        self, kind: ResourceKind, name: str, *, synonyms: bool = False, timeout_s: float | None = None
    ) -> dict[str, OptionInfo]:
        """Return the options of a resource by name.

        A broker's name is its id as text; an empty name stands for the defaults of all brokers.
        """
        resource = RESOURCES[kind], name
        attempt = lambda: configs.describe_configs(self._cluster, [resource], synonyms=synonyms)  # noqa: E731
        [found] = await self._calls.run(attempt, timeout_s)
        return {one.name: one for one in found}

    async def alter_configs(
        self,
        kind: ResourceKind,
        name: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Change some options of a resource; None removes an option, which restores its default."""
        add = {option: value for option, value in changes.items() if value is not None}
        delete = [option for option, value in changes.items() if value is None]
        resource = RESOURCES[kind], name

        async def attempt() -> None:
            await configs.alter_configs(self._cluster, resource, add, delete, validate_only=validate_only)

        await self._calls.run(attempt, timeout_s)

    # --- groups

    async def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout_s: float | None = None
    ) -> list[ListedGroup]:
        """Return the groups of all brokers, sorted by name.

        If given, only groups in one of the `states` (such as "Stable" or "Empty") and of one of the `types` ("classic",
        "consumer") are returned.
        """
        return await self._calls.run(lambda: groups.list_groups(self._cluster, states, types), timeout_s)

    async def describe_group(self, group: str, timeout_s: float | None = None) -> GroupInfo:
        """Describe a group. Raise KafkaError GROUP_ID_NOT_FOUND if it does not exist."""
        return await self._calls.run(lambda: groups.describe_group(self._cluster, group), timeout_s)

    async def delete_groups(self, names: Iterable[str], timeout_s: float | None = None) -> None:
        """Delete groups with their committed offsets. Raise ItemsFailed with NON_EMPTY_GROUP if one has members."""

        async def attempt(some: Sequence[str]) -> Mapping[str, KafkaError | None]:
            codes = {name: await groups.delete_group(self._cluster, name) for name in some}
            return {name: _error(code, f"group {name}") for name, code in codes.items()}

        await self._calls.for_each(_names(names), attempt, timeout_s)

    async def committed_offsets(self, group: str, timeout_s: float | None = None) -> dict[TopicPartition, Committed]:
        """Return all offsets that a group has committed."""
        return await self._calls.run(lambda: groups.committed_offsets(self._cluster, group), timeout_s)

    async def alter_committed_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> None:
        """Set committed offsets of a group without members. Raise ItemsFailed with UNKNOWN_MEMBER_ID if it has members."""

        async def attempt(some: Sequence[TopicPartition]) -> Mapping[TopicPartition, KafkaError | None]:
            codes = await groups.commit_offsets(self._cluster, group, {one: offsets[one] for one in some})
            return {one: _error(code, f"{one} of group {group}") for one, code in codes.items()}

        await self._calls.for_each([TopicPartition(*one) for one in offsets], attempt, timeout_s)

    async def delete_committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> None:
        """Delete committed offsets. Raise ItemsFailed with GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic."""

        async def attempt(some: Sequence[TopicPartition]) -> Mapping[TopicPartition, KafkaError | None]:
            codes = await groups.delete_offsets(self._cluster, group, some)
            return {one: _error(code, f"{one} of group {group}") for one, code in codes.items()}

        await self._calls.for_each([TopicPartition(*one) for one in partitions], attempt, timeout_s)

    # --- transactions

    async def list_transactions(
        self, transaction_filter: TransactionFilter = transactions.EVERYTHING, timeout_s: float | None = None
    ) -> list[ListedTransaction]:
        """Return the transactions of all coordinators that match the filter, sorted by transactional id.

        Raise KafkaError with INVALID_REQUEST if the filter has an unknown state, UNSUPPORTED_VERSION if a broker does
        not support the filter.
        """
        return await self._calls.run(
            lambda: transactions.list_transactions(self._cluster, transaction_filter), timeout_s
        )

    async def describe_transaction(self, transactional_id: str, timeout_s: float | None = None) -> TransactionInfo:
        """Describe a transaction. Raise KafkaError TRANSACTIONAL_ID_NOT_FOUND if it does not exist."""
        return await self._calls.run(
            lambda: transactions.describe_transaction(self._cluster, transactional_id), timeout_s
        )

    async def fence_producer(self, transactional_id: str, timeout_s: float | None = None) -> TransactionInfo:
        """Fence the producer of a transactional id, aborting its open transaction; return its previous state."""
        return await self._calls.run(
            lambda: transactions.terminate_transaction(self._cluster, transactional_id), timeout_s
        )

    async def describe_producers(
        self, partition: TopicPartition, broker: int | None = None, timeout_s: float | None = None
    ) -> list[ActiveProducer]:
        """Return the producers that the partition's leader, or the given broker, remembers."""
        where = TopicPartition(*partition)
        return await self._calls.run(lambda: transactions.describe_producers(self._cluster, where, broker), timeout_s)

    async def abort_transaction(
        self, partition: TopicPartition, start_offset: int, timeout_s: float | None = None
    ) -> ActiveProducer:
        """Abort a hanging transaction: open on this partition from `start_offset`, and its coordinator will not end it.

        Raise NotHanging if there is no such transaction.
        """
        where = TopicPartition(*partition)
        return await self._calls.run(lambda: abort_hanging(self._cluster, where, start_offset), timeout_s)

    # --- ACLs and quotas

    async def describe_acls(self, acl_filter: AclFilter = acls.EVERY_ACL, timeout_s: float | None = None) -> list[Acl]:
        """Return the ACLs that match the filter, sorted.

        Raise KafkaError with SECURITY_DISABLED if the brokers have no authorizer.
        """
        return await self._calls.run(lambda: acls.describe_acls(self._cluster, acl_filter), timeout_s)

    async def create_acls(self, rules: Iterable[Acl], timeout_s: float | None = None) -> None:
        """Create ACLs; those that exist already stay as they are.

        Raise ItemsFailed with INVALID_REQUEST, SECURITY_DISABLED …
        """
        await self._calls.for_each(list(rules), lambda some: acls.create_acls(self._cluster, some), timeout_s)

    async def delete_acls(self, filters: Iterable[AclFilter], timeout_s: float | None = None) -> list[Acl]:
        """Delete the ACLs that match any of the filters and return them."""
        requested = list(filters)
        return await self._calls.run(lambda: acls.delete_acls(self._cluster, requested), timeout_s)

    async def describe_quotas(
        self, kinds: Sequence[str] = (), *, strict: bool = False, timeout_s: float | None = None
    ) -> list[quotas.Quotas]:
        """Return the quotas of all entities of these types ("user", "client-id", "ip").

        `strict` leaves out entities that also have another type.
        """
        return await self._calls.run(lambda: quotas.describe_quotas(self._cluster, kinds, strict=strict), timeout_s)

    async def alter_quotas(
        self,
        entity: quotas.QuotaEntity,
        rates: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Change the quotas of an entity such as {"user": "alice", "client-id": None}; None is the default entity.

        A rate of None removes that quota.
        """

        async def attempt() -> None:
            await quotas.alter_quotas(self._cluster, entity, rates, validate_only=validate_only)

        await self._calls.run(attempt, timeout_s)


def _names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError("names is a collection of names, not one name")
    return list(names)


def _error(code: ErrorCode, what: str) -> KafkaError | None:
    return None if code is ErrorCode.NONE else KafkaError(code, what)
