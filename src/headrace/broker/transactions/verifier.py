"""Verifies with a transaction's coordinator that a partition belongs to it, or adds the partition (KIP-890).

A leader does this before it opens a transaction in a partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.broker.channels.broker_channel import UNREACHABLE, BrokerChannel
from headrace.client.consumer.fetching import known_code
from headrace.coordinators.partitioning import TRANSACTIONS_TOPIC, coordinator_partition
from headrace.metadata.image import Image
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

NO_LEADER = -1
# Errors while the coordinator moves to another broker, or this broker's metadata is behind.
_MOVING = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class CoordinatorVerifier:
    """Sends AddPartitionsToTxn to the coordinator, and retries while the previous transaction ends or the coordinator moves.

    `retry_times_s` returns the pause between two attempts and the total time to keep trying. `ended` returns after such a pause, or earlier
    once the transaction is known to have ended.
    """

    def __init__(
        self,
        image: Callable[[], Image],
        brokers: BrokerChannel,
        loop: asyncio.AbstractEventLoop,
        retry_times_s: Callable[[], tuple[float, float]],
        ended: Callable[[str, float], Awaitable[None]],
    ) -> None:
        self._image = image
        self._brokers = brokers
        self._loop = loop
        self._retry_times_s = retry_times_s
        self._ended = ended

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    verify_only=not add,
                    topics=[
                        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                        for topic, indexes in _by_topic(partitions).items()
                    ],
                )
            ]
        )
        pause_s, timeout_s = self._retry_times_s()
        deadline = self._loop.time() + timeout_s
        while True:
            codes = await self._send(transactional_id, request, partitions)
            is_ending = add and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            is_moving = not _MOVING.isdisjoint(codes.values())
            if not (is_ending or is_moving) or self._loop.time() + pause_s > deadline:
                return codes
            # The previous transaction is about to end: retrying here is cheaper than making the client retry.
            if is_ending:
                await self._ended(transactional_id, pause_s)
            else:
                await asyncio.sleep(pause_s)

    async def _send(
        self, transactional_id: str, request: AddPartitionsToTxnRequest, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        topic = self._image().topics.get(TRANSACTIONS_TOPIC)
        leader = NO_LEADER
        if topic is not None:
            leader = topic.partitions[coordinator_partition(transactional_id, len(topic.partitions))].leader
        try:
            if leader == NO_LEADER:
                return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            response: AddPartitionsToTxnResponse = await self._brokers.request(leader, request)
        except UNREACHABLE:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        whole = known_code(response.error_code)
        found = {
            TopicPartition(result.name, one.partition_index): known_code(one.partition_error_code)
            for transaction in response.results_by_transaction
            for result in transaction.topic_results
            for one in result.results_by_partition
        }
        missing = whole or ErrorCode.UNKNOWN_SERVER_ERROR
        return {partition: found.get(partition, missing) for partition in partitions}


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics
