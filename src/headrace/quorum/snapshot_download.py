"""Downloads a snapshot from the leader into a partial file, which gets its final name when it is complete and correct."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import NodeId
from headrace.quorum.peers import Peers
from headrace.quorum.snapshots import PartFile, SnapshotFiles, SnapshotId

log = logging.getLogger(__name__)

T = TypeVar("T")

SNAPSHOT_BYTES_MAX = 1 << 34  # a leader that announces a larger snapshot is not believed


class SnapshotDownload:
    """One download. `progressed` is called after each part, because it shows that the leader is alive."""

    def __init__(
        self,
        peers: Peers,
        files: SnapshotFiles,
        loop: asyncio.AbstractEventLoop,
        progressed: Callable[[], None],
    ) -> None:
        self._peers = peers
        self._files = files
        self._loop = loop
        self._progressed = progressed

    async def run(self, leader: NodeId, snapshot: SnapshotId, epoch: int) -> None:
        """Return when the snapshot is complete, checked and on disk. Raise HeadraceError or OSError if it cannot be had."""
        part = await self._in_thread(partial(self._files.begin, snapshot))
        try:
            size = await self._copy(part, leader, snapshot, epoch)
            await self._in_thread(part.check)
        except BaseException:
            part.abandon()
            raise
        await self._in_thread(part.finish)
        log.info(
            "downloaded the metadata snapshot at offset %d from node %d: %d bytes", snapshot.end_offset, leader, size
        )

    async def _copy(self, part: PartFile, leader: NodeId, snapshot: SnapshotId, epoch: int) -> int:
        position = 0
        while True:
            found = await self._peers.fetch_snapshot(leader, snapshot, position, epoch)
            data = found.unaligned_records
            if not isinstance(data, bytes | bytearray | memoryview):
                raise CorruptData(f"node {leader} sent a part of a snapshot in an unknown form")
            if (
                SnapshotId(found.snapshot_id.end_offset, found.snapshot_id.epoch) != snapshot
                or found.position != position
            ):
                raise CorruptData(f"node {leader} sent another part of a snapshot than the one requested")
            if not position < found.size <= SNAPSHOT_BYTES_MAX or not 0 < len(data) <= found.size - position:
                raise HeadraceError(
                    f"node {leader} sent {len(data)} bytes at position {position} of a snapshot of {found.size} bytes"
                )
            await self._in_thread(partial(part.append, bytes(data)))
            position += len(data)
            self._progressed()
            if position == found.size:
                return position

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(None, work)
