"""AllocateProducerIds: a block is written to the log BEFORE it is returned, so that no id is allocated twice."""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.brokers import check_epoch
from headrace.controller.context import ControllerContext, Tx
from headrace.options.table import LONG_MAX
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from headrace.protocol.messages.stored.metadata_cluster import ProducerIdsRecord

BLOCK_SIZE = 1000


def allocate(context: ControllerContext, request: AllocateProducerIdsRequest, now_ms: int, tx: Tx) -> None:
    broker = check_epoch(context, request.broker_id, request.broker_epoch)
    first = context.state.next_producer_id()
    if first > LONG_MAX - BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    tx.emit(ProducerIdsRecord(broker_id=broker.id, broker_epoch=broker.epoch, next_producer_id=first + BLOCK_SIZE))
    tx.reply(tx.ticket, AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE))
