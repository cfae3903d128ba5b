"""The partitions of each broker, so that a decision about one broker does not look at all partitions of the cluster.

The index may name partitions that are gone: decisions that are undone change tables, but not the index. Readers therefore compare it
with the state, and entries are removed only while nothing can be undone.
"""

from __future__ import annotations

from typing import Any

from headrace.base.ids import Uuid
from headrace.metadata.image import Partition
from headrace.metadata.state import ClusterState
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord, PartitionRecord

PartitionKey = tuple[Uuid, int]


class PartitionIndex:
    def __init__(self) -> None:
        self._partitions: dict[int, dict[PartitionKey, None]] = {}  # by broker, in the order of the log

    def note(self, record: Any) -> None:
        """Take over the replicas that a metadata record names."""
        if isinstance(record, PartitionRecord | PartitionChangeRecord) and record.replicas:
            key = (Uuid(record.topic_id), record.partition_id)
            for replica in record.replicas:
                self._partitions.setdefault(replica, {})[key] = None

    def of(self, broker_id: int, state: ClusterState, *, can_undo: bool) -> list[tuple[PartitionKey, Partition]]:
        """Return the partitions with a replica on the broker; `can_undo` tells whether changes may still be undone."""
        keys = self._partitions.get(broker_id, {})
        found = []
        gone = []
        for key in keys:
            partition = state.partitions.get(key)
            if partition is not None and broker_id in partition.replicas:
                found.append((key, partition))
            else:
                gone.append(key)
        if not can_undo:
            for key in gone:
                del keys[key]
        return found
