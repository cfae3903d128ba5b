"""Writes the markers of a decided transaction to all of its partitions, then reports completion to its coordinator.

The decision is on disk before it arrives here, so it is always carried out: requests are retried until the leader responds, and a
coordinator that takes over restarts whatever is unfinished. Duplicate markers are harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.broker.channels.broker_channel import UNREACHABLE, BrokerChannel
from headrace.broker.shard_runner import Coordination
from headrace.client.consumer.fetching import known_code
from headrace.coordinators.transaction.request import Markers
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.metadata.image import Image
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

log = logging.getLogger(__name__)

PAUSE_S = 0.02
PAUSE_S_MAX = 1.0
NO_LEADER = -1
# Errors which mean that another coordinator has taken over the transaction or has ended it.
FENCED_CODES = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class Superseded(Exception):
    """Another coordinator, or a later term of this one, is responsible for the transaction."""


class MarkerSender:
    def __init__(self, image: Callable[[], Image], brokers: BrokerChannel, loop: asyncio.AbstractEventLoop) -> None:
        self._image = image
        self._brokers = brokers
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], str] = {}  # running deliveries, with their transactional ids
        self._under_way: dict[str, asyncio.Task[None]] = {}  # the latest delivery by transactional id
        self._ready: asyncio.Future[None] = loop.create_future()
        self.coordination: Coordination[TransactionShard] | None = None  # set later: it is built with `send`

    def start(self) -> None:
        """Start delivering. Call once the image is complete: a topic that it lacks counts as deleted."""
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

    async def ended(self, transactional_id: str, timeout_s: float) -> None:
        """Wait until this broker has delivered the latest markers of the id, for at most `timeout_s`.

        If this broker is delivering none, another one may be: then wait for the whole `timeout_s`.
        """
        task = self._under_way.get(transactional_id)
        if task is None:
            await asyncio.sleep(timeout_s)
        else:
            await asyncio.wait([task], timeout=timeout_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        transactional_id = self._tasks.pop(task)
        if self._under_way.get(transactional_id) is task:
            del self._under_way[transactional_id]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical(
                "the markers of transactional id %s could not be delivered: %r; they are sent again after a restart",
                transactional_id,
                error,
                exc_info=error,
            )

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
        await asyncio.sleep(0)  # the response to the producer is sent first, in this iteration of the event loop
        left = set(markers.partitions)
        pause_s = PAUSE_S
        try:
            self._check(coordination, markers, term)
            while left := await self._send_to_leaders(markers, epoch, left):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                self._check(coordination, markers, term)
            while not await self._finish(coordination, markers, term):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        except Superseded as reason:
            log.info(
                "stopped sending the markers of transactional id %s, producer %d: %s",
                markers.transactional_id,
                markers.producer_id,
                reason,
            )

    async def _send_to_leaders(
        self, markers: Markers, epoch: int, partitions: set[TopicPartition]
    ) -> set[TopicPartition]:
        """Send the markers to all leaders and return the partitions that have to be retried."""
        by_leader = self._by_leader(partitions)
        if len(by_leader) == 1:
            ((leader, of_leader),) = by_leader.items()
            return await self._send_to_leader(leader, markers, epoch, of_leader)
        left_by_leader = await asyncio.gather(
            *(
                self._send_to_leader(leader, markers, epoch, of_leader)
                for leader, of_leader in sorted(by_leader.items())
            )
        )
        return set().union(*left_by_leader)

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Group partitions by leader, leaving out deleted ones, which need no marker."""
        topics = self._image().topics
        found: dict[int, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            topic = topics.get(partition.topic)
            if topic is not None and partition.partition < len(topic.partitions):
                found.setdefault(topic.partitions[partition.partition].leader, []).append(partition)
        return found

    async def _send_to_leader(
        self, leader: int, markers: Markers, epoch: int, partitions: list[TopicPartition]
    ) -> set[TopicPartition]:
        if leader == NO_LEADER:
            return set(partitions)
        try:
            response: WriteTxnMarkersResponse = await self._brokers.request(
                leader, _request(markers, epoch, partitions)
            )
        except UNREACHABLE:
            return set(partitions)
        left = set(partitions)
        for result in response.markers:
            for topic in result.topics:
                for one in topic.partitions:
                    code = known_code(one.error_code)
                    if code in FENCED_CODES:
                        raise Superseded(f"{topic.name}-{one.partition_index} responded with {code.name}")
                    if code is ErrorCode.NONE:
                        left.discard(TopicPartition(topic.name, one.partition_index))
        return left

    async def _finish(self, coordination: Coordination[TransactionShard], markers: Markers, term: object) -> bool:
        self._check(coordination, markers, term)
        try:
            await coordination.decide(markers.transactional_id, markers.written())
        except KafkaError as error:
            log.warning(
                "the end of the transaction of %s could not be written: %s; trying again",
                markers.transactional_id,
                error,
            )
            return False
        return True

    @staticmethod
    def _check(coordination: Coordination[TransactionShard], markers: Markers, term: object) -> None:
        """Raise Overtaken if this broker no longer coordinates the transaction in the same term.

        Must be called AFTER each pause: before transaction version 2, a late marker would end the producer's next transaction.
        """
        if coordination.term_of(markers.transactional_id) != term:
            raise Superseded("this broker no longer coordinates it in the same term")


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
