"""Following the metadata log of changing leaders: only committed records are applied, and hostile responses do no harm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import NodeId, Uuid
from headrace.broker.membership.observer import MetadataObserver
from headrace.metadata.loader import MetadataLoader
from headrace.metadata.records import encode_record
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.protocol.messages.stored.metadata_topics import TopicRecord
from headrace.records.batch import read_header, stamp
from headrace.records.builder import BatchBuilder


def batch(offset: int, epoch: int, name: str) -> bytes:
    """Return a batch with one record, which creates a topic."""
    builder = BatchBuilder()
    topic_id = Uuid(name.encode().ljust(16, b"-"))
    builder.append(0, None, encode_record(TopicRecord(name=name, topic_id=topic_id)))
    data = builder.build()
    stamp(data, 0, read_header(data), offset, epoch)
    return bytes(data)


class Leader:
    """A channel that answers each fetch with the next of the given responses."""

    def __init__(self, *responses: FetchResponse) -> None:
        self.responses = list(responses)
        self.positions: list[tuple[int, int, int]] = []  # fetch offset, last fetched epoch, leader epoch

    async def request(self, message: Any) -> FetchResponse:
        [partition] = message.topics[0].partitions
        self.positions.append((partition.fetch_offset, partition.last_fetched_epoch, partition.current_leader_epoch))
        return self.responses.pop(0)


def fetched(records: bytes = b"", *, committed: int = 0, epoch: int = 1, **more: Any) -> FetchResponse:
    data = FetchResponse.PartitionData(
        high_watermark=committed,
        current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=epoch),
        aborted_transactions=None,
        records=records,
        **more,
    )
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[data])])


def diverging(offset: int, epoch: int) -> FetchResponse:
    return fetched(diverging_epoch=FetchResponse.EpochEndOffset(epoch=epoch, end_offset=offset), epoch=epoch + 1)


def follow(leader: Leader) -> set[str]:
    """Fetch until the leader has no more responses, and return the topics of the image."""
    loader = MetadataLoader([])
    observer = MetadataObserver(leader, loader, NodeId(1), "cluster")

    async def work() -> None:
        while leader.responses:
            await observer._fetch()

    asyncio.run(work())
    return set(loader.image.topics)


def test_records_are_applied_only_when_they_are_committed() -> None:
    both = batch(0, 1, "a") + batch(1, 1, "b")
    leader = Leader(fetched(both, committed=1))
    assert follow(leader) == {"a"}
    leader = Leader(fetched(both, committed=1), fetched(committed=2))
    assert follow(leader) == {"a", "b"}
    assert leader.positions == [(0, 0, 0), (2, 1, 1)]


def test_uncommitted_records_that_a_new_leader_replaced_are_never_applied() -> None:
    leader = Leader(
        fetched(batch(0, 1, "a") + batch(1, 1, "lost"), committed=1),
        diverging(1, 1),
        fetched(batch(1, 2, "kept"), committed=2, epoch=2),
    )
    assert follow(leader) == {"a", "kept"}
    assert leader.positions == [(0, 0, 0), (2, 1, 1), (1, 1, 2)]


def test_a_log_that_lost_committed_records_is_loaded_again_from_the_start() -> None:
    leader = Leader(
        fetched(batch(0, 1, "a") + batch(1, 1, "b"), committed=2),
        diverging(0, 0),
        fetched(batch(0, 2, "new"), committed=1, epoch=2),
    )
    assert follow(leader) == {"new"}


def test_the_leader_epoch_is_taken_from_the_response_that_refuses_the_fetch() -> None:
    refused = fetched(epoch=7, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    leader = Leader(refused, fetched(batch(0, 7, "a"), committed=1, epoch=7))
    assert follow(leader) == {"a"} and leader.positions[1] == (0, 0, 7)


def test_a_snapshot_is_requested_in_the_epoch_of_the_leader() -> None:
    """Kafka's controllers refuse a snapshot request with an older epoch, or with none."""
    requested: list[int] = []

    class SnapshotLeader(Leader):
        async def request(self, message: Any) -> Any:
            if not isinstance(message, FetchSnapshotRequest):
                return await super().request(message)
            [partition] = message.topics[0].partitions
            requested.append(partition.current_leader_epoch)
            part = FetchSnapshotResponse.PartitionSnapshot(error_code=ErrorCode.FENCED_LEADER_EPOCH)
            return FetchSnapshotResponse(topics=[FetchSnapshotResponse.TopicSnapshot(partitions=[part])])

    has_snapshot = fetched(snapshot_id=FetchResponse.SnapshotId(end_offset=5, epoch=6), epoch=7)
    with pytest.raises(HeadraceError, match="FENCED_LEADER_EPOCH"):
        follow(SnapshotLeader(has_snapshot))
    assert requested == [7]


def test_an_observer_never_sends_a_negative_epoch() -> None:
    leader = Leader(fetched(batch(0, 1, "a"), committed=1))
    follow(leader)
    assert leader.positions == [(0, 0, 0)]


@pytest.mark.parametrize(
    "response",
    [
        FetchResponse(),
        FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID),
        FetchResponse(error_code=9999),
        fetched(error_code=ErrorCode.INVALID_REQUEST),
        fetched(b"\x00" * 80, committed=9),
    ],
    ids=["empty", "cluster", "unknown", "refused", "garbage"],
)
def test_an_invalid_response_is_an_error_that_can_be_retried(response: FetchResponse) -> None:
    with pytest.raises(HeadraceError):
        follow(Leader(response))


def test_a_divergence_beyond_what_was_fetched_is_an_error() -> None:
    with pytest.raises(HeadraceError, match="beyond what was fetched"):
        follow(Leader(fetched(batch(0, 1, "a")), diverging(5, 1)))
