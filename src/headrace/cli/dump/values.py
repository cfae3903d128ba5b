"""Keys and values of records as `dump-log` shows them: text, or Kafka's JSON for records of internal topics."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from headrace.base.errors import CorruptData
from headrace.base.ids import Uuid, uuid_text
from headrace.protocol.compiler import codec
from headrace.protocol.declare import Struct, fields_of
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages import embedded
from headrace.protocol.stored import (
    GROUP_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    CoordinatorRecords,
    decode_framed,
)
from headrace.records.control import ControlType, ParsedControlRecord, parse_marker
from headrace.records.record import Record

Decoder = Callable[[Record], dict[str, Any]]

HIDDEN = "(hidden)"
_SECRETS = frozenset({"salt", "stored_key", "server_key"})  # fields of a SCRAM user
_CONTROL: dict[int, tuple[str, type[Struct]]] = {
    ControlType.LEADER_CHANGE: ("LeaderChange", embedded.LeaderChangeMessage),
    ControlType.SNAPSHOT_HEADER: ("SnapshotHeader", embedded.SnapshotHeaderRecord),
    ControlType.SNAPSHOT_FOOTER: ("SnapshotFooter", embedded.SnapshotFooterRecord),
    ControlType.KRAFT_VERSION: ("KRaftVersion", embedded.KRaftVersionRecord),
    ControlType.KRAFT_VOTERS: ("KRaftVoters", embedded.VotersRecord),
}
# Kafka writes a colon after LeaderChange only.
WITHOUT_COLON = frozenset(name for name, _ in _CONTROL.values()) - {"LeaderChange"}


def as_text(record: Record) -> dict[str, Any]:
    shown: dict[str, Any] = {} if record.key is None else {"key": _text(record.key)}
    return shown if record.value is None else {**shown, "payload": _text(record.value)}


def as_metadata(record: Record) -> dict[str, Any]:
    if record.value is None:
        return {"payload": None}
    try:
        found, version = decode_framed(record.value)
    except DecodeError as error:
        raise CorruptData(f"offset {record.offset} is not a metadata record: {error}") from error
    if found is None:
        return {"payload": {"type": "UNKNOWN", "data": record.value.hex()}}
    kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(found).__name__).upper()
    return {"payload": {"type": kind, "version": version, "data": as_json(found, version)}}


def of_coordinator(records: CoordinatorRecords) -> Decoder:
    def decode(record: Record) -> dict[str, Any]:
        try:
            key = records.decode_key(record.key or b"")
            if key is None:
                return as_text(record)
            shown: dict[str, Any] = {
                "key": {"type": str(key.facts.api_key), "data": as_json(key, key.facts.versions.high)},
                "payload": "<DELETE>",
            }
            if record.value is not None:
                value, version = records.decode_value(key, record.value)
                shown["payload"] = {"version": str(version), "data": as_json(value, version)}
        except DecodeError as error:
            raise CorruptData(f"offset {record.offset} is not a record of this topic: {error}") from error
        return shown

    return decode


DECODERS: dict[str, Decoder] = {
    "__cluster_metadata": as_metadata,
    "__consumer_offsets": of_coordinator(GROUP_RECORDS),
    "__transaction_state": of_coordinator(TRANSACTION_RECORDS),
    "__share_group_state": of_coordinator(SHARE_RECORDS),
}


def of_control(record: ParsedControlRecord) -> dict[str, Any]:
    marker = parse_marker(record)
    if marker is not None:
        return {"endTxnMarker": "COMMIT" if marker.commit else "ABORT", "coordinatorEpoch": marker.coordinator_epoch}
    if record.type not in _CONTROL:
        return {"controlType": record.type, "payload": record.value.hex()}
    name, message = _CONTROL[record.type]
    try:
        # The first field of the value is its version, which is also the version of its encoding.
        version = min(max(int.from_bytes(record.value[:2], "big"), 0), message.facts.versions.high)
        return {name: as_json(codec(message, version).decode(record.value, 0), version)}
    except DecodeError as error:
        raise CorruptData(f"offset {record.offset} is not a {name} record: {error}") from error


def as_json(struct: Struct, version: int) -> dict[str, Any]:
    """Return a message with Kafka's field names.

    Fields that the version lacks are left out, as are tagged fields that have their default.
    """
    shown = {}
    for field in fields_of(type(struct)):
        value = getattr(struct, field.name)
        if version not in field.versions or (version in field.tagged and value == field.default):
            continue
        if field.name in _SECRETS:
            value = HIDDEN
        first, *rest = field.name.split("_")
        shown[first + "".join(part.capitalize() for part in rest)] = _plain(value, version, _is_uuid(field.wire))
    return shown


def _is_uuid(wire: Any) -> bool:
    return wire is not None and wire.name == "uuid"


def _plain(value: Any, version: int, is_uuid: bool) -> Any:
    if isinstance(value, Struct):
        return as_json(value, version)
    if isinstance(value, list):
        return [_plain(one, version, is_uuid) for one in value]
    if is_uuid and value is not None:
        return uuid_text(Uuid(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
