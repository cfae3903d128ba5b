"""What must hold for the replicas of partitions at every moment, checked on the nodes and on the controller's committed state.

Theory: a record below a high watermark is committed, and every replica that the controller may elect, because it is in sync or
eligible, has it. Replicas that agree on the leader epoch of an offset agree on everything before it, so the epoch of the last
committed record stands for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from headrace.base.ids import TopicPartition, Uuid
from headrace.metadata.state import Cells
from headrace.node.controller_role import ControllerRole
from headrace.node.node import Node
from headrace.records.batch import iterate_batches
from headrace.replication.partition import Partition
from headrace.statemachine.undo import Table
from testkit.simulator.cluster.machines import Machines

K = TypeVar("K")
V = TypeVar("V")

READ_BYTES = 1 << 24

PartitionKey = tuple[Uuid, int]
Term = tuple[Uuid, int, int]  # topic id, partition and leader epoch


class Committed(NamedTuple):
    end_offset: int
    epoch: int  # leader epoch of the last record


class ReplicaInvariants:
    """Remembers what was seen, and raises AssertionError at the first contradiction."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._leaders: dict[Term, str] = {}  # host by term
        self._high_watermarks: dict[tuple[str, int, Term], int] = {}  # by host, boot and term
        self._committed: dict[PartitionKey, Committed] = {}
        self._metadata_end = 0  # end of the metadata that any controller has applied

    def check(self) -> None:
        nodes = {}
        for node_id, machine in enumerate(self._machines.all, start=1):
            if machine.node is not None and machine.node.broker is not None:
                nodes[node_id] = machine.node
                for partition in machine.node.broker.replicas.all():
                    self._note_committed(partition)
                    if partition.is_leader:
                        self._check_leader(machine.host, machine.boots, partition)
        self._check_electable(nodes)

    def _note_committed(self, partition: Partition) -> None:
        log, end = partition.log, partition.high_watermark
        key = (partition.topic_id, partition.name.partition)
        known = self._committed.get(key)
        if end > log.log_start and (known is None or end > known.end_offset):
            self._committed[key] = Committed(end, log.epochs.epoch_for(end - 1))

    def _check_leader(self, host: str, boot: int, partition: Partition) -> None:
        term = (partition.topic_id, partition.name.partition, partition.leader_epoch)
        first = self._leaders.setdefault(term, host)
        assert first == host, f"{first} and {host} both lead {partition.name} in epoch {partition.leader_epoch}"
        seen = self._high_watermarks.get((host, boot, term), 0)
        assert partition.high_watermark >= seen, (
            f"{host}: the high watermark of {partition.name} went from {seen} to {partition.high_watermark} "
            f"in epoch {partition.leader_epoch}"
        )
        self._high_watermarks[(host, boot, term)] = partition.high_watermark

    def _check_electable(self, nodes: dict[int, Node]) -> None:
        """Check that every in-sync or eligible replica has all committed records.

        A broker that has restarted since its registration is left out: its new registration removes it if it may lack records.
        Nothing is checked while all controllers that know the newest metadata are down: the others can elect nobody.
        """
        controllers = [node.controller for node in nodes.values() if node.controller is not None]
        newest = max(controllers, key=_applied_end, default=None)
        if newest is None or _applied_end(newest) < self._metadata_end:
            return
        self._metadata_end = _applied_end(newest)
        context = newest._machine.context
        epochs = {broker_id: broker.epoch for broker_id, broker in _committed_items(context.state.brokers)}
        replicas = {
            broker_id: _replicas(node)
            for broker_id, node in nodes.items()
            if node.broker is not None and node.broker.registration.broker_epoch == epochs.get(broker_id)
        }
        for key, state in _committed_items(context.state.partitions):
            committed = self._committed.get(key)
            if committed is None:
                continue
            for broker_id in (*state.isr, *state.elr):
                replica = replicas.get(broker_id, {}).get(key)
                assert replica is None or _has(replica, committed), (
                    f"node {broker_id} may lead {replica.name} in partition epoch {state.partition_epoch} without all "
                    f"records up to {committed.end_offset} of epoch {committed.epoch}: its log ends at {replica.log.log_end}"
                )

    def check_contents(self) -> None:
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


def _applied_end(controller: ControllerRole) -> int:
    return controller._standby.applied_end


def _committed_items(cells: Cells[K, V]) -> Iterator[tuple[K, V]]:
    assert isinstance(cells, Table)
    return cells.committed_items()


def _replicas(node: Node) -> dict[PartitionKey, Partition]:
    assert node.broker is not None
    found = [partition for partition in node.broker.replicas.all() if partition.offline is None]
    return {(partition.topic_id, partition.name.partition): partition for partition in found}


def _has(replica: Partition, committed: Committed) -> bool:
    log, last = replica.log, committed.end_offset - 1
    return log.log_end > last and (log.log_start > last or log.epochs.epoch_for(last) == committed.epoch)


def _committed_bytes(partition: Partition) -> bytes:
    """Return all batches below the high watermark."""
    log, pieces = partition.log, []
    position = log.log_start
    while position < partition.high_watermark:
        piece = log.read(position, READ_BYTES, partition.high_watermark).range.read()
        assert piece, f"{partition.name} has nothing at offset {position}, below its high watermark"
        pieces.append(piece)
        position = max(header.last_offset for _, header in iterate_batches(piece)) + 1
    return b"".join(pieces)
