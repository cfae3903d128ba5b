"""One replica of the metadata log: elections, replication and changes of the voters, without I/O.

The shell passes in messages (`step`), time (`tick`) and what has become durable (`election_persisted`, `persisted`), and executes the
effects that each call returns, in order. Nothing counts before it is durable: neither a vote, nor the leader's own records, nor a
follower's fetch offset. The log itself belongs to the shell; the node only reads where it ends.
"""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId
from headrace.raft.effects import (
    AppendFetched,
    AppendVoters,
    Committed,
    Effect,
    FetchSnapshot,
    Persist,
    Rejected,
    Reply,
    Send,
    Truncate,
)
from headrace.raft.election_node import ElectionNode
from headrace.raft.follower import FollowerState
from headrace.raft.leader import LeaderState
from headrace.raft.log_view import Divergence, LogPoint, NeedsSnapshot, compare_with_leader, truncation_offset
from headrace.raft.membership import DYNAMIC_KRAFT_VERSION, set_updating, set_with, set_without
from headrace.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    Message,
    Request,
    VoteRequest,
    VoteResponse,
)
from headrace.raft.voters import ReplicaKey, Voter, VoterSet


class RaftNode(ElectionNode):
    """A voter or an observer. Its constructor takes the voter sets of the log and the durable election state."""

    def step(self, message: Message, now_ms: int) -> list[Effect]:
        match message:
            case VoteRequest():
                return self._on_vote(message, now_ms)
            case BeginQuorumEpochRequest():
                return self._on_begin(message, now_ms)
            case EndQuorumEpochRequest():
                return self._on_end(message, now_ms)
            case FetchRequest():
                return self._on_fetch(message, now_ms)
        effects = self._learn_epoch(message.epoch, message.leader, now_ms)
        match message:
            case VoteResponse() if message.epoch == self.epoch:
                effects += self._on_vote_response(message, now_ms)
            case FetchResponse() if message.epoch == self.epoch:
                effects += self._on_fetch_response(message, now_ms)
        return effects

    # --- replication: the leader's side

    def _on_fetch(self, request: FetchRequest, now_ms: int) -> list[Effect]:
        """Reply to a fetch; the shell adds the records, and may hold back an empty response for a while."""
        if request.epoch < self.epoch:
            return [self._fetch_reply(request, error=ErrorCode.FENCED_LEADER_EPOCH)]
        if request.epoch > self.epoch:
            return [self._fetch_reply(request, error=ErrorCode.UNKNOWN_LEADER_EPOCH)]
        if self.leading is None:
            return [self._fetch_reply(request, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        if request.replica.id == self.key.id or request.offset < 0 or request.last_fetched_epoch < 0:
            return [self._fetch_reply(request, error=ErrorCode.INVALID_REQUEST)]
        is_named = request.replica.id >= 0  # a reader without an id has no progress to remember
        found = compare_with_leader(self._log, request.offset, request.last_fetched_epoch)
        if found is not None:
            if is_named:
                self.leading.contacted(request.replica, now_ms)
            diverging = found.point if isinstance(found, Divergence) else None
            snapshot = found.point if isinstance(found, NeedsSnapshot) else None
            return [self._fetch_reply(request, diverging=diverging, snapshot=snapshot)]
        effects: list[Effect] = []
        if is_named:
            self.leading.fetched(request.replica, request.offset, self._log.end_offset, now_ms)
            effects = self._advance(now_ms)
        return [*effects, self._fetch_reply(request)]

    def _fetch_reply(
        self,
        request: FetchRequest,
        *,
        error: ErrorCode = ErrorCode.NONE,
        diverging: LogPoint | None = None,
        snapshot: LogPoint | None = None,
    ) -> Reply:
        return Reply(
            request.token,
            FetchResponse(
                self.key.id,
                self.epoch,
                self.leader,
                request.offset,
                self.high_watermark,
                diverging=diverging,
                snapshot=snapshot,
                error=error,
            ),
        )

    def proposed(self, end_offset: int, voters: VoterSet | None = None) -> list[Effect]:
        """Note that the leader's log now ends here, with a VotersRecord as its last record if `voters` is given."""
        assert self.leading is not None, f"only a leader proposes, this node is {self.role.value}"
        if voters is not None:
            self.history.append(end_offset - 1, voters)
        return [Persist(end_offset, self._generation)]

    def persisted(self, end_offset: int, generation: int, now_ms: int) -> list[Effect]:
        """Note that the log is on disk up to here."""
        if generation != self._generation:
            return []  # of a log that has been truncated since
        assert end_offset <= self._log.end_offset, f"{end_offset} is past the end {self._log.end_offset}"
        self._durable = max(self._durable, end_offset)
        if self.leading is not None:
            self.leading.persisted(self._durable)
            return self._advance(now_ms)
        if self._following is not None:
            return [*self._follow_high_watermark(), *self._fetch(now_ms)]
        return []

    def _advance(self, now_ms: int) -> list[Effect]:
        assert self.leading is not None
        committed = self.leading.committed(self.voters)
        if committed <= self.high_watermark:
            return []
        self.high_watermark = committed
        effects: list[Effect] = [Committed(committed)]
        if self.history.last_offset < committed and not self.is_voter:
            effects += self.resign(now_ms)  # it has committed its own removal
        return effects

    # --- replication: the follower's side

    def _fetch_request(self) -> FetchRequest:
        return FetchRequest(self.key, self.epoch, self._log.end_offset, self._log.last_epoch)

    def _fetch(self, now_ms: int) -> list[Effect]:
        """Fetch from the leader, if everything that was fetched is durable and no other fetch is under way."""
        following = self._following
        if following is None or following.fetch_sent_ms is not None or following.snapshot is not None:
            return []
        if self._durable < self._log.end_offset:
            return []
        following.fetch_sent_ms = now_ms
        return [Send(following.leader, self._fetch_request())]

    def _on_fetch_response(self, response: FetchResponse, now_ms: int) -> list[Effect]:
        following = self._following
        if following is None or response.sender != following.leader or response.offset != self._log.end_offset:
            return []
        following.fetch_sent_ms = None
        if response.error is not ErrorCode.NONE:
            return []  # `tick` fetches again
        following.deadline_ms = now_ms + self._timeouts.fetch_ms
        following.has_fetched = True
        if response.diverging is not None:
            return self._truncate(response.diverging, now_ms)
        if response.snapshot is not None:
            return self._start_snapshot(response.snapshot, following)
        following.leader_high_watermark = max(following.leader_high_watermark, response.high_watermark)
        effects = self._follow_high_watermark()
        if response.records:
            return [*effects, AppendFetched(response.records)]
        return [*effects, *self._fetch(now_ms)]

    def _truncate(self, diverging: LogPoint, now_ms: int) -> list[Effect]:
        offset = truncation_offset(self._log, diverging)
        if offset < self.high_watermark:
            return [
                Rejected(
                    f"the leader's log diverges at offset {offset}, below the high watermark {self.high_watermark}: "
                    "committed records would be lost"
                )
            ]
        if offset >= self._log.end_offset:
            return [Rejected(f"the leader's log is said to diverge at offset {offset}, where this log ends")]
        self._generation += 1
        self.truncated(offset)
        return [Truncate(offset), Persist(offset, self._generation)]

    def truncated(self, end_offset: int) -> None:
        """Note where the log ends after a truncation: below the offset of the command if a batch spans it."""
        self._durable = min(self._durable, end_offset)
        self.history.truncate(end_offset)

    def unanswered(self, to: NodeId, request: Request, now_ms: int, *, is_refused: bool) -> list[Effect]:
        """Note that a request got no response; `is_refused` says that nothing listens at the address of its receiver.

        A follower whose leader refuses connections does not wait for the fetch timeout, but only for a moment, at random, so that
        not all followers campaign at once. This is safe, because it is only an early timeout: voters that can still fetch from the
        leader refuse the pre-vote.
        """
        following = self._following
        if following is None or following.leader != to or not isinstance(request, FetchRequest):
            return []
        following.fetch_sent_ms = None
        if is_refused:
            following.has_fetched = False  # others may be elected
            following.deadline_ms = min(following.deadline_ms, now_ms + self._timeouts.random_stagger_ms(self._random))
            return self.tick(now_ms)
        self._retry_ms = min(self._retry_ms, now_ms + self._timeouts.retry_ms)
        return []

    @property
    def has_joined(self) -> bool:
        """Return whether this node leads, or has fetched from the leader that it follows."""
        return self.leading is not None or (self._following is not None and self._following.has_fetched)

    def _start_snapshot(self, snapshot: LogPoint, following: FollowerState) -> list[Effect]:
        if snapshot.offset < self.high_watermark:
            return [Rejected(f"the leader's snapshot ends at {snapshot.offset}, before the high watermark")]
        following.snapshot = snapshot
        return [FetchSnapshot(following.leader, snapshot)]

    def is_installing(self, snapshot: LogPoint) -> bool:
        """Return whether the log may still be replaced by this snapshot; the shell checks it right before it does so."""
        return self._following is not None and self._following.snapshot == snapshot

    def snapshot_progressed(self, now_ms: int) -> None:
        """Note that the leader has sent a part of the snapshot: it is alive."""
        if self._following is not None:
            self._following.deadline_ms = now_ms + self._timeouts.fetch_ms

    def snapshot_failed(self, now_ms: int) -> list[Effect]:
        """Note that the snapshot could not be fetched; the next fetch shows what to do."""
        if self._following is not None:
            self._following.snapshot = None
        return self._fetch(now_ms)

    def snapshot_installed(self, snapshot: LogPoint, voters: VoterSet | None, now_ms: int) -> list[Effect]:
        """Note that the log has been replaced by a snapshot, durably; `voters` is the set that it holds."""
        assert self.is_installing(snapshot), "the log was replaced by a snapshot that is no longer needed"
        self._generation += 1
        self._durable = self._log.end_offset
        self.history.reset(snapshot.offset - 1, voters)
        if self._following is not None:
            self._following.snapshot = None
        effects: list[Effect] = []
        if snapshot.offset > self.high_watermark:
            self.high_watermark = snapshot.offset
            effects.append(Committed(snapshot.offset))
        return effects + self._fetch(now_ms)

    def voters_appended(self, offset: int, voters: VoterSet) -> None:
        """Note a VotersRecord among the fetched records; it applies at once."""
        self.history.append(offset, voters)

    def appended(self) -> list[Effect]:
        """Note that fetched records were appended; they are fetched past only once they are durable."""
        return [Persist(self._log.end_offset, self._generation)]

    def _follow_high_watermark(self) -> list[Effect]:
        assert self._following is not None
        known = min(self._following.leader_high_watermark, self._durable)
        if known <= self.high_watermark:
            return []
        self.high_watermark = known
        return [Committed(known)]

    # --- membership

    def add_voter(self, voter: Voter, now_ms: int) -> list[Effect]:
        """Add a replica that is caught up to the voters. Raise KafkaError if that cannot be done now."""
        leading = self._check_change()
        voters = set_with(self.voters, voter)
        if not leading.is_caught_up(voter.key, now_ms):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"node {voter.key.id} has not caught up with the leader")
        return [AppendVoters(voters)]

    def remove_voter(self, key: ReplicaKey) -> list[Effect]:
        self._check_change()
        return [AppendVoters(set_without(self.voters, key))]

    def update_voter(self, voter: Voter) -> list[Effect]:
        """Note what a voter says of itself: in the log, or in memory as long as the voters are static."""
        leading = self._check_leading()
        voters = set_updating(self.voters, voter)
        if self.kraft_version < DYNAMIC_KRAFT_VERSION:
            leading.described[voter.key.id] = voter
            return []
        if voters == self.voters:
            return []
        self._check_change()
        return [AppendVoters(voters)]

    def upgrade_kraft_version(self, own: Voter) -> list[Effect]:
        """Move the static voters into the log. Raise KafkaError if one of them has not described itself, or is too old."""
        leading = self._check_leading()
        if self.kraft_version >= DYNAMIC_KRAFT_VERSION:
            return []
        self._check_progress(leading)
        described = leading.described | {self.key.id: own}
        missing = [voter for voter in self.voters.ids if voter not in described]
        if missing:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"voters {', '.join(map(str, missing))} have not sent their directory ids and endpoints yet",
            )
        voters = VoterSet(described[voter] for voter in self.voters.ids)
        for voter in voters.voters:
            if not voter.kraft_version_min <= DYNAMIC_KRAFT_VERSION <= voter.kraft_version_max:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"voter {voter.key.id} supports kraft.version {voter.kraft_version_min}-{voter.kraft_version_max}",
                )
        return [AppendVoters(voters, DYNAMIC_KRAFT_VERSION)]

    def _check_leading(self) -> LeaderState:
        if self.leading is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the quorum")
        return self.leading

    def _check_change(self) -> LeaderState:
        leading = self._check_leading()
        if self.kraft_version < DYNAMIC_KRAFT_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "the voters are those of controller.quorum.voters: kraft.version is 0, and must be 1 to change them",
            )
        self._check_progress(leading)
        return leading

    def _check_progress(self, leading: LeaderState) -> None:
        """Raise KafkaError if this leader cannot change the voters yet."""
        if leading.committed(self.voters) < 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the leader has not committed a record of its epoch yet")
        if self.history.last_offset >= self.high_watermark:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is not committed yet")
