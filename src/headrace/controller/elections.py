"""Changes of a partition's leader and in-sync replicas: the rules of elections and of eligible leader replicas, without I/O.

With ELR (KIP-966) a replica that leaves the ISR while the ISR is below min.insync.replicas stays eligible: the high watermark does not
advance from then on, so the replica has every acknowledged record. It may lead if the ISR is empty. An unclean restart, after which a
replica may lack records that it acknowledged, takes it out of both sets. If both are empty, the last leader is elected.
Without ELR the last member of the ISR stays in it, active or not. An unclean election takes any active replica.

Every decision states the ISR and the assignment that it wants, and `change_partition` derives the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

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
    # Returns the directory of a new replica on a broker; None if the cluster does not know directories.
    new_directory: Callable[[int], Uuid] | None = None
    bump_on_shrink: bool = False  # whether the leader epoch increases when the ISR shrinks: before 3.6-IV0


class Election(Enum):
    """What an election may do if the leader can stay."""

    ONLINE = auto()  # keep the leader
    PREFERRED = auto()  # return leadership to the first replica


class Assignment(Struct, frozen=True):
    """The replicas of a partition. While it is being reassigned, they include those that are added and those that will be removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @classmethod
    def of(cls, partition: Partition) -> Assignment:
        return cls(partition.replicas, partition.adding_replicas, partition.removing_replicas)

    def completed(self, isr: Sequence[int]) -> Assignment:
        """Return the assignment without the replicas to be removed if all that are added are in sync, otherwise this one."""
        remaining = [replica for replica in isr if replica not in self.removing]
        if not remaining or not set(self.adding) <= set(remaining):
            return self
        return Assignment(tuple(replica for replica in self.replicas if replica not in self.removing))


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
    assignment: Assignment | None = None,
    unclean_shutdown: Collection[int] = (),
    election: Election = Election.ONLINE,
    recovery_state: int = NO_RECOVERY_CHANGE,
) -> PartitionChangeRecord | None:
    """Return the change to these in-sync replicas and this assignment, or None if nothing changes.

    A leader is elected if one is needed, and a reassignment ends when the added replicas are in sync. Replicas of `unclean_shutdown`
    may lack records, so they do not become eligible.
    """
    target_isr = list(old.isr if isr is None else isr)
    assigned = (assignment or Assignment.of(old)).completed(target_isr)
    target_isr = [replica for replica in target_isr if replica in assigned.replicas]
    target_elr = _eligible(old, target_isr, assigned, rules, unclean_shutdown)
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    elected = _elect(old, target_isr, target_elr, assigned, rules, election)
    if elected.leader != old.leader:
        change.leader = elected.leader
        if elected.unclean:
            target_isr, target_elr = [elected.leader], []
            if old.leader_recovery_state == RECOVERED:
                change.leader_recovery_state = RECOVERING
        elif elected.leader in target_elr:
            target_isr = [elected.leader]
            target_elr = [replica for replica in target_elr if replica != elected.leader]
            if _is_enough(target_isr, assigned, rules):
                target_elr = []
    if target_isr != list(old.isr) and (target_isr or rules.elr):
        change.isr = target_isr
    if target_elr != list(old.elr):
        change.eligible_leader_replicas = target_elr
    shrinks = change.isr is not None and not set(old.isr) <= set(change.isr)
    loses_replicas = not set(old.replicas) <= set(assigned.replicas)
    if change.leader == LEADER_UNCHANGED and (loses_replicas or (rules.bump_on_shrink and shrinks)):
        change.leader = old.leader  # naming the same leader again increases its epoch
    _keep_last_leader(change, old, rules)
    _assign(change, old, assigned, rules)
    if recovery_state not in (NO_RECOVERY_CHANGE, old.leader_recovery_state) and not elected.unclean:
        change.leader_recovery_state = recovery_state
    return None if change == PartitionChangeRecord(partition_id=index, topic_id=topic_id) else change


def _eligible(
    old: Partition, isr: Sequence[int], assigned: Assignment, rules: Rules, unclean_shutdown: Collection[int]
) -> list[int]:
    """Return the replicas outside the ISR that have all acknowledged records: none while the ISR is large enough."""
    if not rules.elr or _is_enough(isr, assigned, rules):
        return []
    return [
        replica
        for replica in dict.fromkeys([*old.elr, *old.isr])
        if replica not in isr and replica in assigned.replicas and replica not in unclean_shutdown
    ]


def _is_enough(isr: Sequence[int], assigned: Assignment, rules: Rules) -> bool:
    return len(isr) >= min(rules.min_isr, len(assigned.replicas))


def _elect(
    old: Partition,
    isr: Sequence[int],
    elr: Sequence[int],
    assigned: Assignment,
    rules: Rules,
    election: Election,
) -> Elected:
    candidates = [replica for replica in assigned.replicas if replica in (isr or elr) and rules.is_active(replica)]
    if election is Election.PREFERRED and assigned.replicas[0] in candidates:
        return Elected(assigned.replicas[0])
    if old.leader in candidates:
        return Elected(old.leader)
    if candidates:
        return Elected(candidates[0])
    last = old.last_known_elr
    if (
        rules.elr
        and not isr
        and not elr
        and len(last) == 1
        and last[0] in assigned.replicas
        and rules.is_active(last[0])
    ):
        return Elected(last[0], unclean=True)
    if rules.unclean:
        active = next((replica for replica in assigned.replicas if rules.is_active(replica)), None)
        if active is not None:
            return Elected(active, unclean=True)
    return Elected(NO_NODE)


def _assign(change: PartitionChangeRecord, old: Partition, assigned: Assignment, rules: Rules) -> None:
    """Record the new assignment; each replica that stays keeps its directory."""
    if assigned.replicas != old.replicas:
        change.replicas = list(assigned.replicas)
        if rules.new_directory is not None:
            change.directories = [
                old.directory(replica) or rules.new_directory(replica) for replica in assigned.replicas
            ]
    if assigned.adding != old.adding_replicas:
        change.adding_replicas = list(assigned.adding)
    if assigned.removing != old.removing_replicas:
        change.removing_replicas = list(assigned.removing)


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
    any_replica = replace(rules, unclean=True)
    return _only_if_elected(change_partition(topic_id, index, old, any_replica))


def _only_if_elected(change: PartitionChangeRecord | None) -> PartitionChangeRecord | None:
    return None if change is None or change.leader < 0 else change
