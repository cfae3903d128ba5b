"""Frames of group coordinator requests and responses, and waiting for the coordinator."""

from __future__ import annotations

import time
from typing import Any

from bench.errors import BenchFailed
from bench.load.frames import ERROR_MARK, difference
from bench.systems.requests import CLIENT_ID, READY_S_MAX, RETRY_S, Connection
from headrace.base.errors import ErrorCode
from headrace.client.wire.frames import encode_request
from headrace.protocol.compiler import codec
from headrace.protocol.framing import SIZE
from headrace.protocol.headers import response_header
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest

FIND_COORDINATOR_VERSION = 4
HEARTBEAT_VERSION = 4
OFFSET_COMMIT_VERSION = 9  # the last version with topic names
OFFSET_FETCH_VERSION = 9
LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)

_ResponseTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_ResponsePartition = OffsetCommitResponse.OffsetCommitResponsePartition


def commit_request(group: str, topic: str, partitions: range, offset: int) -> OffsetCommitRequest:
    """Return an OffsetCommit request of a consumer that assigns its own partitions."""
    committed = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        for index in partitions
    ]
    committed_topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=committed)
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[committed_topic])


def commit_frame(group: str, topic: str) -> bytes:
    return b"".join(encode_request(commit_request(group, topic, range(1), 1), OFFSET_COMMIT_VERSION, 0, CLIENT_ID))


def commit_response(topic: str, error_code: int = 0) -> bytes:
    response_topic = _ResponseTopic(name=topic, partitions=[_ResponsePartition(0, error_code)])
    return _frame(OffsetCommitResponse(topics=[response_topic]), OFFSET_COMMIT_VERSION)


def commit_error_at(topic: str) -> tuple[int, ...]:
    return (difference(commit_response(topic), commit_response(topic, ERROR_MARK)),)


def heartbeat_frame(group: str, generation: int, member: str) -> bytes:
    request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    return b"".join(encode_request(request, HEARTBEAT_VERSION, 0, CLIENT_ID))


def heartbeat_response(error_code: int = 0) -> bytes:
    return _frame(HeartbeatResponse(error_code=error_code), HEARTBEAT_VERSION)


def heartbeat_error_at() -> tuple[int, ...]:
    return (difference(heartbeat_response(), heartbeat_response(ERROR_MARK)),)


def _frame(response: Any, version: int) -> bytes:
    key = type(response).facts.api_key
    body = response_header(key, version, 0) + codec(type(response), version).encode(response)
    return SIZE.pack(len(body)) + body


def fetch_offset(connection: Connection, group: str, topic: str, partition: int) -> tuple[int, int]:
    """Return the error code and the committed offset, or -1 if there is none."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[wanted])]
    (found,) = connection.request(OffsetFetchRequest(groups=groups), OFFSET_FETCH_VERSION).groups
    if found.error_code:
        return int(found.error_code), -1
    return 0, int(found.topics[0].partitions[0].committed_offset)


def wait_for_coordinator(connection: Connection, groups: list[str], topic: str) -> None:
    """Wait until the coordinators of all groups respond; the first request creates `__consumer_offsets`."""
    deadline = time.monotonic() + READY_S_MAX
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=groups)
    while True:
        found = connection.request(request, FIND_COORDINATOR_VERSION).coordinators
        codes = [one.error_code for one in found] or [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        if not any(codes):
            codes = [fetch_offset(connection, group, topic, 0)[0] for group in groups]
        if not any(codes):
            return
        if time.monotonic() > deadline or not set(codes) <= {ErrorCode.NONE, *LOADING}:
            raise BenchFailed(f"the group coordinator responded with error {max(codes)}")
        time.sleep(RETRY_S)
