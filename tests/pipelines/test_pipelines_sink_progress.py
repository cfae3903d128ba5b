"""Folding the records of the progress topic into a sink's progress."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.pipelines.sink.commands import BatchNotDecided, Decision, Progress, SinkError, TaskTransaction
from headrace.pipelines.sink.progress import ProgressFold, decision_value, finished_value, read_decision
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.records.control import TransactionMarker, build_marker

TASKS = tuple(TaskTransaction(f"p-s.run1.{n}.0.0", 100 + n, n, n, 10, 1000 + n) for n in range(3))


def decision(batch: int, token: str = "9-0") -> Decision:
    return Decision(batch, "run1", token, TASKS, 30, 1_700_000_000_000, ("run0",), "p-s.")


class Log:
    def __init__(self) -> None:
        self.data = b""
        self.end = 0

    def put(self, key: str, value: bytes, producer_id: int = -1, codec: Codec = Codec.NONE) -> None:
        builder = BatchBuilder()
        builder.append(0, key.encode(), value)
        batch = builder.build(
            base_offset=self.end,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
        self.data += bytes(batch)
        self.end += 1

    def mark(self, producer_id: int, commit: bool) -> None:
        marker = TransactionMarker(commit, 0)
        self.data += bytes(
            build_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp=0, base_offset=self.end)
        )
        self.end += 1


def put_decision(log: Log, batch: int, producer_id: int, sink: str = "s", **more: Any) -> None:
    log.put(sink, decision_value(decision(batch)), producer_id, **more)


def folded(log: Log) -> ProgressFold:
    fold = ProgressFold()
    assert fold.feed(log.data, 0) == log.end
    return fold


def test_a_decision_survives_a_round_trip() -> None:
    assert read_decision(decision_value(decision(7))) == decision(7)
    assert b"p-s.run1" not in decision_value(decision(7))


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"version":2}', b'{"version":1,"transactions":[[]]}', b"\xff", b"null"]
)
def test_an_unreadable_decision_raises_sink_error(value: bytes) -> None:
    log = Log()
    log.put("s", value)
    with pytest.raises(SinkError, match="cannot be read"):
        folded(log).progress("s")
    assert folded(log).progress("t") == Progress()


def test_only_committed_decisions_count() -> None:
    log = Log()
    put_decision(log, 1, 5)
    log.mark(5, commit=True)
    put_decision(log, 2, 5)
    put_decision(log, 9, 6, sink="t")
    log.mark(5, commit=False)
    fold = folded(log)
    assert fold.progress("s") == Progress(decision(1), None)
    log.put("s/finished", finished_value(decision(1)))
    assert folded(log).progress("s") == Progress(decision(1), "9-0")
    assert folded(log).progress("s").unfinished is None


def test_an_open_transaction_of_another_sink_does_not_hide_a_decision() -> None:
    log = Log()
    put_decision(log, 9, 6, sink="t")
    put_decision(log, 1, 5, codec=Codec.GZIP)
    log.mark(5, commit=True)
    assert folded(log).progress("s").decision == decision(1)


def test_a_decision_without_a_marker_counts_if_below_the_stable_offset() -> None:
    """Its marker was then compacted away."""
    log = Log()
    put_decision(log, 1, 5)
    fold = folded(log)
    assert fold.is_in_doubt("s")
    assert not fold.is_in_doubt("t")
    assert fold.progress("s", stable_offset=1).decision == decision(1)
    with pytest.raises(BatchNotDecided, match="another driver of s"):
        fold.progress("s", stable_offset=0)


def test_reading_resumes_at_its_offset_and_ignores_partial_batches() -> None:
    log = Log()
    put_decision(log, 1, 5)
    log.mark(5, commit=True)
    fold = folded(log)
    before = len(log.data)
    put_decision(log, 2, 5)
    log.mark(5, commit=True)
    assert fold.feed(log.data[:-1], 2) == 3, "a part of a batch is not read"
    assert fold.feed(log.data[before:], 3) == 4
    assert fold.progress("s").decision == decision(2)
    assert fold.feed(b"", 4) == 4


def test_an_unreadable_finished_mark_leaves_the_decision_unfinished() -> None:
    log = Log()
    put_decision(log, 1, 5)
    log.mark(5, commit=True)
    log.put("s/finished", b"?")
    assert folded(log).progress("s").unfinished == decision(1)
