"""Tells every partition of a decided transaction how it ended, and its coordinator when all of them know.

A decision is on disk before it comes here, so it is carried out whatever happens: a leader that does not answer is asked again until
it does, and a coordinator that takes over begins anew with what it finds undone. Markers that come twice do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.broker.broker_channel import BrokerChannel
from headrace.broker.coordination import Coordination
from headrace.coordinators.transaction.asked import Markers
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.metadata.image import Image
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

log = logging.getLogger(__name__)

PAUSE_S = 0.02
PAUSE_S_MAX = 1.0
NOBODY = -1
# Somebody else coordinates this transaction by now, or has ended it: there is nothing left to do here.
OVERTAKEN = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class Overtaken(Exception):
    """Another coordinator has it."""


class MarkerSender:
    def __init__(self, image: Callable[[], Image], brokers: BrokerChannel, loop: asyncio.AbstractEventLoop) -> None:
        self._image = image
        self._brokers = brokers
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], str] = {}  # and whose transaction it is
        self._under_way: dict[str, asyncio.Task[None]] = {}  # the last one of each
        self._ready: asyncio.Future[None] = loop.create_future()
        self.coordination: Coordination[TransactionShard] | None = None  # whoever decides; it is made with `send`

    def start(self) -> None:
        """The image has every topic that there is: one that it does not know is deleted."""
        if not self._ready.done():
            self._ready.set_result(None)

    def send(self, markers: Markers) -> None:
        assert self.coordination is not None
        epoch = self.coordination.epoch_of(markers.transactional_id)
        term = self.coordination.term_of(markers.transactional_id)
        task = self._loop.create_task(self._deliver(self.coordination, markers, epoch, term))
        self._tasks[task] = markers.transactional_id
        self._under_way[markers.transactional_id] = task
        task.add_done_callback(self._ended)

    async def ended(self, transactional_id: str, patience_s: float) -> None:
        """Returns when no markers of that id are on their way from here any more, or when patience is at its end. Where another
        broker sends them, nobody here can tell."""
        task = self._under_way.get(transactional_id)
        if task is None:
            await asyncio.sleep(patience_s)
        else:
            await asyncio.wait([task], timeout=patience_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        transactional_id = self._tasks.pop(task)
        if self._under_way.get(transactional_id) is task:
            del self._under_way[transactional_id]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("markers of a transaction were given up: %r", error, exc_info=error)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- one transaction

    async def _deliver(
        self, coordination: Coordination[TransactionShard], markers: Markers, epoch: int, term: object
    ) -> None:
        await self._ready
        await asyncio.sleep(0)  # the producer's answer goes first: it leaves in this turn
        left = set(markers.partitions)
        pause_s = PAUSE_S
        try:
            self._check(coordination, markers, term)
            while left := await self._tell(markers, epoch, left):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                self._check(coordination, markers, term)
            while not await self._finish(coordination, markers, term):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        except Overtaken as reason:
            log.info("markers of %s, producer %d: %s", markers.transactional_id, markers.producer_id, reason)

    async def _tell(self, markers: Markers, epoch: int, partitions: set[TopicPartition]) -> set[TopicPartition]:
        """Those that have to be told again."""
        by_leader = self._by_leader(partitions)
        if len(by_leader) == 1:
            ((leader, asked),) = by_leader.items()
            return await self._ask(leader, markers, epoch, asked)
        answers = await asyncio.gather(
            *(self._ask(leader, markers, epoch, asked) for leader, asked in sorted(by_leader.items()))
        )
        return set().union(*answers)

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Without those that are deleted: what lay there is gone."""
        topics = self._image().topics
        found: dict[int, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            topic = topics.get(partition.topic)
            if topic is not None and partition.partition < len(topic.partitions):
                found.setdefault(topic.partitions[partition.partition].leader, []).append(partition)
        return found

    async def _ask(
        self, leader: int, markers: Markers, epoch: int, partitions: list[TopicPartition]
    ) -> set[TopicPartition]:
        if leader == NOBODY:
            return set(partitions)
        try:
            answer: WriteTxnMarkersResponse = await self._brokers.request(leader, _request(markers, epoch, partitions))
        except ConnectionError:
            return set(partitions)
        left = set(partitions)
        for result in answer.markers:
            for topic in result.topics:
                for one in topic.partitions:
                    code = ErrorCode(one.error_code)
                    if code in OVERTAKEN:
                        raise Overtaken(f"{topic.name}-{one.partition_index} says {code.name}")
                    if code is ErrorCode.NONE:
                        left.discard(TopicPartition(topic.name, one.partition_index))
        return left

    async def _finish(self, coordination: Coordination[TransactionShard], markers: Markers, term: object) -> bool:
        self._check(coordination, markers, term)
        try:
            await coordination.decide(markers.transactional_id, markers.written())
        except KafkaError as error:
            log.warning("the end of %s could not be written: %s; it is tried again", markers.transactional_id, error)
            return False
        return True

    @staticmethod
    def _check(coordination: Coordination[TransactionShard], markers: Markers, term: object) -> None:
        """AFTER each pause: before version 2, a marker that comes too late would end the producer's next transaction."""
        if coordination.term_of(markers.transactional_id) != term:
            raise Overtaken("its coordinator is another, or another term")


def _request(markers: Markers, epoch: int, partitions: list[TopicPartition]) -> WriteTxnMarkersRequest:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=markers.producer_id,
                producer_epoch=markers.producer_epoch,
                transaction_result=markers.commit,
                topics=[
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in topics.items()
                ],
                coordinator_epoch=epoch,
                transaction_version=markers.transaction_version,
            )
        ]
    )
