"""CreateTopics and DeleteTopics; each topic of a request succeeds or fails independently."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC, ZERO_UUID, Uuid, new_uuid
from headrace.controller import brokers, leadership
from headrace.controller.context import ControllerContext, Tx
from headrace.controller.placement import assign_replicas
from headrace.metadata.image import TOPIC_CONFIG
from headrace.metadata.layers import BrokerLayers, Source
from headrace.metadata.option_checks import check_topic
from headrace.metadata.records import DIRECTORIES_LEVEL
from headrace.options.topic_options import INTERNAL_TOPIC_OPTIONS, TOPIC_OPTIONS
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord
from headrace.protocol.messages.stored.metadata_topics import PartitionRecord, RemoveTopicRecord, TopicRecord

TOPIC_NAME_MAX = 249
PARTITIONS_PER_REQUEST_MAX = 10_000  # keeps a request's records in one batch of the metadata log
_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")

Result = CreateTopicsResponse.CreatableTopicResult


def is_valid_name(name: str) -> bool:
    """Return whether a topic may have this name; names become directories, so none may have a meaning in a path."""
    return 0 < len(name) <= TOPIC_NAME_MAX and name not in (".", "..") and _NAME.match(name) is not None


def check_name(name: str) -> None:
    if is_valid_name(name):
        return
    if not name:
        why = "the empty string is not allowed"
    elif name in (".", ".."):
        why = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_MAX:
        why = f"the length of '{name[: TOPIC_NAME_MAX * 2]}' is longer than the max allowed length {TOPIC_NAME_MAX}"
    else:
        why = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


def create(context: ControllerContext, request: CreateTopicsRequest, now_ms: int, tx: Tx) -> None:
    times = Counter(topic.name for topic in request.topics)
    total = sum(
        len(topic.assignments)
        or (context.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0))
        for topic in request.topics
    )
    results: dict[str, Result] = {}
    for topic in request.topics:
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if total > PARTITIONS_PER_REQUEST_MAX:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
            check_name(topic.name)
            _check_new(context, topic.name)
            options = _check_options(topic)
            assignment = _assign(context, topic)
            results[topic.name] = _create_one(context, topic, options, assignment, tx, request.validate_only)
        except KafkaError as error:
            results[topic.name] = Result(name=topic.name, error_code=error.code, error_message=error.message)
    tx.reply(tx.ticket, CreateTopicsResponse(topics=list(results.values())))


def _check_new(context: ControllerContext, name: str) -> None:
    if name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if name in context.state.topic_ids:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    # Metric names replace dots by underscores, so topics that differ only in that would be indistinguishable.
    if "." in name or "_" in name:
        flat = name.replace(".", "_")
        for other in context.topic_names():
            if other.replace(".", "_") == flat:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
                )


def _assign(context: ControllerContext, topic: CreateTopicsRequest.CreatableTopic) -> list[list[int]]:
    if topic.assignments:
        return _check_assignment(context, topic)
    count = context.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = context.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    if factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    return assign_replicas(count, factor, brokers.usable(context), context.random)


def _check_assignment(context: ControllerContext, topic: CreateTopicsRequest.CreatableTopic) -> list[list[int]]:
    for value, what in ((topic.replication_factor, "replication factor"), (topic.num_partitions, "numPartitions")):
        if value != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    by_index: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in by_index:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        check_replicas(context, assignment.broker_ids, len(by_index[min(by_index)]) if by_index else None)
        by_index[index] = assignment.broker_ids
    if sorted(by_index) != list(range(len(by_index))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return [by_index[index] for index in range(len(by_index))]


def check_replicas(context: ControllerContext, replicas: list[int], factor: int | None) -> None:
    """Raise KafkaError if manually assigned replicas are invalid or their number is not `factor` (None: any number)."""
    prefix = "The manual partition assignment includes"
    if not replicas:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} an empty replica list.")
    before = None
    for replica in sorted(replicas):
        if replica not in context.state.brokers:
            why = f"{prefix} broker {replica}, but no such broker is registered."
        elif brokers.is_cordoned(context, replica):
            why = f"{prefix} broker {replica}, but all its log directories are cordoned."
        elif replica == before:
            why = f"{prefix} the broker {replica} more than once."
        else:
            before = replica
            continue
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)
    if factor is not None and len(replicas) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{prefix} a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s).",
        )


def _create_one(
    context: ControllerContext,
    topic: CreateTopicsRequest.CreatableTopic,
    options: Mapping[str, str],
    assignment: list[list[int]],
    tx: Tx,
    validate_only: bool,
) -> Result:
    result = Result(
        name=topic.name,
        error_message=None,
        num_partitions=len(assignment),
        replication_factor=len(assignment[0]),
        configs=_describe_options(context.layers(), options),
    )
    in_sync = [
        active_of(context, replicas, index, by_hand=bool(topic.assignments))
        for index, replicas in enumerate(assignment)
    ]
    if validate_only:
        return result
    topic_id = new_uuid(context.random)
    result.topic_id = topic_id
    tx.emit(TopicRecord(name=topic.name, topic_id=topic_id))
    for name, text in options.items():
        tx.emit(ConfigRecord(resource_type=TOPIC_CONFIG, resource_name=topic.name, name=name, value=text))
    for index, (replicas, isr) in enumerate(zip(assignment, in_sync, strict=True)):
        tx.emit(new_partition(context, topic_id, index, replicas, isr))
    return result


def active_of(context: ControllerContext, replicas: list[int], index: int, *, by_hand: bool) -> list[int]:
    """Return the replicas that can be in sync from the start. Raise KafkaError if there are none."""
    isr = [replica for replica in replicas if leadership.is_active(context, replica)]
    if not isr and by_hand:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown.",
        )
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {len(replicas)} time(s): All brokers are currently fenced or in "
            "controlled shutdown.",
        )
    return isr


def new_partition(
    context: ControllerContext, topic_id: Uuid, index: int, replicas: list[int], isr: list[int]
) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[leadership.new_directory(context, replica) for replica in replicas]
        if context.metadata_version >= DIRECTORIES_LEVEL
        else [],
    )


def _check_options(topic: CreateTopicsRequest.CreatableTopic) -> dict[str, str]:
    missing = [config.name for config in topic.configs if config.value is None]
    if missing:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}")
    options = {config.name: config.value for config in topic.configs if config.value is not None}
    check_topic(options)
    return options


def _describe_options(
    layers: BrokerLayers, options: Mapping[str, str]
) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    described = []
    for name in sorted(TOPIC_OPTIONS.keys() - INTERNAL_TOPIC_OPTIONS | options.keys()):
        default = layers.topic_default(name)
        source, value = (Source.TOPIC, options[name]) if name in options else (default.source, default.text)
        described.append(CreateTopicsResponse.CreatableTopicConfigs(name=name, value=value, config_source=source))
    return described


def delete(context: ControllerContext, request: DeleteTopicsRequest, now_ms: int, tx: Tx) -> None:
    """Delete topics by name or by id (v6). A topic that the request names more than once is refused."""
    requested = request.topics or [DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]
    names = Counter(topic.name for topic in requested if topic.name is not None)
    ids = Counter(Uuid(topic.topic_id) for topic in requested if topic.name is None)
    results: dict[tuple[str | None, bytes], DeleteTopicsResponse.DeletableTopicResult] = {}
    for topic in requested:
        key = (topic.name, topic.topic_id)
        if key in results:
            continue
        result = results[key] = DeleteTopicsResponse.DeletableTopicResult(
            name=topic.name, topic_id=topic.topic_id, error_message=None
        )
        try:
            if topic.name is not None and topic.topic_id != ZERO_UUID:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
            if topic.name is None and topic.topic_id == ZERO_UUID:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
            if names[topic.name] > 1 if topic.name is not None else ids[Uuid(topic.topic_id)] > 1:
                what = "name" if topic.name is not None else "id"
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
            result.name, result.topic_id = _find(context, topic)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        else:
            tx.emit(RemoveTopicRecord(topic_id=result.topic_id))
    tx.reply(tx.ticket, DeleteTopicsResponse(responses=list(results.values())))


def _find(context: ControllerContext, topic: DeleteTopicsRequest.DeleteTopicState) -> tuple[str, Uuid]:
    if topic.name is None:
        name = context.state.topic_names.get(Uuid(topic.topic_id))
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return name, Uuid(topic.topic_id)
    found = context.state.topic_ids.get(topic.name)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return topic.name, found
