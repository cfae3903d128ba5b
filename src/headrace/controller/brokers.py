"""Brokers: registration, heartbeats, sessions and controlled shutdown.

A broker registers an incarnation and starts fenced. A heartbeat unfences it once its metadata includes its registration. It is fenced
again if its session times out or if it requests so, and leadership moves away in the same decision. A broker that shuts down gives up
its leadership first, and stops when all active brokers know the new leaders. What heartbeats say is volatile (`broker_sessions`).
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller import leadership
from headrace.controller.context import ControllerContext, Tx
from headrace.controller.placement import Candidate
from headrace.metadata.image import Broker
from headrace.metadata.records import CORDONED_LEVEL, DIRECTORIES_LEVEL
from headrace.options.table import LONG_MAX
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace.protocol.messages.stored.metadata_brokers import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

SESSION = "broker-session"


def register(context: ControllerContext, request: BrokerRegistrationRequest, now_ms: int, tx: Tx) -> None:
    """Register an incarnation of a broker, or the same one again if its response was lost.

    A new incarnation takes the place of the previous one. It is eligible to lead what the previous one was eligible for only if
    `previous_broker_epoch` proves that this one shut down cleanly.
    """
    old = _check_registration(context, request, now_ms)
    is_same = old is not None and old.incarnation_id == request.incarnation_id
    if old is not None and not is_same:
        is_unclean = context.elr_enabled and request.previous_broker_epoch != old.epoch
        leadership.move_away(context, old.id, tx, unclean_shutdown=is_unclean)
    epoch = old.epoch if old is not None and is_same else tx.next_offset()
    tx.emit(
        RegisterBrokerRecord(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=epoch,
            end_points=[
                RegisterBrokerRecord.BrokerEndpoint(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in request.listeners
            ],
            features=[
                RegisterBrokerRecord.BrokerFeature(
                    name=feature.name,
                    min_supported_version=feature.min_supported_version,
                    max_supported_version=feature.max_supported_version,
                )
                for feature in request.features
            ],
            rack=request.rack or None,
            fenced=old.fenced if old is not None and is_same else True,
            in_controlled_shutdown=old.in_controlled_shutdown if old is not None and is_same else False,
            log_dirs=sorted(request.log_dirs) if context.metadata_version >= DIRECTORIES_LEVEL else [],
        )
    )
    if not is_same:
        context.sessions.forget(request.broker_id)
    _extend_session(context, request.broker_id, now_ms, tx)
    tx.reply(tx.ticket, BrokerRegistrationResponse(broker_epoch=epoch))


def _check_registration(context: ControllerContext, request: BrokerRegistrationRequest, now_ms: int) -> Broker | None:
    """Return the previous registration of the broker, if any. Raise KafkaError if this one must be refused."""
    if request.cluster_id != context.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {context.cluster_id}, not {request.cluster_id}"
        )
    if request.broker_id < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{request.broker_id} is no broker id")
    old = context.state.brokers.get(request.broker_id)
    if (
        old is not None
        and old.incarnation_id != request.incarnation_id
        and not old.fenced
        and not old.in_controlled_shutdown
        and not context.sessions.is_expired(old.id, now_ms)
    ):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another incarnation of broker {request.broker_id} has an active session",
        )
    check_features(context, "the broker", {f.name: _range(f) for f in request.features})
    return old


def _range(feature: BrokerRegistrationRequest.Feature) -> tuple[int, int]:
    return feature.min_supported_version, feature.max_supported_version


def check_features(context: ControllerContext, node: str, supported: Mapping[str, tuple[int, int]]) -> None:
    """Raise KafkaError unless a node supports the finalized level of every feature."""
    for name, level in context.features().items():
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"{name} is finalized at {level}, {node} supports {low}-{high}"
            )


def heartbeat(context: ControllerContext, request: BrokerHeartbeatRequest, now_ms: int, tx: Tx) -> None:
    broker = check_epoch(context, request.broker_id, request.broker_epoch)
    _extend_session(context, broker.id, now_ms, tx)
    context.sessions.metadata_offsets[broker.id] = request.current_metadata_offset
    caught_up = request.current_metadata_offset >= broker.epoch
    should_shut_down = False
    if request.want_shut_down:
        should_shut_down = _shut_down(context, broker, tx, at_once=request.want_fence)
    elif request.want_fence:
        fence(context, broker, tx)
    elif broker.fenced and caught_up:
        tx.emit(_change(broker, fenced=-1))
        leadership.move_in(context, broker.id, tx)
    _directories(context, context.state.brokers[broker.id], request, tx)
    fenced = context.state.brokers[broker.id].fenced
    tx.reply(
        tx.ticket,
        BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=should_shut_down),
    )


def check_epoch(context: ControllerContext, broker_id: int, epoch: int) -> Broker:
    """Return the broker. Raise KafkaError unless it is registered with this epoch."""
    broker = context.state.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is at epoch {broker.epoch}, not {epoch}")
    return broker


def _shut_down(context: ControllerContext, broker: Broker, tx: Tx, *, at_once: bool) -> bool:
    """Move leadership away and return whether the broker may stop; then it is fenced.

    It may stop at once if it is fenced or leads nothing, otherwise when all active brokers have seen who leads in its place.
    """
    sessions = context.sessions
    if not broker.in_controlled_shutdown and not broker.fenced and not at_once:
        if leadership.has_leaderships(context, broker.id):
            tx.emit(_change(broker, in_controlled_shutdown=1))
            leadership.move_away(context, broker.id, tx)
            sessions.shutdown_offsets[broker.id] = tx.next_offset() - 1
            return False
    elif broker.in_controlled_shutdown and not broker.fenced:
        # A new active controller does not know the offset of the decision, but it cannot be newer than its whole log.
        offset = sessions.shutdown_offsets.setdefault(broker.id, tx.next_offset() - 1)
        if leadership.has_leaderships(context, broker.id) or _lowest_active_offset(context) < offset:
            return False
    fence(context, broker, tx)
    return True


def _lowest_active_offset(context: ControllerContext) -> int:
    """Return the metadata offset that all active brokers have reached, or the largest possible one if none is active."""
    offsets = context.sessions.metadata_offsets
    return min(
        (offsets.get(broker_id, -1) for broker_id, _ in context.brokers() if leadership.is_active(context, broker_id)),
        default=LONG_MAX,
    )


def _directories(context: ControllerContext, broker: Broker, request: BrokerHeartbeatRequest, tx: Tx) -> None:
    """Record failed and cordoned directories: replicas in failed ones are moved away, cordoned ones get no new replicas."""
    offline = set(request.offline_log_dirs) & set(broker.log_dirs)
    if offline and context.metadata_version >= DIRECTORIES_LEVEL:
        change = _change(broker)
        change.log_dirs = [directory for directory in broker.log_dirs if directory not in offline]
        tx.emit(change)
        leadership.move_away(context, broker.id, tx, directories=offline)
    cordoned = request.cordoned_log_dirs
    if (
        cordoned is not None
        and tuple(sorted(cordoned)) != broker.cordoned_log_dirs
        and context.metadata_version >= CORDONED_LEVEL
    ):
        change = _change(broker)
        change.cordoned_log_dirs = sorted(cordoned)
        tx.emit(change)


def session_ended(context: ControllerContext, broker_id: int, now_ms: int, tx: Tx) -> None:
    broker = context.state.brokers.get(broker_id)
    if broker is not None and context.sessions.is_expired(broker_id, now_ms):
        fence(context, broker, tx)


def fresh_sessions(context: ControllerContext, now_ms: int, tx: Tx) -> None:
    """Start a session for every unfenced broker when this controller becomes active.

    The time of its last heartbeat is not known, so a new incarnation of a broker can register at once.
    """
    context.sessions.clear()
    for broker_id, broker in context.brokers():
        if not broker.fenced:
            tx.arm((SESSION, broker_id), now_ms + context.session_timeout_ms)


def unregister(context: ControllerContext, request: UnregisterBrokerRequest, now_ms: int, tx: Tx) -> None:
    """Remove a broker's registration, moving leadership and ISR membership away as if it were fenced.

    The broker may register again, as a new one.
    """
    broker = context.state.brokers.get(request.broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not currently registered"
        )
    leadership.move_away(context, broker.id, tx)
    tx.emit(UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch))
    context.sessions.forget(broker.id)
    tx.cancel((SESSION, broker.id))
    tx.reply(tx.ticket, UnregisterBrokerResponse(error_message=None))


def usable(context: ControllerContext) -> list[Candidate]:
    """Return the brokers that may get new replicas: neither shutting down nor cordoned, but possibly fenced."""
    return [
        Candidate(broker_id, broker.rack, not broker.fenced)
        for broker_id, broker in sorted(context.brokers())
        if not broker.in_controlled_shutdown and not is_cordoned(context, broker_id)
    ]


def is_cordoned(context: ControllerContext, broker_id: int) -> bool:
    """Return whether all directories of a broker are cordoned, so that it gets no new replicas (KIP-1066)."""
    broker = context.state.brokers.get(broker_id)
    return broker is not None and bool(broker.log_dirs) and set(broker.log_dirs) <= set(broker.cordoned_log_dirs)


def _extend_session(context: ControllerContext, broker_id: int, now_ms: int, tx: Tx) -> None:
    context.sessions.last_heartbeat_ms[broker_id] = now_ms
    tx.arm((SESSION, broker_id), now_ms + context.session_timeout_ms)


def fence(context: ControllerContext, broker: Broker, tx: Tx) -> None:
    """Fence a broker and move its leadership and ISR membership away, unless it is fenced already."""
    if not broker.fenced:
        tx.emit(_change(broker, fenced=1))
        leadership.move_away(context, broker.id, tx)


def _change(broker: Broker, *, fenced: int = 0, in_controlled_shutdown: int = 0) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced, in_controlled_shutdown=in_controlled_shutdown
    )
