"""Markers reach every leader despite refusals, skip deleted partitions, and stop when the coordinator is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from testkit.simulator.loop import SimulatedLoop

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, new_uuid
from headrace.broker.transactions.markers import MarkerSender
from headrace.broker.transactions.verifier import CoordinatorVerifier
from headrace.client.wire.connection import Disconnected
from headrace.coordinators.partitioning import TRANSACTIONS_TOPIC
from headrace.coordinators.transaction.request import Markers, MarkersWritten
from headrace.metadata.image import Image, Partition, Topic
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

RANDOM = Random(1)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
EPOCH = 4


def topic(name: str, *leaders: int) -> Topic:
    states = [
        Partition(replicas=(leader,), isr=(leader,), leader=leader, leader_epoch=0, partition_epoch=0)
        for leader in leaders
    ]
    return Topic(name, new_uuid(RANDOM), tuple(states))


def markers(*partitions: TopicPartition, commit: bool = True) -> Markers:
    return Markers("t", 7, 3, commit, partitions, 2, prepared_offset=0)


class Leaders:
    """Brokers 1 and 2; `refusals` maps a partition to the errors it returns before it accepts a marker."""

    def __init__(
        self,
        refusals: Mapping[TopicPartition, list[ErrorCode]] | None = None,
        unreachable: tuple[Any, ...] | list[int] = (),
    ) -> None:
        self.refusals = {place: list(codes) for place, codes in (refusals or {}).items()}
        self.unreachable = list(unreachable)
        self.written: list[Any] = []

    async def request(
        self, node_id: int, message: WriteTxnMarkersRequest, *, lane: str = ""
    ) -> WriteTxnMarkersResponse:
        assert isinstance(message, WriteTxnMarkersRequest)
        await asyncio.sleep(0.001)
        if node_id in self.unreachable:
            self.unreachable.remove(node_id)
            raise Disconnected("not now")
        results: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = []
        for marker in message.markers:
            assert (marker.coordinator_epoch, marker.transaction_version) == (EPOCH, 2)
            topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = []
            for one in marker.topics:
                answered: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = []
                for index in one.partition_indexes:
                    place = TopicPartition(one.name, index)
                    codes = self.refusals.get(place)
                    code = codes.pop(0) if codes else ErrorCode.NONE
                    if code is ErrorCode.NONE:
                        self.written.append((node_id, place, marker.transaction_result))
                    answered.append(WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(index, code))
                topics.append(WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(one.name, answered))
            results.append(WriteTxnMarkersResponse.WritableTxnMarkerResult(marker.producer_id, topics))
        return WriteTxnMarkersResponse(markers=results)


class Decisions:
    """The coordinator's decisions, with an epoch that tests may change; the first `failures` of them fail."""

    def __init__(self, failures: int = 0) -> None:
        self.epoch = EPOCH
        self.loads = 1
        self.failures = failures
        self.notifications: list[MarkersWritten] = []

    def epoch_of(self, name: str) -> int:
        return self.epoch

    def term_of(self, name: str) -> tuple[int, int]:
        return self.epoch, self.loads

    async def decide(self, name: str, request: MarkersWritten) -> None:
        if self.failures:
            self.failures -= 1
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now")
        self.notifications.append(request)


def run(scenario: Callable[..., Any], image: Image, leaders: Leaders, decisions: Decisions) -> None:
    loop = SimulatedLoop(Random(1), steps_max=100_000)
    sender = MarkerSender(lambda: image, leaders, loop)
    sender.coordination = decisions  # type: ignore[assignment]

    async def main() -> None:
        await scenario(sender)
        await sender.stop()

    loop.run_until_complete(main())
    loop.close()
    assert loop.errors == []


IMAGE = Image(topics={"a": topic("a", 1, 2), "b": topic("b", 1)})


@pytest.mark.parametrize("commit", [True, False])
def test_markers_are_written_by_every_leader_before_the_coordinator_is_notified(commit: bool) -> None:
    leaders, decisions, sent = Leaders(), Decisions(), markers(A0, A1, B0, commit=commit)

    async def scenario(sender: MarkerSender) -> None:
        sender.send(sent)
        await asyncio.sleep(1)
        assert (
            leaders.written == [] and decisions.notifications == []
        )  # the sender does not know yet which topics exist
        sender.start()
        await asyncio.sleep(1)

    run(scenario, IMAGE, leaders, decisions)
    assert sorted(leaders.written) == [(1, A0, commit), (1, B0, commit), (2, A1, commit)]
    assert decisions.notifications == [sent.written()]


def test_only_refused_or_undelivered_markers_are_sent_again() -> None:
    leaders = Leaders({A1: [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]}, unreachable=[1, 1])
    decisions = Decisions(failures=2)

    async def scenario(sender: MarkerSender) -> None:
        sender.start()
        sender.send(markers(A0, A1))
        await asyncio.sleep(10)

    run(scenario, IMAGE, leaders, decisions)
    assert sorted(leaders.written) == [(1, A0, True), (2, A1, True)] and len(decisions.notifications) == 1


def test_markers_for_deleted_partitions_are_skipped() -> None:
    leaders, decisions = Leaders(), Decisions()
    gone = TopicPartition("gone", 0)

    async def scenario(sender: MarkerSender) -> None:
        sender.start()
        sender.send(markers(gone, A0, TopicPartition("a", 9)))
        sender.send(markers(gone))
        await asyncio.sleep(1)

    run(scenario, IMAGE, leaders, decisions)
    assert leaders.written == [(1, A0, True)] and len(decisions.notifications) == 2


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_a_fenced_coordinator_stops_sending_markers(code: ErrorCode) -> None:
    leaders, decisions = Leaders({A0: [code]}), Decisions()

    async def scenario(sender: MarkerSender) -> None:
        sender.start()
        sender.send(markers(A0))
        await asyncio.sleep(60)

    run(scenario, IMAGE, leaders, decisions)
    assert leaders.written == [] and decisions.notifications == []


def test_a_changed_coordinator_epoch_stops_the_retries() -> None:
    leaders, decisions = Leaders({A0: [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000}), Decisions()

    async def scenario(sender: MarkerSender) -> None:
        sender.start()
        sender.send(markers(A0))
        await asyncio.sleep(0.5)
        decisions.epoch = EPOCH + 1
        await asyncio.sleep(5)
        left = len(leaders.refusals[A0])
        await asyncio.sleep(60)
        assert len(leaders.refusals[A0]) == left > 0

    run(scenario, IMAGE, leaders, decisions)
    assert decisions.notifications == []


def test_reloading_the_coordinator_at_the_same_epoch_stops_the_retries() -> None:
    """Reload at the same epoch: the new instance may have ended the transaction and the producer begun another."""
    leaders, decisions = Leaders({A0: [ErrorCode.NOT_LEADER_OR_FOLLOWER]}), Decisions()

    async def scenario(sender: MarkerSender) -> None:
        sender.start()
        sender.send(markers(A0))
        await asyncio.sleep(0.01)
        assert leaders.refusals[A0] == []
        decisions.loads += 1
        await asyncio.sleep(10)

    run(scenario, IMAGE, leaders, decisions)
    assert leaders.written == [] and decisions.notifications == []


@pytest.mark.parametrize(("timeout_s", "left"), [(0.0005, 1), (10.0, 0)])
def test_waiting_for_a_transaction_to_end_returns_on_completion_or_timeout(timeout_s: float, left: int) -> None:
    leaders, decisions = Leaders(), Decisions()

    async def scenario(sender: MarkerSender) -> None:
        loop = asyncio.get_running_loop()
        sender.start()
        sender.send(markers(A0, A1))
        await sender.ended("t", timeout_s)
        assert len(decisions.notifications) == 1 - left and loop.time() < 1
        await asyncio.sleep(1)
        began = loop.time()
        await sender.ended("t", 3.0)  # no marker is in flight here, though another broker may be sending some
        assert loop.time() - began >= 3.0

    run(scenario, IMAGE, leaders, decisions)


# --- the other direction: a leader verifies with the coordinator


class Coordinator:
    def __init__(self, codes: list[ErrorCode], unreachable: bool = False) -> None:
        self.codes = list(codes)
        self.unreachable = unreachable
        self.requested: list[tuple[int, bool]] = []

    async def request(
        self, node_id: int, message: AddPartitionsToTxnRequest, *, lane: str = ""
    ) -> AddPartitionsToTxnResponse:
        assert isinstance(message, AddPartitionsToTxnRequest)
        if self.unreachable:
            raise Disconnected("not now")
        [requested] = message.transactions
        self.requested.append((node_id, requested.verify_only))
        code = self.codes.pop(0)
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    requested.transactional_id,
                    [
                        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                            one.name,
                            [
                                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(index, code)
                                for index in one.partitions
                            ],
                        )
                        for one in requested.topics
                    ],
                )
            ]
        )


def verify(coordinator: Coordinator, *, add: bool, image: Image | None = None) -> ErrorCode:
    loop = SimulatedLoop(Random(1), steps_max=100_000)
    image = Image(topics={TRANSACTIONS_TOPIC: topic(TRANSACTIONS_TOPIC, 5)}) if image is None else image
    verifier = CoordinatorVerifier(
        lambda: image, coordinator, loop, lambda: (0.02, 0.1), lambda name, pause_s: asyncio.sleep(pause_s)
    )
    found = loop.run_until_complete(verifier.verify("t", 7, 3, [A0, A1, B0], add=add))
    loop.close()
    assert found.keys() == {A0, A1, B0} and len(set(found.values())) == 1
    return found[A0]


@pytest.mark.parametrize("add", [True, False])
def test_all_partitions_are_verified_in_one_request(add: bool) -> None:
    coordinator = Coordinator([ErrorCode.NONE])
    assert verify(coordinator, add=add) is ErrorCode.NONE and coordinator.requested == [(5, not add)]


def test_adding_partitions_retries_concurrent_transactions_for_a_limited_time() -> None:
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert verify(Coordinator([busy, busy, ErrorCode.NONE]), add=True) is ErrorCode.NONE
    never_ready = Coordinator([busy] * 100)
    assert verify(never_ready, add=True) is busy and 2 < len(never_ready.requested) < 10
    assert verify(Coordinator([busy]), add=False) is busy


def test_unreachable_and_missing_coordinators_are_reported_by_error_code() -> None:
    assert verify(Coordinator([], unreachable=True), add=True) is ErrorCode.NETWORK_EXCEPTION
    assert verify(Coordinator([]), add=True, image=Image()) is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
@pytest.mark.parametrize("add", [True, False])
def test_a_coordinator_that_moves_is_tried_again_for_a_limited_time(code: ErrorCode, add: bool) -> None:
    assert verify(Coordinator([code, code, ErrorCode.NONE]), add=add) is ErrorCode.NONE
    never_ready = Coordinator([code] * 100)
    assert verify(never_ready, add=add) is code and 2 < len(never_ready.requested) < 10
