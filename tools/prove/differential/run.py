"""Random operations on both servers in step, and the differences between their responses."""

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
        return f"#{self.number} {self.operation}\n  request  {self.request}\n  Kafka    {self.kafka}\n  Headrace {self.ours}"


@dataclass
class Comparison:
    seed: int
    operations: Counter[str] = field(default_factory=Counter)
    deviations: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def figure(self) -> str:
        return (
            f"{self.operations.total()} operations of {len(self.operations)} kinds (seed {self.seed}), "
            f"{len(self.differences)} differences, {self.deviations.total()} intentional deviations of {len(self.deviations)} kinds"
        )


def compare(
    kafka: tuple[str, int],
    ours: tuple[str, int],
    *,
    operations: int,
    seed: int,
    print_progress: Callable[[str], None] = lambda text: None,
    differences_max: int = 20,
) -> Comparison:
    """Run the operations on two empty servers.

    Stop early after `differences_max` differences, because the first ones cause the others.
    """
    result = Comparison(seed)
    targets = (Target("Kafka", kafka), Target("Headrace", ours))
    model = Model(Random(seed))
    produces, fetches = Produces(model), Fetches(model)
    try:
        for target in targets:
            target.create_topics(TOPICS)
        for number in range(operations):
            source = produces if model.random.random() < PRODUCE_SHARE else fetches
            _run_operation(number, source.operation(), targets, result)
            if (number + 1) % PROGRESS_EVERY == 0:
                print_progress(f"{number + 1} operations, {len(result.differences)} differences")
            if len(result.differences) >= differences_max:
                break
    finally:
        for target in targets:
            target.close()
    return result


def _run_operation(number: int, operation: Operation, targets: tuple[Target, Target], result: Comparison) -> None:
    result.operations[operation.name] += 1
    responses = []
    for target in targets:
        message, version = operation.build(target)
        response = target.request(message, version) if operation.has_response else target.send(message, version)
        responses.append(plain(response, target, operation.session))
        if isinstance(response, FetchResponse) and operation.session is not None and response.session_id:
            target.sessions[operation.session] = response.session_id
    kafka, ours = responses
    if operation.deviation is not None:
        errors = tuple(tuple(one["error"] for one in response) for response in (kafka, ours))
        if errors == (operation.deviation.kafka, operation.deviation.ours):
            result.deviations[operation.name] += 1
            return
    if kafka != ours or operation.deviation is not None:
        request = f"v{version} {message!r}"
        result.differences.append(
            Difference(number, operation.name, _short(request, 3000), *_only_differences(kafka, ours))
        )
    operation.learn(kafka)


def _only_differences(kafka: Any, ours: Any) -> tuple[Any, Any]:
    """Return only what differs, if both have the same structure."""
    if isinstance(kafka, dict) and isinstance(ours, dict) and kafka.keys() == ours.keys():
        pairs = {
            key: _only_differences(kafka[key], ours[key])
            for key in kafka
            if kafka[key] != ours[key] or key == "partition"
        }
        return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}
    if isinstance(kafka, list) and isinstance(ours, list) and all(isinstance(one, dict) for one in kafka + ours):
        if [_partition_of(one) for one in kafka] != [_partition_of(one) for one in ours]:
            return _brief(kafka), _brief(ours)
        parts = [_only_differences(one, other) for one, other in zip(kafka, ours, strict=True) if one != other]
        return [part[0] for part in parts], [part[1] for part in parts]
    if isinstance(kafka, bytes) and isinstance(ours, bytes):
        at = next((i for i, (one, other) in enumerate(zip(kafka, ours, strict=False)) if one != other), -1)
        return (
            f"{len(kafka)} bytes, first difference at {at}: {kafka[max(at - 20, 0) : at + 20].hex()}",
            f"{len(ours)} bytes: {ours[max(at - 20, 0) : at + 20].hex()}",
        )
    return _short(kafka, 1500), _short(ours, 1500)


def _partition_of(result: dict[str, Any]) -> Any:
    return result["partition"]


def _brief(results: list[dict[str, Any]]) -> Any:
    """Summarize results whose partitions or order differ."""
    brief = []
    for one in results:
        fields = {key: value for key, value in one.items() if value not in (None, -1, (-1, -1), [])}
        if "records" in fields:
            fields["records"] = len(fields["records"])
        brief.append(fields)
    return brief


def _short(value: Any, limit: int) -> Any:
    text = str(value)
    return value if len(text) <= limit else text[:limit] + "…"
