"""A coordinator that fails while it takes over leadership, or that is overloaded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.test_broker_coordination import Register, ShardHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.promise import Promise
from headrace.broker.shard_runner import LOAD_AGAIN_S
from headrace.records.control import TransactionMarker
from headrace.statemachine import runtime as runtime_module
from headrace.statemachine.machine import Decision


def test_a_coordinator_that_fails_while_taking_over_is_unavailable_until_a_retry_succeeds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the exception was dropped: the coordinator served requests without its timers."""
    harness = ShardHarness()

    def fail(self: Register, now_ms: int, tx: Decision[Any]) -> None:
        tx.emit(("a", "of a failed takeover"))
        raise ZeroDivisionError("a bug")

    async def scenario() -> None:
        await harness.send_request("set", "a", "1")
        with monkeypatch.context() as patch:
            patch.setattr(Register, "on_leading", fail)
            harness.lead(harness.partition.leader, 1)
            await harness.coordination.settle()
            assert await harness.refusal("set", "b", "2") is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert harness.coordination.loaded() == []
        (line,) = [record for record in caplog.records if record.exc_info is not None]
        assert "t-0" in line.getMessage() and "took over leadership" in line.getMessage()
        await asyncio.sleep(LOAD_AGAIN_S + 0.1)
        assert await harness.send_request("set", "b", "2") == "b is set"
        assert harness.values == {"a": "1", "b": "2"}

    harness.run(scenario)


def test_an_overloaded_coordinator_makes_clients_retry_at_the_same_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "PARKED_MAX", 1)
    harness = ShardHarness()
    harness.coordination._end = lambda record: record

    async def code_of(promise: Promise[Any]) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            await promise
        return caught.value.code

    async def scenario() -> None:
        advance = harness.partition.advance
        monkeypatch.setattr(harness.partition, "advance", lambda: None)  # simulates a follower that has not fetched yet
        parked = harness.coordination.decide("group", ("set", "a", "1"))
        overloaded = harness.coordination.decide("group", ("set", "b", "2"))
        assert await code_of(overloaded) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        marker = TransactionMarker(commit=True, coordinator_epoch=0)
        ending = harness.coordination.end_transaction(0, 1, 0, marker, 0)
        assert await code_of(ending) is ErrorCode.REQUEST_TIMED_OUT
        monkeypatch.setattr(harness.partition, "advance", advance)
        harness.partition.advance()
        assert await parked == "a is set"

    harness.run(scenario)
