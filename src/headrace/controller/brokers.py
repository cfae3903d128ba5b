"""Brokers: registration, heartbeats and sessions.

A broker registers an incarnation and starts fenced. A heartbeat unfences it once its metadata includes its registration. It is fenced
again if its session times out or if it requests so, and leadership moves away in the same decision. The times of the last heartbeats
are volatile: a new leader of the quorum starts a fresh session for every broker.
"""

from __future__ import annotations

from collections.abc import Hashable

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller import elections
from headrace.controller.context import ControllerContext, Tx
from headrace.metadata.image import Broker, Partition
from headrace.metadata.records import CORDONED_LEVEL, DIRECTORIES_LEVEL
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
    if request.cluster_id != context.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {context.cluster_id}, not {request.cluster_id}"
        )
    old = context.state.brokers.get(request.broker_id)
    if (
        old is not None
        and old.incarnation_id != request.incarnation_id
        and not old.fenced
        and not old.in_controlled_shutdown
        and not _expired(context, old.id, now_ms)
    ):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another incarnation of broker {request.broker_id} has an active session",
        )
    for name, level in context.features().items():
        low, high = next(
            ((f.min_supported_version, f.max_supported_version) for f in request.features if f.name == name), (0, 0)
        )
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"{name} is finalized at {level}, the broker supports {low}-{high}"
            )
    if old is not None and not old.fenced:
        _move_away(context, old.id, tx)
    epoch = tx.next_offset()
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
            fenced=True,
            log_dirs=sorted(request.log_dirs) if context.metadata_version >= DIRECTORIES_LEVEL else [],
        )
    )
    _extend_session(context, request.broker_id, now_ms, tx)
    tx.reply(tx.ticket, BrokerRegistrationResponse(broker_epoch=epoch))


def heartbeat(context: ControllerContext, request: BrokerHeartbeatRequest, now_ms: int, tx: Tx) -> None:
    broker = context.state.brokers.get(request.broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
    if broker.epoch != request.broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {broker.id} is at epoch {broker.epoch}, not {request.broker_epoch}"
        )
    _extend_session(context, broker.id, now_ms, tx)
    caught_up = request.current_metadata_offset >= broker.epoch
    should_shut_down = False
    if request.want_shut_down:
        if not broker.in_controlled_shutdown:
            tx.emit(_change(broker, in_controlled_shutdown=1))
            _move_away(context, broker.id, tx)
        # True only from the next heartbeat on, so that the broker has seen itself lose its partitions.
        should_shut_down = broker.in_controlled_shutdown
    elif request.want_fence:
        _fence(context, broker, tx)
    elif broker.fenced and caught_up:
        tx.emit(_change(broker, fenced=-1))
        _move_in(context, broker.id, tx)
    _directories(context, context.state.brokers[broker.id], request, tx)
    fenced = context.state.brokers[broker.id].fenced
    tx.reply(
        tx.ticket,
        BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=should_shut_down),
    )


def _directories(context: ControllerContext, broker: Broker, request: BrokerHeartbeatRequest, tx: Tx) -> None:
    """Record failed and cordoned directories: replicas in failed ones are moved away, cordoned ones get no new replicas."""
    offline = set(request.offline_log_dirs) & set(broker.log_dirs)
    if offline and context.metadata_version >= DIRECTORIES_LEVEL:
        change = _change(broker)
        change.log_dirs = [directory for directory in broker.log_dirs if directory not in offline]
        tx.emit(change)
        _move_away(context, broker.id, tx, offline)
    cordoned = request.cordoned_log_dirs
    if (
        cordoned is not None
        and tuple(sorted(cordoned)) != broker.cordoned_log_dirs
        and context.metadata_version >= CORDONED_LEVEL
    ):
        change = _change(broker)
        change.cordoned_log_dirs = sorted(cordoned)
        tx.emit(change)


def session_ended(context: ControllerContext, timer: Hashable, now_ms: int, tx: Tx) -> None:
    assert isinstance(timer, tuple)
    broker = context.state.brokers.get(timer[1])
    if broker is not None and _expired(context, broker.id, now_ms):
        _fence(context, broker, tx)


def fresh_sessions(context: ControllerContext, now_ms: int, tx: Tx) -> None:
    """Start a session for every unfenced broker when this controller becomes active.

    `last_heartbeat_ms` stays empty, so that a new incarnation of a broker can register at once.
    """
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
    _move_away(context, broker.id, tx)
    tx.emit(UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch))
    context.last_heartbeat_ms.pop(broker.id, None)
    tx.cancel((SESSION, broker.id))
    tx.reply(tx.ticket, UnregisterBrokerResponse(error_message=None))


def election_rules(
    context: ControllerContext, topic_id: Uuid, partition: Partition, without: int | None = None
) -> elections.Rules:
    return elections.Rules(
        min_isr=context.min_isr(topic_id),
        elr=context.elr_enabled,
        unclean=context.unclean_election(topic_id),
        is_active=lambda replica: (
            replica != without and is_active(context, replica) and has_directory(context, partition, replica)
        ),
    )


def has_directory(context: ControllerContext, partition: Partition, broker_id: int) -> bool:
    """Return whether the replica's directory is one of its broker's; an unknown directory counts as present."""
    broker = context.state.brokers.get(broker_id)
    return broker is None or broker.serves(partition.directory(broker_id))


def usable(context: ControllerContext) -> list[int]:
    """Return the brokers that may get new replicas."""
    return [
        broker_id
        for broker_id, _ in sorted(context.brokers())
        if is_active(context, broker_id) and not is_cordoned(context, broker_id)
    ]


def is_cordoned(context: ControllerContext, broker_id: int) -> bool:
    """Return whether all directories of a broker are cordoned, so that it gets no new replicas (KIP-1066)."""
    broker = context.state.brokers.get(broker_id)
    return broker is not None and bool(broker.log_dirs) and set(broker.log_dirs) <= set(broker.cordoned_log_dirs)


def is_active(context: ControllerContext, broker_id: int) -> bool:
    broker = context.state.brokers.get(broker_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def _extend_session(context: ControllerContext, broker_id: int, now_ms: int, tx: Tx) -> None:
    context.last_heartbeat_ms[broker_id] = now_ms
    tx.arm((SESSION, broker_id), now_ms + context.session_timeout_ms)


def _expired(context: ControllerContext, broker_id: int, now_ms: int) -> bool:
    last_ms = context.last_heartbeat_ms.get(broker_id)
    return last_ms is None or now_ms - last_ms >= context.session_timeout_ms


def _fence(context: ControllerContext, broker: Broker, tx: Tx) -> None:
    if not broker.fenced:
        tx.emit(_change(broker, fenced=1))
        _move_away(context, broker.id, tx)


def _change(broker: Broker, *, fenced: int = 0, in_controlled_shutdown: int = 0) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced, in_controlled_shutdown=in_controlled_shutdown
    )


def _move_away(context: ControllerContext, broker_id: int, tx: Tx, directories: set[Uuid] | None = None) -> None:
    """Remove a broker from leadership and ISR of all its partitions, or only of those in `directories`."""
    for (topic_id, index), partition in context.partitions():
        if broker_id in partition.isr or partition.leader == broker_id:
            if directories is not None and partition.directory(broker_id) not in directories:
                continue
            rules = election_rules(context, topic_id, partition, without=broker_id)
            change = elections.without_broker(topic_id, index, partition, broker_id, rules)
            if change is not None:
                tx.emit(change)


def _move_in(context: ControllerContext, broker_id: int, tx: Tx) -> None:
    for (topic_id, index), partition in context.partitions():
        if broker_id in partition.replicas and not partition.has_leader:
            change = elections.with_broker(topic_id, index, partition, election_rules(context, topic_id, partition))
            if change is not None:
                tx.emit(change)
