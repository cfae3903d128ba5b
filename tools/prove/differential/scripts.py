"""Scripts of requests that depend on earlier responses, played on both sides in step, comparing every response.

A story is a generator: it yields steps and is sent the response of its side. Member ids, producer ids and topic ids
differ between the sides; a story gives them names (`Side.call`) for the comparison.
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
class Side:
    target: Target
    names: dict[Any, str] = field(default_factory=dict)

    def call(self, value: Any, name: str) -> Any:
        """Name an id that this side has generated, for the comparison."""
        self.names[value] = name
        return value

    def ask(self, step: Step) -> Any:
        deadline = time.monotonic() + UNTIL_S_MAX
        while True:
            answer = self.target.ask(step.message, step.version)
            if step.until is None or step.until(answer):
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self.target.name}: {step.name} has no end in {UNTIL_S_MAX:.0f} s, the last answer is {answer!r}"
                )
            time.sleep(UNTIL_PAUSE_S)


Playing = Generator[Step, Any, None]
Story = Callable[[Side], Playing]


@dataclass
class StoryDifference:
    story: str
    step: str
    request: str
    kafka: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.story}: {self.step}\n  request {self.request}\n  Kafka   {self.kafka}\n  we      {self.ours}"


def play(story: Story, kafka: Target, ours: Target) -> tuple[int, list[StoryDifference]]:
    """Play the story and return the number of compared responses and the differences."""
    sides = (Side(kafka), Side(ours))
    tellers = [story(side) for side in sides]
    name = story.__name__
    steps = [next(teller, None) for teller in tellers]
    count = 0
    differences: list[StoryDifference] = []
    while steps[0] is not None and steps[1] is not None:
        answers = [side.ask(step) for side, step in zip(sides, steps, strict=True) if step is not None]
        # A story names the ids of a response when it receives it.
        following = [_tell(teller, answer) for teller, answer in zip(tellers, answers, strict=True)]
        shown = [plain(answer, side) for side, answer in zip(sides, answers, strict=True)]
        count += 1
        if shown[0] != shown[1]:
            differences.append(StoryDifference(name, steps[0].name, repr(steps[0].message), *shown))
        steps = following
    if steps != [None, None]:
        ends = [None if step is None else step.name for step in steps]
        differences.append(StoryDifference(name, "the way it went on", "", *ends))
    return count, differences


def compare_stories(stories: Iterable[Story], kafka: Target, ours: Target) -> tuple[int, list[StoryDifference]]:
    """Play all stories on two sides that have the topics, and add up the results."""
    count = 0
    differences: list[StoryDifference] = []
    for story in stories:
        compared, found = play(story, kafka, ours)
        count, differences = count + compared, [*differences, *found]
    return count, differences


def _tell(teller: Playing, answer: Any) -> Step | None:
    try:
        return teller.send(answer)
    except StopIteration:
        return None


def plain(value: Any, side: Side) -> Any:
    if isinstance(value, Struct):
        shown = {
            name: _field(name, getattr(value, name), side) for name in value.__struct_fields__ if name not in _IGNORED
        }
        if isinstance(value, ListGroupsResponse):
            shown["groups"].sort(key=repr)
        return shown
    if isinstance(value, list | tuple):
        return [plain(one, side) for one in value]
    return side.names.get(value, value) if isinstance(value, str | int | bytes) else value


def _field(name: str, value: Any, side: Side) -> Any:
    if name == "topic_id":
        return side.target.topic_named(bytes(value))
    if name in ("producer_id", "member_id", "leader"):
        return side.names.get(value, value)
    if isinstance(value, Struct | list | tuple):
        shown = plain(value, side)
        return sorted(shown, key=repr) if name in _UNORDERED else shown
    return side.names.get(value, value) if isinstance(value, str) else value


def is_there(code_of: Callable[[Any], int]) -> Callable[[Any], bool]:
    return lambda answer: isinstance(answer, Struct) and code_of(answer) not in NOT_YET


def code(answer: Any) -> int:
    return int(answer.error_code)


def find(keys: Iterable[str], kind: int) -> Step:
    """Return a step that repeats until all keys have a coordinator; the first request creates the topic."""
    return Step(
        "find the coordinators",
        FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys)),
        4,
        lambda answer: all(one.error_code not in NOT_YET for one in answer.coordinators),
    )
