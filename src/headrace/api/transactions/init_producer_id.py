"""InitProducerId 0–6: allocates ids of idempotent producers; those of transactional ids come from their coordinator."""

from __future__ import annotations

from headrace.api.permissions import IDEMPOTENT_WRITE
from headrace.api.transactions.coordinator_decisions import CoordinatorDecisions
from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.coordinators.transaction.request import (
    InitProducer,
    ProducerInitialized,
)
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service


class TransactionalProducers:
    """Initializes producers with a transactional id, which the transaction coordinator decides on."""

    def __init__(self, decisions: CoordinatorDecisions) -> None:
        self._decisions = decisions

    async def init(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Initialize the producer of a transactional id; the caller has checked the client's permissions."""
        assert request.transactional_id is not None
        coordinator_request = InitProducer(
            request.transactional_id,
            request.transaction_timeout_ms,
            request.producer_id,
            request.producer_epoch,
            enable_two_phase_commit=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
            version=context.api_version,
        )
        try:
            initialized: ProducerInitialized = await self._decisions.decide(coordinator_request)
        except KafkaError as error:
            return InitProducerIdResponse(error_code=error.code, producer_epoch=-1)
        except (OSError, HeadraceError):
            return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
        return InitProducerIdResponse(
            producer_id=initialized.producer_id,
            producer_epoch=initialized.producer_epoch,
            ongoing_txn_producer_id=initialized.ongoing_producer_id,
            ongoing_txn_producer_epoch=initialized.ongoing_producer_epoch,
        )


class InitProducerIdApi:
    """The handler of InitProducerId; `unstable_versions` adds a version that Kafka may still change."""

    def __init__(
        self, producer_ids: ProducerIds, transactions: TransactionalProducers, *, unstable_versions: bool = False
    ) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions
        self._unstable_versions = unstable_versions

    def services(self) -> list[Service]:
        return [
            Service(
                ApiKey.INIT_PRODUCER_ID,
                (0, 6 if self._unstable_versions else 5),
                self.init_producer_id,
                IDEMPOTENT_WRITE,
            ),
        ]

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
