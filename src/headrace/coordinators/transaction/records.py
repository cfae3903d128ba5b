"""Records of __transaction_state: a transactional id and its state."""

from __future__ import annotations

import msgspec

from headrace.base.errors import CorruptData
from headrace.coordinators.transaction.states import STORED
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.stored.transactions import TransactionLogKey, TransactionLogValue
from headrace.protocol.stored import TRANSACTION_RECORDS


class TransactionRecord(msgspec.Struct, frozen=True):
    transactional_id: str
    value: TransactionLogValue | None  # None for a tombstone
    version: int = 0  # version of the value


def encode_transaction_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    key = TRANSACTION_RECORDS.encode_key(TransactionLogKey(record.transactional_id))
    return key, None if record.value is None else TRANSACTION_RECORDS.encode_value(record.value, record.version)


def decode_transaction_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """Decode a record, or return None for an unknown type, which a newer version may have written (KIP-915).

    Raise CorruptData if the record cannot be read.
    """
    if key is None:
        raise CorruptData("a record of __transaction_state has no key")
    try:
        found = TRANSACTION_RECORDS.decode_key(key)
        if found is None:
            return None
        assert isinstance(found, TransactionLogKey)
        if value is None:
            return TransactionRecord(found.transactional_id, None)
        decoded, version = TRANSACTION_RECORDS.decode_value(found, value)
    except DecodeError as error:
        raise CorruptData(f"a record of __transaction_state cannot be read: {error}") from error
    assert isinstance(decoded, TransactionLogValue)
    if decoded.transaction_status not in STORED:
        raise CorruptData(f"a record of __transaction_state has the status {decoded.transaction_status}")
    return TransactionRecord(found.transactional_id, decoded, version)
