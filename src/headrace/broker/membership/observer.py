"""Follows the metadata log as an observer of the quorum: fetches it, or first a snapshot, and passes it to the loader."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import NamedTuple

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import METADATA_TOPIC, METADATA_TOPIC_ID, NodeId
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.metadata.loader import MetadataLoader
from headrace.metadata.state import replay
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.quorum.log import MetadataBatch, decode_metadata
from headrace.quorum.snapshots import SnapshotId, whole_snapshot
from headrace.quorum.voter_records import VoterRecords

log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 500
RECORDS_AT_ONCE = 250
RETRY_S = 0.2
SNAPSHOT_BYTES_MAX = 1 << 30
UNCOMMITTED_BYTES_MAX = 64 << 20
_EPOCH_ERRORS = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)


class LogPosition(NamedTuple):
    """An offset, and the epoch of the record before it."""

    offset: int
    epoch: int


class MetadataObserver:
    """Fetches the metadata log from the active controller and applies what is committed, wherever the leadership moves.

    Batches above the high watermark are kept until they are committed; a new leader may replace them.
    """

    def __init__(self, channel: ControllerChannel, loader: MetadataLoader, node_id: NodeId, cluster_id: str) -> None:
        self._channel = channel
        self._loader = loader
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._applied = LogPosition(0, 0)
        self._uncommitted: deque[MetadataBatch] = deque()
        self._uncommitted_bytes = 0
        self._leader_epoch = 0  # of the quorum; Kafka's controllers refuse a negative one as invalid
        self._caught_up = False
        self.high_watermark = 0
        self.kraft_version = 0  # the committed level, which control records of the log set

    async def run(self) -> None:
        """Fetch the metadata log until cancelled, retrying every `RETRY_S` after a failure."""
        while True:
            try:
                await self._fetch()
            except (OSError, HeadraceError) as error:
                log.warning("the metadata log could not be fetched (%s); trying again in %.1f s", error, RETRY_S)
                await asyncio.sleep(RETRY_S)

    @property
    def _position(self) -> LogPosition:
        """Return where the next fetch starts."""
        if not self._uncommitted:
            return self._applied
        newest = self._uncommitted[-1]
        return LogPosition(newest.last_offset + 1, newest.epoch)

    async def _fetch(self) -> None:
        position = self._position
        response: FetchResponse = await self._channel.request(self._make_request(position))
        data = _single_partition(response)
        code = response.error_code or (0 if data is None else data.error_code)
        if data is not None and data.current_leader.leader_epoch > self._leader_epoch:
            self._leader_epoch = data.current_leader.leader_epoch
            if code in _EPOCH_ERRORS:
                return  # the next fetch has the right epoch
        if code != ErrorCode.NONE:
            raise HeadraceError(f"the controller responded with {ErrorCode(code).name}")
        if data is None:
            raise HeadraceError("the controller's response does not contain the metadata log")
        self.high_watermark = max(self.high_watermark, data.high_watermark)
        if data.snapshot_id.end_offset >= 0:
            await self._load_snapshot(SnapshotId(data.snapshot_id.end_offset, data.snapshot_id.epoch))
            return
        if data.diverging_epoch.end_offset >= 0:
            self._truncate(LogPosition(data.diverging_epoch.end_offset, data.diverging_epoch.epoch))
            return
        for batch in decode_metadata(_bytes(data.records)):
            if batch.last_offset >= self._position.offset:
                self._keep(batch)
        await self._apply_committed()

    def _make_request(self, position: LogPosition) -> FetchRequest:
        partition = FetchRequest.FetchPartition(
            current_leader_epoch=self._leader_epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.epoch,
            partition_max_bytes=FETCH_BYTES,
            high_watermark=self.high_watermark,
        )
        return FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=FetchRequest.ReplicaState(replica_id=self._node_id),
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[FetchRequest.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
        )

    def _keep(self, batch: MetadataBatch) -> None:
        self._uncommitted.append(batch)
        self._uncommitted_bytes += batch.size
        if self._uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
            self._forget_uncommitted()
            raise HeadraceError(f"more than {UNCOMMITTED_BYTES_MAX} bytes of the metadata log are not committed")

    def _forget_uncommitted(self) -> None:
        self._uncommitted.clear()
        self._uncommitted_bytes = 0

    async def _apply_committed(self) -> None:
        while self._uncommitted and self._uncommitted[0].last_offset < self.high_watermark:
            batch = self._uncommitted.popleft()
            self._uncommitted_bytes -= batch.size
            # A starting node publishes only the current state: earlier in the log a name may belong to another topic,
            # and the directory of the current one would be taken for a leftover.
            self._caught_up = self._caught_up or batch.last_offset + 1 >= self.high_watermark
            await self._apply(batch)
            self._applied = LogPosition(batch.last_offset + 1, batch.epoch)

    def _truncate(self, common: LogPosition) -> None:
        """Go back to the end of the newest epoch that the leader's log has in common with what was fetched here.

        Only uncommitted batches can differ, unless the controllers have lost their log: then everything is loaded again.
        """
        kept = [
            batch for batch in self._uncommitted if batch.last_offset < common.offset and batch.epoch <= common.epoch
        ]
        fetched = len(self._uncommitted)
        self._forget_uncommitted()
        if not fetched or common.offset < self._applied.offset or common.epoch < self._applied.epoch:
            log.error(
                "the metadata log of the controllers ends at offset %d of epoch %d, but this broker has applied it up to offset %d of"
                " epoch %d: the controllers have lost committed records; loading the metadata again from the start",
                *common,
                *self._applied,
            )
            self._start_again()
            return
        for batch in kept:
            self._keep(batch)
        if len(kept) == fetched:
            raise HeadraceError(
                f"the controller's log diverges at offset {common.offset}, which is beyond what was fetched"
            )

    def _start_again(self) -> None:
        self._loader.adopt(self._loader.empty_state(), -1, 0, more=True)
        self._applied = LogPosition(0, 0)
        self._caught_up = False
        self.high_watermark = 0

    async def _apply(self, batch: MetadataBatch) -> None:
        """Apply a batch in slices, but publish it as a whole: a topic with thousands of partitions is one batch."""
        self._apply_control(batch)
        records, step = batch.records, RECORDS_AT_ONCE
        pieces = [records[start : start + step] for start in range(0, len(records), step)] or [[]]
        for piece in pieces[:-1]:
            self._loader.apply(piece, batch.last_offset, batch.epoch, more=True)
            await asyncio.sleep(0)
        self._loader.apply(pieces[-1], batch.last_offset, batch.epoch, more=not self._caught_up)

    def _apply_control(self, batch: MetadataBatch) -> None:
        self.kraft_version = VoterRecords(self.kraft_version).after(batch.control).kraft_version

    async def _load_snapshot(self, snapshot: SnapshotId) -> None:
        """Replace the whole state by a snapshot; fetching continues at its end offset."""
        data = await self._fetch_snapshot(snapshot)
        state = self._loader.empty_state()
        for batch in whole_snapshot(decode_metadata(data), snapshot.file_name):
            self._apply_control(batch)
            for record in batch.records:
                replay(state, record)
            await asyncio.sleep(0)  # per batch, because batches of a snapshot are small
        self._forget_uncommitted()
        self._applied = LogPosition(*snapshot)
        # A starting node must not publish topics that the log after the snapshot deletes.
        self._caught_up = self._caught_up or snapshot.end_offset >= self.high_watermark
        self._loader.adopt(state, snapshot.end_offset - 1, snapshot.epoch, more=not self._caught_up)
        log.info("loaded the metadata up to offset %d from a snapshot of %d bytes", snapshot.end_offset, len(data))

    async def _fetch_snapshot(self, snapshot: SnapshotId) -> bytes:
        data = bytearray()
        while True:
            response: FetchSnapshotResponse = await self._channel.request(
                FetchSnapshotRequest(
                    cluster_id=self._cluster_id,
                    replica_id=self._node_id,
                    max_bytes=FETCH_BYTES,
                    topics=[
                        FetchSnapshotRequest.TopicSnapshot(
                            name=METADATA_TOPIC,
                            partitions=[
                                FetchSnapshotRequest.PartitionSnapshot(
                                    current_leader_epoch=self._leader_epoch,
                                    snapshot_id=FetchSnapshotRequest.SnapshotId(
                                        end_offset=snapshot.end_offset, epoch=snapshot.epoch
                                    ),
                                    position=len(data),
                                )
                            ],
                        )
                    ],
                )
            )
            part = _single_snapshot(response)
            code = response.error_code or (0 if part is None else part.error_code)
            if code != ErrorCode.NONE or part is None:
                raise HeadraceError(f"the controller responded with {ErrorCode(code).name} to a fetch of a snapshot")
            if part.size > SNAPSHOT_BYTES_MAX or part.position != len(data):
                raise HeadraceError(f"a snapshot of {part.size} bytes at {part.position}; at most {SNAPSHOT_BYTES_MAX}")
            records = _bytes(part.unaligned_records)
            data += records
            if len(data) >= part.size or not records:
                return bytes(data)


def _single_partition(response: FetchResponse) -> FetchResponse.PartitionData | None:
    partitions = [data for topic in response.responses for data in topic.partitions]
    return partitions[0] if len(partitions) == 1 else None


def _single_snapshot(response: FetchSnapshotResponse) -> FetchSnapshotResponse.PartitionSnapshot | None:
    partitions = [data for topic in response.topics for data in topic.partitions]
    return partitions[0] if len(partitions) == 1 else None


def _bytes(records: object) -> bytes:
    """Return the records of a decoded response; only responses that are about to be encoded have file ranges."""
    assert records is None or isinstance(records, bytes | memoryview)
    return bytes(records or b"")
