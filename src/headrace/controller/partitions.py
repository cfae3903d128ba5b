"""CreatePartitions, ElectLeaders and ListPartitionReassignments."""

from __future__ import annotations

from collections import Counter

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller import elections
from headrace.controller.brokers import usable
from headrace.controller.context import ControllerContext, Tx
from headrace.controller.leadership import election_rules
from headrace.controller.placement import assign_replicas
from headrace.controller.topics import PARTITIONS_PER_REQUEST_MAX, active_of, check_replicas, new_partition
from headrace.metadata.image import Partition
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

PREFERRED, UNCLEAN = 0, 1

Created = CreatePartitionsResponse.CreatePartitionsTopicResult
Elected = ElectLeadersResponse.PartitionResult


def create(context: ControllerContext, request: CreatePartitionsRequest, now_ms: int, tx: Tx) -> None:
    times = Counter(topic.name for topic in request.topics)
    remaining = PARTITIONS_PER_REQUEST_MAX
    results: dict[str, Created] = {}
    for topic in request.topics:
        if topic.name in results:
            continue
        result = results[topic.name] = Created(name=topic.name)
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            topic_id, assignment, first = _assign(context, topic, remaining)
            records = [
                new_partition(
                    context,
                    topic_id,
                    index,
                    replicas,
                    active_of(context, replicas, index, by_hand=topic.assignments is not None),
                )
                for index, replicas in enumerate(assignment, first)
            ]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message or None
            continue
        remaining -= len(assignment)
        if not request.validate_only:
            for record in records:
                tx.emit(record)
    tx.reply(tx.ticket, CreatePartitionsResponse(results=list(results.values())))


def _assign(
    context: ControllerContext, topic: CreatePartitionsRequest.CreatePartitionsTopic, remaining: int
) -> tuple[Uuid, list[list[int]], int]:
    """Return the topic id, the replicas of the new partitions, and the index of the first of them."""
    topic_id = context.state.topic_ids.get(topic.name)
    if topic_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    old = list(context.state.partitions_of(topic_id))
    count = len(old)
    if topic.count == count:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if topic.count < count:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {count} partition(s); {topic.count} would not be an increase.",
        )
    more = topic.count - count
    if topic.assignments is not None and len(topic.assignments) != more:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {more} additional partition(s), but only {len(topic.assignments)} assignment(s) "
            "were specified.",
        )
    if more > remaining:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    factor = len(old[0].replicas)
    if topic.assignments is None:
        return topic_id, assign_replicas(more, factor, usable(context), context.random), count
    for assignment in topic.assignments:
        check_replicas(context, assignment.broker_ids, factor)
    return topic_id, [assignment.broker_ids for assignment in topic.assignments], count


def elect_leaders(context: ControllerContext, request: ElectLeadersRequest, now_ms: int, tx: Tx) -> None:
    """Elect leaders for the named partitions, or for all partitions.

    A named partition that needs no election gets an error; a request for all partitions leaves it out of the response.
    """
    everything = request.topic_partitions is None
    partitions_by_topic = (
        [(name, [*range(_count(context, name))]) for name in context.topic_names()]
        if request.topic_partitions is None
        else [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    )
    response = ElectLeadersResponse(replica_election_results=[])
    if request.election_type not in (PREFERRED, UNCLEAN):
        response.error_code = ErrorCode.INVALID_REQUEST
    for name, indexes in partitions_by_topic:
        results = []
        for index in indexes:
            result = Elected(partition_id=index, error_message=None)
            try:
                if response.error_code:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
                _elect(context, name, index, request.election_type, tx)
            except KafkaError as error:
                if everything and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result.error_code, result.error_message = error.code, error.message
            results.append(result)
        response.replica_election_results.append(
            ElectLeadersResponse.ReplicaElectionResult(topic=name, partition_result=results)
        )
    tx.reply(tx.ticket, response)


def _count(context: ControllerContext, name: str) -> int:
    topic_id = context.state.topic_ids.get(name)
    return 0 if topic_id is None else len(list(context.state.partitions_of(topic_id)))


def _elect(context: ControllerContext, name: str, index: int, kind: int, tx: Tx) -> None:
    topic_id = context.state.topic_ids.get(name)
    if topic_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = context.state.partitions.get((topic_id, index))
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if partition.leader == partition.replicas[0] if kind == PREFERRED else partition.has_leader:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    election = elections.preferred if kind == PREFERRED else elections.unclean
    change = election(topic_id, index, partition, election_rules(context, topic_id, partition))
    if change is None and kind == PREFERRED:
        raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    if change is None:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
        )
    tx.emit(change)


def list_reassignments(
    context: ControllerContext, request: ListPartitionReassignmentsRequest, now_ms: int, tx: Tx
) -> None:
    partitions_by_topic = (
        None if request.topics is None else {topic.name: set(topic.partition_indexes) for topic in request.topics}
    )
    ongoing: dict[str, list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]] = {}
    for (topic_id, index), partition in context.partitions():
        name = context.state.topic_names[topic_id]
        if _moves(partition) and (partitions_by_topic is None or index in partitions_by_topic.get(name, ())):
            ongoing.setdefault(name, []).append(
                ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(partition.replicas),
                    adding_replicas=list(partition.adding_replicas),
                    removing_replicas=list(partition.removing_replicas),
                )
            )
    topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
    topics = [topic(name=name, partitions=partitions) for name, partitions in ongoing.items()]
    tx.reply(tx.ticket, ListPartitionReassignmentsResponse(error_message=None, topics=topics))


def _moves(partition: Partition) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)
