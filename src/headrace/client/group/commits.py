"""Commits and fetches a group's offsets, as a member (with its generation or epoch) or without a membership."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.group.coordinator_finder import ELSEWHERE, PASSING, UNREACHABLE, GroupCoordinator, Tries
from headrace.client.group.membership import CommittedOffset, GroupMetadata
from headrace.client.group.settings import CONSUMER, group_settings
from headrace.client.wire.cluster import Cluster
from headrace.options.table import Value
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

BY_NAME_VERSION_MAX = 9  # version of OffsetCommit and OffsetFetch; from 10 on, topics are identified by id
MANY_GROUPS_VERSION_MIN = 8

STABLE_VERSION_MIN = 7  # version of OffsetFetch; older brokers do not know offsets that are pending in a transaction
_TRY_AGAIN = PASSING | {
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
        tries = Tries(self._settings, timeout_s)
        while left:
            wrong: Exception
            try:
                codes = await self._send(left, group, tries.left_s)
            except UNREACHABLE as error:
                wrong = error
            else:
                left = {partition: left[partition] for partition, code in codes.items() if code is not ErrorCode.NONE}
                if not left:
                    return
                group = self._renewed(codes.values(), group, current)
                partition = next((one for one in left if codes[one] not in _TRY_AGAIN), next(iter(left)))
                wrong = KafkaError(codes[partition], f"commit of {partition} by group {self._settings.group_id}")
                if not self._may_try_again(codes[partition], current):
                    raise wrong
            await tries.again(wrong)

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
        tries = Tries(self._settings, timeout_s)
        while True:
            wrong: Exception
            try:
                found = await self._fetch(partitions, group, tries.left_s)
            except UNREACHABLE as error:
                wrong = error
            else:
                codes = {name: value for name, value in found.items() if isinstance(value, ErrorCode)}
                if not codes:
                    return {one: value for one, value in found.items() if isinstance(value, CommittedOffset)}
                group = self._renewed(codes.values(), group, current)
                partition = next(
                    (one for one in codes if not self._may_try_again(codes[one], current)), next(iter(codes))
                )
                what = f"the committed offset of {partition} in group {self._settings.group_id}"
                wrong = KafkaError(codes[partition], what)
                is_missing = codes[partition] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if is_missing or not self._may_try_again(codes[partition], current):
                    raise wrong
            await tries.again(wrong)

    def _renewed(self, codes: Collection[ErrorCode], group: GroupMetadata, current: Current | None) -> GroupMetadata:
        if not ELSEWHERE.isdisjoint(codes) or ErrorCode.REQUEST_TIMED_OUT in codes:
            self._coordinator.doubt()
        return current() if current is not None and ErrorCode.STALE_MEMBER_EPOCH in codes else group

    def _may_try_again(self, code: ErrorCode, current: Current | None) -> bool:
        return code in _TRY_AGAIN or (code is ErrorCode.STALE_MEMBER_EPOCH and current is not None)

    async def _send(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMetadata, timeout_s: float
    ) -> dict[TopicPartition, ErrorCode]:
        topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, partition), committed in offsets.items():
            topics[topic].append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
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
        response: OffsetCommitResponse = await self._coordinator.ask_by_version(
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
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append(partition)
        is_member = self._settings.protocol == CONSUMER and group.member_id != ""

        def request(version: int) -> OffsetFetchRequest:
            is_stable = version >= STABLE_VERSION_MIN
            if version < MANY_GROUPS_VERSION_MIN:
                names = [OffsetFetchRequest.OffsetFetchRequestTopic(name, some) for name, some in topics.items()]
                return OffsetFetchRequest(group_id=group.group_id, topics=names, require_stable=is_stable)
            wanted = OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group.group_id,
                member_id=group.member_id if is_member else None,
                member_epoch=group.generation if is_member else -1,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=some)
                    for name, some in topics.items()
                ],
            )
            return OffsetFetchRequest(groups=[wanted], require_stable=is_stable)

        response: OffsetFetchResponse = await self._coordinator.ask_by_version(
            OffsetFetchRequest, request, BY_NAME_VERSION_MAX, timeout_s=timeout_s
        )
        told: Any = response.groups[0] if response.groups else response
        if told.error_code:
            return dict.fromkeys(partitions, ErrorCode(told.error_code))
        found = {
            TopicPartition(topic.name, one.partition_index): one for topic in told.topics for one in topic.partitions
        }
        return {partition: _committed(found.get(partition)) for partition in partitions}


def _committed(one: Any) -> CommittedOffset | ErrorCode | None:
    if one is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if one.error_code:
        return ErrorCode(one.error_code)
    if one.committed_offset < 0:
        return None
    return CommittedOffset(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
