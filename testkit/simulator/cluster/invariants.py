"""What must hold at every moment in a cluster, checked on the state of its nodes while they run.

| invariant | guards |
|---|---|
| one leader per epoch of the metadata quorum | raft elections |
| one leader per epoch of a partition | the controller's elections, fencing |
| the high watermark of a leader does not decrease within its epoch | the high-watermark rule |
| the in-sync replicas are replicas | AlterPartition, elections |
| replicas are equal below every high watermark | truncation, replication |
"""

from __future__ import annotations

from headrace.base.ids import TopicPartition, Uuid
from headrace.node.node import Node
from headrace.records.batch import iterate_batches
from headrace.replication.partition import Partition
from testkit.simulator.cluster.machines import Machines

READ_BYTES = 1 << 24


class Invariants:
    """Remembers what was seen, and raises AssertionError at the first contradiction."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._quorum_leaders: dict[int, str] = {}  # host by epoch
        self._leaders: dict[tuple[Uuid, int, int], str] = {}  # host by topic id, partition and leader epoch
        self._high_watermarks: dict[tuple[str, int, Uuid, int, int], int] = {}  # by host, boot, partition and epoch

    def check(self) -> None:
        for machine in self._machines.all:
            machine.check()
            if machine.node is None:
                continue
            self._check_quorum(machine.host, machine.node)
            if machine.node.broker is not None:
                for partition in machine.node.broker.replicas.all():
                    self._check_partition(machine.host, machine.boots, partition)

    def _check_quorum(self, host: str, node: Node) -> None:
        controller = node.controller
        if controller is None or not controller.driver.is_leader:
            return
        epoch = controller.driver.raft.epoch
        first = self._quorum_leaders.setdefault(epoch, host)
        assert first == host, f"{first} and {host} both lead the metadata quorum in epoch {epoch}"

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
