"""TxnOffsetCommit: permissions, the request to the transaction coordinator, and its errors mapped to each client version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock
from tests.replication.replication_samples import NODE, NOW_MS, TOPIC_ID, elect, make_files, make_partition

from headrace.api.transactions.txn_offset_commit import TxnOffsetCommitApi
from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.broker.shard_runner import Coordination, CoordinatorTopic
from headrace.coordinators.group.handler_table import GROUP_HANDLERS
from headrace.coordinators.group.offset_reads import FetchGroup, fetch
from headrace.coordinators.group.records import decode_group_record, encode_group_record
from headrace.coordinators.group.settings import GroupSettings
from headrace.coordinators.group.shard import GroupShard
from headrace.coordinators.group.transactional_commits import end_request
from headrace.metadata.image import Image, Partition, Topic
from headrace.protocol.apis import ApiKey
from headrace.protocol.compiler import codec
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from headrace.records.control import TransactionMarker
from headrace.security.resources import Operation, Resource
from headrace.server.authority import ALLOW_ALL, DenyAll
from headrace.server.context import Peer, RequestContext

TOPIC = "orders"
GROUP = "readers"
PRODUCER = 7
OFFSETS_PARTITION = TopicPartition("t", 0)
NONE = ErrorCode.NONE


class Verifier:
    def __init__(self) -> None:
        self.code = NONE
        self.requested: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.during_verification: Callable[..., Any] | None = None

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        self.requested.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        if self.during_verification is not None:
            await self.during_verification()
        return dict.fromkeys(partitions, self.code)


class Authority(DenyAll):
    """Grants everything except the operations in `refused`."""

    def __init__(self, *refused: Any) -> None:
        self.refused = refused

    def allows(
        self, context: RequestContext, operation: Operation, resource: Resource, name: str, *, quietly: bool = False
    ) -> bool:
        return (operation, resource, name) not in self.refused


class OffsetsHarness:
    def __init__(self) -> None:
        self.loop = SimulatedLoop(Random(1))
        self.partition = make_partition(make_files())
        state = Partition(replicas=(NODE,), isr=(NODE,), leader=NODE, leader_epoch=0, partition_epoch=0)
        topics = [
            Topic("t", TOPIC_ID, (state,)),
            Topic(TOPIC, TOPIC_ID, (state,) * 2),
            Topic("other", TOPIC_ID, (state,)),
        ]
        image = Image(topics={topic.name: topic for topic in topics})
        topic = CoordinatorTopic(
            "t",
            lambda: GroupShard(GROUP_HANDLERS, GroupSettings(), lambda: image, Random(2)),
            encode_group_record,
            decode_group_record,
            end_request,
        )
        self.groups = Coordination(topic, lambda: image, FakeClock(NOW_MS), self.loop)
        self.verifier = Verifier()
        self.verification = True
        self.authority: Any = ALLOW_ALL
        self.api = TxnOffsetCommitApi(self.groups, lambda: image, self.verifier, lambda: self.verification)

    def run(self, scenario: Callable[..., Any]) -> None:
        async def run_elected() -> None:
            self.groups.elected(self.partition)
            await self.groups.settle()
            await scenario()
            self.groups.close()

        self.loop.run_until_complete(run_elected())
        self.loop.close()
        assert self.loop.errors == []

    async def commit_offsets(
        self,
        version: int = 5,
        topics: Mapping[str, dict[int, int]] | None = None,
        group: str = GROUP,
        epoch: int = 0,
        **more: Any,
    ) -> dict[tuple[str, int], ErrorCode]:
        """Send a TxnOffsetCommit and return the error codes by topic and partition."""
        request = TxnOffsetCommitRequest(
            "tx",
            group,
            PRODUCER,
            epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name,
                    [TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(*pair) for pair in offsets.items()],
                )
                for name, offsets in (topics or {TOPIC: {0: 5}}).items()
            ],
            **more,
        )
        peer = Peer("PLAINTEXT", "127.0.0.1", authority=self.authority)
        context = RequestContext(peer, ApiKey.TXN_OFFSET_COMMIT, version, "client")
        answer = await self.api.commit(context, request)
        codec(TxnOffsetCommitResponse, version).encode(answer)
        return {
            (topic.name, one.partition_index): ErrorCode(one.error_code)
            for topic in answer.topics
            for one in topic.partitions
        }

    async def code(self, version: int = 5, **more: Any) -> ErrorCode:
        [code] = (await self.commit_offsets(version, **more)).values()
        return code

    async def end(self, *, commit: bool, epoch: int = 0) -> None:
        await self.groups.end_transaction(0, PRODUCER, epoch, TransactionMarker(commit, 1), 0)
        await asyncio.sleep(0)

    @property
    def committed(self) -> dict[tuple[str, int], int]:
        answer = fetch(self.groups.machine_of(GROUP), FetchGroup(GROUP, topics=None))
        return {
            (topic.name, one.partition_index): one.committed_offset
            for topic in answer.topics
            for one in topic.partitions
        }


@pytest.mark.parametrize("version", range(6))
def test_the_transaction_coordinator_verifies_once_and_adds_from_version_5(version: int) -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        assert await harness.code(version) is NONE
        assert await harness.code(version, topics={TOPIC: {1: 6}}) is NONE
        assert harness.verifier.requested == [("tx", PRODUCER, 0, [OFFSETS_PARTITION], version == 5)]
        assert harness.committed == {}
        await harness.end(commit=True)
        assert harness.committed == {(TOPIC, 0): 5, (TOPIC, 1): 6}
        await harness.code(version, epoch=1)
        assert len(harness.verifier.requested) == 2

    harness.run(scenario)


def test_with_verification_disabled_only_version_5_contacts_the_coordinator() -> None:
    harness = OffsetsHarness()
    harness.verification = False

    async def scenario() -> None:
        assert await harness.code(4) is NONE and harness.verifier.requested == []
        await harness.end(commit=True)
        assert await harness.code(5, epoch=1) is NONE and len(harness.verifier.requested) == 1

    harness.run(scenario)


@pytest.mark.parametrize(
    ("coordinator_error", "version", "client_error"),
    [
        (ErrorCode.INVALID_TXN_STATE, 5, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 5, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.PRODUCER_FENCED, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 5, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 5, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 5, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NETWORK_EXCEPTION, 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_coordinator_errors_are_mapped_to_errors_of_the_client_version(
    coordinator_error: ErrorCode, version: int, client_error: ErrorCode
) -> None:
    harness = OffsetsHarness()
    harness.verifier.code = coordinator_error

    async def scenario() -> None:
        assert await harness.code(version) is client_error
        assert harness.partition.log.log_end == 0

    harness.run(scenario)


def test_a_marker_or_election_during_verification_fails_the_commit() -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        async def ends() -> None:
            await harness.end(commit=False)

        harness.verifier.during_verification = ends
        assert await harness.code(4) is ErrorCode.INVALID_TXN_STATE
        assert harness.partition.log.log_end == 1  # only the marker

        async def leaves() -> None:
            elect(harness.partition, NODE, 1, (NODE,))
            harness.groups.elected(harness.partition)
            await harness.groups.settle()

        harness.verifier.during_verification = leaves
        assert await harness.code(4) is ErrorCode.NOT_COORDINATOR
        harness.verifier.during_verification = None
        assert await harness.code(4) is NONE
        await harness.end(commit=True, epoch=1)
        assert await harness.code(4) is ErrorCode.INVALID_PRODUCER_EPOCH

    harness.run(scenario)


def test_transactional_id_group_and_topic_permissions_are_checked_in_that_order() -> None:
    harness = OffsetsHarness()
    transaction = (Operation.WRITE, Resource.TRANSACTIONAL_ID, "tx")
    group = (Operation.READ, Resource.GROUP, GROUP)
    topic = (Operation.READ, Resource.TOPIC, TOPIC)

    async def scenario() -> None:
        harness.authority = Authority(transaction, group, topic)
        assert await harness.code() is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        harness.authority = Authority(group, topic)
        assert await harness.code() is ErrorCode.GROUP_AUTHORIZATION_FAILED
        harness.authority = Authority(topic)
        assert await harness.code() is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert harness.verifier.requested == []
        assert await harness.commit_offsets(topics={TOPIC: {0: 1, 9: 1}, "other": {0: 1, 1: 2}, "gone": {0: 1}}) == {
            (TOPIC, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            (TOPIC, 9): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ("other", 0): NONE,
            ("other", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        await harness.end(commit=True)
        assert harness.committed == {("other", 0): 1}

    harness.run(scenario)


def test_invalid_groups_and_unavailable_coordinators_return_their_errors() -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        assert await harness.code(group="") is ErrorCode.INVALID_GROUP_ID
        assert await harness.code(generation_id=3, member_id="who") is ErrorCode.ILLEGAL_GENERATION
        harness.partition.configure(2)
        assert await harness.code() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        harness.partition.configure(1)
        elect(harness.partition, NODE, 1, (NODE,))
        harness.groups.elected(harness.partition)
        assert await harness.code(1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        harness.groups.elected(harness.partition)
        await harness.groups.settle()
        elect(harness.partition, 2, 2, (NODE,))
        harness.groups.elected(harness.partition)
        assert await harness.code() is ErrorCode.NOT_COORDINATOR

    harness.run(scenario)


def test_a_loading_coordinator_returns_coordinator_load_in_progress() -> None:
    harness = OffsetsHarness()

    async def scenario() -> None:
        elect(harness.partition, NODE, 1, (NODE,))
        harness.groups.elected(harness.partition)
        assert await harness.code(2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert harness.verifier.requested == []

    harness.run(scenario)
