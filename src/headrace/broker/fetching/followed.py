"""One followed partition, and what all fetchers of a broker share: its identity and options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from headrace.base.clock import Clock
from headrace.base.ids import NodeId
from headrace.replication.follower_session import Position
from headrace.replication.follower_state import FollowerState
from headrace.replication.group_commit import Synced
from headrace.replication.partition import Partition


class FetchOptions(Struct, frozen=True):
    """The options `replica.fetch.*`."""

    wait_ms: int = 500
    bytes_min: int = 1
    partition_bytes_max: int = 1 << 20
    response_bytes_max: int = 10 << 20
    backoff_ms: int = 1000


class FollowerIdentity(Struct, frozen=True):
    """The broker that fetches, and its services for fetchers."""

    node_id: NodeId
    broker_epoch: Callable[[], int]
    clock: Clock
    # Makes the recovery points durable, which a truncation has moved back.
    checkpoint: Callable[[], Awaitable[None]]
    # Called with the id of a broker that does not answer any more.
    on_lost: Callable[[int], None] = lambda node_id: None


class Followed:
    """One partition that is fetched, with the lag that the last response showed."""

    __slots__ = ("lag", "partition", "state", "sync")

    def __init__(self, partition: Partition, backoff_ms: int) -> None:
        self.partition = partition
        self.state = FollowerState(partition.leader_epoch, backoff_ms)
        self.lag = 0  # offsets up to the leader's high watermark
        self.sync: Synced | None = None  # what the next fetch waits for

    @property
    def is_current(self) -> bool:
        """Return whether the partition still follows in the leader epoch for which it was added."""
        return self.partition.is_follower and self.partition.leader_epoch == self.state.leader_epoch

    def position(self) -> Position:
        log = self.partition.log
        return Position(
            self.state.leader_epoch, log.log_end, log.epochs.latest, log.log_start, self.partition.high_watermark
        )
