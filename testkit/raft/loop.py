"""Raft nodes on a simulated clock, with a network and disks that misbehave by seed.

Messages are lost, delayed, doubled and reordered, links are cut, disks are slow, nodes crash and lose what was not synced, replicas take
snapshots and trim their logs, voters are added and removed. Every step is checked (`testkit.raft.checks`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import KafkaError
from headrace.base.ids import NodeId
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
    Reply,
    RoleChanged,
    Send,
    Truncate,
)
from headrace.raft.election import Timeouts
from headrace.raft.log_view import LogPoint
from headrace.raft.membership import VoterHistory
from headrace.raft.messages import FetchResponse, Message, Response
from headrace.raft.node import RaftNode
from headrace.raft.roles import Role
from headrace.raft.voters import ReplicaKey, Voter, VoterSet
from testkit.raft.checks import PropertyViolated, RaftChecks
from testkit.raft.memory_log import Entry, MemoryLog, Snapshot

LONG_POLL_MS = 100
FETCH_ENTRIES_MAX = 5
STEPS = 3000  # steps under faults in `run_and_recover`
PROGRESS_MS_MAX = 30_000


class Faults(Struct, frozen=True):
    """Probabilities of faults: per message, or per random event of the workload."""

    loss: float = 0.05
    duplicate: float = 0.05
    crash: float = 0.05
    cut: float = 0.05
    snapshot: float = 0.05
    membership: float = 0.0
    delay_ms_max: int = 60
    disk_ms_max: int = 40


NO_FAULTS = Faults(0, 0, 0, 0, 0, 0, 10, 5)


class Machine:
    """One replica with its disk. `node` is None while it is down."""

    def __init__(self, node_id: NodeId, configured: VoterSet) -> None:
        self.id = node_id
        self.configured = configured
        self.log = MemoryLog()
        self.stored = ElectionState()
        self.node: RaftNode | None = None
        self.incarnation = 0


class RaftLoop:
    """A quorum of `voters` and, with membership changes, `spare` more nodes that may become voters."""

    def __init__(
        self,
        seed: int,
        voters: int,
        *,
        spare: int = 0,
        faults: Faults = NO_FAULTS,
        make_node: Callable[..., RaftNode] = RaftNode,
    ) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.checks = RaftChecks()
        self.now_ms = 0
        self.steps = 0
        self._make_node = make_node
        self._dynamic = faults.membership > 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self._tokens: dict[int, NodeId] = {}
        self._cuts: set[tuple[NodeId, NodeId]] = set()
        self._value = 0
        configured = VoterSet.of_ids(*range(1, voters + 1))
        self.machines = {
            NodeId(node_id): Machine(NodeId(node_id), configured) for node_id in range(1, voters + spare + 1)
        }
        for machine in self.machines.values():
            self._start(machine)

    # --- running

    def run(self, steps: int) -> None:
        """Run this many steps; random events of the workload are mixed in."""
        last = self.steps + steps
        self._later(self.random.randrange(1, 100), self._happen)
        while self.steps < last:
            self.step()
        self.checks.same_logs({one.id: one.log for one in self.machines.values()})

    def step(self) -> None:
        due_ms, _, event = heapq.heappop(self._events)
        self.now_ms = max(self.now_ms, due_ms)
        self.steps += 1
        event()

    def heal(self) -> None:
        """Restore all links and nodes, and cause no more faults."""
        self.faults = NO_FAULTS
        self._cuts.clear()
        for machine in self.machines.values():
            if machine.node is None:
                self._start(machine)

    def run_until(self, condition: Callable[[], bool], ms_max: int) -> None:
        """Run until the condition holds; raise PropertyViolated if it does not within this time."""
        deadline_ms = self.now_ms + ms_max
        while not condition():
            if self.now_ms > deadline_ms:
                raise PropertyViolated(f"no progress within {ms_max} ms after all faults have ended")
            self.step()

    @property
    def leader(self) -> RaftNode | None:
        """Return the node that leads the newest epoch."""
        leaders = [one.node for one in self.machines.values() if one.node is not None and one.node.role is Role.LEADER]
        return max(leaders, key=lambda node: node.epoch, default=None)

    def propose(self) -> bool:
        """Append a record on the newest leader; return False if there is none."""
        node = self.leader
        if node is None:
            return False
        machine = self.machines[node.key.id]
        self._value += 1
        self._execute(machine, node.proposed(machine.log.append(Entry(node.epoch, self._value))))
        return True

    def _later(self, delay_ms: int, event: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._serial, event))

    # --- workload and faults

    def _happen(self) -> None:
        self._later(self.random.randrange(1, 100), self._happen)
        self.propose()
        machine = self.random.choice(list(self.machines.values()))
        if self.random.random() < self.faults.crash:
            self._crash(machine)
        if self.random.random() < self.faults.cut:
            self._cut(machine)
        if self.random.random() < self.faults.snapshot:
            self._snapshot(machine)
        if self.random.random() < self.faults.membership:
            self._change_voters()

    def _crash(self, machine: Machine) -> None:
        if machine.node is None:
            return
        machine.node = None
        machine.incarnation += 1
        machine.log.crash()
        self._later(self.random.randrange(1, 5000), lambda: self._start(machine))

    def _start(self, machine: Machine) -> None:
        if machine.node is not None:
            return
        history = VoterHistory(machine.configured)
        if self._dynamic:
            history.reset(-1, machine.configured)
        if machine.log.installed is not None and machine.log.installed.voters is not None:
            history.append(machine.log.installed.voters_offset, machine.log.installed.voters)
        for offset in range(machine.log.start_offset, machine.log.end_offset):
            voters = machine.log.entry(offset).voters
            if voters is not None:
                history.append(offset, voters)
        key = ReplicaKey(machine.id)
        node = self._make_node(key, history, machine.stored, machine.log, Timeouts(), self.random)
        machine.node = node
        self.checks.restarted(machine.id, node.high_watermark)
        self._execute(machine, node.start(self.now_ms))
        self._watch(machine, machine.incarnation)

    def _watch(self, machine: Machine, incarnation: int) -> None:
        """Call `tick` when the node is due."""
        if machine.node is None or machine.incarnation != incarnation:
            return
        if self.now_ms >= machine.node.wake_ms:
            self._execute(machine, machine.node.tick(self.now_ms))
        delay_ms = max(1, min(machine.node.wake_ms - self.now_ms, 50))
        self._later(delay_ms, lambda: self._watch(machine, incarnation))

    def _cut(self, machine: Machine) -> None:
        """Cut a node off from the others, from one other, or in one direction only; for a while."""
        others = [node for node in self.machines if node != machine.id]
        if not others:
            return
        chosen = others if self.random.random() < 0.5 else [self.random.choice(others)]
        links = {(machine.id, other) for other in chosen}
        if self.random.random() < 0.7:
            links |= {(other, machine.id) for other in chosen}
        self._cuts |= links
        self._later(self.random.randrange(100, 10_000), lambda: self._cuts.difference_update(links))

    def _snapshot(self, machine: Machine) -> None:
        node = machine.node
        if node is None or node.high_watermark <= machine.log.start_offset:
            return
        end = self.random.randrange(machine.log.start_offset + 1, node.high_watermark + 1)
        end = min(end, machine.log.end_offset)
        applying = [(offset, self.checks.committed[offset].voters) for offset in range(end)]
        offset, voters = next(((at, found) for at, found in reversed(applying) if found is not None), (-1, None))
        machine.log.take_snapshot(Snapshot(LogPoint(self.checks.committed[end - 1].epoch, end), voters, offset))
        node.history.drop_before(end)

    def _change_voters(self) -> None:
        node = self.leader
        if node is None:
            return
        voters = node.voters
        try:
            if len(voters.ids) > 1 and (self.random.random() < 0.5 or len(voters.ids) == len(self.machines)):
                effects = node.remove_voter(ReplicaKey(self.random.choice(voters.ids)))
            else:
                spare = [one for one in self.machines if voters.get(one) is None]
                effects = node.add_voter(Voter(ReplicaKey(self.random.choice(spare))), self.now_ms)
        except KafkaError:
            return  # not now
        self._execute(self.machines[node.key.id], effects)

    # --- effects

    def _execute(self, machine: Machine, effects: list[Effect]) -> None:
        for effect in effects:
            node = machine.node
            if node is None:
                return
            match effect:
                case PersistElection(state):
                    self._on_disk(machine, partial(self._election_persisted, machine, state))
                case Send(to, request):
                    self._serial += 1
                    self._tokens[self._serial] = machine.id
                    self._transmit(machine.id, to, replace(request, token=self._serial))
                case Reply(token, response):
                    self._reply(machine, token, response)
                case AppendLeaderChange():
                    self.checks.became_leader(machine.id, effect.epoch, machine.log)
                    end = machine.log.append(Entry(effect.epoch, -effect.epoch))
                    self._execute(machine, node.proposed(end))
                case AppendVoters(voters):
                    end = machine.log.append(Entry(node.epoch, -1_000_000 - machine.log.end_offset, voters))
                    self._execute(machine, node.proposed(end, voters))
                case AppendFetched(records):
                    self._append_fetched(machine, node, records)
                case Persist(end_offset, generation):
                    self._persist(machine, end_offset, generation)
                case Truncate(end_offset):
                    self.checks.truncated(machine.id, end_offset)
                    machine.log.truncate(end_offset)
                case FetchSnapshot(leader, point):
                    self._later(self._delay_ms() * 5, partial(self._fetch_snapshot, machine, leader, point))
                case Committed(high_watermark):
                    self.checks.advanced(machine.id, high_watermark, machine.log)
                    if node.role is Role.LEADER:
                        logs = {one.id: one.log for one in self.machines.values()}
                        self.checks.committed_by_leader(high_watermark, node.voters, logs)
                case RoleChanged():
                    pass
                case rejected:
                    raise PropertyViolated(f"node {machine.id}: {rejected.reason}")

    def _on_disk(self, machine: Machine, then: Callable[[], None]) -> None:
        """Run `then` after a write, unless the node crashes first. Writes of one node keep their order."""
        incarnation = machine.incarnation

        def done() -> None:
            if machine.incarnation == incarnation:
                then()

        self._later(self.random.randrange(self.faults.disk_ms_max), done)

    def _election_persisted(self, machine: Machine, state: ElectionState) -> None:
        assert machine.node is not None
        if state.epoch >= machine.stored.epoch:
            machine.stored = state
        self._execute(machine, machine.node.election_persisted(state, self.now_ms))

    def _persist(self, machine: Machine, end_offset: int, generation: int) -> None:
        truncations = generation

        def persisted() -> None:
            assert machine.node is not None
            if machine.node._generation == truncations:
                machine.log.sync(end_offset)
            self._execute(machine, machine.node.persisted(end_offset, generation, self.now_ms))

        self._on_disk(machine, persisted)

    def _append_fetched(self, machine: Machine, node: RaftNode, records: bytes) -> None:
        """Append what a response refers to: the loop passes entries by the sender and a range of offsets."""
        sender, start, end = (int(part) for part in records.split())
        source = self.machines[NodeId(sender)].log
        if start != machine.log.end_offset or source.start_offset > start or source.end_offset < end:
            return  # the sender has truncated its log since; `tick` fetches again
        for offset in range(start, end):
            entry = source.entry(offset)
            machine.log.append(entry)
            if entry.voters is not None:
                node.voters_appended(offset, entry.voters)
        self._execute(machine, node.appended())

    def _fetch_snapshot(self, machine: Machine, leader: NodeId, point: LogPoint) -> None:
        node, source = machine.node, self.machines[leader]
        if node is None or not node.is_installing(point):
            return
        found = source.log.installed
        if source.node is None or found is None or found.point != point or (leader, machine.id) in self._cuts:
            self._execute(machine, node.snapshot_failed(self.now_ms))
            return
        machine.log.replace_by(found)
        voters = found.voters if found.voters is not None or not self._dynamic else machine.configured
        self._execute(machine, node.snapshot_installed(point, voters, self.now_ms))

    # --- network

    def _reply(self, machine: Machine, token: int, response: Response) -> None:
        requester = self._tokens[token]
        hold_ms = 0
        if (
            isinstance(response, FetchResponse)
            and not response.error
            and not response.diverging
            and not response.snapshot
        ):
            end = min(machine.log.end_offset, response.offset + FETCH_ENTRIES_MAX)
            if end > response.offset:
                response = replace(response, records=f"{machine.id} {response.offset} {end}".encode())
            else:
                hold_ms = self.random.randrange(LONG_POLL_MS)
        self._transmit(machine.id, requester, response, hold_ms)

    def _transmit(self, source: NodeId, target: NodeId, message: Message, hold_ms: int = 0) -> None:
        if self.random.random() < self.faults.loss:
            return
        copies = 2 if self.random.random() < self.faults.duplicate else 1
        for _ in range(copies):
            self._later(hold_ms + self._delay_ms(), lambda: self._deliver(source, target, message))

    def _delay_ms(self) -> int:
        return self.random.randrange(1, self.faults.delay_ms_max + 1)

    def _deliver(self, source: NodeId, target: NodeId, message: Message) -> None:
        machine = self.machines[target]
        if machine.node is not None and (source, target) not in self._cuts:
            self._execute(machine, machine.node.step(message, self.now_ms))


def run_and_recover(
    seed: int, voters: int, *, spare: int = 0, faults: Faults, make_node: Callable[..., RaftNode] = RaftNode
) -> RaftLoop:
    """Run a quorum under faults, then without. Raise PropertyViolated if a property is, or if it does not commit again."""
    loop = RaftLoop(seed, voters, spare=spare, faults=faults, make_node=make_node)
    loop.run(STEPS)
    loop.heal()
    committed = len(loop.checks.committed)
    loop.run_until(lambda: len(loop.checks.committed) > committed + 5, PROGRESS_MS_MAX)
    return loop
