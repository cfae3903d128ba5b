"""The state of a follower: its leader, the fetch in flight, and when the leader counts as lost."""

from __future__ import annotations

from msgspec import Struct

from headrace.base.ids import NodeId
from headrace.raft.log_view import LogPoint


class FollowerState(Struct):
    """A follower's volatile state, for one leader."""

    leader: NodeId
    deadline_ms: int  # when the leader counts as lost
    has_fetched: bool = False
    leader_high_watermark: int = 0
    fetch_sent_ms: int | None = None  # None: no fetch is in flight
    snapshot: LogPoint | None = None  # the snapshot being fetched
