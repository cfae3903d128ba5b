"""A model of a broker's transactions, of Spark around a sink, and of every fault that can hit them, all explored.

One step is one request executed by the broker. At every step an actor may crash, stall (and resume at any later time, concurrently with
its successor), or lose the response to a request that was executed, was not executed, or will be executed later; any open transaction
may time out. All orders of steps are explored, no state twice, and the visible rows are checked after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import GeneratorType
from typing import Any, NamedTuple

from headrace.pipelines.sink import commits as sink
from headrace.pipelines.sink.commands import Driver

PREFIX = "D."
DRIVER = "D"
ZOMBIE = "zombie"
MUTATIONS = ("init", "add", "end", "mark")


class Fenced(Exception):
    pass


class NoResponse(Exception):
    pass


class ModelViolation(AssertionError):
    pass


class Id(NamedTuple):
    epoch: int = 0
    state: str = "Empty"
    began: int = 0  # number of transactions begun so far
    rows: tuple[Any, ...] = ()


class Broker(NamedTuple):
    version: int  # transaction version: 1, or 2 with a new epoch for each transaction
    ids: tuple[tuple[str, Id], ...] = ()
    visible: tuple[Any, ...] = ()
    decision: sink.Decision | None = None
    finished: str | None = None
    checkpoint: int = -1

    def get(self, name: str) -> Id | None:
        return dict(self.ids).get(name)

    def put(self, name: str, entry: Id) -> Broker:
        return self._replace(ids=tuple(sorted({**dict(self.ids), name: entry}.items())))

    def aborted(self, name: str) -> Broker:
        """Return the broker after the transaction was aborted by a timeout or another client."""
        entry = self.get(name)
        return self.put(name, entry._replace(epoch=entry.epoch + 1, state="CompleteAbort", rows=()))

    def apply(self, op: tuple[Any, ...]) -> tuple[Broker, Any]:
        return getattr(self, f"_{op[0]}")(*op[1:])

    def _init(self, name: str) -> tuple[Broker, Any]:
        broker, entry = self, self.get(name)
        if entry is None:
            return self.put(name, Id()), 0
        if entry.state == "Ongoing":
            broker = self.aborted(name)
            entry = broker.get(name)
        return broker.put(name, Id(entry.epoch + 1, "Empty", entry.began)), entry.epoch + 1

    def _add(self, name: str, epoch: int, row: Any) -> tuple[Broker, Any]:
        entry = self.get(name)
        if entry is None or entry.epoch != epoch:
            return self, Fenced
        if self.version == 1 and entry.state != "Ongoing" and entry.began and entry.state != "Empty":
            return self, Fenced  # no producer of this model writes after it saw its transaction end
        began = entry.began + (entry.state != "Ongoing")
        return self.put(name, Id(epoch, "Ongoing", began, (*entry.rows, row))), None

    def _end(self, name: str, epoch: int, commit: bool) -> tuple[Broker, Any]:
        entry = self.get(name)
        if entry is None:
            return self, sink.Ended.FENCED
        kind = "CompleteCommit" if commit else "CompleteAbort"
        bump = self.version > 1
        if bump and entry.epoch == epoch + 1 and entry.state.startswith("Complete"):
            return self, sink.Ended.DONE if entry.state == kind else sink.Ended.REFUSED
        if entry.epoch != epoch:
            return self, sink.Ended.FENCED
        if entry.state != "Ongoing":
            return self, sink.Ended.DONE if entry.state == kind else sink.Ended.REFUSED
        broker = self.put(name, Id(epoch + bump, kind, entry.began))
        return (broker._committed(entry.rows) if commit else broker), sink.Ended.DONE

    def _committed(self, rows: tuple[Any, ...]) -> Broker:
        broker = self
        for row in rows:
            if isinstance(row, sink.Decision):
                broker = broker._replace(decision=row)
            else:
                broker = broker._replace(visible=tuple(sorted((*broker.visible, row))))
        return broker

    def _describe(self, name: str) -> tuple[Broker, Any]:
        entry = self.get(name)
        if entry is None:
            return self, None
        return self, sink.Known(entry.state, 0, entry.epoch, entry.began, None)

    def _list(self) -> tuple[Broker, Any]:
        return self, tuple(name for name, entry in self.ids if name.startswith(PREFIX) and entry.state == "Ongoing")

    def _progress(self) -> tuple[Broker, Any]:
        return self, sink.Progress(self.decision, self.finished)

    def _mark(self, token: str) -> tuple[Broker, Any]:
        return self._replace(finished=token), None

    def _checkpoint(self, batch: int) -> tuple[Broker, Any]:
        return self._replace(checkpoint=max(self.checkpoint, batch)), None

    def _begin(self, name: str) -> tuple[Broker, Any]:
        return self, None

    def _start(self) -> tuple[Broker, Any]:
        return self, self.checkpoint + 1


# --- Spark


class World(NamedTuple):
    version: int = 2
    partitions: int = 2
    batches: int = 2
    faults: int = 1
    kinds: tuple[str, ...] = ("crash", "lost", "undone", "late", "stall", "timeout", "zombie task")
    reuse: bool = True  # whether the batches of a run use the same transactional ids
    single: bool = False
    restarts: int = 6
    choices: sink.Choices = sink.Choices()
    tries: int = 2
    tearing: tuple[str, ...] = ("timeout", "zombie task", "late")  # faults that may tear a batch


def run_query(world: World, run: str):
    """Run the query once, from the checkpoint to the last batch."""
    batch = yield ("start",)
    while batch < world.batches:
        yield from run_batch(world, run, batch)
        yield ("checkpoint", batch)
        batch += 1


def run_batch(world: World, run: str, number: int):
    written: list[sink.TaskTransaction | None] = []
    for partition in range(world.partitions):
        written += [(yield from task(world, run, number, partition))]
    done = tuple(one for one in written if one is not None)
    batch = sink.Batch(number, run, done, prefix=PREFIX)
    if world.single and done:
        batch = batch._replace(driver=Driver(0, done[0].producer_epoch))
    if None in written:
        yield from run_commands(sink.abort(batch, may_be_decided=False))
        raise NoResponse
    try:
        for left in reversed(range(world.tries)):
            try:
                yield from run_commands(sink.commit(batch, world.choices, 0))
            except Fenced:
                if not left or world.single:
                    raise
            else:
                return
    except (sink.SinkError, Fenced, NoResponse) as error:
        failed = type(error)  # a local variable, so that `knowledge` includes it
    yield from run_commands(sink.abort(batch, may_be_decided=True))
    raise failed


def task(world: World, run: str, batch: int, partition: int):
    for attempt in range(2):
        slot = "" if world.reuse else f".{batch}"
        name = DRIVER if world.single else f"{PREFIX}{run}.{partition}.{attempt}{slot}"
        try:
            yield ("begin", name)
            epoch = yield ("init", name)
            yield ("add", name, epoch, (batch, partition))
        except (Fenced, NoResponse):
            continue
        return sink.TaskTransaction(name, 0, epoch, partition, 1)
    return None


def run_late_task(world: World, name: str):
    """Run an attempt that Spark gave up before it had begun, and that begins nevertheless."""
    epoch = yield ("init", name)
    yield ("add", name, epoch, (ZOMBIE, name))


def run_commands(conversation):
    response = None
    try:
        command = next(conversation)
        while True:
            try:
                response = yield from execute_command(command)
            except Exception as error:
                command = conversation.throw(error)
            else:
                command = conversation.send(response)
    except StopIteration as done:
        return done.value


def execute_command(command):
    match command:
        case sink.TakeOver():
            return Driver(0, (yield ("init", DRIVER)))
        case sink.ReadProgress():
            return (yield ("progress",))
        case sink.ListOpen():
            return (yield ("list",))
        case sink.Describe(transactions):
            found = []
            for one in transactions:
                found += [(yield ("describe", one.transactional_id))]
            return 0, found
        case sink.Record(driver, decision):
            yield ("add", DRIVER, driver.producer_epoch, decision)
        case sink.Settle(driver):
            if (yield ("end", DRIVER, driver.producer_epoch, True)) is not sink.Ended.DONE:
                raise Fenced
        case sink.End(transactions, commit):
            ended = []
            for one in transactions:
                ended += [(yield ("end", one.transactional_id, one.producer_epoch, commit))]
            return ended
        case sink.MarkFinished(decision):
            yield ("mark", decision.token)
        case sink.Fence(names):
            for name in names:
                yield ("init", name)
    return None


# --- faults


class SuspendedProgram:
    """A program suspended at a point, with `op` as its next operation.

    Points that are reached in different ways but have the same knowledge are one object.
    """

    __slots__ = ("failure", "name", "nexts", "op", "program", "responses")

    def __init__(self, name: str, program: tuple[Any, ...], responses: tuple[Any, ...]) -> None:
        self.name, self.program, self.responses = name, program, responses
        self.op: tuple[Any, ...] | None = None
        self.failure: str | None = None
        self.nexts: dict[Any, SuspendedProgram] = {}


class Programs:
    def __init__(self, world: World) -> None:
        self._world = world
        self._by_knowledge: dict[Any, SuspendedProgram] = {}
        self._begun: dict[Any, SuspendedProgram] = {}

    def begin(self, name: str, *program: Any) -> SuspendedProgram:
        if (name, program) not in self._begun:
            self._begun[name, program] = self._reach(SuspendedProgram(name, program, ()))
        return self._begun[name, program]

    def resume(self, suspended: SuspendedProgram, response: Any) -> SuspendedProgram:
        found = suspended.nexts.get(response)
        if found is None:
            found = suspended.nexts[response] = self._reach(
                SuspendedProgram(suspended.name, suspended.program, (*suspended.responses, response))
            )
        return found

    def _reach(self, suspended: SuspendedProgram) -> SuspendedProgram:
        make, *arguments = suspended.program
        running = make(self._world, *arguments)
        try:
            suspended.op = next(running)
            for response in suspended.responses:
                suspended.op = running.throw(response) if isinstance(response, type) else running.send(response)
        except StopIteration:
            suspended.op = None
            return suspended
        except (sink.SinkError, Fenced, NoResponse) as error:
            suspended.op, suspended.failure = None, type(error).__name__
            return suspended
        return self._by_knowledge.setdefault((suspended.name, knowledge(running)), suspended)


def knowledge(running: Any) -> tuple[Any, ...]:
    """Return the position and variables of a suspended generator, and of the generators it waits for in turn."""
    found: list[Any] = []
    while running is not None:
        frame = running.gi_frame
        found.append(frame.f_lasti)
        for name, value in frame.f_locals.items():
            if name != "world":
                found += (name, _frozen(value))
        running = running.gi_yieldfrom
    return tuple(found)


def _frozen(value: Any) -> Any:
    match value:
        case GeneratorType():
            return knowledge(value)
        case list() | tuple():
            return tuple(map(_frozen, value))
        case dict():
            return tuple(value.items())
        case set():
            return frozenset(value)
        case Exception():
            return type(value)
    return value


class State(NamedTuple):
    """A state of the model, identified by the ids of its objects: equal brokers and equal places are one object."""

    broker: Broker
    actors: tuple[SuspendedProgram, ...]
    late: tuple[Any, ...] = ()  # requests on their way whose response no actor waits for
    runs: int = 1
    faults: tuple[str, ...] = ()
    failure: str | None = None  # latest failure of a run

    def key(self) -> tuple[Any, ...]:
        return id(self.broker), *map(id, self.actors), *self.late, self.runs, *sorted(self.faults), self.failure


class Explorer:
    def __init__(self, world: World) -> None:
        self._world = world
        self._programs = Programs(world)
        self._brokers: dict[Broker, Broker] = {}
        self._applied: dict[tuple[int, Any], tuple[Broker, Any]] = {}

    def explore(self, states_max: int) -> Explored:
        """Explore all states; raise Wrong with the steps that led there if a check fails."""
        begin = State(self._same(Broker(self._world.version)), (self._programs.begin("r1", run_query, "r1"),))
        seen = {begin.key()}
        paths: list[tuple[State, Any]] = [(begin, None)]
        ends: Counter[str] = Counter()
        while paths:
            state, path = paths.pop()
            if not state.actors and not state.late:
                ends["stuck" if state.broker.checkpoint < self._world.batches - 1 else "whole"] += 1
                continue
            what = "?"
            try:
                for what, after in self._successors(state):
                    key = after.key()
                    if key not in seen:
                        check(self._world, after.broker)
                        seen.add(key)
                        paths.append((after, (what, path)))
            except ModelViolation as wrong:
                raise ModelViolation(f"{wrong}\n" + "\n".join(_steps((what, path)))) from wrong
            if len(seen) > states_max:
                raise ModelViolation(f"more than {states_max} states")
        return Explored(len(seen), ends)

    def _same(self, broker: Broker) -> Broker:
        return self._brokers.setdefault(broker, broker)

    def _apply(self, broker: Broker, op: tuple[Any, ...]) -> tuple[Broker, Any]:
        found = self._applied.get((id(broker), op))
        if found is None:
            after, response = broker.apply(op)
            found = self._applied[id(broker), op] = self._same(after), response
        return found

    def _successors(self, state: State) -> Iterator[tuple[Any, State]]:
        """Yield each successor with the step or fault that leads to it."""
        for index, actor in enumerate(state.actors):
            broker, response = self._apply(state.broker, actor.op)
            yield (actor.name, actor.op), self._resumed(state._replace(broker=broker), index, response)
        for index, op in enumerate(state.late):
            broker, _ = self._apply(state.broker, op)
            yield ("late", op), state._replace(broker=broker, late=state.late[:index] + state.late[index + 1 :])
        if len(state.faults) < self._world.faults:
            for kind in self._world.kinds:
                yield from self._faults(state._replace(faults=(*state.faults, kind)), kind)

    def _resumed(self, state: State, index: int, response: Any) -> State:
        actor = self._programs.resume(state.actors[index], response)
        if actor.op is not None:
            return state._replace(actors=(*state.actors[:index], actor, *state.actors[index + 1 :]))
        newest = actor.name == f"r{state.runs}"
        if newest and actor.failure == "TornBatch" and not set(self._world.tearing) & set(state.faults):
            raise ModelViolation("torn without a reason")
        return self._ended(state, index, actor.failure)

    def _ended(self, state: State, index: int, failure: str | None) -> State:
        gone = state.actors[index]
        state = state._replace(actors=state.actors[:index] + state.actors[index + 1 :])
        if gone.name != f"r{state.runs}" or failure is None:
            return state
        if failure == state.failure == "TornBatch":
            return state  # the same error would repeat forever: stuck
        return self._restarted(state._replace(failure=failure))

    def _restarted(self, state: State) -> State:
        if state.runs > self._world.restarts:
            raise ModelViolation(f"it never ends, with {state.failure} at last")
        name = f"r{state.runs + 1}"
        actor = self._programs.begin(name, run_query, name)
        return state._replace(actors=(*state.actors, actor), runs=state.runs + 1)

    def _faults(self, state: State, kind: str) -> Iterator[tuple[Any, State]]:
        if kind == "timeout":
            for name, entry in state.broker.ids:
                if entry.state == "Ongoing":
                    yield (kind, name), state._replace(broker=self._same(state.broker.aborted(name)))
            return
        for index, actor in enumerate(state.actors):
            for after in self._fault(state, kind, index):
                yield (kind, actor.name, actor.op), after

    def _fault(self, state: State, kind: str, index: int) -> Iterator[State]:
        actor = state.actors[index]
        op = actor.op
        assert op is not None
        changes = op[0] in MUTATIONS
        if kind == "crash":
            yield self._ended(state, index, "crash")
        elif kind == "stall" and actor.name == f"r{state.runs}":
            yield self._restarted(state)
        elif kind == "lost" and changes:
            yield self._resumed(state._replace(broker=self._apply(state.broker, op)[0]), index, NoResponse)
        elif kind == "undone" and op[0] not in ("start", "begin", "checkpoint"):
            yield self._resumed(state, index, NoResponse)
        elif kind == "late" and changes:
            yield self._resumed(state._replace(late=(*state.late, op)), index, NoResponse)
        elif kind == "zombie task" and op[0] == "begin":
            zombie = self._programs.begin("task", run_late_task, op[1])
            after = self._resumed(state, index, NoResponse)
            yield after._replace(actors=(*after.actors, zombie))


def check(world: World, broker: Broker) -> None:
    counts = Counter(broker.visible)
    if counts and max(counts.values()) > 1:
        raise ModelViolation(f"doubled: {broker.visible}")
    if any(row[0] == ZOMBIE for row in counts):
        raise ModelViolation("what a zombie wrote is visible")
    for batch in range(broker.checkpoint + 1):
        for partition in range(world.partitions):
            if (batch, partition) not in counts:
                raise ModelViolation(f"lost: batch {batch} is in the checkpoint, {broker.visible} is visible")


class Explored(NamedTuple):
    states: int
    ends: Counter[str]  # whole: every row is visible exactly once; stuck: every restart ends in TornBatch


def explore(world: World, states_max: int = 2_000_000) -> Explored:
    return Explorer(world).explore(states_max)


def _steps(path: Any) -> list[str]:
    steps = []
    while path is not None:
        what, path = path
        steps.append(" ".join(map(str, what)))
    return steps[::-1]
