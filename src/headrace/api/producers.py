"""InitProducerId 0–5: a fresh producer id for an idempotent producer; FindCoordinator 0–6 says honestly that nobody coordinates yet."""

from __future__ import annotations

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.producer_ids import ProducerIds
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext

MANY_KEYS_VERSION_MIN = 4
TRANSACTION_KEY, SHARE_KEY = 1, 2
_NO_COORDINATOR = "groups and transactions are not part of this version of Headrace"
_REASONS = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _NO_COORDINATOR,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}


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

    def find_coordinator(self, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        """librdkafka offers lz4 only to brokers that list this API, so it is answered although nobody coordinates yet."""
        if context.api_version < MANY_KEYS_VERSION_MIN:
            code = _coordinator_error(context, request.key_type, request.key)
            text = _REASONS[code]
            return FindCoordinatorResponse(error_code=code, error_message=text, node_id=-1, port=-1)
        return FindCoordinatorResponse(
            coordinators=[
                FindCoordinatorResponse.Coordinator(
                    key=key,
                    node_id=-1,
                    port=-1,
                    error_code=(code := _coordinator_error(context, request.key_type, key)),
                    error_message=_NO_COORDINATOR if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else "",
                )
                for key in request.coordinator_keys
            ]
        )


def _coordinator_error(context: RequestContext, key_type: int, key: str) -> ErrorCode:
    if key_type == SHARE_KEY:
        if not context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif key_type == TRANSACTION_KEY:
        if not context.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, key):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not context.may(Operation.DESCRIBE, Resource.GROUP, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
