"""Replicas of a metadata log in one process, on real files, whose messages pass through a fake network.

`FakePeers` stands in for `headrace.quorum.peers.Peers`: it delivers requests straight to the drivers of other replicas. Links can be cut,
and what a leader sends can be changed on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from msgspec.structs import replace
from tests.fakes import FakeClock

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId
from headrace.client.wire.node_link import Address
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from headrace.protocol.messages.stored.metadata_cluster import NoOpRecord
from headrace.quorum.driver import QuorumDriver, ReplicaFiles
from headrace.quorum.log_view import MetadataLogView
from headrace.quorum.opening import open_metadata
from headrace.quorum.peers import Done, ReplicaState, Unanswered
from headrace.quorum.snapshots import SnapshotId
from headrace.quorum.store import ElectionStore
from headrace.raft.election import Timeouts
from headrace.raft.messages import FetchRequest, FetchResponse, Request, Response
from headrace.raft.node import RaftNode
from headrace.raft.voters import ReplicaKey, VoterSet
from headrace.storage.disk import DiskFiles

TIMEOUTS = Timeouts(election_ms=100, election_backoff_ms_max=50, fetch_ms=500, request_ms=300, retry_ms=5)
LATENCY_S = 0.001
PART_BYTES = 100  # of a snapshot in one response
NOW_MS = 1_000
WAIT_S_MAX = 10.0

Tamper = Callable[[NodeId, NodeId, bytes], bytes]  # sender, receiver and bytes of records or of a part of a snapshot


def unchanged(sender: NodeId, receiver: NodeId, data: bytes) -> bytes:
    return data


class Replica:
    def __init__(self, driver: QuorumDriver, files: ReplicaFiles) -> None:
        self.driver = driver
        self.files = files
        self.installed: list[SnapshotId] = []
        driver.on_installed(self.installed.append)


class ReplicaNetwork:
    """Replicas with ids from 1 on."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self._directory = directory
        self.ids = [NodeId(node_id) for node_id in range(1, count + 1)]
        self.replicas: dict[NodeId, Replica] = {}
        self.cut: set[NodeId] = set()  # replicas that reach nobody and are not reached
        self.tamper: Tamper = unchanged
        self.kraft_versions = (0, 1)  # what every replica says that it supports
        self._loop = asyncio.get_running_loop()

    def open(self, node_id: NodeId) -> Replica:
        disk, directory = DiskFiles(), str(self._directory / str(node_id))
        stored = open_metadata(disk, directory, 20_000, 1 << 40, FakeClock(NOW_MS))
        store = ElectionStore(disk, directory, self.ids)
        files = ReplicaFiles(stored.log, stored.snapshots, store)
        history = stored.history(VoterSet.of_ids(*self.ids))
        view = MetadataLogView(stored.log, stored.snapshots)
        raft = RaftNode(ReplicaKey(node_id), history, store.load(), view, TIMEOUTS, Random(node_id))
        driver = QuorumDriver(raft, files, FakePeers(self, node_id), self._loop)
        replica = self.replicas[node_id] = Replica(driver, files)
        return replica

    def start(self, *ids: int) -> None:
        for node_id in map(NodeId, ids or self.ids):
            self.open(node_id).driver.start()

    async def stop(self, *ids: int) -> None:
        for node_id in map(NodeId, ids or tuple(self.replicas)):
            await self.replicas.pop(node_id).driver.stop()

    @property
    def leader(self) -> Replica | None:
        leading = [
            replica
            for node_id, replica in self.replicas.items()
            if node_id not in self.cut and replica.driver.is_leader and replica.driver.joined.done()
        ]
        return max(leading, key=lambda one: one.driver.raft.epoch, default=None)

    async def until(self, wanted: Callable[[], bool]) -> None:
        deadline = self._loop.time() + WAIT_S_MAX
        while not wanted():
            assert self._loop.time() < deadline, "it did not happen"
            await asyncio.sleep(0.002)

    async def until_leader(self) -> Replica:
        await self.until(lambda: self.leader is not None)
        assert self.leader is not None
        return self.leader

    async def until_equal(self, *ids: int) -> None:
        chosen = [self.replicas[NodeId(node_id)].driver for node_id in ids or self.replicas]
        await self.until(
            lambda: len({one.log.end_offset for one in chosen} | {one.high_watermark for one in chosen}) == 1
        )

    async def write(self, count: int) -> int:
        """Have the leader commit records; return its high watermark."""
        driver = (await self.until_leader()).driver
        for _ in range(count):
            end = driver.propose([NoOpRecord()]) + 1
        await self.until(lambda: driver.high_watermark >= end)
        return driver.high_watermark

    def bytes_of(self, node_id: int) -> bytes:
        metadata = self.replicas[NodeId(node_id)].driver.log
        return metadata.read_bytes(metadata.log.log_start, metadata.end_offset, 1 << 20)

    # --- the network

    async def deliver(self, sender: NodeId, to: NodeId, request: Request) -> Response:
        receiver = self.reach(sender, to)
        await asyncio.sleep(LATENCY_S)
        response = await receiver.driver.ask(request)
        if isinstance(request, FetchRequest) and isinstance(response, FetchResponse):
            response = self._with_records(sender, to, request, response)
        await asyncio.sleep(LATENCY_S)
        self.reach(sender, to)
        return response

    def reach(self, sender: NodeId, to: NodeId) -> Replica:
        if self.cut & {sender, to} or to not in self.replicas:
            raise HeadraceError(f"node {to} cannot be reached")
        return self.replicas[to]

    def _with_records(
        self, sender: NodeId, to: NodeId, request: FetchRequest, response: FetchResponse
    ) -> FetchResponse:
        log = self.replicas[to].driver.log
        if response.error or response.diverging or response.snapshot or request.offset >= log.end_offset:
            return response
        records = log.read_bytes(request.offset, log.end_offset, 1000)
        return replace(response, records=self.tamper(to, sender, records))

    async def snapshot_part(
        self, sender: NodeId, to: NodeId, snapshot: SnapshotId, position: int
    ) -> FetchSnapshotResponse.PartitionSnapshot:
        snapshots = self.reach(sender, to).files.snapshots
        await asyncio.sleep(LATENCY_S)
        return FetchSnapshotResponse.PartitionSnapshot(
            snapshot_id=FetchSnapshotResponse.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            size=snapshots.size(snapshot),
            position=position,
            unaligned_records=self.tamper(to, sender, snapshots.read_range(snapshot, position, PART_BYTES)),
        )


class FakePeers:
    """The peers of one replica of a ReplicaNetwork."""

    def __init__(self, network: ReplicaNetwork, node_id: NodeId) -> None:
        self._network = network
        self._node_id = node_id
        self._tasks: set[asyncio.Task[None]] = set()
        self.problems: dict[NodeId, str] = {}

    def send(self, to: NodeId, request: Request, state: ReplicaState, done: Done) -> None:
        task = asyncio.get_running_loop().create_task(self._exchange(to, request, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(self, to: NodeId, request: Request, done: Done) -> None:
        try:
            outcome: Response | Unanswered = await self._network.deliver(self._node_id, to, request)
        except HeadraceError as error:
            outcome = Unanswered(str(error))
        done(outcome)

    async def fetch_snapshot(
        self, leader: NodeId, snapshot: SnapshotId, position: int, epoch: int
    ) -> FetchSnapshotResponse.PartitionSnapshot:
        return await self._network.snapshot_part(self._node_id, leader, snapshot, position)

    async def supported_kraft_versions(self, address: Address) -> tuple[int, int]:
        """Return the levels of the replica whose id is the port of its address."""
        self._network.reach(self._node_id, NodeId(address.port))
        return self._network.kraft_versions

    async def close(self, wait_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=wait_s)
        self.abandon()

    def abandon(self) -> None:
        for task in self._tasks:
            task.cancel()
