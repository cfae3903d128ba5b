"""The administration without await.

with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
    admin.create_topics([NewTopic("orders", partitions=6)])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from headrace.base.ids import TopicPartition
from headrace.client.acls import EVERY_ACL
from headrace.client.admin import AsyncAdmin, ClusterInfo, OffsetAt, ResourceKind
from headrace.client.configs import OptionInfo
from headrace.client.face.background import background
from headrace.client.groups import Committed, GroupInfo, ListedGroup
from headrace.client.list_offsets import ListedOffset
from headrace.client.quotas import QuotaEntity, Quotas
from headrace.client.topic_changes import NewPartitions, NewTopic
from headrace.client.topics import TopicInfo
from headrace.client.transactions import (
    EVERYTHING,
    ActiveProducer,
    ListedTransaction,
    TransactionFilter,
    TransactionInfo,
)
from headrace.security.acls import Acl, AclFilter


class Admin:
    """What `AsyncAdmin` is. May be used by several threads."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._background = background()
        self._do = self._background.do
        self._admin = self._background.call(AsyncAdmin, options)
        self._background.opened(self, self._admin.close)

    def __enter__(self) -> Admin:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Finds the cluster: Disconnected if nobody answers at bootstrap.servers. Not needed, but a wrong address is known sooner."""
        self._do(self._admin.start())

    def close(self) -> None:
        if self._background.is_here:  # a child of a fork leaves it to its parent
            self._background.closed(self)
            self._do(self._admin.close())

    # --- the cluster

    def describe_cluster(self, timeout_s: float | None = None) -> ClusterInfo:
        return self._do(self._admin.describe_cluster(timeout_s))

    # --- topics

    def list_topics(self, *, internal: bool = False, timeout_s: float | None = None) -> list[str]:
        """Their names; with `internal` also those of the cluster itself."""
        return self._do(self._admin.list_topics(internal=internal, timeout_s=timeout_s))

    def describe_topics(self, names: Iterable[str], timeout_s: float | None = None) -> dict[str, TopicInfo]:
        return self._do(self._admin.describe_topics(names, timeout_s))

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, timeout_s: float | None = None
    ) -> None:
        """Refused with TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION …; `validate_only` makes none."""
        self._do(self._admin.create_topics(topics, validate_only=validate_only, timeout_s=timeout_s))

    def create_partitions(
        self,
        topics: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """How many each topic is to have in all."""
        self._do(self._admin.create_partitions(topics, validate_only=validate_only, timeout_s=timeout_s))

    def delete_topics(self, names: Iterable[str], timeout_s: float | None = None) -> None:
        self._do(self._admin.delete_topics(names, timeout_s))

    # --- records

    def list_offsets(
        self,
        partitions: Mapping[TopicPartition, OffsetAt],
        *,
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """The first, the end, that of the largest timestamp, or the first at or after a time in ms (offset -1 if there is none)."""
        return self._do(self._admin.list_offsets(partitions, isolation=isolation, timeout_s=timeout_s))

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Those before these offsets (-1: all that are there); the first offsets afterwards."""
        return self._do(self._admin.delete_records(before, timeout_s))

    # --- options

    def describe_configs(
        self, kind: ResourceKind, name: str, *, synonyms: bool = False, timeout_s: float | None = None
    ) -> dict[str, OptionInfo]:
        """Of a broker by its number, as text; an empty one: what all brokers have by default."""
        return self._do(self._admin.describe_configs(kind, name, synonyms=synonyms, timeout_s=timeout_s))

    def alter_configs(
        self,
        kind: ResourceKind,
        name: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """What is not among the changes stays; None takes an option away, so that the default is back."""
        self._do(self._admin.alter_configs(kind, name, changes, validate_only=validate_only, timeout_s=timeout_s))

    # --- groups

    def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout_s: float | None = None
    ) -> list[ListedGroup]:
        return self._do(self._admin.list_groups(states=states, types=types, timeout_s=timeout_s))

    def describe_group(self, group: str, timeout_s: float | None = None) -> GroupInfo:
        """GROUP_ID_NOT_FOUND if nobody knows it."""
        return self._do(self._admin.describe_group(group, timeout_s))

    def delete_groups(self, names: Iterable[str], timeout_s: float | None = None) -> None:
        """With all that they have committed; NON_EMPTY_GROUP while there are members."""
        self._do(self._admin.delete_groups(names, timeout_s))

    def committed_offsets(self, group: str, timeout_s: float | None = None) -> dict[TopicPartition, Committed]:
        """All that a group has committed."""
        return self._do(self._admin.committed_offsets(group, timeout_s))

    def alter_committed_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> None:
        """Of a group without members: UNKNOWN_MEMBER_ID if it has some."""
        self._do(self._admin.alter_committed_offsets(group, offsets, timeout_s))

    def delete_committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> None:
        """GROUP_SUBSCRIBED_TO_TOPIC while a member reads them."""
        self._do(self._admin.delete_committed_offsets(group, partitions, timeout_s))

    # --- transactions

    def list_transactions(
        self, wanted: TransactionFilter = EVERYTHING, timeout_s: float | None = None
    ) -> list[ListedTransaction]:
        return self._do(self._admin.list_transactions(wanted, timeout_s))

    def describe_transaction(self, transactional_id: str, timeout_s: float | None = None) -> TransactionInfo:
        """TRANSACTIONAL_ID_NOT_FOUND if nobody knows it."""
        return self._do(self._admin.describe_transaction(transactional_id, timeout_s))

    def fence_producer(self, transactional_id: str, timeout_s: float | None = None) -> TransactionInfo:
        """Whoever uses the transactional id is shut out, and what it has open is aborted. What it was before."""
        return self._do(self._admin.fence_producer(transactional_id, timeout_s))

    def describe_producers(
        self, partition: TopicPartition, broker: int | None = None, timeout_s: float | None = None
    ) -> list[ActiveProducer]:
        """As the partition's leader remembers them, or this broker."""
        return self._do(self._admin.describe_producers(partition, broker, timeout_s))

    def abort_transaction(
        self, partition: TopicPartition, start_offset: int, timeout_s: float | None = None
    ) -> ActiveProducer:
        """One that hangs: open on this partition from there on, while its coordinator knows nothing of it. NotHanging otherwise."""
        return self._do(self._admin.abort_transaction(partition, start_offset, timeout_s))

    # --- rules and quotas

    def describe_acls(self, wanted: AclFilter = EVERY_ACL, timeout_s: float | None = None) -> list[Acl]:
        return self._do(self._admin.describe_acls(wanted, timeout_s))

    def create_acls(self, rules: Iterable[Acl], timeout_s: float | None = None) -> None:
        self._do(self._admin.create_acls(rules, timeout_s))

    def delete_acls(self, filters: Iterable[AclFilter], timeout_s: float | None = None) -> list[Acl]:
        """Those that are gone."""
        return self._do(self._admin.delete_acls(filters, timeout_s))

    def describe_quotas(
        self, kinds: Sequence[str] = (), *, strict: bool = False, timeout_s: float | None = None
    ) -> list[Quotas]:
        """Of all entities of these types ("user", "client-id", "ip"); `strict`: that are of no other type besides."""
        return self._do(self._admin.describe_quotas(kinds, strict=strict, timeout_s=timeout_s))

    def alter_quotas(
        self,
        entity: QuotaEntity,
        rates: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Of an entity as {"user": "alice", "client-id": None}, where None is the default; a rate of None is taken away."""
        self._do(self._admin.alter_quotas(entity, rates, validate_only=validate_only, timeout_s=timeout_s))
