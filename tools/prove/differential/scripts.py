"""Scripts of requests that depend on earlier responses, run on both servers in step, comparing every response.

A script is a generator: it yields steps and is sent the responses of its server. Member ids, producer ids and topic ids
differ between the servers; a script gives them names (`ScriptRun.name_id`) for the comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.protocol.declare import Struct
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.list_groups import ListGroupsResponse
from tools.prove.differential.wire import Target

UNTIL_S_MAX = 30.0
UNTIL_PAUSE_S = 0.005
GROUP_KEY, TRANSACTION_KEY = 0, 1
# Not available yet, so the request is retried: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
# NOT_COORDINATOR, CONCURRENT_TRANSACTIONS.
NOT_YET = frozenset({14, 15, 16, 51})
_IGNORED = frozenset({"throttle_time_ms", "error_message", "transaction_start_time_ms", "cluster_id", "host", "port"})
_UNORDERED = frozenset({"members", "topic_partitions", "results"})  # hash tables in Kafka


@dataclass(frozen=True)
class Step:
    """One request. It is repeated until `until` returns True; only the last response is compared."""

    name: str
    message: Any
    version: int
    until: Callable[[Any], bool] | None = None


@dataclass
class ScriptRun:
    """A run of a script on one server, with the names of the ids that the server has generated."""

    target: Target
    names: dict[Any, str] = field(default_factory=dict)

    def name_id(self, value: Any, name: str) -> Any:
        """Name an id for the comparison and return it."""
        self.names[value] = name
        return value

    def request(self, step: Step) -> Any:
        """Return the response to a step. Raise AssertionError if its condition is never met."""
        deadline = time.monotonic() + UNTIL_S_MAX
        while True:
            response = self.target.request(step.message, step.version)
            if step.until is None or step.until(response):
                return response
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self.target.name}: {step.name} did not succeed within {UNTIL_S_MAX:.0f} s, the last response is {response!r}"
                )
            time.sleep(UNTIL_PAUSE_S)


Steps = Generator[Step, Any, None]
Script = Callable[[ScriptRun], Steps]


@dataclass
class ScriptDifference:
    script: str
    step: str
    request: str
    kafka: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.script}: {self.step}\n  request  {self.request}\n  Kafka    {self.kafka}\n  Headrace {self.ours}"


def run_script(script: Script, kafka: Target, ours: Target) -> tuple[int, list[ScriptDifference]]:
    """Run the script on both servers and return the number of compared responses and the differences."""
    runs = (ScriptRun(kafka), ScriptRun(ours))
    generators = [script(run) for run in runs]
    name = script.__name__
    steps = [next(generator, None) for generator in generators]
    count = 0
    differences: list[ScriptDifference] = []
    while steps[0] is not None and steps[1] is not None:
        responses = [run.request(step) for run, step in zip(runs, steps, strict=True) if step is not None]
        # A script names the ids of a response when it receives it.
        following = [_next_step(generator, response) for generator, response in zip(generators, responses, strict=True)]
        shown = [plain(response, run) for run, response in zip(runs, responses, strict=True)]
        count += 1
        if shown[0] != shown[1]:
            differences.append(ScriptDifference(name, steps[0].name, repr(steps[0].message), *shown))
        steps = following
    if steps != [None, None]:
        ends = [None if step is None else step.name for step in steps]
        differences.append(ScriptDifference(name, "the next step", "", *ends))
    return count, differences


def compare_scripts(scripts: Iterable[Script], kafka: Target, ours: Target) -> tuple[int, list[ScriptDifference]]:
    """Run all scripts on two servers that have the topics, and add up the results."""
    count = 0
    differences: list[ScriptDifference] = []
    for script in scripts:
        compared, found = run_script(script, kafka, ours)
        count, differences = count + compared, [*differences, *found]
    return count, differences


def _next_step(steps: Steps, response: Any) -> Step | None:
    """Send the response to a script and return its next step, or None at its end."""
    try:
        return steps.send(response)
    except StopIteration:
        return None


def plain(value: Any, run: ScriptRun) -> Any:
    """Return a response as plain values, with names for ids and without what may differ."""
    if isinstance(value, Struct):
        shown = {
            name: _field(name, getattr(value, name), run) for name in value.__struct_fields__ if name not in _IGNORED
        }
        if isinstance(value, ListGroupsResponse):
            shown["groups"].sort(key=repr)
        return shown
    if isinstance(value, list | tuple):
        return [plain(one, run) for one in value]
    return run.names.get(value, value) if isinstance(value, str | int | bytes) else value


def _field(name: str, value: Any, run: ScriptRun) -> Any:
    if name == "topic_id":
        return run.target.topic_named(bytes(value))
    if name == "usable_bytes":  # other processes write to the disk between the two requests
        return value if value < 0 else "known"
    if name in ("producer_id", "member_id", "leader"):
        return run.names.get(value, value)
    if isinstance(value, Struct | list | tuple):
        shown = plain(value, run)
        return sorted(shown, key=repr) if name in _UNORDERED else shown
    return run.names.get(value, value) if isinstance(value, str) else value


def is_available(code_of: Callable[[Any], int]) -> Callable[[Any], bool]:
    """Return a condition for `Step.until`: the response has no error that a client retries."""
    return lambda response: isinstance(response, Struct) and code_of(response) not in NOT_YET


def code(response: Any) -> int:
    return int(response.error_code)


def find(keys: Iterable[str], kind: int) -> Step:
    """Return a step that repeats until all keys have a coordinator; the first request creates the topic."""
    return Step(
        "find the coordinators",
        FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys)),
        4,
        lambda response: all(one.error_code not in NOT_YET for one in response.coordinators),
    )
