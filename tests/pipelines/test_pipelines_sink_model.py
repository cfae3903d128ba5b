"""Every fault in a model of the sink, its brokers and Spark: each row is visible exactly once, or TornBatch says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest
from tests.pipelines.sink_model import ModelViolation, World, explore

from headrace.pipelines.sink import commands
from headrace.pipelines.sink import commits as sink
from headrace.pipelines.sink.commands import Choices, Progress, TaskTransaction
from headrace.pipelines.sink.commits import Fate

QUIET = ("crash", "lost", "undone")  # faults outside the brokers, without a delayed effect
LOUD = ("timeout", "late", "zombie task")
deep = pytest.mark.skipif(not os.environ.get("HEADRACE_SOAK"), reason="takes minutes: HEADRACE_SOAK=1")
both_versions = pytest.mark.parametrize("version", [1, 2])


@both_versions
def test_without_faults_every_row_is_visible_once(version: int) -> None:
    found = explore(World(version=version, faults=0))
    assert found.ends == {"whole": 1}


@both_versions
def test_a_crash_or_lost_response_at_any_step_neither_loses_nor_doubles_rows(version: int) -> None:
    found = explore(World(version=version, faults=1, kinds=QUIET))
    assert set(found.ends) == {"whole"}


@both_versions
def test_two_faults_including_timeouts_may_tear_a_batch(version: int) -> None:
    found = explore(World(version=version, faults=2, batches=1, kinds=(*QUIET, "timeout")))
    assert set(found.ends) == {"whole", "stuck"}


@both_versions
def test_a_timeout_late_request_or_late_task_may_tear_a_batch(version: int) -> None:
    """Only these faults can tear a batch."""
    found = explore(World(version=version, faults=1, kinds=LOUD))
    assert set(found.ends) == {"whole", "stuck"}


@both_versions
def test_a_late_task_with_its_own_transactional_id_tears_nothing(version: int) -> None:
    found = explore(World(version=version, faults=1, kinds=("zombie task",), reuse=False, tearing=()))
    assert set(found.ends) == {"whole"}


@both_versions
def test_a_batch_of_one_transaction_is_never_torn(version: int) -> None:
    found = explore(World(version=version, faults=2, partitions=1, batches=1, kinds=(*QUIET, "timeout"), tearing=()))
    assert set(found.ends) == {"whole"}


@both_versions
def test_a_stalled_driver_that_resumes_during_its_successor_does_no_harm(version: int) -> None:
    found = explore(World(version=version, faults=1, batches=1, kinds=("stall",)))
    assert set(found.ends) == {"whole"}


def test_a_stalled_driver_that_resumes_in_a_later_batch_does_no_harm() -> None:
    found = explore(World(faults=1, partitions=1, kinds=("stall",), tries=1))
    assert set(found.ends) == {"whole"}


@both_versions
def test_a_single_writer_is_never_torn(version: int) -> None:
    kinds = (*QUIET, "timeout", "late")
    found = explore(World(version=version, single=True, partitions=1, faults=2, kinds=kinds, tearing=()))
    assert set(found.ends) == {"whole"}
    found = explore(
        World(version=version, single=True, partitions=1, batches=1, faults=1, kinds=("stall",), tearing=())
    )
    assert set(found.ends) == {"whole"}


@deep
@both_versions
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "world",
    [
        World(faults=2, kinds=(*QUIET, *LOUD)),
        World(faults=1, kinds=("stall",)),
        World(faults=2, batches=1, partitions=1, kinds=("stall", *QUIET, "timeout")),
        World(faults=2, batches=1, kinds=("stall", "timeout")),
        World(faults=3, batches=1, partitions=1, kinds=QUIET),
        World(faults=2, single=True, partitions=1, kinds=("stall", *QUIET, "timeout", "late"), tearing=()),
    ],
)
def test_deep_exploration_finds_no_violation(version: int, world: World) -> None:
    explore(world._replace(version=version), states_max=50_000_000)


# --- mutations that the model must detect


def decides_again(batch: Any, progress: Progress, choices: Choices) -> Generator[Any, Any, Any]:
    yield commands.ReadProgress()
    return True


def aborts_without_looking(batch: Any, *, may_be_decided: bool) -> Generator[Any, Any, Any]:
    if batch.transactions:
        yield commands.End(batch.transactions, commit=False)


def forgets_the_rest(decision: Any) -> Generator[Any, Any, Any]:
    ended = yield commands.End(decision.transactions[:1], commit=True)
    assert ended
    yield commands.MarkFinished(decision)
    return True


def takes_lost_for_finished(decision: Any, fates: Mapping[TaskTransaction, Fate]) -> Generator[Any, Any, Any]:
    yield commands.MarkFinished(decision)
    return True


def closes_no_run(batch: Any, last: Any, open_ids: Any) -> Any:
    return ()


@pytest.mark.parametrize(
    ("name", "mutation", "kinds", "words"),
    [
        ("_look_back", decides_again, QUIET, "doubled"),
        ("abort", aborts_without_looking, QUIET, "torn without a reason"),
        ("_finish", forgets_the_rest, (), "lost"),
        ("_conclude", takes_lost_for_finished, ("timeout",), "lost"),
    ],
)
def test_the_model_detects_each_mutation(
    monkeypatch: pytest.MonkeyPatch, name: str, mutation: Callable[..., Any], kinds: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(sink, name, mutation)
    with pytest.raises(ModelViolation, match=words):
        explore(World(faults=1, kinds=kinds))


def test_the_model_detects_fencing_before_runs_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs must be closed before their open transactions are fenced; this is the reason."""
    monkeypatch.setattr(sink, "_closed", closes_no_run)
    monkeypatch.setattr(commands.Batch, "run_of", lambda batch, name: batch.run)
    with pytest.raises(ModelViolation, match="torn without a reason"):
        explore(World(faults=1, batches=1, kinds=("stall",)))
