"""Runs both sides in step and lists the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headrace.protocol.messages.fetch import FetchResponse
from tools.prove.differential.compare import plain
from tools.prove.differential.fetches import Fetches
from tools.prove.differential.operations import TOPICS, Model, Operation
from tools.prove.differential.produces import Produces
from tools.prove.differential.wire import Target

PRODUCE_SHARE = 0.5
PROGRESS_EVERY = 1000


@dataclass
class Difference:
    number: int
    operation: str
    request: str
    kafka: Any
    ours: Any

    def __str__(self) -> str:
        return (
            f"#{self.number} {self.operation}\n  request {self.request}\n  Kafka   {self.kafka}\n  we      {self.ours}"
        )


@dataclass
class Comparison:
    seed: int
    operations: Counter[str] = field(default_factory=Counter)
    deviations: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def figure(self) -> str:
        return (
            f"{self.operations.total()} operations of {len(self.operations)} kinds (seed {self.seed}), "
            f"{len(self.differences)} differences, {self.deviations.total()} deliberate deviations of {len(self.deviations)} kinds"
        )


def compare(
    kafka: tuple[str, int],
    ours: tuple[str, int],
    *,
    operations: int,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
    give_up_at: int = 20,
) -> Comparison:
    """Run the operations on two empty servers.

    Stop early after `give_up_at` differences, because the first ones cause the others.
    """
    result = Comparison(seed)
    sides = (Target("Kafka", kafka), Target("we", ours))
    model = Model(Random(seed))
    produces, fetches = Produces(model), Fetches(model)
    try:
        for side in sides:
            side.create_topics(TOPICS)
        for number in range(operations):
            source = produces if model.random.random() < PRODUCE_SHARE else fetches
            _step(number, source.operation(), sides, result)
            if (number + 1) % PROGRESS_EVERY == 0:
                say(f"{number + 1} operations, {len(result.differences)} differences")
            if len(result.differences) >= give_up_at:
                break
    finally:
        for side in sides:
            side.close()
    return result


def _step(number: int, operation: Operation, sides: tuple[Target, Target], result: Comparison) -> None:
    result.operations[operation.name] += 1
    answers = []
    for side in sides:
        message, version = operation.build(side)
        answer = side.ask(message, version) if operation.answered else side.tell(message, version)
        answers.append(plain(answer, side, operation.session))
        if isinstance(answer, FetchResponse) and operation.session is not None and answer.session_id:
            side.sessions[operation.session] = answer.session_id
    kafka, ours = answers
    if operation.deviation is not None:
        errors = tuple(tuple(one["error"] for one in side) for side in (kafka, ours))
        if errors == (operation.deviation.kafka, operation.deviation.ours):
            result.deviations[operation.name] += 1
            return
    if kafka != ours or operation.deviation is not None:
        request = f"v{version} {message!r}"
        result.differences.append(Difference(number, operation.name, _short(request, 3000), *_parted(kafka, ours)))
    operation.learn(kafka)


def _parted(kafka: Any, ours: Any) -> tuple[Any, Any]:
    """Return only what differs, if both have the same structure."""
    if isinstance(kafka, dict) and isinstance(ours, dict) and kafka.keys() == ours.keys():
        pairs = {key: _parted(kafka[key], ours[key]) for key in kafka if kafka[key] != ours[key] or key == "partition"}
        return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}
    if isinstance(kafka, list) and isinstance(ours, list) and all(isinstance(one, dict) for one in kafka + ours):
        if [_partition_of(one) for one in kafka] != [_partition_of(one) for one in ours]:
            return _brief(kafka), _brief(ours)
        parts = [_parted(one, other) for one, other in zip(kafka, ours, strict=True) if one != other]
        return [part[0] for part in parts], [part[1] for part in parts]
    if isinstance(kafka, bytes) and isinstance(ours, bytes):
        at = next((i for i, (one, other) in enumerate(zip(kafka, ours, strict=False)) if one != other), -1)
        return (
            f"{len(kafka)} bytes, first difference at {at}: {kafka[max(at - 20, 0) : at + 20].hex()}",
            f"{len(ours)} bytes: {ours[max(at - 20, 0) : at + 20].hex()}",
        )
    return _short(kafka, 1500), _short(ours, 1500)


def _partition_of(answer: dict[str, Any]) -> Any:
    return answer["partition"]


def _brief(answers: list[dict[str, Any]]) -> Any:
    """Summarize the responses, whose partitions or order differ."""
    brief = []
    for one in answers:
        words = {key: value for key, value in one.items() if value not in (None, -1, (-1, -1), [])}
        if "records" in words:
            words["records"] = len(words["records"])
        brief.append(words)
    return brief


def _short(value: Any, limit: int) -> Any:
    text = str(value)
    return value if len(text) <= limit else text[:limit] + "…"
