"""EndTxn 0–5: commits or aborts a transaction; the transaction coordinator decides."""

from __future__ import annotations

from headrace.api.permissions import on_transactional_ids
from headrace.api.transactions.coordinator_decisions import CoordinatorDecisions
from headrace.base.eager import at_once
from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.coordinators.transaction.request import (
    EndTransaction,
    TransactionEnded,
)
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

EPOCHS_VERSION_MIN = 5  # version whose clients expect a new epoch for each transaction
EPOCHS_CLIENT = 2  # transaction version of such clients


class EndTxnApi:
    def __init__(self, decisions: CoordinatorDecisions) -> None:
        self._decisions = decisions

    def services(self) -> list[Service]:
        return [Service(ApiKey.END_TXN, (0, 5), at_once(self.handle), on_transactional_ids(Operation.WRITE))]

    async def handle(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        if not context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        coordinator_request = EndTransaction(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            EPOCHS_CLIENT if context.api_version >= EPOCHS_VERSION_MIN else 0,
            version=context.api_version,
        )
        try:
            ended: TransactionEnded = await self._decisions.decide(coordinator_request)
        except KafkaError as error:
            return EndTxnResponse(error_code=error.code)
        except (OSError, HeadraceError):
            return EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return EndTxnResponse(producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)
