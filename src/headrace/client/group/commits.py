"""Commits and fetches a group's offsets, as a member (with its generation or epoch) or without a membership."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, indexes_by_topic
from headrace.client.group.coordinator import GroupCoordinator
from headrace.client.group.membership import CommittedOffset, GroupMetadata, offsets_by_topic
from headrace.client.group.settings import CONSUMER, group_settings
from headrace.client.retry import Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import COORDINATOR_MOVED, COORDINATOR_TRANSIENT
from headrace.options.table import Value
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

BY_NAME_VERSION_MAX = 9  # version of OffsetCommit and OffsetFetch; from 10 on, topics are identified by id
MANY_GROUPS_VERSION_MIN = 8

STABLE_VERSION_MIN = 7  # version of OffsetFetch; older brokers do not know offsets that are pending in a transaction
_TRANSIENT = COORDINATOR_TRANSIENT | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}
Current = Callable[[], GroupMetadata]


class Commits:
    def __init__(self, cluster: Cluster, values: Mapping[str, Value]) -> None:
        self._settings = group_settings(values)
        self._coordinator = GroupCoordinator(cluster, self._settings)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        group: GroupMetadata,
        timeout_s: float,
        current: Current | None = None,
    ) -> None:
        """Commit all offsets, or raise KafkaError for one that was refused; others may have been committed.

        `current` returns our current group metadata, in case `group` is outdated.
        """
        left = dict(offsets)
        policy = RetryPolicy(self._settings.backoff, codes=_retriable(_TRANSIENT, current))
        retry = Retry(policy, timeout_s)

        async def attempt() -> None:
            nonlocal left, group
            codes = await self._send(left, group, self._request_timeout_s(retry))
            left = {partition: left[partition] for partition, code in codes.items() if code is not ErrorCode.NONE}
            if left:
                group = self._renewed(codes.values(), group, current)
                partition = next((one for one in left if codes[one] not in policy.codes), next(iter(left)))
                raise KafkaError(codes[partition], f"commit of {partition} by group {self._settings.group_id}")

        if left:
            await retry.run(attempt)

    async def committed(
        self,
        partitions: Collection[TopicPartition],
        group: GroupMetadata,
        timeout_s: float,
        current: Current | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets without partitions that have none; wait for offsets pending in transactions."""
        if not partitions:
            return {}
        codes = _retriable(_TRANSIENT - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, current)
        retry = Retry(RetryPolicy(self._settings.backoff, codes=codes), timeout_s)

        async def attempt() -> dict[TopicPartition, CommittedOffset]:
            nonlocal group
            found = await self._fetch(partitions, group, self._request_timeout_s(retry))
            errors = {partition: value for partition, value in found.items() if isinstance(value, ErrorCode)}
            if errors:
                group = self._renewed(errors.values(), group, current)
                partition = next((one for one in errors if errors[one] not in codes), next(iter(errors)))
                what = f"the committed offset of {partition} in group {self._settings.group_id}"
                raise KafkaError(errors[partition], what)
            return {one: value for one, value in found.items() if isinstance(value, CommittedOffset)}

        return await retry.run(attempt)

    def _request_timeout_s(self, retry: Retry) -> float:
        return min(retry.left_s, self._settings.request_timeout_s)

    def _renewed(self, codes: Collection[ErrorCode], group: GroupMetadata, current: Current | None) -> GroupMetadata:
        if not COORDINATOR_MOVED.isdisjoint(codes) or ErrorCode.REQUEST_TIMED_OUT in codes:
            self._coordinator.forget()
        return current() if current is not None and ErrorCode.STALE_MEMBER_EPOCH in codes else group

    async def _send(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMetadata, timeout_s: float
    ) -> dict[TopicPartition, ErrorCode]:
        topics = offsets_by_topic(offsets, OffsetCommitRequest.OffsetCommitRequestPartition)
        request = OffsetCommitRequest(
            group_id=group.group_id,
            generation_id_or_member_epoch=group.generation,
            member_id=group.member_id,
            group_instance_id=group.instance_id,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=some)
                for name, some in topics.items()
            ],
        )
        response: OffsetCommitResponse = await self._coordinator.request_by_version(
            OffsetCommitRequest, lambda version: request, BY_NAME_VERSION_MAX, timeout_s=timeout_s
        )
        codes = {
            TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
            for topic in response.topics
            for one in topic.partitions
        }
        return {partition: codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) for partition in offsets}

    async def _fetch(
        self, partitions: Collection[TopicPartition], group: GroupMetadata, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset | ErrorCode | None]:
        """Fetch committed offsets; None where nothing is committed."""
        topics = indexes_by_topic(partitions)
        is_member = self._settings.protocol == CONSUMER and group.member_id != ""

        def request(version: int) -> OffsetFetchRequest:
            is_stable = version >= STABLE_VERSION_MIN
            if version < MANY_GROUPS_VERSION_MIN:
                names = [OffsetFetchRequest.OffsetFetchRequestTopic(name, some) for name, some in topics.items()]
                return OffsetFetchRequest(group_id=group.group_id, topics=names, require_stable=is_stable)
            requested = OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group.group_id,
                member_id=group.member_id if is_member else None,
                member_epoch=group.generation if is_member else -1,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=some)
                    for name, some in topics.items()
                ],
            )
            return OffsetFetchRequest(groups=[requested], require_stable=is_stable)

        response: OffsetFetchResponse = await self._coordinator.request_by_version(
            OffsetFetchRequest, request, BY_NAME_VERSION_MAX, timeout_s=timeout_s
        )
        group_response: Any = response.groups[0] if response.groups else response
        if group_response.error_code:
            return dict.fromkeys(partitions, ErrorCode(group_response.error_code))
        found = {
            TopicPartition(topic.name, one.partition_index): one
            for topic in group_response.topics
            for one in topic.partitions
        }
        return {partition: _committed(found.get(partition)) for partition in partitions}


def _retriable(codes: frozenset[ErrorCode], current: Current | None) -> frozenset[ErrorCode]:
    """Return the codes to retry: those given, and an outdated epoch if `current` can return a newer one."""
    return codes if current is None else codes | {ErrorCode.STALE_MEMBER_EPOCH}


def _committed(one: Any) -> CommittedOffset | ErrorCode | None:
    if one is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if one.error_code:
        return ErrorCode(one.error_code)
    if one.committed_offset < 0:
        return None
    return CommittedOffset(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
