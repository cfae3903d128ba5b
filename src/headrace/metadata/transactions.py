"""Metadata transactions (KIP-868): records between Begin and End apply together, those before an Abort not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.base.errors import CorruptData
from headrace.protocol.messages.stored.metadata_cluster import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)


class TransactionBuffer:
    def __init__(self) -> None:
        self._buffered: list[Any] | None = None

    @property
    def is_open(self) -> bool:
        return self._buffered is not None

    def admit(self, record: Any) -> Sequence[Any]:
        """Return the records to apply now. Raise CorruptData if the begin and end of a transaction do not match."""
        kind = type(record)
        if kind is BeginTransactionRecord:
            if self._buffered is not None:
                raise CorruptData("a metadata transaction begins inside another")
            self._buffered = []
            return ()
        if kind is EndTransactionRecord or kind is AbortTransactionRecord:
            if self._buffered is None:
                raise CorruptData("a metadata transaction ends that did not begin")
            buffered, self._buffered = self._buffered, None
            return buffered if kind is EndTransactionRecord else ()
        if self._buffered is None:
            return (record,)
        self._buffered.append(record)
        return ()
