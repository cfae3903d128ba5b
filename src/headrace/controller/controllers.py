"""ControllerRegistration (KIP-919): controllers register their endpoints and the feature levels that they support."""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.brokers import check_features
from headrace.controller.context import ControllerContext, Tx
from headrace.metadata.records import CONTROLLERS_LEVEL
from headrace.metadata.state import KRAFT_VERSION
from headrace.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from headrace.protocol.messages.stored.metadata_brokers import RegisterControllerRecord


def register(context: ControllerContext, request: ControllerRegistrationRequest, now_ms: int, tx: Tx) -> None:
    if context.metadata_version < CONTROLLERS_LEVEL:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"registrations of controllers need metadata.version {CONTROLLERS_LEVEL}, the cluster has {context.metadata_version}",
        )
    if request.controller_id < 0 or not request.listeners:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a controller needs an id and at least one listener")
    supported = {
        feature.name: (feature.min_supported_version, feature.max_supported_version) for feature in request.features
    }
    check_features(context, f"controller {request.controller_id}", supported)
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=False,
        end_points=[
            RegisterControllerRecord.ControllerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ],
        features=[
            RegisterControllerRecord.ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in supported.items()
        ],
    )
    if context.state.controllers.get(request.controller_id) != record:
        tx.emit(record)
    tx.reply(tx.ticket, ControllerRegistrationResponse(error_message=None))


def supported_range(record: RegisterControllerRecord, feature: str) -> tuple[int, int]:
    """Return the levels of a feature that a registered controller supports."""
    return next(
        ((one.min_supported_version, one.max_supported_version) for one in record.features if one.name == feature),
        (0, 0),
    )


def other_controllers(context: ControllerContext, feature: str) -> list[tuple[int, tuple[int, int]]]:
    """Return the levels that each controller but this one supports; kraft.version is a matter of the quorum itself."""
    if feature == KRAFT_VERSION:
        return []
    return [
        (controller_id, supported_range(record, feature))
        for controller_id, record in sorted(context.state.controllers.items())
        if controller_id != context.node_id
    ]
