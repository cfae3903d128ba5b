"""One raft node with a log in memory: calls return its effects, and time passes only when a test says so."""

from __future__ import annotations

from random import Random

from testkit.raft.memory_log import Entry, MemoryLog

from headrace.base.ids import NodeId
from headrace.raft.effects import AppendLeaderChange, Effect, ElectionState, Reply, Send
from headrace.raft.election import Timeouts
from headrace.raft.membership import VoterHistory
from headrace.raft.messages import Message, Request, Response, VoteResponse
from headrace.raft.node import RaftNode
from headrace.raft.voters import ReplicaKey, VoterSet

TIMEOUTS = Timeouts(election_ms=1000, election_backoff_ms_max=500, fetch_ms=2000)


class NodeHarness:
    """Node 1 of `voters`, or an observer if 1 is not among them. `epochs` are the epochs of the records in its log."""

    def __init__(
        self, *voters: int, node_id: int = 1, epochs: tuple[int, ...] = (), state: ElectionState | None = None
    ) -> None:
        self.now_ms = 0
        self.log = MemoryLog()
        for number, epoch in enumerate(epochs):
            self.log.append(Entry(epoch, number))
        self.log.sync(len(epochs))
        initial = ElectionState(epochs[-1] if epochs else 0) if state is None else state
        history = VoterHistory(VoterSet.of_ids(*voters))
        self.node = RaftNode(ReplicaKey(NodeId(node_id)), history, initial, self.log, TIMEOUTS, Random(1))
        self.first = self.node.start(0)

    def step(self, message: Message) -> list[Effect]:
        return self.node.step(message, self.now_ms)

    def wait(self, ms: int) -> list[Effect]:
        self.now_ms += ms
        return self.node.tick(self.now_ms)

    def time_out(self) -> list[Effect]:
        """Let the timeout of the current role pass."""
        return self.wait(2 * TIMEOUTS.fetch_ms)

    def persist_election(self) -> list[Effect]:
        """Make the current election state durable."""
        return self.node.election_persisted(self.node.state, self.now_ms)

    def persist(self) -> list[Effect]:
        """Make the whole log durable."""
        self.log.sync(self.log.end_offset)
        return self.node.persisted(self.log.end_offset, self.node._generation, self.now_ms)

    def lead(self) -> None:
        """Win an election with the votes of a majority, and write the leader-change record."""
        if self.node.role.value != "candidate":
            self.time_out()
        others = [voter for voter in self.node.voters.ids if voter != self.node.key.id]
        for pre_vote in (True, False):
            for voter in others:
                self.write(self.step(VoteResponse(voter, self.node.epoch, NodeId(-1), True, pre_vote)))
            if pre_vote:
                self.write(self.persist_election())
        assert self.node.leading is not None

    def write(self, effects: list[Effect]) -> None:
        """Write the leader-change record, if the effects say so."""
        if any(isinstance(effect, AppendLeaderChange) for effect in effects):
            self.node.proposed(self.log.append(Entry(self.node.epoch, -self.node.epoch)))

    def propose(self, value: int) -> list[Effect]:
        return self.node.proposed(self.log.append(Entry(self.node.epoch, value)))


def requests(effects: list[Effect]) -> list[tuple[int, Request]]:
    return [(effect.to, effect.request) for effect in effects if isinstance(effect, Send)]


def replies(effects: list[Effect]) -> list[Response]:
    return [effect.response for effect in effects if isinstance(effect, Reply)]
