"""The blocking admin client.

with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
    admin.create_topics([NewTopic("orders", partitions=6)])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from headrace.base.ids import TopicPartition
from headrace.client.admin.acls import EVERY_ACL
from headrace.client.admin.admin import AsyncAdmin, ClusterInfo, OffsetAt, ResourceKind
from headrace.client.admin.configs import OptionInfo
from headrace.client.admin.groups import Committed, GroupInfo, ListedGroup
from headrace.client.admin.quotas import QuotaEntity, Quotas
from headrace.client.admin.topic_changes import NewPartitions, NewTopic
from headrace.client.admin.topics import TopicInfo
from headrace.client.admin.transactions import (
    EVERYTHING,
    ActiveProducer,
    ListedTransaction,
    TransactionFilter,
    TransactionInfo,
)
from headrace.client.consumer.list_offsets import ListedOffset
from headrace.client.sync.background import background
from headrace.security.acls import Acl, AclFilter


class Admin:
    """A blocking admin client with the interface of `AsyncAdmin`. It is thread-safe."""

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
        """Connect to the cluster. Raise Disconnected if no broker of bootstrap.servers responds.

        Calling this is optional, but reports a wrong address early.
        """
        self._do(self._admin.start())

    def close(self) -> None:
        """Close all connections."""
        if self._background.is_here:  # a forked child leaves this to its parent
            self._background.closed(self)
            self._do(self._admin.close())

    # --- the cluster

    def describe_cluster(self, timeout_s: float | None = None) -> ClusterInfo:
        """Return the cluster's id, its controller and its brokers, sorted by id."""
        return self._do(self._admin.describe_cluster(timeout_s))

    # --- topics

    def list_topics(self, *, internal: bool = False, timeout_s: float | None = None) -> list[str]:
        """Return the names of all topics; internal topics only if `internal` is set."""
        return self._do(self._admin.list_topics(internal=internal, timeout_s=timeout_s))

    def describe_topics(self, names: Iterable[str], timeout_s: float | None = None) -> dict[str, TopicInfo]:
        """Return the topics with their partitions, by name.

        Raise KafkaError with UNKNOWN_TOPIC_OR_PARTITION if one does not exist.
        """
        return self._do(self._admin.describe_topics(names, timeout_s))

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, timeout_s: float | None = None
    ) -> None:
        """Create topics, or only check the request if `validate_only` is set.

        Raise ItemsFailed with TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION …
        """
        self._do(self._admin.create_topics(topics, validate_only=validate_only, timeout_s=timeout_s))

    def create_partitions(
        self,
        topics: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Add partitions; each topic is given with its new total."""
        self._do(self._admin.create_partitions(topics, validate_only=validate_only, timeout_s=timeout_s))

    def delete_topics(self, names: Iterable[str], timeout_s: float | None = None) -> None:
        """Delete topics with all their records.

        Raise ItemsFailed with UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED …
        """
        self._do(self._admin.delete_topics(names, timeout_s))

    # --- records

    def list_offsets(
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
        return self._do(self._admin.list_offsets(partitions, isolation=isolation, timeout_s=timeout_s))

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before these offsets (-1: all records) and return the new first offsets."""
        return self._do(self._admin.delete_records(before, timeout_s))

    # --- configs

    def describe_configs(
        self, kind: ResourceKind, name: str, *, synonyms: bool = False, timeout_s: float | None = None
    ) -> dict[str, OptionInfo]:
        """Return the options of a resource by name.

        A broker's name is its id as text; an empty name stands for the defaults of all brokers.
        """
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
        """Change some options of a resource; None removes an option, which restores its default."""
        self._do(self._admin.alter_configs(kind, name, changes, validate_only=validate_only, timeout_s=timeout_s))

    # --- groups

    def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout_s: float | None = None
    ) -> list[ListedGroup]:
        """Return the groups of all brokers, sorted by name.

        If given, only groups in one of the `states` (such as "Stable" or "Empty") and of one of the `types` ("classic",
        "consumer") are returned.
        """
        return self._do(self._admin.list_groups(states=states, types=types, timeout_s=timeout_s))

    def describe_group(self, group: str, timeout_s: float | None = None) -> GroupInfo:
        """Describe a group. Raise KafkaError GROUP_ID_NOT_FOUND if it does not exist."""
        return self._do(self._admin.describe_group(group, timeout_s))

    def delete_groups(self, names: Iterable[str], timeout_s: float | None = None) -> None:
        """Delete groups with their committed offsets. Raise ItemsFailed with NON_EMPTY_GROUP if one has members."""
        self._do(self._admin.delete_groups(names, timeout_s))

    def committed_offsets(self, group: str, timeout_s: float | None = None) -> dict[TopicPartition, Committed]:
        """Return all offsets that a group has committed."""
        return self._do(self._admin.committed_offsets(group, timeout_s))

    def alter_committed_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> None:
        """Set committed offsets of a group without members. Raise ItemsFailed with UNKNOWN_MEMBER_ID if it has members."""
        self._do(self._admin.alter_committed_offsets(group, offsets, timeout_s))

    def delete_committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> None:
        """Delete committed offsets. Raise ItemsFailed with GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic."""
        self._do(self._admin.delete_committed_offsets(group, partitions, timeout_s))

    # --- transactions

    def list_transactions(
        self, transaction_filter: TransactionFilter = EVERYTHING, timeout_s: float | None = None
    ) -> list[ListedTransaction]:
        """Return the transactions of all coordinators that match the filter, sorted by transactional id.

        Raise KafkaError with INVALID_REQUEST if the filter has an unknown state, UNSUPPORTED_VERSION if a broker does
        not support the filter.
        """
        return self._do(self._admin.list_transactions(transaction_filter, timeout_s))

    def describe_transaction(self, transactional_id: str, timeout_s: float | None = None) -> TransactionInfo:
        """Describe a transaction. Raise KafkaError TRANSACTIONAL_ID_NOT_FOUND if it does not exist."""
        return self._do(self._admin.describe_transaction(transactional_id, timeout_s))

    def fence_producer(self, transactional_id: str, timeout_s: float | None = None) -> TransactionInfo:
        """Fence the producer of a transactional id, aborting its open transaction; return its previous state."""
        return self._do(self._admin.fence_producer(transactional_id, timeout_s))

    def describe_producers(
        self, partition: TopicPartition, broker: int | None = None, timeout_s: float | None = None
    ) -> list[ActiveProducer]:
        """Return the producers that the partition's leader, or the given broker, remembers."""
        return self._do(self._admin.describe_producers(partition, broker, timeout_s))

    def abort_transaction(
        self, partition: TopicPartition, start_offset: int, timeout_s: float | None = None
    ) -> ActiveProducer:
        """Abort a hanging transaction: open on this partition from `start_offset`, and its coordinator will not end it.

        Raise NotHanging if there is no such transaction.
        """
        return self._do(self._admin.abort_transaction(partition, start_offset, timeout_s))

    # --- ACLs and quotas

    def describe_acls(self, acl_filter: AclFilter = EVERY_ACL, timeout_s: float | None = None) -> list[Acl]:
        """Return the ACLs that match the filter, sorted.

        Raise KafkaError with SECURITY_DISABLED if the brokers have no authorizer.
        """
        return self._do(self._admin.describe_acls(acl_filter, timeout_s))

    def create_acls(self, rules: Iterable[Acl], timeout_s: float | None = None) -> None:
        """Create ACLs; those that exist already stay as they are.

        Raise ItemsFailed with INVALID_REQUEST, SECURITY_DISABLED …
        """
        self._do(self._admin.create_acls(rules, timeout_s))

    def delete_acls(self, filters: Iterable[AclFilter], timeout_s: float | None = None) -> list[Acl]:
        """Delete the ACLs that match any of the filters and return them."""
        return self._do(self._admin.delete_acls(filters, timeout_s))

    def describe_quotas(
        self, kinds: Sequence[str] = (), *, strict: bool = False, timeout_s: float | None = None
    ) -> list[Quotas]:
        """Return the quotas of all entities of these types ("user", "client-id", "ip").

        `strict` leaves out entities that also have another type.
        """
        return self._do(self._admin.describe_quotas(kinds, strict=strict, timeout_s=timeout_s))

    def alter_quotas(
        self,
        entity: QuotaEntity,
        rates: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Change the quotas of an entity such as {"user": "alice", "client-id": None}; None is the default entity.

        A rate of None removes that quota.
        """
        self._do(self._admin.alter_quotas(entity, rates, validate_only=validate_only, timeout_s=timeout_s))
