"""The administration of a cluster: topics, options, groups and their offsets, transactions, rules and quotas.

    async with AsyncAdmin({"bootstrap.servers": "localhost:9092"}) as admin:
        await admin.create_topics([NewTopic("orders", partitions=6)])

A call waits for up to default.api.timeout.ms (or its own `timeout_s`) while brokers, leaders and coordinators come and go. What is refused
is a KafkaError; of many things that were asked for at once a `Refused`, which names each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.base.options import Kind, Option, OptionTable, unused
from headrace.client import acls, configs, groups, quotas, topic_changes, transactions
from headrace.client.admin_calls import Calls
from headrace.client.cluster import Cluster
from headrace.client.configs import OptionInfo
from headrace.client.groups import Committed, GroupInfo, ListedGroup
from headrace.client.hanging import abort_hanging
from headrace.client.list_offsets import EARLIEST, LATEST, ListedOffset, list_offsets
from headrace.client.opening import client_values, open_cluster
from headrace.client.options import CONNECTION_OPTIONS
from headrace.client.topic_changes import NewPartitions, NewTopic
from headrace.client.topics import TopicInfo, describe_topics
from headrace.client.transactions import ActiveProducer, ListedTransaction, TransactionFilter, TransactionInfo
from headrace.security.acls import Acl, AclFilter

ADMIN_OPTIONS = OptionTable(
    *CONNECTION_OPTIONS,
    Option("client.id", Kind.STRING, "headrace-admin", "the name that brokers log"),
    Option("default.api.timeout.ms", Kind.INT, 60_000, "how long a call may take", at_least=0),
    Option("retry.backoff.ms", Kind.LONG, 100, "pause before something is tried again", at_least=0),
    *unused(
        "calls are tried again for as long as default.api.timeout.ms",
        Option("retries", Kind.INT, 2_147_483_647, "how often", at_least=0),
        Option("retry.backoff.max.ms", Kind.LONG, 1000, "longest pause", at_least=0),
    ),
)
ResourceKind = Literal["topic", "broker", "broker_logger", "client_metrics", "group"]
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
    id: int
    host: str
    port: int
    rack: str | None


class ClusterInfo(NamedTuple):
    id: str | None
    controller: int  # a broker that takes changes; -1: nobody knows
    brokers: list[Broker]


class AsyncAdmin:
    """Options are Kafka's. A `cluster` that is given stays open."""

    def __init__(self, options: Mapping[str, object], *, cluster: Cluster | None = None) -> None:
        values = client_values(options, ADMIN_OPTIONS)
        timeout_ms, backoff_ms = values["default.api.timeout.ms"], values["retry.backoff.ms"]
        assert isinstance(timeout_ms, int) and isinstance(backoff_ms, int)
        self._calls = Calls(timeout_ms / 1000, backoff_ms / 1000)
        self._owns_cluster = cluster is None
        self._cluster = open_cluster(values) if cluster is None else cluster

    async def __aenter__(self) -> AsyncAdmin:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Finds the cluster: Disconnected if nobody answers at bootstrap.servers. Not needed, but a wrong address is known sooner."""
        await self._cluster.refresh([])

    async def close(self) -> None:
        if self._owns_cluster:
            await self._cluster.close()

    # --- the cluster

    async def describe_cluster(self, timeout_s: float | None = None) -> ClusterInfo:
        answer = await self._calls.until_answered(lambda: self._cluster.refresh([]), timeout_s)
        brokers = sorted(Broker(one.node_id, one.host, one.port, one.rack) for one in answer.brokers)
        return ClusterInfo(answer.cluster_id, answer.controller_id, brokers)

    # --- topics

    async def list_topics(self, *, internal: bool = False, timeout_s: float | None = None) -> list[str]:
        """Their names; with `internal` also those of the cluster itself."""
        found = await self._calls.until_answered(lambda: self._cluster.refresh(None), timeout_s)
        return sorted(one.name for one in found.topics if one.name and (internal or not one.is_internal))

    async def describe_topics(self, names: Iterable[str], timeout_s: float | None = None) -> dict[str, TopicInfo]:
        wanted = _names(names)
        found = await self._calls.until_answered(lambda: describe_topics(self._cluster, wanted), timeout_s)
        return {one.name: one for one in found}

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, timeout_s: float | None = None
    ) -> None:
        """Refused with TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION …; `validate_only` makes none."""
        wanted = {one.name: one for one in (NewTopic(each) if isinstance(each, str) else each for each in topics)}

        async def ask(some: Sequence[str]) -> Mapping[str, KafkaError | None]:
            chosen = [wanted[name] for name in some]
            return await topic_changes.create_topics(self._cluster, chosen, validate_only=validate_only)

        await self._calls.for_each(list(wanted), ask, timeout_s)

    async def create_partitions(
        self,
        topics: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """How many each topic is to have in all."""
        wanted = {name: NewPartitions(one) if isinstance(one, int) else one for name, one in topics.items()}

        async def ask(some: Sequence[str]) -> Mapping[str, KafkaError | None]:
            chosen = {name: wanted[name] for name in some}
            return await topic_changes.create_partitions(self._cluster, chosen, validate_only=validate_only)

        await self._calls.for_each(list(wanted), ask, timeout_s)

    async def delete_topics(self, names: Iterable[str], timeout_s: float | None = None) -> None:
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
        """The first, the end, that of the largest timestamp, or the first at or after a time in ms (offset -1 if there is none)."""
        wanted = {TopicPartition(*one): TIMES[at] if isinstance(at, str) else at for one, at in partitions.items()}
        limit_s = self._calls.limit_s(timeout_s)
        return await list_offsets(self._cluster, wanted, isolation=ISOLATION[isolation], timeout_s=limit_s)

    async def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Those before these offsets (-1: all that are there); the first offsets afterwards."""
        firsts: dict[TopicPartition, int] = {}

        async def ask(some: Sequence[TopicPartition]) -> Mapping[TopicPartition, KafkaError | None]:
            outcomes = await topic_changes.delete_records(self._cluster, {one: before[one] for one in some})
            firsts.update({one: outcome for one, outcome in outcomes.items() if isinstance(outcome, int)})
            return {one: None if isinstance(outcome, int) else outcome for one, outcome in outcomes.items()}

        await self._calls.for_each([TopicPartition(*one) for one in before], ask, timeout_s)
        return firsts

    # --- options

    async def describe_configs(
        self, kind: ResourceKind, name: str, *, synonyms: bool = False, timeout_s: float | None = None
    ) -> dict[str, OptionInfo]:
        """Of a broker by its number, as text; an empty one: what all brokers have by default."""
        resource = RESOURCES[kind], name
        ask = lambda: configs.describe_configs(self._cluster, [resource], synonyms=synonyms)  # noqa: E731
        [found] = await self._calls.until_answered(ask, timeout_s)
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
        """What is not among the changes stays; None takes an option away, so that the default is back."""
        add = {option: value for option, value in changes.items() if value is not None}
        delete = [option for option, value in changes.items() if value is None]
        resource = RESOURCES[kind], name

        async def ask() -> None:
            await configs.alter_configs(self._cluster, resource, add, delete, validate_only=validate_only)

        await self._calls.until_answered(ask, timeout_s)

    # --- groups

    async def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout_s: float | None = None
    ) -> list[ListedGroup]:
        return await self._calls.until_answered(lambda: groups.list_groups(self._cluster, states, types), timeout_s)

    async def describe_group(self, group: str, timeout_s: float | None = None) -> GroupInfo:
        """GROUP_ID_NOT_FOUND if nobody knows it."""
        return await self._calls.until_answered(lambda: groups.describe_group(self._cluster, group), timeout_s)

    async def delete_groups(self, names: Iterable[str], timeout_s: float | None = None) -> None:
        """With all that they have committed; NON_EMPTY_GROUP while there are members."""

        async def ask(some: Sequence[str]) -> Mapping[str, KafkaError | None]:
            codes = {name: await groups.delete_group(self._cluster, name) for name in some}
            return {name: _error(code, f"group {name}") for name, code in codes.items()}

        await self._calls.for_each(_names(names), ask, timeout_s)

    async def committed_offsets(self, group: str, timeout_s: float | None = None) -> dict[TopicPartition, Committed]:
        """All that a group has committed."""
        return await self._calls.until_answered(lambda: groups.committed_offsets(self._cluster, group), timeout_s)

    async def alter_committed_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> None:
        """Of a group without members: UNKNOWN_MEMBER_ID if it has some."""

        async def ask(some: Sequence[TopicPartition]) -> Mapping[TopicPartition, KafkaError | None]:
            codes = await groups.commit_offsets(self._cluster, group, {one: offsets[one] for one in some})
            return {one: _error(code, f"{one} of group {group}") for one, code in codes.items()}

        await self._calls.for_each([TopicPartition(*one) for one in offsets], ask, timeout_s)

    async def delete_committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> None:
        """GROUP_SUBSCRIBED_TO_TOPIC while a member reads them."""

        async def ask(some: Sequence[TopicPartition]) -> Mapping[TopicPartition, KafkaError | None]:
            codes = await groups.delete_offsets(self._cluster, group, some)
            return {one: _error(code, f"{one} of group {group}") for one, code in codes.items()}

        await self._calls.for_each([TopicPartition(*one) for one in partitions], ask, timeout_s)

    # --- transactions

    async def list_transactions(
        self, wanted: TransactionFilter = transactions.EVERYTHING, timeout_s: float | None = None
    ) -> list[ListedTransaction]:
        return await self._calls.until_answered(
            lambda: transactions.list_transactions(self._cluster, wanted), timeout_s
        )

    async def describe_transaction(self, transactional_id: str, timeout_s: float | None = None) -> TransactionInfo:
        """TRANSACTIONAL_ID_NOT_FOUND if nobody knows it."""
        return await self._calls.until_answered(
            lambda: transactions.describe_transaction(self._cluster, transactional_id), timeout_s
        )

    async def fence_producer(self, transactional_id: str, timeout_s: float | None = None) -> TransactionInfo:
        """Whoever uses the transactional id is shut out, and what it has open is aborted. What it was before."""
        return await self._calls.until_answered(
            lambda: transactions.terminate_transaction(self._cluster, transactional_id), timeout_s
        )

    async def describe_producers(
        self, partition: TopicPartition, broker: int | None = None, timeout_s: float | None = None
    ) -> list[ActiveProducer]:
        """As the partition's leader remembers them, or this broker."""
        where = TopicPartition(*partition)
        return await self._calls.until_answered(
            lambda: transactions.describe_producers(self._cluster, where, broker), timeout_s
        )

    async def abort_transaction(
        self, partition: TopicPartition, start_offset: int, timeout_s: float | None = None
    ) -> ActiveProducer:
        """One that hangs: open on this partition from there on, while its coordinator knows nothing of it. NotHanging otherwise."""
        where = TopicPartition(*partition)
        return await self._calls.until_answered(lambda: abort_hanging(self._cluster, where, start_offset), timeout_s)

    # --- rules and quotas

    async def describe_acls(self, wanted: AclFilter = acls.EVERY_ACL, timeout_s: float | None = None) -> list[Acl]:
        return await self._calls.until_answered(lambda: acls.describe_acls(self._cluster, wanted), timeout_s)

    async def create_acls(self, rules: Iterable[Acl], timeout_s: float | None = None) -> None:
        await self._calls.for_each(list(rules), lambda some: acls.create_acls(self._cluster, some), timeout_s)

    async def delete_acls(self, filters: Iterable[AclFilter], timeout_s: float | None = None) -> list[Acl]:
        """Those that are gone."""
        wanted = list(filters)
        return await self._calls.until_answered(lambda: acls.delete_acls(self._cluster, wanted), timeout_s)

    async def describe_quotas(
        self, kinds: Sequence[str] = (), *, strict: bool = False, timeout_s: float | None = None
    ) -> list[quotas.Quotas]:
        """Of all entities of these types ("user", "client-id", "ip"); `strict`: that are of no other type besides."""
        return await self._calls.until_answered(
            lambda: quotas.describe_quotas(self._cluster, kinds, strict=strict), timeout_s
        )

    async def alter_quotas(
        self,
        entity: quotas.QuotaEntity,
        rates: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Of an entity as {"user": "alice", "client-id": None}, where None is the default; a rate of None is taken away."""

        async def ask() -> None:
            await quotas.alter_quotas(self._cluster, entity, rates, validate_only=validate_only)

        await self._calls.until_answered(ask, timeout_s)


def _names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError("names is a collection of names, not one name")
    return list(names)


def _error(code: ErrorCode, what: str) -> KafkaError | None:
    return None if code is ErrorCode.NONE else KafkaError(code, what)
