"""Responses as plain values, without what must differ: random ids, the time of day, the wording of messages."""

from __future__ import annotations

from typing import Any

from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.list_offsets import ListOffsetsResponse
from headrace.protocol.messages.produce import ProduceResponse
from headrace.records.batch import HEADER_BYTES, peek_size_and_magic
from tools.prove.differential.deviations import RECORD_ERRORS_MAX
from tools.prove.differential.wire import Target

APPEND_TIME_TOPIC = "append-time"
_CRC = slice(17, 21)
_MAX_TIMESTAMP = slice(35, 43)
_PEEK_BYTES = 17


def plain(response: Any, target: Target, session: str | None = None) -> Any:
    """Return a response as plain values that can be compared."""
    if isinstance(response, ProduceResponse):
        return _produce(response, target)
    if isinstance(response, FetchResponse):
        return _fetch(response, target, session)
    if isinstance(response, ListOffsetsResponse):
        return _offsets(response)
    return response


def _produce(response: ProduceResponse, target: Target) -> Any:
    results: list[dict[str, Any]] = [
        {
            "partition": (topic.name or target.topic_named(topic.topic_id), data.index),
            "error": data.error_code,
            "base_offset": data.base_offset,
            "append_time": _append_time(topic.name or target.topic_named(topic.topic_id), data.log_append_time_ms),
            "log_start": data.log_start_offset,
            "record_errors": [error.batch_index for error in data.record_errors[:RECORD_ERRORS_MAX]],
            "leader": (data.current_leader.leader_id, data.current_leader.leader_epoch),
        }
        for topic in response.responses
        for data in topic.partition_responses
    ]
    return _sorted(results)


def _sorted(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the responses, which Kafka returns in the order of a hash table."""
    return sorted(results, key=lambda one: (one["partition"], one["error"]))


def _append_time(topic: str, time: int) -> Any:
    return "now" if topic == APPEND_TIME_TOPIC and time >= 0 else time


def _fetch(response: FetchResponse, target: Target, session: str | None) -> Any:
    known = target.sessions.get(session or "", 0)
    return {
        "error": response.error_code,
        "session": "none" if response.session_id == 0 else "same" if response.session_id == known else "new",
        "partitions": [
            _partition(topic.topic or target.topic_named(topic.topic_id), data)
            for topic in response.responses
            for data in topic.partitions
        ],
    }


def _partition(topic: str, data: FetchResponse.PartitionData) -> Any:
    aborted = data.aborted_transactions
    records = data.records
    return {
        "partition": (topic, data.partition_index),
        "error": data.error_code,
        "high_watermark": data.high_watermark,
        "last_stable_offset": data.last_stable_offset,
        "log_start": data.log_start_offset,
        "diverging": (data.diverging_epoch.epoch, data.diverging_epoch.end_offset),
        "leader": (data.current_leader.leader_id, data.current_leader.leader_epoch),
        "snapshot": (data.snapshot_id.end_offset, data.snapshot_id.epoch),
        "aborted": None if aborted is None else [(one.producer_id, one.first_offset) for one in aborted],
        "preferred": data.preferred_read_replica,
        "records": None if records is None else stored_bytes(topic, _joined(records)),
    }


def _joined(records: Any) -> bytes:
    return bytes(records) if isinstance(records, bytes | bytearray | memoryview) else b"".join(map(bytes, records))


def stored_bytes(topic: str, data: bytes) -> bytes:
    """Return the bytes unchanged or, if the broker sets the time, without the time and the checksum."""
    if topic != APPEND_TIME_TOPIC:
        return data
    out = bytearray(data)
    position = 0
    while len(out) - position >= _PEEK_BYTES:
        size, _ = peek_size_and_magic(out, position)
        for part in (_CRC, _MAX_TIMESTAMP):
            for index in range(position + part.start, min(position + part.stop, len(out))):
                out[index] = 0
        position += max(size, HEADER_BYTES)
    return bytes(out)


def _offsets(response: ListOffsetsResponse) -> Any:
    results: list[dict[str, Any]] = [
        {
            "partition": (topic.name, data.partition_index),
            "error": data.error_code,
            "timestamp": "now" if topic.name == APPEND_TIME_TOPIC and data.timestamp > 0 else data.timestamp,
            "offset": data.offset,
            "leader_epoch": data.leader_epoch,
        }
        for topic in response.topics
        for data in topic.partitions
    ]
    return _sorted(results)
