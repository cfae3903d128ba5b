"""Changes of a partition's leader and in-sync replicas: the rules of elections and of eligible leader replicas, without I/O.

With ELR (KIP-966) a replica that leaves the ISR while the ISR is below min.insync.replicas stays eligible: the high watermark does not
advance from then on, so the replica has every acknowledged record. It may lead if the ISR is empty. An unclean restart, after which a
replica may lack records that it acknowledged, takes it out of both sets. If both are empty, the last leader is elected.
Without ELR the last member of the ISR stays in it, active or not. An unclean election takes any active replica.

Every decision states the ISR that it wants, and `change_partition` derives the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum, auto

from msgspec import Struct

from headrace.base.ids import NO_NODE, Uuid
from headrace.metadata.image import RECOVERED, RECOVERING, Partition
from headrace.metadata.state import LEADER_UNCHANGED
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord

NO_RECOVERY_CHANGE = -1


class Rules(Struct, frozen=True):
    """The rules for elections of one partition."""

    min_isr: int
    elr: bool  # whether the cluster has eligible leader replicas
    unclean: bool  # whether this topic prefers losing records to being unavailable
    is_active: Callable[[int], bool]
    bump_on_shrink: bool = (
        False  # whether the leader epoch increases when the ISR shrinks, before metadata.version 3.6-IV0
    )


class Election(Enum):
    """What an election may do if the leader can stay."""

    ONLINE = auto()  # keep the leader
    PREFERRED = auto()  # return leadership to the first replica


class Elected(Struct, frozen=True):
    leader: int  # NO_NODE if there is no candidate
    unclean: bool = False


def change_partition(
    topic_id: Uuid,
    index: int,
    old: Partition,
    rules: Rules,
    *,
    isr: Iterable[int] | None = None,
    unclean_shutdown: Collection[int] = (),
    election: Election = Election.ONLINE,
    recovery_state: int = NO_RECOVERY_CHANGE,
) -> PartitionChangeRecord | None:
    """Return the change that makes `isr` the in-sync replicas and elects a leader if one is needed, or None if nothing changes.

    Replicas of `unclean_shutdown` may lack records, so they do not become eligible.
    """
    target_isr = list(old.isr if isr is None else isr)
    target_elr = _eligible(old, target_isr, rules, unclean_shutdown)
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    elected = _elect(old, target_isr, target_elr, rules, election)
    if elected.leader != old.leader:
        change.leader = elected.leader
        if elected.unclean:
            target_isr, target_elr = [elected.leader], []
            if old.leader_recovery_state == RECOVERED:
                change.leader_recovery_state = RECOVERING
        elif elected.leader in target_elr:
            target_isr = [elected.leader]
            target_elr = [replica for replica in target_elr if replica != elected.leader]
            if _is_enough(target_isr, old, rules):
                target_elr = []
    if target_isr != list(old.isr) and (target_isr or rules.elr):
        change.isr = target_isr
    if target_elr != list(old.elr):
        change.eligible_leader_replicas = target_elr
    shrinks = change.isr is not None and not set(old.isr) <= set(change.isr)
    if rules.bump_on_shrink and shrinks and change.leader == LEADER_UNCHANGED:
        change.leader = old.leader
    _keep_last_leader(change, old, rules)
    if recovery_state not in (NO_RECOVERY_CHANGE, old.leader_recovery_state) and not elected.unclean:
        change.leader_recovery_state = recovery_state
    return None if change == PartitionChangeRecord(partition_id=index, topic_id=topic_id) else change


def _eligible(old: Partition, isr: Sequence[int], rules: Rules, unclean_shutdown: Collection[int]) -> list[int]:
    """Return the replicas outside the ISR that have all acknowledged records: none while the ISR is large enough."""
    if not rules.elr or _is_enough(isr, old, rules):
        return []
    candidates = dict.fromkeys([*old.elr, *old.isr])
    return [replica for replica in candidates if replica not in isr and replica not in unclean_shutdown]


def _is_enough(isr: Sequence[int], old: Partition, rules: Rules) -> bool:
    return len(isr) >= min(rules.min_isr, len(old.replicas))


def _elect(old: Partition, isr: Sequence[int], elr: Sequence[int], rules: Rules, election: Election) -> Elected:
    candidates = [replica for replica in (isr or elr) if rules.is_active(replica)]
    in_order = [replica for replica in old.replicas if replica in candidates]
    if election is Election.PREFERRED and old.replicas[0] in candidates:
        return Elected(old.replicas[0])
    if old.leader in candidates:
        return Elected(old.leader)
    if in_order:
        return Elected(in_order[0])
    if rules.elr and not isr and not elr and len(old.last_known_elr) == 1 and rules.is_active(old.last_known_elr[0]):
        return Elected(old.last_known_elr[0], unclean=True)
    if rules.unclean:
        active = next((replica for replica in old.replicas if rules.is_active(replica)), None)
        if active is not None:
            return Elected(active, unclean=True)
    return Elected(NO_NODE)


def _keep_last_leader(change: PartitionChangeRecord, old: Partition, rules: Rules) -> None:
    """Record the leader of a partition that loses its last in-sync replica, and forget it once there is a leader."""
    if not rules.elr:
        return
    leader = old.leader if change.leader == LEADER_UNCHANGED else change.leader
    if leader != NO_NODE:
        if old.last_known_elr:
            change.last_known_elr = []
    elif old.has_leader and old.last_known_elr != (old.leader,):
        change.last_known_elr = [old.leader]


def without_broker(
    topic_id: Uuid, index: int, old: Partition, broker: int, rules: Rules, *, unclean_shutdown: bool = False
) -> PartitionChangeRecord | None:
    """Return the change for a broker that is fenced, shuts down or has restarted; `rules` must not take it for active."""
    return change_partition(
        topic_id,
        index,
        old,
        rules,
        isr=[replica for replica in old.isr if replica != broker],
        unclean_shutdown=(broker,) if unclean_shutdown else (),
    )


def with_broker(topic_id: Uuid, index: int, old: Partition, rules: Rules) -> PartitionChangeRecord | None:
    """Return the change after a broker became active, or None if there is a leader already or still none."""
    return None if old.has_leader else _only_if_elected(change_partition(topic_id, index, old, rules))


def preferred(topic_id: Uuid, index: int, old: Partition, rules: Rules) -> PartitionChangeRecord | None:
    """Return the change that makes the first replica the leader, or None if it is not eligible or not active.

    A partition without a leader takes the next best replica.
    """
    return _only_if_elected(change_partition(topic_id, index, old, rules, election=Election.PREFERRED))


def unclean(topic_id: Uuid, index: int, old: Partition, rules: Rules) -> PartitionChangeRecord | None:
    """Return the change that elects any active replica, preferring eligible ones, or None if no replica is active."""
    any_replica = Rules(rules.min_isr, rules.elr, True, rules.is_active, rules.bump_on_shrink)
    return _only_if_elected(change_partition(topic_id, index, old, any_replica))


def _only_if_elected(change: PartitionChangeRecord | None) -> PartitionChangeRecord | None:
    return None if change is None or change.leader < 0 else change
