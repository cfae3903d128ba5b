"""What must hold at every moment in a cluster, checked on the state of its nodes while they run.

| invariant | guards |
|---|---|
| one leader per epoch of the metadata quorum | raft elections |
| one leader per epoch of a partition | the controller's elections, fencing |
| the high watermark of a leader does not decrease within its epoch | the high-watermark rule |
| the in-sync replicas are replicas | AlterPartition, elections |
| replicas are equal below every high watermark | truncation, replication |
| committed metadata is equal on all voters, and the leader has all of it | the commit rule of raft, persisting before counting |
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.base.ids import TopicPartition, Uuid
from headrace.node.node import Node
from headrace.quorum.driver import QuorumDriver
from headrace.records.batch import iterate_batches
from headrace.replication.partition import Partition
from testkit.simulator.cluster.machines import Machines

READ_BYTES = 1 << 24

Batch = tuple[int, int, int]  # last offset, leader epoch and checksum of a batch


class Invariants:
    """Remembers what was seen, and raises AssertionError at the first contradiction."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._quorum_leaders: dict[int, str] = {}  # host by epoch
        self._leaders: dict[tuple[Uuid, int, int], str] = {}  # host by topic id, partition and leader epoch
        self._high_watermarks: dict[tuple[str, int, Uuid, int, int], int] = {}  # by host, boot, partition and epoch
        self._metadata: dict[int, Batch] = {}  # committed batches by their base offset
        self._metadata_checked: dict[tuple[str, int], int] = {}  # end of what was compared, by host and boot

    def check(self) -> None:
        for machine in self._machines.all:
            machine.check()
            if machine.node is None:
                continue
            self._check_quorum(machine.host, machine.boots, machine.node)
            if machine.node.broker is not None:
                for partition in machine.node.broker.replicas.all():
                    self._check_partition(machine.host, machine.boots, partition)

    def _check_quorum(self, host: str, boot: int, node: Node) -> None:
        if node.controller is None:
            return
        driver = node.controller.driver
        self._check_metadata(host, boot, driver)
        if not driver.is_leader:
            return
        epoch = driver.raft.epoch
        if epoch not in self._quorum_leaders:
            self._check_complete(host, driver)
        first = self._quorum_leaders.setdefault(epoch, host)
        assert first == host, f"{first} and {host} both lead the metadata quorum in epoch {epoch}"

    def _check_metadata(self, host: str, boot: int, driver: QuorumDriver) -> None:
        """Compare what a voter has committed since the last look with what others have committed."""
        position = self._metadata_checked.get((host, boot), 0)
        for base, batch in _metadata_batches(driver, position, driver.high_watermark):
            known = self._metadata.setdefault(base, batch)
            assert known == batch, f"{host} has committed other metadata at offset {base}: {batch}, not {known}"
        self._metadata_checked[(host, boot)] = driver.high_watermark

    def _check_complete(self, host: str, driver: QuorumDriver) -> None:
        """Check that a new leader of the quorum has everything that was ever committed."""
        start = driver.log.log.log_start
        wanted = {base: batch for base, batch in self._metadata.items() if base >= start}
        found = dict(_metadata_batches(driver, start, driver.log.end_offset))
        missing = [base for base, batch in wanted.items() if found.get(base) != batch]
        assert not missing, f"{host} leads the metadata quorum without the committed record at offset {missing[0]}"

    def _check_partition(self, host: str, boot: int, partition: Partition) -> None:
        if not partition.is_leader:
            return
        key = (partition.topic_id, partition.name.partition, partition.leader_epoch)
        first = self._leaders.setdefault(key, host)
        assert first == host, f"{first} and {host} both lead {partition.name} in epoch {partition.leader_epoch}"
        seen = self._high_watermarks.get((host, boot, *key), 0)
        assert partition.high_watermark >= seen, (
            f"{host}: the high watermark of {partition.name} went from {seen} to {partition.high_watermark} "
            f"in epoch {partition.leader_epoch}"
        )
        self._high_watermarks[(host, boot, *key)] = partition.high_watermark

    def check_replicas(self) -> None:
        """Compare the records of all replicas below their high watermarks; at the end, when all nodes are up."""
        contents: dict[tuple[Uuid, TopicPartition], tuple[str, bytes]] = {}
        for machine in self._machines.all:
            assert machine.node is not None and machine.node.broker is not None
            for partition in machine.node.broker.replicas.all():
                found = _committed_bytes(partition)
                key = (partition.topic_id, partition.name)
                host, other = contents.setdefault(key, (machine.host, found))
                shared = min(len(found), len(other))
                assert found[:shared] == other[:shared], f"{host} and {machine.host} differ in {partition.name}"
                if len(found) > len(other):
                    contents[key] = (machine.host, found)


def _metadata_batches(driver: QuorumDriver, start: int, end: int) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of the metadata log in this range, as far as a snapshot has not replaced them."""
    position = max(start, driver.log.log.log_start)
    while position < end:
        piece = driver.log.read_bytes(position, end, READ_BYTES)
        assert piece, f"the metadata log has nothing at offset {position}, below {end}"
        for _, header in iterate_batches(piece):
            yield header.base_offset, (header.last_offset, header.leader_epoch, header.crc)
        position = _end_of(piece)


def _committed_bytes(partition: Partition) -> bytes:
    """Return all batches below the high watermark."""
    log, pieces = partition.log, []
    position = log.log_start
    while position < partition.high_watermark:
        piece = log.read(position, READ_BYTES, partition.high_watermark).range.read()
        assert piece, f"{partition.name} has nothing at offset {position}, below its high watermark"
        pieces.append(piece)
        position = _end_of(piece)
    return b"".join(pieces)


def _end_of(piece: bytes) -> int:
    return max(header.last_offset for _, header in iterate_batches(piece)) + 1
