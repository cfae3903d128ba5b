"""Follows the metadata log as an observer of the quorum: fetches it, or first a snapshot, and passes it to the loader."""

from __future__ import annotations

import asyncio
import logging

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import METADATA_TOPIC, METADATA_TOPIC_ID, NodeId
from headrace.broker.controller_channel import ControllerChannel
from headrace.metadata.loader import MetadataLoader
from headrace.metadata.state import replay
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.quorum.log import MetadataBatch, decode_metadata
from headrace.quorum.snapshots import SnapshotId, whole_snapshot

log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 500
RECORDS_AT_ONCE = 250
RETRY_S = 0.2
SNAPSHOT_BYTES_MAX = 1 << 30


class MetadataObserver:
    def __init__(self, channel: ControllerChannel, loader: MetadataLoader, node_id: NodeId, cluster_id: str) -> None:
        self._channel = channel
        self._loader = loader
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._next_offset = 0
        self._epoch = 0
        self._caught_up = False
        self.high_watermark = 0

    async def run(self) -> None:
        """Fetch the metadata log until cancelled, retrying every `RETRY_S` after a failure."""
        while True:
            try:
                await self._fetch()
            except (OSError, HeadraceError) as error:
                log.warning("the metadata log could not be fetched (%s); trying again in %.1f s", error, RETRY_S)
                await asyncio.sleep(RETRY_S)

    async def _fetch(self) -> None:
        request = FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=FetchRequest.ReplicaState(replica_id=self._node_id),
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=METADATA_TOPIC_ID,
                    partitions=[
                        FetchRequest.FetchPartition(
                            fetch_offset=self._next_offset,
                            last_fetched_epoch=self._epoch,
                            partition_max_bytes=FETCH_BYTES,
                            high_watermark=self.high_watermark,
                        )
                    ],
                )
            ],
        )
        response: FetchResponse = await self._channel.request(request)
        code = response.error_code or response.responses[0].partitions[0].error_code
        if code != ErrorCode.NONE:
            raise HeadraceError(f"the controller responded with {ErrorCode(code).name}")
        data = response.responses[0].partitions[0]
        self.high_watermark = data.high_watermark
        if data.snapshot_id.end_offset >= 0:
            await self._load_snapshot(SnapshotId(data.snapshot_id.end_offset, data.snapshot_id.epoch))
            return
        if data.diverging_epoch.end_offset >= 0:
            raise HeadraceError(f"offset {self._next_offset} of epoch {self._epoch} is not in the controller's log")
        records = data.records
        assert records is None or isinstance(records, bytes | memoryview)
        for batch in decode_metadata(bytes(records or b"")):
            if batch.last_offset < self._next_offset:
                continue
            assert batch.last_offset < data.high_watermark, "the controller sent what is not committed"
            # A starting node publishes only the current state: earlier in the log a name may belong to another topic,
            # and the directory of the current one would be taken for a leftover.
            self._caught_up = self._caught_up or batch.last_offset + 1 >= data.high_watermark
            await self._apply(batch)
            self._next_offset, self._epoch = batch.last_offset + 1, batch.epoch

    async def _apply(self, batch: MetadataBatch) -> None:
        """Apply a batch in slices, but publish it as a whole: a topic with thousands of partitions is one batch."""
        records, step = batch.records, RECORDS_AT_ONCE
        pieces = [records[start : start + step] for start in range(0, len(records), step)] or [[]]
        for piece in pieces[:-1]:
            self._loader.apply(piece, batch.last_offset, batch.epoch, more=True)
            await asyncio.sleep(0)
        self._loader.apply(pieces[-1], batch.last_offset, batch.epoch, more=not self._caught_up)

    async def _load_snapshot(self, snapshot: SnapshotId) -> None:
        """Replace the whole state by a snapshot; fetching continues at its end offset."""
        data = await self._fetch_snapshot(snapshot)
        state = self._loader.empty_state()
        for batch in whole_snapshot(decode_metadata(data), snapshot.file_name):
            for record in batch.records:
                replay(state, record)
            await asyncio.sleep(0)  # per batch, because batches of a snapshot are small
        self._next_offset, self._epoch = snapshot
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
                                    current_leader_epoch=-1,
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
            code = response.error_code or response.topics[0].partitions[0].error_code
            if code != ErrorCode.NONE:
                raise HeadraceError(f"the controller responded with {ErrorCode(code).name} to a fetch of a snapshot")
            part = response.topics[0].partitions[0]
            if part.size > SNAPSHOT_BYTES_MAX or part.position != len(data):
                raise HeadraceError(f"a snapshot of {part.size} bytes at {part.position}; at most {SNAPSHOT_BYTES_MAX}")
            records = part.unaligned_records
            assert isinstance(records, bytes | memoryview)
            data += records
            if len(data) >= part.size or not records:
                return bytes(data)
