"""AlterPartition: the leader of a partition proposes new in-sync replicas, and the controller checks that it still leads.

Each partition succeeds or fails by itself. The response has the new state, which the leader may not have seen in the metadata log yet.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller import elections, leadership
from headrace.controller.brokers import check_epoch
from headrace.controller.context import ControllerContext, Tx
from headrace.metadata.image import RECOVERED, RECOVERING, Partition
from headrace.metadata.state import LEADER_UNCHANGED
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

Proposed = AlterPartitionRequest.PartitionData
Result = AlterPartitionResponse.PartitionData

NO_EPOCH = -1  # a version 2 request, or a leader that does not know the epoch of a follower


def alter(context: ControllerContext, request: AlterPartitionRequest, now_ms: int, tx: Tx) -> None:
    check_epoch(context, request.broker_id, request.broker_epoch)
    response = AlterPartitionResponse()
    for topic in request.topics:
        topic_id = Uuid(topic.topic_id)
        results = [_result(context, request.broker_id, topic_id, proposed, tx) for proposed in topic.partitions]
        response.topics.append(AlterPartitionResponse.TopicData(topic_id=topic_id, partitions=results))
    tx.reply(tx.ticket, response)


def _result(context: ControllerContext, broker_id: int, topic_id: Uuid, proposed: Proposed, tx: Tx) -> Result:
    index = proposed.partition_index
    try:
        _alter_one(context, broker_id, topic_id, proposed, tx)
    except KafkaError as error:
        return Result(partition_index=index, error_code=error.code)
    new = context.state.partitions[(topic_id, index)]
    return Result(
        partition_index=index,
        leader_id=new.leader,
        leader_epoch=new.leader_epoch,
        isr=list(new.isr),
        leader_recovery_state=new.leader_recovery_state,
        partition_epoch=new.partition_epoch,
    )


def _alter_one(context: ControllerContext, broker_id: int, topic_id: Uuid, proposed: Proposed, tx: Tx) -> None:
    if topic_id not in context.state.topic_names:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    old = context.state.partitions.get((topic_id, proposed.partition_index))
    if old is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    _check_leader(old, broker_id, proposed)
    members = _members(proposed)
    _check_isr(old, broker_id, proposed, list(members))
    _check_eligible(context, old, members.items())
    change = elections.change_partition(
        topic_id,
        proposed.partition_index,
        old,
        leadership.election_rules(context, topic_id, old),
        isr=members,
        recovery_state=proposed.leader_recovery_state,
    )
    if change is not None:
        tx.emit(change)
        if change.leader not in (LEADER_UNCHANGED, broker_id):
            raise KafkaError(ErrorCode.NEW_LEADER_ELECTED)  # the proposal completed a reassignment to other replicas


def _members(proposed: Proposed) -> dict[int, int]:
    """Return the proposed in-sync replicas with their broker epochs. Raise KafkaError if one is named twice."""
    states = [(state.broker_id, state.broker_epoch) for state in proposed.new_isr_with_epochs]
    states = states or [(broker_id, NO_EPOCH) for broker_id in proposed.new_isr]
    members = dict(states)
    if len(members) != len(states):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return members


def _check_leader(old: Partition, broker_id: int, proposed: Proposed) -> None:
    """Raise KafkaError unless the sender is the leader and knows the newest state of the partition."""
    if proposed.leader_epoch > old.leader_epoch or proposed.partition_epoch > old.partition_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)  # the sender has seen a newer controller
    if proposed.leader_epoch < old.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if broker_id != old.leader:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if proposed.partition_epoch < old.partition_epoch:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION)


def _check_isr(old: Partition, broker_id: int, proposed: Proposed, isr: list[int]) -> None:
    if not set(isr) <= set(old.replicas) or broker_id not in isr:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if proposed.leader_recovery_state not in (RECOVERED, RECOVERING):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    # Only an unclean election starts a recovery, and until it is over no follower is in sync with the leader.
    if proposed.leader_recovery_state == RECOVERING and (old.leader_recovery_state == RECOVERED or len(isr) > 1):
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def _check_eligible(context: ControllerContext, old: Partition, members: Iterable[tuple[int, int]]) -> None:
    """Raise KafkaError if a member is not active, has restarted since it caught up, or has lost its directory (KIP-841, KIP-903)."""
    for broker_id, epoch in members:
        broker = context.state.brokers.get(broker_id)
        if (
            broker is None
            or not leadership.is_active(context, broker_id)
            or epoch not in (NO_EPOCH, broker.epoch)
            or not leadership.has_directory(context, old, broker_id)
        ):
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA)
