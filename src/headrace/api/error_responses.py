"""Error responses to administrative requests: one error code and one message for everything that the request names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from headrace.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from headrace.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


def code_of(error: Exception) -> ErrorCode:
    """Return the error code for a request that did not reach the controller, or that it refused as a whole."""
    return error.code if isinstance(error, KafkaError) else ErrorCode.REQUEST_TIMED_OUT


def refuse(request: Any, code: ErrorCode, text: str) -> Any:
    return _REFUSALS[type(request)](request, code, text)


def _configs(item: Any, response: Any) -> Callable[[Any, ErrorCode, str], Any]:
    return lambda request, code, text: response(
        responses=[
            item(resource_type=one.resource_type, resource_name=one.resource_name, error_code=code, error_message=text)
            for one in request.resources
        ]
    )


def _partitions(request: CreatePartitionsRequest, code: ErrorCode, text: str) -> CreatePartitionsResponse:
    result = CreatePartitionsResponse.CreatePartitionsTopicResult
    return CreatePartitionsResponse(
        results=[result(name=topic.name, error_code=code, error_message=text) for topic in request.topics]
    )


def _elections(request: ElectLeadersRequest, code: ErrorCode, text: str) -> ElectLeadersResponse:
    result = ElectLeadersResponse.PartitionResult
    return ElectLeadersResponse(
        # Version 0 has no top-level error code, so the partitions carry it if any are named.
        error_code=ErrorCode.NONE if request.topic_partitions else code,
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    result(partition_id=index, error_code=code, error_message=text) for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or []
        ],
    )


def _replica_dirs(request: AlterReplicaLogDirsRequest, code: ErrorCode, text: str) -> AlterReplicaLogDirsResponse:
    result = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[result(partition_index=index, error_code=code) for index in topic.partitions],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def _whole(response: Any) -> Callable[[Any, ErrorCode, str], Any]:
    return lambda request, code, text: response(error_code=code, error_message=text)


_REFUSALS: dict[type[Any], Callable[[Any, ErrorCode, str], Any]] = {
    AlterConfigsRequest: _configs(AlterConfigsResponse.AlterConfigsResourceResponse, AlterConfigsResponse),
    IncrementalAlterConfigsRequest: _configs(
        IncrementalAlterConfigsResponse.AlterConfigsResourceResponse, IncrementalAlterConfigsResponse
    ),
    CreatePartitionsRequest: _partitions,
    ElectLeadersRequest: _elections,
    AlterReplicaLogDirsRequest: _replica_dirs,
    UpdateFeaturesRequest: _whole(UpdateFeaturesResponse),
    UnregisterBrokerRequest: _whole(UnregisterBrokerResponse),
    AddRaftVoterRequest: _whole(AddRaftVoterResponse),
    RemoveRaftVoterRequest: _whole(RemoveRaftVoterResponse),
    ListPartitionReassignmentsRequest: _whole(ListPartitionReassignmentsResponse),
    AlterPartitionReassignmentsRequest: _whole(AlterPartitionReassignmentsResponse),
    DescribeQuorumRequest: _whole(DescribeQuorumResponse),
}
