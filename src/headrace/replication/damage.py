"""Damaged replicas: how one is found, when it is given up, and when a new copy may replace it.

A broker sends its log without looking at it. A follower or consumer that is sent records and asks for the same offset again may have
found them corrupt, so the broker checks them. A damaged replica is given up if another live one is in sync: the controller elects that
one, and this broker deletes its copy and makes a new one. The only copy is never given up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.base.errors import CorruptData, KafkaError
from headrace.metadata.image import LOST
from headrace.metadata.image import Partition as PartitionState
from headrace.metadata.records import DIRECTORIES_LEVEL
from headrace.metadata.state import METADATA_VERSION
from headrace.records.batch import HEADER_BYTES, CorruptBatch
from headrace.records.legacy import check_any_crc, read_any_header
from headrace.replication.partition import Partition
from headrace.storage.file_range import FileRange

if TYPE_CHECKING:
    from headrace.replication.replicas import Replicas

log = logging.getLogger(__name__)

EXAMINED_BYTES = 1 << 20  # of the log from the suspicious offset on
EXAMINATIONS_MAX = 4  # at a time; further suspicions wait until the client asks once more
EXAMINATION_PAUSE_S = 5.0  # between two examinations of one partition


class DamagedReplicas:
    def __init__(self, replicas: Replicas, loop: asyncio.AbstractEventLoop) -> None:
        self._replicas = replicas
        self._loop = loop
        self._examined: set[Partition] = set()
        self._reported: set[Partition] = set()  # damaged, but the only copy

    # --- finding damage

    def suspect(self, partition: Partition, offset: int) -> None:
        """Examine, in a thread, the records that a client was sent at `offset` and asks for again."""
        now = self._loop.time()
        if partition in self._examined or len(self._examined) >= EXAMINATIONS_MAX or now < partition.examined_again_s:
            return
        partition.examined_again_s = now + EXAMINATION_PAUSE_S
        try:
            found = partition.log.read(offset, EXAMINED_BYTES).range
        except CorruptData as error:
            self.report(partition, error)
            return
        except (OSError, KafkaError):
            return  # the client gets this error as well
        self._examined.add(partition)
        examining = self._loop.run_in_executor(None, find_damage, found)
        examining.add_done_callback(lambda done: self._examined_one(partition, done))

    def _examined_one(self, partition: Partition, done: asyncio.Future[CorruptData | None]) -> None:
        self._examined.discard(partition)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:  # such as a segment that was deleted meanwhile
            log.info("%s could not be examined: %s", partition.name, error)
            return
        damage = done.result()
        if damage is not None:
            self.report(partition, damage)

    # --- giving up

    def report(self, partition: Partition, damage: CorruptData) -> None:
        """Give a damaged replica up; the only copy is served as far as it can be read."""
        replicas = self._replicas
        if partition.offline is not None or not replicas.holds(partition) or partition.name in replicas.moving:
            return
        if not self._may_give_up(partition):
            if partition not in self._reported:  # logged once, not for each request
                self._reported = {one for one in self._reported if replicas.holds(one)} | {partition}
                log.error(
                    "%s is damaged on this broker (%s: %s), and no other replica is in sync; it is served as far as it can be read. "
                    "Check the disk, and start the brokers of the other replicas",
                    partition.name,
                    partition.log.directory,
                    damage,
                )
            return
        log.error(
            "%s is damaged on this broker (%s: %s); leaving it to the in-sync replicas on %s and copying it from there. Check the disk",
            partition.name,
            partition.log.directory,
            damage,
            ", ".join(f"broker {replica}" for replica in partition.isr if replica != partition.node_id),
        )
        replicas.give_up(partition, "its log is damaged, and another replica takes its place")

    def _may_give_up(self, partition: Partition) -> bool:
        """Return whether another live replica is in sync, so that nothing is lost without this one."""
        live = partition.port.live_brokers()
        can_report = self._replicas.image.features.get(METADATA_VERSION, 0) >= DIRECTORIES_LEVEL
        return can_report and any(replica != partition.node_id and replica in live for replica in partition.isr)

    @staticmethod
    def may_replace(partition: Partition, assigned: PartitionState) -> bool:
        """Return whether a replica that was given up may be deleted and copied anew.

        Another broker must lead, and this replica must not be a candidate: it lacks records until it has been copied.
        """
        node_id = partition.node_id
        is_candidate = node_id in (*assigned.isr, *assigned.elr) or not assigned.has_leader
        if is_candidate or assigned.directory(node_id) != LOST:
            return False
        log.warning("%s: deleting the damaged replica and copying it from broker %d", partition.name, assigned.leader)
        return True


def find_damage(found: FileRange) -> CorruptData | None:
    """Return why the batches of a range are damaged, or None; one that the byte limit has cut off is not examined."""
    data, position, next_offset = found.read(), 0, 0
    is_limited = len(data) >= EXAMINED_BYTES
    while position < len(data):
        try:
            header = read_any_header(data, position)
            if position + header.size > len(data):
                if position > 0 and is_limited:
                    return None
                raise CorruptBatch(f"batch at offset {header.base_offset} is cut off")
            check_any_crc(data, position, header)
            if header.base_offset < next_offset:
                raise CorruptBatch(f"batch at offset {header.base_offset} follows offset {next_offset - 1}")
        except CorruptData as error:
            is_cut_header = position > 0 and is_limited and len(data) - position < HEADER_BYTES
            return None if is_cut_header else error
        position, next_offset = position + header.size, header.next_offset
    return None
