"""Counts the elections that this controller has decided, by how safe they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.base.ids import Uuid
from headrace.metadata.state import ClusterState
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord


@dataclass(slots=True)
class ElectionCounts:
    elected: int = 0
    from_elr: int = 0  # leaders that were eligible, but not in sync
    unclean: int = 0  # leaders that may lack acknowledged records

    def count(self, record: Any, state: ClusterState) -> None:
        """Count the election that a record brings about; `state` is the one before it."""
        if not isinstance(record, PartitionChangeRecord) or record.leader < 0:
            return
        old = state.partitions.get((Uuid(record.topic_id), record.partition_id))
        if old is None or old.leader == record.leader:
            return
        self.elected += 1
        if record.leader not in old.isr:
            is_eligible = record.leader in old.elr
            self.from_elr += is_eligible
            self.unclean += not is_eligible
