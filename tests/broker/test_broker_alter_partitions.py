"""The sender of ISR changes: batches, retries, what it does with each response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock

from headrace.base.errors import ErrorCode
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.base.metrics import Metrics
from headrace.broker.membership.alter_partitions import AlterPartitions
from headrace.client.wire.connection import Disconnected
from headrace.metadata.image import Broker, Image
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.replication.isr import Accepted, Isr, Proposal

TOPIC_ID = Uuid(b"t" * 16)
Answer = ErrorCode | Exception | Accepted


class ScriptedController:
    """Answers each request with the next entry of its script, for all partitions alike."""

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.requests: list[AlterPartitionRequest] = []

    async def request(self, message: AlterPartitionRequest) -> AlterPartitionResponse:
        self.requests.append(message)
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is ErrorCode.STALE_BROKER_EPOCH:
            return AlterPartitionResponse(error_code=answer)
        return AlterPartitionResponse(
            topics=[
                AlterPartitionResponse.TopicData(
                    topic_id=topic.topic_id,
                    partitions=[_result(one.partition_index, answer) for one in topic.partitions],
                )
                for topic in message.topics
            ]
        )


def _result(index: int, answer: ErrorCode | Accepted) -> AlterPartitionResponse.PartitionData:
    if isinstance(answer, ErrorCode):
        return AlterPartitionResponse.PartitionData(partition_index=index, error_code=answer)
    return AlterPartitionResponse.PartitionData(
        partition_index=index,
        leader_id=1,
        leader_epoch=answer.leader_epoch,
        isr=list(answer.isr),
        partition_epoch=answer.partition_epoch,
    )


class LedPartition:
    """The part of a partition that the sender uses, with a real ISR."""

    def __init__(self, index: int) -> None:
        self.name, self.topic_id = TopicPartition("t", index), TOPIC_ID
        self.in_sync = Isr(1, (1,), 5, 10, recovering=False)

    @property
    def isr(self) -> tuple[int, ...]:
        return self.in_sync.members

    @property
    def pending_isr(self) -> Proposal | None:
        return self.in_sync.pending

    def isr_accepted(self, proposal: Proposal, state: Accepted, now_ms: int) -> None:
        self.in_sync.accepted(proposal, state)

    def isr_refused(self, proposal: Proposal, code: ErrorCode, now_ms: int) -> bool:
        return self.in_sync.refused(proposal, code, now_ms)

    def propose(self, sender: AlterPartitions) -> None:
        proposal = self.in_sync.propose([2], [], sender.eligible_epoch, 10**13)
        sender.propose(self, proposal)  # type: ignore[arg-type]


def run(controller: ScriptedController, main: Callable[[AlterPartitions], Coroutine[Any, Any, None]]) -> None:
    loop = SimulatedLoop(Random(1))
    brokers = {node: Broker(node, 100 + node, TOPIC_ID, (), {}, None, False, False, ()) for node in (1, 2)}
    brokers[3] = Broker(3, 103, TOPIC_ID, (), {}, None, True, False, ())
    sender = AlterPartitions(
        controller, NodeId(1), lambda: 101, lambda: Image(brokers=brokers), FakeClock(0, loop), loop, Metrics()
    )

    async def work() -> None:
        await main(sender)
        await sender.stop()

    loop.run_until_complete(work())
    assert loop.unhandled() == []
    loop.close()


def test_proposals_of_one_turn_are_sent_in_one_request_with_the_epochs_of_the_brokers() -> None:
    controller = ScriptedController(Accepted((1, 2), 5, 11))
    partitions = [LedPartition(index) for index in range(3)]

    async def main(sender: AlterPartitions) -> None:
        for partition in partitions:
            partition.propose(sender)
        await asyncio.sleep(0.01)
        (request,) = controller.requests
        assert (request.broker_id, request.broker_epoch) == (1, 101)
        (topic,) = request.topics
        first = topic.partitions[0]
        assert [one.partition_index for one in topic.partitions] == [0, 1, 2]
        assert (first.leader_epoch, first.partition_epoch) == (5, 10)
        assert [(one.broker_id, one.broker_epoch) for one in first.new_isr_with_epochs] == [(1, 101), (2, 102)]
        assert [partition.isr for partition in partitions] == [(1, 2)] * 3

    run(controller, main)


def test_a_request_without_an_outcome_is_sent_again_with_pauses() -> None:
    controller = ScriptedController(
        Disconnected("down"), ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER, Accepted((1, 2), 5, 11)
    )
    partition = LedPartition(0)

    async def main(sender: AlterPartitions) -> None:
        partition.propose(sender)
        await asyncio.sleep(1.0)
        assert len(controller.requests) == 4 and partition.isr == (1, 2)

    run(controller, main)


def test_a_partition_that_the_response_leaves_out_is_sent_again() -> None:
    controller = ScriptedController(Accepted((1, 2), 5, 11))
    partition = LedPartition(0)
    answered = controller.request

    async def forget_once(message: AlterPartitionRequest) -> AlterPartitionResponse:
        if not controller.requests:
            controller.requests.append(message)
            return AlterPartitionResponse()
        return await answered(message)

    controller.request = forget_once

    async def main(sender: AlterPartitions) -> None:
        partition.propose(sender)
        await asyncio.sleep(0.5)
        assert partition.isr == (1, 2)

    run(controller, main)


def test_a_decided_proposal_is_not_sent_again() -> None:
    controller = ScriptedController(ErrorCode.INVALID_UPDATE_VERSION)
    partition = LedPartition(0)

    async def main(sender: AlterPartitions) -> None:
        partition.propose(sender)
        await asyncio.sleep(1.0)
        assert len(controller.requests) == 1 and partition.pending_isr is not None

    run(controller, main)


def test_fenced_and_unknown_brokers_are_not_eligible() -> None:
    async def main(sender: AlterPartitions) -> None:
        assert [sender.eligible_epoch(node) for node in (1, 2, 3, 4)] == [101, 102, None, None]
        assert sender.live_brokers() == {1, 2}

    run(ScriptedController(), main)
