"""InitProducerId 0–6: allocates ids of idempotent producers; those of transactional ids come from their coordinator."""

from __future__ import annotations

from headrace.api.transactions.add_partitions_to_txn import TransactionsApi
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.producer_ids import ProducerIds
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext


class ProducersApi:
    def __init__(self, producer_ids: ProducerIds, transactions: TransactionsApi) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            if not _may(context, request, request.transactional_id):
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                return InitProducerIdResponse(error_code=code, producer_epoch=-1)
            return await self._transactions.init(context, request)
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


def _may(context: RequestContext, request: InitProducerIdRequest, transactional_id: str) -> bool:
    """Return whether the client may use the transactional id.

    Two-phase commit needs an extra permission, because such a producer can block readers indefinitely.
    """
    two_phase = request.enable2_pc or request.keep_prepared_txn
    return context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id) and (
        not two_phase or context.may(Operation.TWO_PHASE_COMMIT, Resource.TRANSACTIONAL_ID, transactional_id)
    )
