"""Topics: creation with counts or by hand, with options; deletion by name or id. Each topic stands or falls alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC, ZERO_UUID, Uuid, new_uuid, uuid_text
from headrace.base.options import Value
from headrace.controller import brokers
from headrace.controller.context import ControllerContext, Tx
from headrace.controller.placement import place
from headrace.metadata.image import TOPIC_CONFIG
from headrace.metadata.topic_options import TOPIC_OPTIONS
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord
from headrace.protocol.messages.stored.metadata_topics import PartitionRecord, RemoveTopicRecord, TopicRecord

TOPIC_NAME_MAX = 249
PARTITIONS_PER_REQUEST_MAX = 10_000  # of one request, so that its records stay one batch of the metadata log
_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")

Result = CreateTopicsResponse.CreatableTopicResult
_SOURCE_TOPIC, _SOURCE_STATIC, _SOURCE_DEFAULT = 1, 4, 5


def is_valid_name(name: str) -> bool:
    """Names become directories, so nothing that a path could mean is let through."""
    return 0 < len(name) <= TOPIC_NAME_MAX and name not in (".", "..") and _NAME.match(name) is not None


def check_name(name: str) -> None:
    if not is_valid_name(name):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:300]!r} is not allowed: 1 to {TOPIC_NAME_MAX} of a-z A-Z 0-9 . _ - and neither '.' nor '..'",
        )


def create(context: ControllerContext, request: CreateTopicsRequest, now_ms: int, tx: Tx) -> None:
    times = Counter(topic.name for topic in request.topics)
    room = PARTITIONS_PER_REQUEST_MAX
    results: dict[str, Result] = {}
    for topic in request.topics:
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {topic.name} stands in the request more than once")
            assignment = _assign(context, topic)
            room -= len(assignment)
            if room < 0:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS, f"more than {PARTITIONS_PER_REQUEST_MAX} partitions in one request"
                )
            results[topic.name] = _create_one(context, topic, assignment, tx, validate_only=request.validate_only)
        except KafkaError as error:
            results[topic.name] = Result(name=topic.name, error_code=error.code, error_message=error.message)
    tx.reply(tx.ticket, CreateTopicsResponse(topics=list(results.values())))


def _assign(context: ControllerContext, topic: CreateTopicsRequest.CreatableTopic) -> list[list[int]]:
    check_name(topic.name)
    if topic.name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{METADATA_TOPIC} is the cluster's own")
    if topic.name in context.state.topic_ids:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    # Metric names turn dots into underscores; two topics that differ only in that could not be told apart.
    if "." in topic.name or "_" in topic.name:
        flat = topic.name.replace(".", "_")
        for other in context.topic_names():
            if other.replace(".", "_") == flat:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name} collides with {other}")
    if topic.assignments:
        return _check_assignment(context, topic)
    count = context.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = context.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    if count < 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"{count} partitions: there must be at least one, or -1 for the default"
        )
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"{count} partitions: at most {PARTITIONS_PER_REQUEST_MAX} in one request"
        )
    active = [broker_id for broker_id, _ in sorted(context.brokers()) if brokers.is_active(context, broker_id)]
    return place(count, factor, active, context.chance)


def _check_assignment(context: ControllerContext, topic: CreateTopicsRequest.CreatableTopic) -> list[list[int]]:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "counts and an assignment by hand exclude each other: set both counts to -1"
        )
    by_index = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
    if sorted(by_index) != list(range(len(topic.assignments))):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered 0, 1, 2 … without a gap")
    for index, replicas in by_index.items():
        if not replicas or len(set(replicas)) != len(replicas) or len(replicas) != len(by_index[0]):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {index}: replicas {replicas} are not allowed"
            )
        for replica in replicas:
            if replica not in context.state.brokers:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {index}: broker {replica} does not exist"
                )
    return [by_index[index] for index in range(len(by_index))]


def _create_one(
    context: ControllerContext,
    topic: CreateTopicsRequest.CreatableTopic,
    assignment: list[list[int]],
    tx: Tx,
    *,
    validate_only: bool,
) -> Result:
    options = _check_options(topic)
    in_sync = [[replica for replica in replicas if brokers.is_active(context, replica)] for replicas in assignment]
    if not all(in_sync):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "every partition needs an active broker among its replicas"
        )
    result = Result(
        name=topic.name,
        error_message=None,
        num_partitions=len(assignment),
        replication_factor=len(assignment[0]),
        configs=_describe_options(context.defaults(), options),
    )
    if validate_only:
        return result
    topic_id = new_uuid(context.chance)
    result.topic_id = topic_id
    tx.emit(TopicRecord(name=topic.name, topic_id=topic_id))
    for name, text in options.items():
        tx.emit(ConfigRecord(resource_type=TOPIC_CONFIG, resource_name=topic.name, name=name, value=text))
    for index, (replicas, isr) in enumerate(zip(assignment, in_sync, strict=True)):
        tx.emit(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=replicas,
                isr=isr,
                leader=isr[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=[_directory(context, replica) for replica in replicas],
            )
        )
    return result


def _directory(context: ControllerContext, broker_id: int) -> Uuid:
    """The log dir of a broker that has only one; otherwise the broker chooses (and the zero id with 1 says so)."""
    broker = context.state.brokers.get(broker_id)
    if broker is not None and len(broker.log_dirs) == 1:
        return broker.log_dirs[0]
    return Uuid(bytes(15) + b"\x01")


def _check_options(topic: CreateTopicsRequest.CreatableTopic) -> dict[str, str]:
    options: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {config.name}")
        try:
            TOPIC_OPTIONS.known(config.name).parse(config.value)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
        options[config.name] = config.value
    return options


def _describe_options(
    defaults: Mapping[str, Value], options: Mapping[str, str]
) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    described = []
    for name, option in sorted(TOPIC_OPTIONS.items()):
        own = name in options
        source = _SOURCE_TOPIC if own else _SOURCE_DEFAULT if defaults[name] == option.default else _SOURCE_STATIC
        value = options[name] if own else option.text(defaults[name])
        described.append(CreateTopicsResponse.CreatableTopicConfigs(name=name, value=value, config_source=source))
    return described


def delete(context: ControllerContext, request: DeleteTopicsRequest, now_ms: int, tx: Tx) -> None:
    """The controller is asked by name or by id (v6); older versions were turned into this form by whoever forwarded them."""
    wanted = request.topics or [DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]
    results = []
    for topic in wanted:
        found = context.state.topic_ids.get(topic.name) if topic.name is not None else Uuid(topic.topic_id)
        name = topic.name if topic.name is not None else context.state.topic_names.get(Uuid(topic.topic_id))
        result = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=found or ZERO_UUID)
        if topic.name is not None and topic.topic_id != ZERO_UUID:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "a topic is named by its name or by its id, not by both"
        elif found is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_message = f"topic {topic.name!r} does not exist"
        elif name is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            result.error_message = f"there is no topic with id {uuid_text(found)}"
        else:
            tx.emit(RemoveTopicRecord(topic_id=found))
        results.append(result)
    tx.reply(tx.ticket, DeleteTopicsResponse(responses=results))
