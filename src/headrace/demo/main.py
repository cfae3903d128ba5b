"""`headrace demo`: starts a node, a generator of shop events and Spark pipelines with one command, and shows what they do.

All durable state is in topics, tables and checkpoints, so a run can be killed at any point and started again. With `--events` it ends by
itself and reports whether the results are correct.
"""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import NamedTuple

from headrace.base.errors import HeadraceError
from headrace.demo.director import Director
from headrace.demo.display.screens import Screen, screen
from headrace.demo.display.state import doing, serves, state_of
from headrace.demo.folders import Folders
from headrace.demo.nodes import HTTP_PORT, demo_settings, format_cluster, plan_demo_nodes
from headrace.demo.processes import Child, Register
from headrace.demo.results.summary import lines, number
from headrace.demo.stages import Stage
from headrace.demo.supervisor import GENERATOR, PIPELINES, GivenUp, Supervisor, node_name
from headrace.local_cluster.layout import bootstrap_servers
from headrace.pipelines.runner.supervision import State as QueryState

RATE = 1000.0  # events per second of an unbounded run; a bounded run is not limited
TURN_S = 0.25
STILL_S_MAX = 600.0  # a run that makes no progress for so long has failed
DIRECTOR_ENDS_S = 2.0


class Options(NamedTuple):
    folders: Folders
    events: int | None
    rate: float
    port: int
    plain: bool


class Stopped(Exception):
    """A signal asked the run to end."""


class Run:
    def __init__(self, options: Options, shown: Screen) -> None:
        self._options = options
        self._screen = shown
        self._began = time.monotonic()
        self._nodes = plan_demo_nodes(options.folders.brokers, options.port)
        self._bootstrap = bootstrap_servers(self._nodes)
        self._director = Director(self._bootstrap, options.folders, options.events)
        self._register = Register(options.folders.shop / "processes.json")
        self._supervisor = Supervisor(self._children(), self._register)
        self._doing = "the node starts" if len(self._nodes) == 1 else "the brokers start"
        self._signals = 0
        self._is_ending = False
        self._moved: tuple[object, float] = (None, self._began)

    def _children(self) -> list[Child]:
        options, folders = self._options, self._options.folders
        tied = [sys.executable, "-m", "headrace.cli.attached"]
        commands: dict[str, list[str]] = {}
        for plan in self._nodes:
            settings = demo_settings(plan, self._nodes, folders)
            flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
            commands[node_name(plan.id, len(self._nodes))] = [*tied, "serve", *flags]
        generator = [sys.executable, "-m", "headrace.demo.shop.generator", self._bootstrap, "--rate", str(options.rate)]
        if options.events is not None:
            generator += ["--events", str(options.events)]
        pipelines = [*tied, "pipelines", "run", str(folders.pipelines), "--bootstrap-server", self._bootstrap]
        pipelines += ["--runtime", str(folders.runtime)]
        commands |= {GENERATOR: generator, PIPELINES: pipelines}
        return [Child(name, command, folders.log(name), {}) for name, command in commands.items()]

    def run_to_end(self) -> int:
        """Run the demo until it ends, fails or is stopped, and return the exit code."""
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, self._signalled)
        try:
            self._register.clear(self._screen.write)
            format_cluster(self._options.folders)
            for name in self._supervisor.nodes:
                self._supervisor.start(name)
            self._director.start()
            self._until_prepared()
            if self._options.events is None:
                self._start_the_rest()
                while True:
                    self._turn()
            return self._to_the_end()
        except Stopped:
            self._end()
            self._screen.close()
            self._screen.write("stopped; `make run` resumes from here, `make clean` deletes everything")
            return 0
        except HeadraceError as error:
            self._doing = "failed"
            self._end()
            self._screen.close()
            self._screen.write(f"headrace: {error}")
            for text in error.last_words if isinstance(error, GivenUp) else ():
                self._screen.write(f"    {text}")
            return 1
        finally:
            self._supervisor.kill_all()
            self._screen.close()

    def _until_prepared(self) -> None:
        while self._director.seen is None:
            self._turn()
        self._screen.write(serves(self._nodes, self._options.port, HTTP_PORT))

    def _start_the_rest(self) -> None:
        seen = self._director.seen
        if seen is None or seen.stage in (None, Stage.EVENTS):
            self._supervisor.start(GENERATOR)
        self._supervisor.start(PIPELINES)
        self._doing = "events happen"

    def _to_the_end(self) -> int:
        seen = self._director.seen
        assert seen is not None
        if seen.stage is not Stage.DONE:
            self._start_the_rest()
        elif seen.goal is not None:
            self._supervisor.notices.append(f"all of {number(seen.goal)} events had been processed before")
        while (seen := self._director.seen) is None or seen.stage is not Stage.DONE:
            self._doing = doing(seen)
            self._turn()
            self._check_that_it_moves()
        self._doing = "stopping Spark"
        self._supervisor.end(GENERATOR, self._show)
        self._supervisor.end(PIPELINES, self._turn)
        self._director.summarize()
        while self._director.summary is None:
            self._doing = self._director.doing or "checking the results"
            self._turn()
        summary = self._director.summary
        self._end()
        self._screen.close()
        for text in lines(summary):
            self._screen.write(text)
        self._screen.write(
            f"in {time.monotonic() - self._began:.0f} s; the tables are in {self._options.folders.tables}"
        )
        return 0 if summary.is_right else 1

    def _turn(self) -> None:
        if self._signals:
            raise Stopped
        if self._director.failure is not None:
            raise self._director.failure
        self._supervisor.look()
        self._show()
        time.sleep(TURN_S)

    def _show(self) -> None:
        elapsed = time.monotonic() - self._began
        self._screen.show(
            state_of(self._doing, elapsed, self._director, self._supervisor, self._nodes, self._options.folders)
        )

    def _check_that_it_moves(self) -> None:
        seen = self._director.seen
        if seen is None:
            return
        if not self._supervisor.should_run(PIPELINES):
            raise HeadraceError("the pipelines were stopped before all was done")
        for one in seen.statuses.values():
            if one.state == QueryState.FAILED.value:
                raise HeadraceError(f"{one.title} was given up: {one.error}")
        where = (seen.stage, seen.facts.ends, seen.facts.positions)
        now = time.monotonic()
        if where != self._moved[0]:
            self._moved = (where, now)
        elif now - self._moved[1] > STILL_S_MAX:
            raise HeadraceError(f"no progress for {STILL_S_MAX:.0f} s; see {self._options.folders.log(PIPELINES)}")

    def _end(self) -> None:
        """End the director, the generator, the pipelines and the nodes, in this order."""
        if not self._is_ending:
            self._is_ending = True
            self._director.stop(DIRECTOR_ENDS_S)
            self._signals = 0
            self._doing = "stopping"
            self._supervisor.end_all(self._show_while_ending)

    def _show_while_ending(self) -> None:
        if self._signals:  # a second signal means: at once
            self._supervisor.kill_all()
        self._show()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1


def run(options: Options) -> int:
    """Run the demo until it is complete or interrupted, and return the exit code."""
    options.folders.make()
    with options.folders.locked():
        return Run(options, screen(options.plain)).run_to_end()
