"""Leader elections of partitions, when brokers become active or inactive and on request.

With ELR (KIP-966) a replica that leaves the ISR while the ISR shrinks below min.insync.replicas stays eligible: the high watermark does
not advance from then on, so the replica has every acknowledged record. If that set is empty too, the last known leader is elected.
Without ELR the last member of the ISR stays in it, active or not. An unclean election takes any active replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.base.ids import NO_NODE, Uuid
from headrace.metadata.image import RECOVERED, RECOVERING, Partition
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord


class Rules(Struct, frozen=True):
    """The rules for elections of one partition."""

    min_isr: int
    elr: bool  # whether the cluster has eligible leader replicas
    unclean: bool  # whether this topic prefers losing records to being unavailable
    is_active: Callable[[int], bool]


def without_broker(
    topic_id: Uuid, index: int, old: Partition, broker: int, rules: Rules
) -> PartitionChangeRecord | None:
    """Return the change for a broker that is fenced or shuts down, or None if the partition is not affected."""
    if broker not in old.isr and old.leader != broker:
        return None
    isr = [replica for replica in old.isr if replica != broker]
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    elr = list(old.elr)
    if rules.elr and len(isr) < min(rules.min_isr, len(old.replicas)):
        elr = [*elr, *(replica for replica in old.isr if replica == broker and replica not in elr)]
    if old.leader == broker:
        leader = _first(old.replicas, rules.is_active, isr, elr)
        if leader is None and rules.unclean:
            leader = _first(old.replicas, rules.is_active, old.replicas)
            if leader is not None:
                return _unclean(change, old, leader)
        change.leader = NO_NODE if leader is None else leader
        if leader is None and rules.elr:
            change.last_known_elr = [broker]
    if isr != list(old.isr) and (isr or rules.elr):
        change.isr = isr
    if elr != list(old.elr):
        change.eligible_leader_replicas = elr
    return change


def with_broker(topic_id: Uuid, index: int, old: Partition, rules: Rules) -> PartitionChangeRecord | None:
    """Return the change after a broker became active, or None if there is a leader already or still none."""
    if old.has_leader:
        return None
    return _elect(PartitionChangeRecord(partition_id=index, topic_id=topic_id), old, rules)


def preferred(topic_id: Uuid, index: int, old: Partition, rules: Rules) -> PartitionChangeRecord | None:
    """Return the change that makes the first replica the leader, or None if it is not eligible or not active."""
    leader = old.replicas[0]
    if leader not in (*old.isr, *old.elr) or not rules.is_active(leader):
        # A partition without a leader takes the next best replica.
        return with_broker(topic_id, index, old, rules)
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=leader)
    return _joined(change, old, leader, rules)


def unclean(topic_id: Uuid, index: int, old: Partition, rules: Rules) -> PartitionChangeRecord | None:
    """Return the change that elects any active replica, preferring eligible ones, or None if no replica is active."""
    return _elect(
        PartitionChangeRecord(partition_id=index, topic_id=topic_id),
        old,
        Rules(rules.min_isr, rules.elr, True, rules.is_active),
    )


def _elect(change: PartitionChangeRecord, old: Partition, rules: Rules) -> PartitionChangeRecord | None:
    leader = _first(old.replicas, rules.is_active, old.isr, old.elr)
    if leader is None and not old.isr and not old.elr and len(old.last_known_elr) == 1:
        leader = _first(old.replicas, rules.is_active, old.last_known_elr)
    if leader is None and rules.unclean:
        leader = _first(old.replicas, rules.is_active, old.replicas)
        return None if leader is None else _unclean(change, old, leader)
    if leader is None:
        return None
    change.leader = leader
    return _joined(change, old, leader, rules)


def _joined(change: PartitionChangeRecord, old: Partition, leader: int, rules: Rules) -> PartitionChangeRecord:
    isr = list(old.isr)
    if leader not in isr:
        isr.append(leader)
        change.isr = isr
    enough = len(isr) >= min(rules.min_isr, len(old.replicas))
    elr = [] if enough else [replica for replica in old.elr if replica not in isr]
    if elr != list(old.elr):
        change.eligible_leader_replicas = elr
    if old.last_known_elr:
        change.last_known_elr = []
    return change


def _unclean(change: PartitionChangeRecord, old: Partition, leader: int) -> PartitionChangeRecord:
    """Make `leader` the only in-sync replica and mark it as recovering, because the others may have records that it lacks."""
    change.leader = leader
    change.isr = [leader]
    if old.elr:
        change.eligible_leader_replicas = []
    if old.last_known_elr:
        change.last_known_elr = []
    if old.leader_recovery_state == RECOVERED:
        change.leader_recovery_state = RECOVERING
    return change


def _first(replicas: tuple[int, ...], is_active: Callable[[int], bool], *candidates: Sequence[int]) -> int | None:
    """Return the first active replica, in the order of `replicas`, from the first set of candidates that has one."""
    for allowed in candidates:
        for replica in replicas:
            if replica in allowed and is_active(replica):
                return replica
    return None
