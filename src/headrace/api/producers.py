"""InitProducerId 0–5: a fresh producer id for an idempotent producer."""

from __future__ import annotations

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.producer_ids import ProducerIds
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext


class ProducersApi:
    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if request.transactional_id is not None and not context.may(
            Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id
        ):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return InitProducerIdResponse(error_code=code, producer_epoch=-1)
        if request.transactional_id is not None:
            # An empty id is never right; any other needs a transaction coordinator, and this is not it.
            code = ErrorCode.NOT_COORDINATOR if request.transactional_id else ErrorCode.INVALID_REQUEST
            return InitProducerIdResponse(error_code=code, producer_epoch=-1)
        if not (
            context.may(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, quietly=True)
            or context.may_any(Operation.WRITE, Resource.TOPIC)
        ):
            return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_epoch=-1)
        try:
            producer_id = await self._producer_ids.allocate()
        except (OSError, HeadraceError):
            return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
