"""Small files beside the logs: the quorum-state file and producer snapshots."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, data
from headrace.protocol.types import Int16, Int32, Int64, String, Uint32, Uuid


@data("0-1", flexible="0+")
class QuorumStateData(Struct):
    class Voter(Struct):
        voter_id: Int32 = 0

    cluster_id: Annotated[String, Field("0")] = ""
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    voted_id: Int32 = -1
    voted_directory_id: Annotated[Uuid, Field("1+")] = ZERO_UUID
    applied_offset: Annotated[Int64, Field("0")] = 0
    current_voters: Annotated[list[Voter] | None, Field("0")] = []


@data("1")
class ProducerSnapshot(Struct):
    class ProducerEntry(Struct):
        producer_id: Int64 = 0
        epoch: Int16 = 0
        last_sequence: Int32 = 0
        last_offset: Int64 = 0
        offset_delta: Int32 = 0
        timestamp: Int64 = 0
        coordinator_epoch: Int32 = 0
        current_txn_first_offset: Int64 = 0

    crc: Uint32 = 0
    producer_entries: list[ProducerEntry] = []
