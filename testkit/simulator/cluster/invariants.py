"""What must hold at every moment in a cluster, checked on the state of its nodes while they run.

| invariant | guards |
|---|---|
| one leader per epoch of the metadata quorum | raft elections |
| a leader of the quorum was elected by votes that are on disk, and commits what a majority has on disk | persisting before counting |
| committed metadata is equal on all voters, and the leader has all of it | the commit rule of raft |
| one leader per epoch of a partition | the controller's elections, fencing |
| the high watermark of a leader does not decrease within its epoch | the high-watermark rule |
| every replica that is in sync or eligible has all committed records | AlterPartition, elections, ELR, the high-watermark rule |
| replicas are equal below every high watermark | truncation, replication |
"""

from __future__ import annotations

from testkit.simulator.cluster.machines import Machines
from testkit.simulator.cluster.quorum_invariants import QuorumInvariants
from testkit.simulator.cluster.replica_invariants import ReplicaInvariants


class Invariants:
    """Checks all invariants; raises AssertionError at the first contradiction."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._quorum = QuorumInvariants(machines)
        self._replicas = ReplicaInvariants(machines)

    def check(self) -> None:
        for machine in self._machines.all:
            machine.check()
            self._quorum.check(machine)
        self._replicas.check()

    def check_contents(self) -> None:
        """Compare the records of all replicas; at the end, when all nodes are up."""
        self._replicas.check_contents()
