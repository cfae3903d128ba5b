"""AllocateProducerIds: a block is written to the log BEFORE it is returned, so that no id is allocated twice."""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.context import ControllerContext, Tx
from headrace.options.table import LONG_MAX
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from headrace.protocol.messages.stored.metadata_cluster import ProducerIdsRecord

BLOCK_SIZE = 1000


def allocate(context: ControllerContext, request: AllocateProducerIdsRequest, now_ms: int, tx: Tx) -> None:
    broker = context.state.brokers.get(request.broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
    if broker.epoch != request.broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker.id} is at epoch {broker.epoch}")
    first = context.state.next_producer_id()
    if first > LONG_MAX - BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    tx.emit(ProducerIdsRecord(broker_id=broker.id, broker_epoch=broker.epoch, next_producer_id=first + BLOCK_SIZE))
    tx.reply(tx.ticket, AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE))
