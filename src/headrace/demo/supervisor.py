"""Supervises the processes of a run: starts them, restarts those that end, and ends the nodes last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from headrace.base.errors import HeadraceError
from headrace.demo.processes import Child, Register

NODE, GENERATOR, PIPELINES = "node", "generator", "pipelines"
# Seconds until a process that does not end is killed. Spark finishes its batches first.
END_S_MAX = {GENERATOR: 20.0, PIPELINES: 90.0}
NODE_END_S_MAX = 30.0
PAUSE_S = 0.05


def node_name(number: int, nodes: int) -> str:
    """Return the name of a node's process: NODE if there is only one."""
    return NODE if nodes == 1 else f"{NODE} {number}"


def subject(name: str) -> str:
    """Return how a message begins that is about this process."""
    return f"the {name}" if name.isalpha() else name


class GivenUp(HeadraceError):
    """A process keeps ending soon after its start; `last_words` is the end of its log."""

    def __init__(self, child: Child) -> None:
        super().__init__(f"{subject(child.name)} has ended with code {child.code} again and again")
        self.last_words = child.last_words()


class Supervisor:
    def __init__(
        self, children: Sequence[Child], register: Register, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.notices: list[str] = []
        self._children = {child.name: child for child in children}
        self._register = register
        self._clock = clock
        self._should_run: dict[str, float] = {}  # processes that should run, and since when
        self._due: dict[str, float] = {}

    @property
    def nodes(self) -> list[str]:
        """Return the names of the nodes' processes."""
        return [name for name in self._children if name not in END_S_MAX]

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def start(self, name: str) -> None:
        now = self._clock()
        self._should_run.setdefault(name, now)
        self._due.pop(name, None)
        self._children[name].start(now)
        self._register.write(self._children.values())

    def should_run(self, name: str) -> bool:
        return name in self._should_run

    def look(self) -> None:
        """Restart processes that have ended, except a generator or pipelines with exit code 0.

        Raise GivenUp if a process keeps ending soon after its start.
        """
        now = self._clock()
        for name in list(self._should_run):
            child = self._children[name]
            code = child.code
            if code is None:
                continue
            if name in self._due:
                if now >= self._due[name]:
                    child.close()
                    self.start(name)
            elif code == 0 and name in END_S_MAX:
                del self._should_run[name]
                if name == PIPELINES:
                    self.notices.append(f"the {name} (process {child.pid}) were stopped from outside")
            else:
                how = "was killed" if code < 0 else "was stopped" if code == 0 else f"has ended with code {code}"
                again_at = child.lives.ended(code, now)
                if again_at is None:
                    raise GivenUp(child)
                self._due[name] = again_at
                self.notices.append(f"{subject(name)} (process {child.pid}) {how}, and is started again")

    def end(self, name: str, turn: Callable[[], None]) -> None:
        """Terminate a process and wait for it, calling `turn` repeatedly; kill it after END_S_MAX."""
        self._end_together([name], END_S_MAX.get(name, NODE_END_S_MAX), turn)

    def _end_together(self, names: Sequence[str], seconds: float, turn: Callable[[], None]) -> None:
        children = [self._children[name] for name in names]
        for child in children:
            self._should_run.pop(child.name, None)
            child.end()
        deadline = self._clock() + seconds
        while any(child.is_running for child in children) and self._clock() < deadline:
            turn()
            time.sleep(PAUSE_S)
        for child in children:
            if child.is_running:
                self.notices.append(f"{subject(child.name)} (process {child.pid}) does not end, and is killed")
            child.close()

    def end_all(self, turn: Callable[[], None]) -> None:
        """End the generator, then the pipelines, then all nodes: together, because a node alone has no quorum."""
        for name in END_S_MAX:
            if self._children[name].pid is not None:
                self.end(name, turn)
        nodes = [name for name in self.nodes if self._children[name].pid is not None]
        self._end_together(nodes, NODE_END_S_MAX, turn)
        self._register.write(self._children.values())

    def kill_all(self) -> None:
        for child in self._children.values():
            child.close()
