"""The controller as a state machine: each request type has one decision, each record one effect (metadata.state)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller import (
    acls,
    alter_partition,
    brokers,
    configs,
    controllers,
    credentials,
    directories,
    fast_fencing,
    features,
    leadership,
    partitions,
    producer_ids,
    reassignments,
    topics,
)
from headrace.controller.context import ControllerContext, Tx
from headrace.metadata.state import replay
from headrace.metadata.transactions import TransactionBuffer
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.alter_configs import AlterConfigsRequest
from headrace.protocol.messages.alter_partition import AlterPartitionRequest
from headrace.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from headrace.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.controller_registration import ControllerRegistrationRequest
from headrace.protocol.messages.create_acls import CreateAclsRequest
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from headrace.protocol.messages.stored.metadata_cluster import AbortTransactionRecord
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import UpdateFeaturesRequest

DECISIONS: dict[type[Any], Callable[[ControllerContext, Any, int, Tx], None]] = {
    BrokerRegistrationRequest: brokers.register,
    BrokerHeartbeatRequest: brokers.heartbeat,
    ControllerRegistrationRequest: controllers.register,
    CreateTopicsRequest: topics.create,
    DeleteTopicsRequest: topics.delete,
    CreatePartitionsRequest: partitions.create,
    ElectLeadersRequest: partitions.elect_leaders,
    ListPartitionReassignmentsRequest: partitions.list_reassignments,
    AlterPartitionReassignmentsRequest: reassignments.alter,
    IncrementalAlterConfigsRequest: configs.alter_incrementally,
    AlterConfigsRequest: configs.alter,
    UpdateFeaturesRequest: features.update,
    UnregisterBrokerRequest: brokers.unregister,
    fast_fencing.FenceDeadBroker: fast_fencing.fence,
    AlterPartitionRequest: alter_partition.alter,
    AssignReplicasToDirsRequest: directories.assign,
    AllocateProducerIdsRequest: producer_ids.allocate,
    CreateAclsRequest: acls.create,
    DeleteAclsRequest: acls.delete,
    AlterUserScramCredentialsRequest: credentials.alter,
}


class Controller:
    """The controller's state machine.

    `bootstrap` are the records from `format` (features, configs, users) that the first leader of a new cluster writes before all others.
    """

    def __init__(self, context: ControllerContext, bootstrap: Sequence[Any]) -> None:
        self.context = context
        self.undo = context.undo
        self._bootstrap = bootstrap
        self._bootstrapped = False
        self._transaction = TransactionBuffer()  # metadata transactions occur only in logs that Kafka wrote
        self.on_applied: Callable[[Any, int], None] | None = None  # called with each record before it is committed

    def decide(self, request: Any, now_ms: int, tx: Tx) -> None:
        decision = DECISIONS.get(type(request))
        if decision is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"the controller does not decide {type(request).__name__}")
        decision(self.context, request, now_ms, tx)

    def apply(self, record: Any, offset: int) -> None:
        self._bootstrapped = True
        for counted in self._transaction.admit(record):
            if self.undo.recording:  # it is decided here, not loaded from the log
                self.context.elections.count(counted, self.context.state)
            replay(self.context.state, counted)
            self.context.index.note(counted)
            if self.on_applied is not None:
                self.on_applied(counted, offset)

    def on_timer(self, timer: Hashable, now_ms: int, tx: Tx) -> None:
        match timer:
            case (brokers.SESSION, int(broker_id)):
                brokers.session_ended(self.context, broker_id, now_ms, tx)
            case (leadership.REBALANCE,):
                leadership.rebalance(self.context, now_ms, tx)
            case _:
                raise AssertionError(f"the controller has no timer {timer}")

    def on_leading(self, now_ms: int, tx: Tx) -> None:
        if self._transaction.is_open:
            tx.emit(AbortTransactionRecord(reason="the controller that began it did not end it"))
        if not self._bootstrapped:
            for record in self._bootstrap:
                tx.emit(record)
            if self.context.elr_enabled:
                features.make_elr_safe(self.context, tx)
        brokers.fresh_sessions(self.context, now_ms, tx)
        leadership.schedule_rebalance(self.context, now_ms, tx)
