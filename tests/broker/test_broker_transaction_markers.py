"""Markers reach every leader despite refusals, skip deleted partitions, and stop when the coordinator is fenced."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from testkit.simulator.loop import SimulatedLoop

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, new_uuid
from headrace.broker.transaction_markers import MarkerSender
from headrace.broker.transaction_verifier import CoordinatorVerifier
from headrace.coordinators.partitioning import TRANSACTIONS_TOPIC
from headrace.coordinators.transaction.request import Markers
from headrace.metadata.image import Image, Partition, Topic
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

CHANCE = Random(1)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
EPOCH = 4


def topic(name, *leaders):
    states = [
        Partition(replicas=(leader,), isr=(leader,), leader=leader, leader_epoch=0, partition_epoch=0)
        for leader in leaders
    ]
    return Topic(name, new_uuid(CHANCE), tuple(states))


def markers(*partitions, commit=True):
    return Markers("t", 7, 3, commit, partitions, 2, prepared_offset=0)


class Leaders:
    """Brokers 1 and 2; `refusals` maps a partition to the errors it returns before it accepts a marker."""

    def __init__(self, refusals=None, unreachable=()):
        self.refusals = {place: list(codes) for place, codes in (refusals or {}).items()}
        self.unreachable = list(unreachable)
        self.written = []

    async def request(self, node_id, message):
        assert isinstance(message, WriteTxnMarkersRequest)
        await asyncio.sleep(0.001)
        if node_id in self.unreachable:
            self.unreachable.remove(node_id)
            raise ConnectionError("not now")
        results = []
        for marker in message.markers:
            assert (marker.coordinator_epoch, marker.transaction_version) == (EPOCH, 2)
            topics = []
            for one in marker.topics:
                answered = []
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

    def __init__(self, failures=0):
        self.epoch = EPOCH
        self.loads = 1
        self.failures = failures
        self.told = []

    def epoch_of(self, name):
        return self.epoch

    def term_of(self, name):
        return self.epoch, self.loads

    async def decide(self, name, request):
        if self.failures:
            self.failures -= 1
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now")
        self.told.append(request)


def run(story, image, leaders, decisions):
    loop = SimulatedLoop(Random(1), steps_max=100_000)
    sender = MarkerSender(lambda: image, leaders, loop)
    sender.coordination = decisions

    async def main():
        await story(sender)
        await sender.stop()

    loop.run_until_complete(main())
    loop.close()
    assert loop.errors == []


IMAGE = Image(topics={"a": topic("a", 1, 2), "b": topic("b", 1)})


@pytest.mark.parametrize("commit", [True, False])
def test_every_leader_is_told_and_then_the_coordinator(commit):
    leaders, decisions, sent = Leaders(), Decisions(), markers(A0, A1, B0, commit=commit)

    async def story(sender):
        sender.send(sent)
        await asyncio.sleep(1)
        assert leaders.written == [] and decisions.told == []  # the sender does not know yet which topics exist
        sender.start()
        await asyncio.sleep(1)

    run(story, IMAGE, leaders, decisions)
    assert sorted(leaders.written) == [(1, A0, commit), (1, B0, commit), (2, A1, commit)]
    assert decisions.told == [sent.written()]


def test_who_refuses_is_asked_again_and_nobody_else():
    leaders = Leaders({A1: [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]}, unreachable=[1, 1])
    decisions = Decisions(failures=2)

    async def story(sender):
        sender.start()
        sender.send(markers(A0, A1))
        await asyncio.sleep(10)

    run(story, IMAGE, leaders, decisions)
    assert sorted(leaders.written) == [(1, A0, True), (2, A1, True)] and len(decisions.told) == 1


def test_what_is_deleted_needs_no_marker():
    leaders, decisions = Leaders(), Decisions()
    gone = TopicPartition("gone", 0)

    async def story(sender):
        sender.start()
        sender.send(markers(gone, A0, TopicPartition("a", 9)))
        sender.send(markers(gone))
        await asyncio.sleep(1)

    run(story, IMAGE, leaders, decisions)
    assert leaders.written == [(1, A0, True)] and len(decisions.told) == 2


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_an_overtaken_coordinator_falls_silent(code):
    leaders, decisions = Leaders({A0: [code]}), Decisions()

    async def story(sender):
        sender.start()
        sender.send(markers(A0))
        await asyncio.sleep(60)

    run(story, IMAGE, leaders, decisions)
    assert leaders.written == [] and decisions.told == []


def test_a_coordinator_that_lost_its_place_stops_asking():
    leaders, decisions = Leaders({A0: [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000}), Decisions()

    async def story(sender):
        sender.start()
        sender.send(markers(A0))
        await asyncio.sleep(0.5)
        decisions.epoch = EPOCH + 1
        await asyncio.sleep(5)
        left = len(leaders.refusals[A0])
        await asyncio.sleep(60)
        assert len(leaders.refusals[A0]) == left > 0

    run(story, IMAGE, leaders, decisions)
    assert decisions.told == []


def test_a_coordinator_that_was_loaded_again_leaves_the_rest_to_its_new_self():
    """Reload at the same epoch: the new instance may have ended the transaction and the producer begun another."""
    leaders, decisions = Leaders({A0: [ErrorCode.NOT_LEADER_OR_FOLLOWER]}), Decisions()

    async def story(sender):
        sender.start()
        sender.send(markers(A0))
        await asyncio.sleep(0.01)
        assert leaders.refusals[A0] == []
        decisions.loads += 1
        await asyncio.sleep(10)

    run(story, IMAGE, leaders, decisions)
    assert leaders.written == [] and decisions.told == []


@pytest.mark.parametrize(("patience_s", "left"), [(0.0005, 1), (10.0, 0)])
def test_whoever_waits_for_the_end_hears_of_it_or_loses_patience(patience_s, left):
    leaders, decisions = Leaders(), Decisions()

    async def story(sender):
        loop = asyncio.get_running_loop()
        sender.start()
        sender.send(markers(A0, A1))
        await sender.ended("t", patience_s)
        assert len(decisions.told) == 1 - left and loop.time() < 1
        await asyncio.sleep(1)
        began = loop.time()
        await sender.ended("t", 3.0)  # no marker is in flight here, though another broker may be sending some
        assert loop.time() - began >= 3.0

    run(story, IMAGE, leaders, decisions)


# --- the other direction: a leader verifies with the coordinator


class Coordinator:
    def __init__(self, codes, unreachable=False):
        self.codes = list(codes)
        self.unreachable = unreachable
        self.asked = []

    async def request(self, node_id, message):
        assert isinstance(message, AddPartitionsToTxnRequest)
        if self.unreachable:
            raise ConnectionError("not now")
        [asked] = message.transactions
        self.asked.append((node_id, asked.verify_only))
        code = self.codes.pop(0)
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    asked.transactional_id,
                    [
                        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                            one.name,
                            [
                                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(index, code)
                                for index in one.partitions
                            ],
                        )
                        for one in asked.topics
                    ],
                )
            ]
        )


def verify(coordinator, *, add, image=None):
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
def test_the_coordinator_is_asked_once_for_all_partitions(add):
    coordinator = Coordinator([ErrorCode.NONE])
    assert verify(coordinator, add=add) is ErrorCode.NONE and coordinator.asked == [(5, not add)]


def test_a_transaction_that_is_still_ending_is_waited_for_a_while():
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert verify(Coordinator([busy, busy, ErrorCode.NONE]), add=True) is ErrorCode.NONE
    for_ever = Coordinator([busy] * 100)
    assert verify(for_ever, add=True) is busy and 2 < len(for_ever.asked) < 10
    assert verify(Coordinator([busy]), add=False) is busy


def test_a_coordinator_out_of_reach_is_said():
    assert verify(Coordinator([], unreachable=True), add=True) is ErrorCode.NETWORK_EXCEPTION
    assert verify(Coordinator([]), add=True, image=Image()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
