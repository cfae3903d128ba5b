"""Options of topics, brokers, groups and client-metrics subscriptions: each resource changes as a whole or not at all.

With ELR (KIP-966) the metadata log always has the cluster's min.insync.replicas: it cannot be set per broker or removed, and changing it
clears the eligible leader replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.context import ControllerContext, Tx
from headrace.controller.topics import check_name
from headrace.metadata.image import BROKER_CONFIG, GROUP_CONFIG, METRICS_CONFIG, TOPIC_CONFIG
from headrace.metadata.option_checks import check_client_metrics, check_group, check_topic, check_value
from headrace.metadata.records import CORDONED_LEVEL
from headrace.options.resource_options import GROUP_OPTIONS
from headrace.options.table import Kind
from headrace.options.topic_options import BROKER_DEFAULTS, TOPIC_OPTIONS
from headrace.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from headrace.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord
from headrace.protocol.messages.stored.metadata_topics import ClearElrRecord

SET, DELETE, APPEND, SUBTRACT = range(4)
CHANGES_PER_REQUEST_MAX = 10_000  # keeps a request's records in one batch of the metadata log
VALUE_MAX = 32_767  # characters: the longest string in older versions of the protocol
MIN_ISR = "min.insync.replicas"
CORDONED_DIRS = "cordoned.log.dirs"
_OPERATION_NAMES = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

# Broker options that give topics their defaults, which the controller reads as well.
_GIVES_TOPICS = {
    broker: replace(TOPIC_OPTIONS[name], name=broker)
    for name, behind in BROKER_DEFAULTS.items()
    for broker, factor in behind
    if factor == 1
}

Changes = dict[str, str | None]


def alter_incrementally(
    context: ControllerContext, request: IncrementalAlterConfigsRequest, now_ms: int, tx: Tx
) -> None:
    outcome = _alter_all(context, request, tx, _incremental)
    response = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    tx.reply(tx.ticket, IncrementalAlterConfigsResponse(responses=[response(**one) for one in outcome]))


def alter(context: ControllerContext, request: AlterConfigsRequest, now_ms: int, tx: Tx) -> None:
    """Replace all options of the resources: those that the request does not name are removed."""
    outcome = _alter_all(context, request, tx, _replacing)
    response = AlterConfigsResponse.AlterConfigsResourceResponse
    tx.reply(tx.ticket, AlterConfigsResponse(responses=[response(**one) for one in outcome]))


def _alter_all(context: ControllerContext, request: Any, tx: Tx, changes_of: Any) -> list[dict[str, Any]]:
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    remaining = CHANGES_PER_REQUEST_MAX
    outcome = []
    clear: dict[str, None] = {}
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        result = {"resource_type": kind, "resource_name": name, "error_code": 0, "error_message": None}
        outcome.append(result)
        try:
            if times[(kind, name)] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if kind not in (TOPIC_CONFIG, BROKER_CONFIG, METRICS_CONFIG, GROUP_CONFIG):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
            changes = changes_of(context, resource)
            remaining -= len(changes)
            if remaining < 0:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"more than {CHANGES_PER_REQUEST_MAX} changes in one request"
                )
            _check(context, kind, name, changes)
        except KafkaError as error:
            result["error_code"], result["error_message"] = int(error.code), error.message
            continue
        if not request.validate_only:
            for key, value in changes.items():
                tx.emit(ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value))
            if MIN_ISR in changes and context.elr_enabled:
                clear[name if kind == TOPIC_CONFIG else ""] = None
    for topic in clear:
        tx.emit(ClearElrRecord(topic_name=topic))
    return outcome


def _incremental(context: ControllerContext, resource: IncrementalAlterConfigsRequest.AlterConfigsResource) -> Changes:
    kind, current = resource.resource_type, context.state.config(resource.resource_type, resource.resource_name)
    _once([config.name for config in resource.configs])
    changes: Changes = {}
    for config in resource.configs:
        operation, old = config.config_operation, current.get(config.name)
        if operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
        if operation == DELETE:
            new = None
        elif config.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        elif operation == SET:
            new = config.value
        else:
            if not _is_list(context, kind, config.name):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {_OPERATION_NAMES[operation]} to key {config.name} because its type is not LIST.",
                )
            new = _with_parts(_parts(context, kind, config.name, old), operation, config.value)
        # A broker's option is written even if it is unchanged, so that the broker evaluates it again (KAFKA-14136).
        if new != old or kind == BROKER_CONFIG:
            changes[config.name] = new
    return changes


def _replacing(context: ControllerContext, resource: AlterConfigsRequest.AlterConfigsResource) -> Changes:
    kind, current = resource.resource_type, context.state.config(resource.resource_type, resource.resource_name)
    _once([config.name for config in resource.configs])
    changes: Changes = {}
    for config in resource.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        if config.value != current.get(config.name) or kind == BROKER_CONFIG:
            changes[config.name] = config.value
    named = {config.name for config in resource.configs}
    changes.update((name, None) for name in current if name not in named)
    return changes


def _once(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def _is_list(context: ControllerContext, kind: int, name: str) -> bool:
    if kind == BROKER_CONFIG:
        return name in context.list_options
    table = {TOPIC_CONFIG: TOPIC_OPTIONS, GROUP_CONFIG: GROUP_OPTIONS}.get(kind)
    return table is not None and name in table and table[name].kind is Kind.LIST


def _parts(context: ControllerContext, kind: int, name: str, old: str | None) -> list[str]:
    """Return the items of a list option's value, or of its default if it is not set, so that an append adds to those."""
    if old is None:
        old = context.default_text(kind, name)
    return [part for part in (part.strip() for part in (old or "").split(",")) if part]


def _with_parts(parts: list[str], operation: int, text: str) -> str:
    for value in (value.strip() for value in text.split(",")):
        if operation == APPEND and value and value not in parts:
            parts.append(value)
        elif operation == SUBTRACT and value in parts:
            parts.remove(value)
    return ",".join(parts)


def _check(context: ControllerContext, kind: int, name: str, changes: Changes) -> None:
    """Raise KafkaError if the changes are not allowed, the resulting values are invalid or the resource does not exist.

    The order of the checks is Kafka's.
    """
    if kind == BROKER_CONFIG and MIN_ISR in changes and context.elr_enabled:
        if name:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
            )
        if changes[MIN_ISR] is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled."
            )
    if kind == BROKER_CONFIG and CORDONED_DIRS in changes and context.metadata_version < CORDONED_LEVEL:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{CORDONED_DIRS} needs metadata.version 4.3-IV0 ({CORDONED_LEVEL}) or newer."
        )
    for value in changes.values():
        if value is not None and len(value) > VALUE_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"The configuration value cannot be added because it exceeds the maximum value size of {VALUE_MAX} bytes.",
            )
    together = {
        key: value for key, value in {**context.state.config(kind, name), **changes}.items() if value is not None
    }
    if kind == TOPIC_CONFIG:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_name(name)
        check_topic(together)
        if name not in context.state.topic_ids:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif kind == BROKER_CONFIG:
        for key, value in changes.items():
            if value is not None and key in _GIVES_TOPICS:
                check_value(_GIVES_TOPICS[key], value)
        _check_broker(context, name)
    elif kind == METRICS_CONFIG:
        check_client_metrics(name, together)
    else:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        check_group(together, context.settings)


def _check_broker(context: ControllerContext, name: str) -> None:
    """Raise KafkaError if the broker does not exist; the broker itself has already checked most values."""
    if not name:
        return
    if not name.lstrip("+-").isdigit() or len(name) > 11:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
    if int(name) < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")
    if int(name) not in context.state.brokers and int(name) != context.node_id:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} found.")
