"""What a leader knows of its followers, and the offset up to which all in-sync replicas have the log.

A follower's fetch offset is its log end: it asks for what it does not have. A follower is caught up at the time of a fetch that
reaches the leader's log end, and also, in retrospect, at the time of its previous fetch if it now has everything that the leader
had then. Without the second rule a follower that is always one batch behind would count as lagging under constant load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

UNKNOWN_OFFSET = -1
NO_BROKER_EPOCH = -1


class Follower:
    """The progress of one follower in the current leader epoch."""

    __slots__ = (
        "broker_epoch", "caught_up_ms", "fetched_ms", "leader_end_at_fetch", "log_end", "log_start", "refetches", "sent_offset",
    )  # fmt: skip

    def __init__(self, caught_up_ms: int) -> None:
        self.log_end = UNKNOWN_OFFSET
        self.log_start = UNKNOWN_OFFSET
        self.broker_epoch = NO_BROKER_EPOCH  # epoch that the broker sent with its last fetch, if it sent one
        self.caught_up_ms = caught_up_ms  # last time at which it had the whole log
        self.fetched_ms = 0
        self.leader_end_at_fetch = UNKNOWN_OFFSET  # the leader's log end at the last fetch
        self.sent_offset = UNKNOWN_OFFSET  # offset at which the last fetch was sent records
        self.refetches = 0  # fetches in a row at an offset at which records had been sent

    @property
    def may_have_found_damage(self) -> bool:
        """Return whether the follower may have refused the records that it was sent: after 1, 2, 4, 8, … refetches."""
        return self.refetches > 0 and self.refetches & (self.refetches - 1) == 0

    def is_caught_up(self, leader_end: int, now_ms: int, lag_ms_max: int) -> bool:
        return self.log_end == leader_end or now_ms - self.caught_up_ms <= lag_ms_max


class LeaderState:
    """The followers of one partition, from the moment this node begins to lead it until the leader epoch ends."""

    __slots__ = ("_followers",)

    def __init__(self, followers: Iterable[int], in_sync: Collection[int], now_ms: int) -> None:
        # A member of the ISR gets the whole lag time to fetch from its new leader.
        self._followers = {replica: Follower(now_ms if replica in in_sync else 0) for replica in followers}

    def assign(self, followers: Collection[int]) -> None:
        """Add and remove followers as a reassignment does; the others keep their progress."""
        self._followers = {replica: self._followers.get(replica) or Follower(0) for replica in followers}

    def get(self, replica: int) -> Follower | None:
        return self._followers.get(replica)

    def outside(self, in_sync: Collection[int]) -> list[tuple[int, Follower]]:
        return [item for item in self._followers.items() if item[0] not in in_sync]

    def fetched(
        self, replica: int, log_end: int, log_start: int, broker_epoch: int, leader_end: int, now_ms: int
    ) -> bool:
        """Record a fetch, and return False if it comes from an earlier incarnation of the broker.

        `replica` must be a follower. Offsets are the follower's claims: the caller has checked that they are in its log.
        """
        follower = self._followers[replica]
        if NO_BROKER_EPOCH < broker_epoch < follower.broker_epoch:
            return False
        if log_end >= leader_end:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        elif log_end >= follower.leader_end_at_fetch > UNKNOWN_OFFSET:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        # A broker that has restarted asks again for what it was sent just before, without having seen it.
        asks_again = log_end == follower.sent_offset and broker_epoch == follower.broker_epoch
        follower.refetches = follower.refetches + 1 if asks_again else 0
        follower.sent_offset = UNKNOWN_OFFSET
        follower.log_end = log_end
        follower.log_start = log_start
        follower.broker_epoch = broker_epoch
        follower.leader_end_at_fetch = leader_end
        follower.fetched_ms = now_ms
        return True

    def was_caught_up(self, replica: int, at_ms: int) -> None:
        """Record that a follower which had the whole log at its last recorded fetch still had it at this time.

        Its session says so: it fetches without naming the partition. Called before the leader looks at the follower's lag again.
        """
        follower = self._followers.get(replica)
        if follower is not None and follower.log_end >= follower.leader_end_at_fetch > UNKNOWN_OFFSET:
            follower.caught_up_ms = max(follower.caught_up_ms, at_ms)

    def sent(self, replica: int, offset: int) -> None:
        """Record that a follower is sent records from this offset on."""
        self._followers[replica].sent_offset = offset

    def replicated_end(self, own_end: int, members: Iterable[int]) -> int:
        """Return the offset below which the leader and all other `members` have the log.

        It is UNKNOWN_OFFSET while one of them has not fetched in this leader epoch.
        """
        end = own_end
        followers = self._followers
        for member in members:
            follower = followers.get(member)
            if follower is not None and follower.log_end < end:
                end = follower.log_end
        return end

    def low_watermark(self, own_start: int, live: Collection[int]) -> int:
        """Return the smallest log start among the leader and the followers on live brokers."""
        return min([own_start, *(one.log_start for replica, one in self._followers.items() if replica in live)])

    def lagging(self, in_sync: Iterable[int], leader_end: int, now_ms: int, lag_ms_max: int) -> list[int]:
        """Return the members of the ISR that have not been caught up for too long."""
        return [
            replica
            for replica in in_sync
            if (follower := self._followers.get(replica)) is not None
            and not follower.is_caught_up(leader_end, now_ms, lag_ms_max)
        ]
