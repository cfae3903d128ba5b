"""The controller as a machine: each request type has one decision, each record one effect (metadata.state)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller import brokers, producer_ids, topics
from headrace.controller.context import ControllerContext, Tx
from headrace.metadata.state import replay
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest

DECISIONS: dict[type[Any], Callable[[ControllerContext, Any, int, Tx], None]] = {
    BrokerRegistrationRequest: brokers.register,
    BrokerHeartbeatRequest: brokers.heartbeat,
    CreateTopicsRequest: topics.create,
    DeleteTopicsRequest: topics.delete,
    AllocateProducerIdsRequest: producer_ids.allocate,
}


class Controller:
    def __init__(self, context: ControllerContext, bootstrap: Sequence[Any]) -> None:
        """`bootstrap`: what the first leader of a new cluster writes before anything else (features, from `format`)."""
        self.context = context
        self.undo = context.undo
        self._bootstrap = bootstrap
        self._bootstrapped = False

    def decide(self, request: Any, now_ms: int, tx: Tx) -> None:
        decision = DECISIONS.get(type(request))
        if decision is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"the controller does not decide {type(request).__name__}")
        decision(self.context, request, now_ms, tx)

    def apply(self, record: Any, offset: int) -> None:
        self._bootstrapped = True
        replay(self.context.state, record)

    def on_timer(self, timer: Hashable, now_ms: int, tx: Tx) -> None:
        brokers.session_ended(self.context, timer, now_ms, tx)

    def on_leading(self, now_ms: int, tx: Tx) -> None:
        if not self._bootstrapped:
            for record in self._bootstrap:
                tx.emit(record)
        brokers.fresh_sessions(self.context, now_ms, tx)
