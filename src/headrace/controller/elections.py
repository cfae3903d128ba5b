"""Who leads a partition when brokers come and go.

A replica that left the ISR while it shrank below min.insync.replicas stays eligible (ELR, KIP-966): the high watermark stood
still from then on, so it holds everything that was acknowledged. If even that set is empty, the last known leader is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.base.ids import NO_NODE, Uuid
from headrace.metadata.image import Partition
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord


def without_broker(
    topic_id: Uuid, index: int, old: Partition, broker: int, *, min_isr: int, is_active: Callable[[int], bool]
) -> PartitionChangeRecord | None:
    """The change when a broker is fenced or shuts down; None if it does not touch this partition."""
    if broker not in old.isr and old.leader != broker:
        return None
    isr = [replica for replica in old.isr if replica != broker]
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    if isr != list(old.isr):
        change.isr = isr
    elr = list(old.elr)
    if len(isr) < min(min_isr, len(old.replicas)):
        elr = [*elr, *(replica for replica in old.isr if replica == broker and replica not in elr)]
    if elr != list(old.elr):
        change.eligible_leader_replicas = elr
    if old.leader == broker:
        leader = _first(old.replicas, is_active, isr, elr)
        change.leader = NO_NODE if leader is None else leader
        if leader is None:
            change.last_known_elr = [broker]
    return change


def with_broker(
    topic_id: Uuid, index: int, old: Partition, *, min_isr: int, is_active: Callable[[int], bool]
) -> PartitionChangeRecord | None:
    """The change when a broker becomes active; only a partition without a leader wants one."""
    if old.has_leader:
        return None
    leader = _first(old.replicas, is_active, old.isr, old.elr)
    if leader is None and not old.isr and not old.elr and len(old.last_known_elr) == 1:
        leader = _first(old.replicas, is_active, old.last_known_elr)
    if leader is None:
        return None
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=leader)
    isr = list(old.isr)
    if leader not in isr:
        isr.append(leader)
        change.isr = isr
    elr = [] if len(isr) >= min(min_isr, len(old.replicas)) else [replica for replica in old.elr if replica not in isr]
    if elr != list(old.elr):
        change.eligible_leader_replicas = elr
    if old.last_known_elr:
        change.last_known_elr = []
    return change


def _first(replicas: tuple[int, ...], is_active: Callable[[int], bool], *candidates: Sequence[int]) -> int | None:
    """The first active replica, in the order of preference, from the first set that has one."""
    for allowed in candidates:
        for replica in replicas:
            if replica in allowed and is_active(replica):
                return replica
    return None
