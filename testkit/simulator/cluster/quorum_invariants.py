"""What must hold in the metadata quorum at every moment, checked on the nodes and on their disks.

Nothing counts before it is on disk: a leader that commits is checked at that moment, and so is one that was elected, because the time
until the other voters have synced is too short to be seen by looking now and then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from headrace.quorum.driver import QuorumDriver
from headrace.quorum.store import FILE_NAME
from headrace.records.batch import iterate_batches
from headrace.storage.log_dirs import METADATA_PARTITION
from testkit.simulator.cluster.machines import Machines
from testkit.simulator.machine import DATA, Machine

READ_BYTES = 1 << 24
VOTE_PATH = f"{DATA}/{METADATA_PARTITION}/{FILE_NAME}"

Batch = tuple[int, int, int]  # last offset, leader epoch and checksum of a batch


class QuorumInvariants:
    """Remembers what was seen, and raises AssertionError at the first contradiction."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._majority = len(machines.all) // 2 + 1
        self._leaders: dict[int, str] = {}  # host by epoch
        self._committed: dict[int, Batch] = {}  # committed batches by their base offset
        self._compared: dict[tuple[str, int], int] = {}  # end of what was compared, by host and boot
        self._violation: str | None = None  # found while a node ran, which must not see the exception

    def check(self, machine: Machine) -> None:
        assert self._violation is None, self._violation
        if machine.node is None or machine.node.controller is None:
            return
        host, driver = machine.host, machine.node.controller.driver
        if (host, machine.boots) not in self._compared:
            driver.on_committed(partial(self._on_committed, host, driver))
            driver.on_role(partial(self._on_role, host, driver))
        self._check_metadata(host, machine.boots, driver)
        if not driver.is_leader:
            return
        epoch = driver.raft.epoch
        if epoch not in self._leaders:
            self._check_complete(host, driver)
        first = self._leaders.setdefault(epoch, host)
        assert first == host, f"{first} and {host} both lead the metadata quorum in epoch {epoch}"

    # --- on disk before it counts

    def _on_committed(self, host: str, driver: QuorumDriver, high_watermark: int) -> None:
        """Note a violation if a leader commits what a majority of the voters does not have on disk."""
        if not driver.is_leader:
            return
        lacking = [
            machine.host for machine in self._machines.all if _durable_end(machine, high_watermark) < high_watermark
        ]
        if len(self._machines.all) - len(lacking) < self._majority:
            self._violation = f"{host} commits metadata up to {high_watermark}, which is not on the disks of {lacking}"

    def _on_role(self, host: str, driver: QuorumDriver) -> None:
        """Note a violation if a leader was elected by votes that are not on disk."""
        if not driver.is_leader:
            return
        epoch, candidate = driver.raft.epoch, driver.raft.key.id
        voted = [machine.host for machine in self._machines.all if _has_voted(machine, epoch, candidate)]
        if len(voted) < self._majority:
            self._violation = (
                f"{host} leads the metadata quorum in epoch {epoch} with the votes on the disks of {voted}"
            )

    # --- equal on all voters

    def _check_metadata(self, host: str, boot: int, driver: QuorumDriver) -> None:
        """Compare what a voter has committed since the last look with what others have committed."""
        position = self._compared.get((host, boot), 0)
        for base, batch in _batches(driver, position, driver.high_watermark):
            known = self._committed.setdefault(base, batch)
            assert known == batch, f"{host} has committed other metadata at offset {base}: {batch}, not {known}"
        self._compared[(host, boot)] = driver.high_watermark

    def _check_complete(self, host: str, driver: QuorumDriver) -> None:
        """Check that a new leader of the quorum has everything that was ever committed."""
        start = driver.log.log.log_start
        wanted = {base: batch for base, batch in self._committed.items() if base >= start}
        found = dict(_batches(driver, start, driver.log.end_offset))
        missing = [base for base, batch in wanted.items() if found.get(base) != batch]
        assert not missing, f"{host} leads the metadata quorum without the committed record at offset {missing[0]}"


def _durable_end(machine: Machine, unknown: int) -> int:
    """Return the end of what a voter has on disk, `unknown` while its node is down."""
    if machine.node is None or machine.node.controller is None:
        return unknown
    return machine.node.controller.driver.log.log.recovery_point


def _has_voted(machine: Machine, epoch: int, candidate: int) -> bool:
    """Return whether a voter's disk has its vote for this candidate, or a later epoch."""
    raw = machine.files.synced(VOTE_PATH)
    if raw is None:
        return False
    stored: dict[str, int] = json.loads(raw)
    return stored["leaderEpoch"] > epoch or (stored["leaderEpoch"] == epoch and stored["votedId"] == candidate)


def _batches(driver: QuorumDriver, start: int, end: int) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of the metadata log in this range, as far as a snapshot has not replaced them."""
    position = max(start, driver.log.log.log_start)
    while position < end:
        piece = driver.log.read_bytes(position, end, READ_BYTES)
        assert piece, f"the metadata log has nothing at offset {position}, below {end}"
        for _, header in iterate_batches(piece):
            yield header.base_offset, (header.last_offset, header.leader_epoch, header.crc)
            position = header.last_offset + 1
