"""The transaction load commits what it counts, retries if it must and fails on other errors. Nothing here is timed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from bench.errors import BenchFailed
from bench.load.frames import fetch_frame
from bench.load.generator import Span, target_of
from bench.systems.requests import end_offset
from bench.systems.servers import HEADRACE, Broker, spawn_headrace
from bench.transactions.fetch_committed import ABORTED_OF, RECORDS, fill
from bench.transactions.load import Transactions, _Producer, run, run_transactions

from headrace.base.errors import ErrorCode
from headrace.client.wire.frames import decode_response
from headrace.protocol.apis import ApiKey

MARKER_S_MAX = 10.0
SPAN = Span(0.3, 0.1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(HEADRACE, tmp_path_factory.mktemp("bench") / "node", spawn_headrace)
    _ = broker.process  # start it here, so that it belongs to the module
    yield broker
    broker.close()


def ends_at(broker: Broker, topic: str, partitions: int, offset: int) -> bool:
    """Return whether all partitions end at the offset, waiting for the last markers."""
    deadline = time.monotonic() + MARKER_S_MAX
    while time.monotonic() < deadline:
        ends = {end_offset(broker.connection, topic, partition) for partition in range(partitions)}
        if ends == {offset}:
            return True
    return False


@pytest.mark.parametrize(("partitions", "producers"), [(1, 1), (5, 3)])
def test_counted_transactions_are_committed(broker: Broker, partitions: int, producers: int) -> None:
    topic = f"counted-{partitions}"
    broker.create_topic(topic, partitions)
    load = Transactions(topic, partitions, producers, 20, 100)
    outcome, _ = run_transactions(target_of(broker), load, SPAN)  # how often it retries depends on the machine
    assert 0 < outcome.responses <= outcome.all_responses
    assert 0 < outcome.p50_us <= outcome.p99_us <= outcome.max_us
    assert ends_at(broker, topic, partitions, outcome.all_responses * (20 // partitions + 1))


@pytest.mark.parametrize("is_ending", [False, True])
def test_requests_refused_with_concurrent_transactions_are_retried(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_ending: bool
) -> None:
    """The refused request was in fact executed, so it is executed twice; that must have no effect."""
    topic = f"again-{is_ending}"
    broker.create_topic(topic, 2)
    on_response = _Producer.on_response
    refused: list[_Producer] = []

    def refuse_one(self: _Producer, response: bytearray) -> int:
        if self.is_ending == is_ending and not refused:
            refused.append(self)
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return on_response(self, response)

    monkeypatch.setattr(_Producer, "on_response", refuse_one)
    found = run(target_of(broker), Transactions(topic, 2, 2, 20, 100), Span(0.5, 0.0))
    assert refused and found["retries"] >= 1  # a busy broker may refuse some requests by itself
    assert ends_at(broker, topic, 2, int(found["all_responses"]) * 11)


def test_non_retriable_errors_end_the_run(broker: Broker) -> None:
    load = Transactions("there-is-none", 1, 1, 10, 100)
    with pytest.raises(BenchFailed, match="Produce 12 failed with error 3"):
        run_transactions(target_of(broker), load, SPAN)


def test_every_tenth_transaction_of_the_fetch_topic_is_aborted(broker: Broker) -> None:
    broker.create_topic("filled", 1)
    fill(broker.connection, "filled", 2 * ABORTED_OF)
    assert end_offset(broker.connection, "filled") == 2 * ABORTED_OF * (RECORDS + 1)
    for committed, aborted in ((True, [9 * 101, 19 * 101]), (False, None)):
        frame = fetch_frame("filled", 0, 0, 10_000_000, committed=committed)
        response = decode_response(ApiKey.FETCH, 12, 0, memoryview(broker.connection.exchange(frame)))
        (found,) = response.responses[0].partitions
        assert found.last_stable_offset == 2 * ABORTED_OF * (RECORDS + 1)
        if aborted is None:
            assert not found.aborted_transactions
        else:
            assert [one.first_offset for one in found.aborted_transactions] == aborted
