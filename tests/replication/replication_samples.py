"""Partitions on a simulated disk, for the tests of this package."""

from __future__ import annotations

from random import Random
from typing import Any

from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import SimulatedLoop

from headrace.base.ids import NO_NODE, NodeId, TopicPartition, Uuid
from headrace.metadata.image import Partition as PartitionState
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.replication.group_commit import GroupCommit
from headrace.replication.partition import Partition
from headrace.storage.append import AppendInfo
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000
NODE = NodeId(1)
NAME = TopicPartition("t", 0)
TOPIC_ID = Uuid(b"t" * 16)


def make_files() -> SimulatedFiles:
    files = SimulatedFiles(Random(0))
    files.make_dirs("/data")
    files.sync_dir("/")
    return files


def make_partition(files: SimulatedFiles, loop: SimulatedLoop | None = None, **options: Any) -> Partition:
    """Return a partition led by this node, with a group commit if `loop` is given."""
    log, _ = Log.open(files, "/data/t-0", NAME, LogConfig(**options), topic_id=TOPIC_ID, now_ms=NOW_MS)
    partition = Partition(NAME, TOPIC_ID, NODE, log, 0)
    if loop is not None:
        partition.commit = GroupCommit(log, loop, partition.synced, partition.fail)
    partition.configure(1)
    elect(partition, NODE, 0)
    return partition


def elect(partition: Partition, leader: int, epoch: int, isr: tuple[int, ...] | None = None) -> None:
    """Elect a leader of a partition whose only replica is this node; with another leader, this node becomes a follower."""
    replicas = (partition.node_id,) if leader in (partition.node_id, NO_NODE) else (partition.node_id, leader)
    state = PartitionState(replicas, (partition.node_id,) if isr is None else isr, leader, epoch, 0)
    if leader == partition.node_id:
        partition.lead(state, NOW_MS)
    else:
        partition.follow(state)


def append(partition: Partition, count: int = 1, **options: Any) -> AppendInfo:
    batch = build_batch([Record(0, NOW_MS, b"k", b"v" * 20)] * count, **options)
    return partition.append(memoryview(batch), read_header(batch), NOW_MS, NOW_MS)
