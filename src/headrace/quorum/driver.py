"""The shell of the raft node: executes its effects in order, passes messages to it, and notifies subscribers.

Writes go to the page cache immediately. One fsync at a time runs in a thread and covers everything written before it started (group
commit). A replica counts its own records, and fetches past what it has fetched, only when that fsync is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import CorruptData, ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import NO_NODE, NodeId
from headrace.base.log_limit import LogLimit
from headrace.metadata.records import METADATA_VERSION_MAX
from headrace.quorum.fetched_batches import append_fetched
from headrace.quorum.log import MetadataLog
from headrace.quorum.peers import Peers, Unanswered
from headrace.quorum.snapshot_download import SnapshotDownload
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId
from headrace.quorum.store import ElectionStore
from headrace.quorum.voter_records import VoterRecords
from headrace.raft.effects import (
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    Committed,
    Effect,
    ElectionState,
    FetchSnapshot,
    Persist,
    PersistElection,
    Rejected,
    Reply,
    RoleChanged,
    Send,
    Truncate,
)
from headrace.raft.log_view import LogPoint
from headrace.raft.membership import DYNAMIC_KRAFT_VERSION
from headrace.raft.messages import Request, Response
from headrace.raft.node import RaftNode
from headrace.raft.roles import Role
from headrace.statemachine.journal import NotLeader
from headrace.storage.append import UnexpectedBatch

log = logging.getLogger(__name__)

TICK_S_MIN = 0.01
RESIGN_S_MAX = 1.0  # how long a stopping leader waits until the other voters know that it resigns
SNAPSHOT_RETRY_S = 0.5
LOG_LINES_PER_SECOND = 1  # a node that sends garbage sends it several times a second


class QuorumFailed(HeadraceError):
    """The metadata log or the vote could not be made durable; the node must stop."""


class QuorumStopped(KafkaError):
    """The node no longer takes part in the quorum, so it cannot respond."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.BROKER_NOT_AVAILABLE, "this node no longer takes part in the metadata quorum")


class ReplicaFiles(Struct, frozen=True):
    """What one replica of the metadata log has on disk."""

    log: MetadataLog
    snapshots: SnapshotFiles
    election: ElectionStore


class QuorumDriver:
    """Runs one raft node on its files, with its peers.

    `first_voters` are the voters that were chosen when the node was formatted; the first leader writes them into the empty log.
    """

    def __init__(
        self,
        raft: RaftNode,
        files: ReplicaFiles,
        peers: Peers,
        loop: asyncio.AbstractEventLoop,
        first_voters: VoterRecords = VoterRecords(),  # noqa: B008 -- immutable
    ) -> None:
        self.raft = raft
        self.log = files.log
        self._snapshots = files.snapshots
        self._store = files.election
        self.peers = peers
        self._loop = loop
        self._first_voters = first_voters
        self._syncing = False
        self._threads = 0  # calls that run in a thread
        self._generation = 0  # of the newest Persist command
        self._unsaved: deque[ElectionState] = deque()  # the first one is being saved
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._tokens = 0
        self._replies: dict[
            int, asyncio.Future[Response]
        ] = {}  # by token; each connection has one request in work at a time
        self._download: asyncio.Task[None] | None = None
        self._leads = False  # whether subscribers count this node as the leader
        self._led_epoch = -1  # the epoch that subscribers were last told to lead
        self._logged_role = (-1, NO_NODE, False)  # epoch, leader, and whether this node leads
        self._log_limit = LogLimit(LOG_LINES_PER_SECOND)
        self._on_appended: list[Callable[[int], None]] = []
        self._on_committed: list[Callable[[int], None]] = []
        self._on_leading: list[Callable[[int], None]] = []
        self._on_lost: list[Callable[[], None]] = []
        self._on_role: list[Callable[[], None]] = []
        self._on_installed: list[Callable[[SnapshotId], None]] = []
        self.joined: asyncio.Future[None] = loop.create_future()  # this node leads, or has fetched from its leader
        self.failed: asyncio.Future[None] = loop.create_future()

    @property
    def high_watermark(self) -> int:
        return self.raft.high_watermark

    @property
    def is_leader(self) -> bool:
        return self.raft.role is Role.LEADER and not self._stopped

    @property
    def leader(self) -> NodeId:
        """Return the leader as far as this node knows, or NO_NODE."""
        return self.raft.leader

    def voter_records(self, end_offset: int) -> VoterRecords:
        """Return the voters that apply to a log that ends here, for a snapshot; static voters are in no log."""
        voters = self.raft.history.recorded_at(end_offset)
        return VoterRecords() if voters is None else VoterRecords(DYNAMIC_KRAFT_VERSION, voters)

    # --- subscriptions; callbacks are called in the order of subscription

    def on_appended(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the log end whenever this node has appended records as the leader."""
        self._on_appended.append(callback)

    def on_committed(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the high watermark whenever it advances."""
        self._on_committed.append(callback)

    def on_leading(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the epoch once this node leads and has committed a record of its epoch."""
        self._on_leading.append(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` when this node no longer leads."""
        self._on_lost.append(callback)

    def on_role(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the role, the epoch or the leader has changed."""
        self._on_role.append(callback)

    def on_installed(self, callback: Callable[[SnapshotId], None]) -> None:
        """Call `callback` when a snapshot of the leader has replaced the log."""
        self._on_installed.append(callback)

    # --- input

    def start(self) -> None:
        """Join the quorum, or form it: from now on raft's timers run and requests are sent."""
        self._run(self.raft.start(self.now_ms()))

    async def ask(self, request: Request) -> Response:
        """Pass a request of another replica to raft and return the response. Raise QuorumStopped if there will be none."""
        if self._stopped:
            raise QuorumStopped
        self._tokens += 1
        token = self._tokens
        future: asyncio.Future[Response] = self._loop.create_future()
        self._replies[token] = future
        try:
            self._run(self.raft.step(replace(request, token=token), self.now_ms()))
            return await future
        finally:
            self._replies.pop(token, None)

    def _answered(self, to: NodeId, request: Request, outcome: Response | Unanswered) -> None:
        if self._stopped:
            return
        if isinstance(outcome, Unanswered):
            now_ms = self.now_ms()
            self._run(self.raft.unanswered(to, request, now_ms, is_refused=outcome.is_refused))
        else:
            self._run(self.raft.step(outcome, self.now_ms()))

    def propose(self, records: Sequence[Any], metadata_version: int = METADATA_VERSION_MAX) -> int:
        """Append records and return the offset of the last one; they are committed later, or never.

        Raise NotLeader if this node does not lead.
        """
        if not self.is_leader:
            raise NotLeader("this node does not lead the metadata quorum")
        end = self.log.append(records, self.raft.epoch, metadata_version)
        self._execute(self.raft.proposed(end))
        self._appended()
        return end - 1

    def change_voters(self, effects: list[Effect]) -> int:
        """Execute what raft has decided about a change of the voters; return the log end that has to be committed for it."""
        self._run(effects)
        return self.log.end_offset

    # --- time

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _arm(self) -> None:
        """Call raft's `tick` when it is due. A timer that fires too early does no harm, so only an earlier time is set."""
        due_s = max(self.raft.wake_ms / 1000, self._loop.time() + TICK_S_MIN)
        if self._stopped or (self._timer is not None and self._timer.when() <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._run(self.raft.tick(self.now_ms()))

    # --- stopping

    def resign(self) -> None:
        """Give up leadership for good; this node does not campaign again."""
        if not self._stopped:
            self._execute(self.raft.resign(self.now_ms()))
            self._halt()

    def _halt(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._download is not None:
            self._download.cancel()
        for future in self._replies.values():
            if not future.done():
                future.set_exception(QuorumStopped())

    async def stop(self) -> None:
        """Resign, wait for the running fsync and close the log, which makes it durable."""
        self.resign()
        await self.peers.close(RESIGN_S_MAX)
        if self._download is not None:
            await asyncio.gather(self._download, return_exceptions=True)
        while self._threads:
            await asyncio.sleep(0.001)
        await self._loop.run_in_executor(None, self.log.log.close)

    def abandon(self) -> None:
        """Stop as if the process had died: notify nobody, write nothing."""
        self._halt()
        self._lose()
        self.peers.abandon()
        self.log.log.abandon()

    # --- effects

    def _run(self, effects: list[Effect]) -> None:
        """Execute effects of a message or a timer, whose failure nothing else would report."""
        try:
            self._execute(effects)
        except OSError as error:
            self.fail(error)
        if self.raft.has_joined and not self.joined.done() and (not self.is_leader or self._leads):
            self.joined.set_result(None)
        self._arm()

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, request):
                    self.peers.send(to, request, self.raft, partial(self._answered, to, request))
                case Reply(token, response):
                    future = self._replies.get(token)
                    if future is not None and not future.done():
                        future.set_result(response)
                case PersistElection(state):
                    self._unsaved.append(state)
                    if len(self._unsaved) == 1:
                        self._save_election()
                case AppendLeaderChange():
                    self._append_leader_change(effect)
                case AppendVoters(voters, kraft_version):
                    records = VoterRecords(kraft_version or 0, voters).control()
                    end = self.log.append_control(records, self.raft.epoch)
                    self._execute(self.raft.proposed(end, voters))
                    self._appended()
                case AppendFetched(records):
                    self._append_fetched(records)
                case Persist(_, generation):
                    self._generation = generation
                    self._sync()
                case Truncate(end_offset):
                    log.info("node %d leads another log; removing offsets from %d on", self.leader, end_offset)
                    self.raft.truncated(self.log.truncate(end_offset))
                case FetchSnapshot(leader, snapshot):
                    self._start_download(leader, snapshot)
                case RoleChanged():
                    self._role_changed(effect)
                case Committed(high_watermark):
                    self._committed(high_watermark)
                case Rejected(reason):
                    self._warn("ignored a message of the metadata quorum: %s", reason)

    def _role_changed(self, change: RoleChanged) -> None:
        if change.role is not Role.LEADER:
            self._lose()
        # Rounds of pre-votes without a result come and go; only what they change is news.
        news = (change.epoch, change.leader, change.role is Role.LEADER)
        level = logging.DEBUG if news == self._logged_role else logging.INFO
        self._logged_role = news
        log.log(
            level,
            "this node is %s in epoch %d of the metadata quorum, whose leader is %s",
            change.role.value,
            change.epoch,
            "unknown" if change.leader < 0 else f"node {change.leader}",
        )
        for callback in self._on_role:
            callback()

    def _lose(self) -> None:
        if self._leads:
            self._leads = False
            for lost in self._on_lost:
                lost()

    def _committed(self, high_watermark: int) -> None:
        for callback in self._on_committed:
            callback(high_watermark)
        if self.is_leader and self._led_epoch < self.raft.epoch:
            self._led_epoch = self.raft.epoch
            self._leads = True
            for leading in self._on_leading:
                leading(self.raft.epoch)

    def _append_leader_change(self, change: AppendLeaderChange) -> None:
        first = self._first_voters if self.log.end_offset == 0 else VoterRecords()
        end = self.log.append_leader_change(change, self.raft.key.id, first.control())
        self._execute(self.raft.proposed(end, first.voters))
        self._appended()

    def _appended(self) -> None:
        for callback in self._on_appended:
            callback(self.log.end_offset)

    def _append_fetched(self, records: bytes) -> None:
        try:
            found = append_fetched(self.log, records, self.raft.epoch)
        except (CorruptData, UnexpectedBatch) as error:
            self._warn("node %d sent batches that are not appended: %s; fetching them again", self.leader, error)
            return
        for offset, voters in found:
            if voters.voters is not None and offset > self.raft.history.last_offset:
                self.raft.voters_appended(offset, voters.voters)
        self._execute(self.raft.appended())

    def _warn(self, text: str, *arguments: object) -> None:
        if self._log_limit.take(self.now_ms()) is not None:
            log.warning(text, *arguments)

    # --- snapshots

    def _start_download(self, leader: NodeId, point: LogPoint) -> None:
        previous = self._download
        if previous is not None:
            previous.cancel()
        self._download = self._loop.create_task(self._fetch_snapshot(leader, point, previous))

    async def _fetch_snapshot(self, leader: NodeId, point: LogPoint, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.gather(previous, return_exceptions=True)  # both may write the same partial file
        snapshot = SnapshotId(point.offset, point.epoch)
        download = SnapshotDownload(
            self.peers, self._snapshots, self._loop, lambda: self.raft.snapshot_progressed(self.now_ms())
        )
        try:
            await download.run(leader, snapshot, self.raft.epoch)
            voters = VoterRecords().after(await self._loop.run_in_executor(None, self._snapshots.control_of, snapshot))
        except (HeadraceError, OSError) as error:
            log.warning(
                "the snapshot at offset %d could not be downloaded from node %d: %s", point.offset, leader, error
            )
            await asyncio.sleep(SNAPSHOT_RETRY_S)
            if self.raft.is_installing(point):
                self._run(self.raft.snapshot_failed(self.now_ms()))
            return
        if self.raft.is_installing(point):
            self._install(snapshot, point, voters)

    def _install(self, snapshot: SnapshotId, point: LogPoint, voters: VoterRecords) -> None:
        """Replace the log by a snapshot. After a crash in between, opening the files completes it."""
        self._snapshots.written(snapshot)
        self.log.restart_at(snapshot.end_offset)
        for callback in self._on_installed:
            callback(snapshot)
        self._run(self.raft.snapshot_installed(point, voters.voters, self.now_ms()))

    # --- the disk

    def _save_election(self) -> None:
        """Save the oldest unsaved state; one at a time, because they must reach the disk in order."""
        state = self._unsaved[0]
        self._in_thread(partial(self._store.save, state, self.raft.kraft_version), self._election_persisted, state)

    def _election_persisted(self, state: ElectionState) -> list[Effect]:
        self._unsaved.popleft()
        if self._unsaved:
            self._save_election()
        return self.raft.election_persisted(state, self.now_ms())

    def _sync(self) -> None:
        if self._syncing:
            return  # the running fsync started before this write; its end starts the next one
        plan, generation = self.log.log.pending_sync(), self._generation
        if plan is None:
            self._execute(self.raft.persisted(self.log.end_offset, generation, self.now_ms()))
            return
        self._syncing = True

        def synced(end_offset: int) -> list[Effect]:
            self._syncing = False
            self.log.log.synced(plan)
            effects = self.raft.persisted(end_offset, generation, self.now_ms())
            if generation != self._generation or self.log.end_offset > end_offset:
                effects.append(Persist(self.log.end_offset, self._generation))
            return effects

        self._in_thread(plan.run, synced, plan.offset)

    def _in_thread(self, work: Callable[[], None], then: Callable[[Any], list[Effect]], argument: Any) -> None:
        self._threads += 1

        def done(future: asyncio.Future[None]) -> None:
            self._threads -= 1
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                self.fail(error)
                return
            effects = then(argument)
            if not self._stopped:
                self._run(effects)

        self._loop.run_in_executor(None, work).add_done_callback(done)

    def fail(self, error: BaseException) -> None:
        """Resign and report the failure. A failed fsync may have dropped pages, so a retry could falsely succeed."""
        log.critical(
            "the metadata log could not be written or read (%s); this node stops: check the disk of metadata.log.dir, then restart it",
            error,
        )
        self.resign()
        if not self.failed.done():
            self.failed.set_exception(QuorumFailed(str(error)))
