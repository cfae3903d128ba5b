"""Moves leadership and ISR membership when brokers come and go, and back to preferred replicas from time to time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from headrace.base.ids import Uuid
from headrace.controller import elections
from headrace.controller.context import ControllerContext, Tx
from headrace.controller.partition_index import PartitionKey
from headrace.metadata.image import UNASSIGNED, Partition
from headrace.metadata.records import DIRECTORIES_LEVEL, NO_BUMP_LEVEL

REBALANCE = "leader-rebalance"
REBALANCED_AT_ONCE = 1_000  # elections of one decision
REBALANCE_PAUSE_MS = 100  # until the next decision, if there are more


def is_active(context: ControllerContext, broker_id: int) -> bool:
    broker = context.state.brokers.get(broker_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def has_directory(context: ControllerContext, partition: Partition, broker_id: int) -> bool:
    """Return whether the replica's directory is one of its broker's; an unknown directory counts as present."""
    broker = context.state.brokers.get(broker_id)
    return broker is None or broker.serves(partition.directory(broker_id))


def election_rules(
    context: ControllerContext, topic_id: Uuid, partition: Partition, without: int | None = None
) -> elections.Rules:
    return elections.Rules(
        min_isr=context.min_isr(topic_id),
        elr=context.elr_enabled,
        unclean=context.unclean_election(topic_id),
        is_active=lambda replica: (
            replica != without and is_active(context, replica) and has_directory(context, partition, replica)
        ),
        new_directory=partial(new_directory, context) if context.metadata_version >= DIRECTORIES_LEVEL else None,
        bump_on_shrink=context.metadata_version < NO_BUMP_LEVEL,
    )


def new_directory(context: ControllerContext, broker_id: int) -> Uuid:
    """Return the directory of a broker that has only one; otherwise UNASSIGNED, so that the broker chooses."""
    broker = context.state.brokers.get(broker_id)
    if broker is not None and len(broker.log_dirs) == 1:
        return broker.log_dirs[0]
    return UNASSIGNED


def has_leaderships(context: ControllerContext, broker_id: int) -> bool:
    return any(partition.leader == broker_id for _, partition in context.partitions_on(broker_id))


def move_away(
    context: ControllerContext,
    broker_id: int,
    tx: Tx,
    *,
    directories: set[Uuid] | None = None,
    unclean_shutdown: bool = False,
) -> None:
    """Remove a broker from leadership and ISR of all its partitions, or only of those in `directories`.

    After an unclean shutdown the broker is not an eligible leader either.
    """
    for (topic_id, index), partition in context.partitions_on(broker_id):
        if directories is not None and partition.directory(broker_id) not in directories:
            continue
        takes_part = broker_id in partition.isr or partition.leader == broker_id
        if takes_part or (unclean_shutdown and broker_id in partition.elr):
            rules = election_rules(context, topic_id, partition, without=broker_id)
            change = elections.without_broker(
                topic_id, index, partition, broker_id, rules, unclean_shutdown=unclean_shutdown
            )
            if change is not None:
                tx.emit(change)


def move_in(context: ControllerContext, broker_id: int, tx: Tx) -> None:
    """Elect leaders for those partitions of a newly active broker that have none."""
    for (topic_id, index), partition in context.partitions_on(broker_id):
        if not partition.has_leader:
            change = elections.with_broker(topic_id, index, partition, election_rules(context, topic_id, partition))
            if change is not None:
                tx.emit(change)


def schedule_rebalance(context: ControllerContext, now_ms: int, tx: Tx) -> None:
    interval_ms = context.rebalance_interval_ms
    if interval_ms is not None:
        tx.arm((REBALANCE,), now_ms + interval_ms)


def rebalance(context: ControllerContext, now_ms: int, tx: Tx) -> None:
    """Return leadership to preferred replicas that are in sync, a limited number at a time."""
    elected = 0
    for (topic_id, index), partition in _imbalanced(context):
        if elected == REBALANCED_AT_ONCE:
            tx.arm((REBALANCE,), now_ms + REBALANCE_PAUSE_MS)
            return
        change = elections.preferred(topic_id, index, partition, election_rules(context, topic_id, partition))
        if change is not None and change.leader == partition.replicas[0]:
            tx.emit(change)
            elected += 1
    schedule_rebalance(context, now_ms, tx)


def _imbalanced(context: ControllerContext) -> Iterable[tuple[PartitionKey, Partition]]:
    if len(context.state.brokers) < 2:
        return ()
    return (
        (key, partition)
        for key, partition in context.partitions()
        if partition.leader != partition.replicas[0] and is_active(context, partition.replicas[0])
    )
