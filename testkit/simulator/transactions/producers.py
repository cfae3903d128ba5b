"""Simulated transactional producers, made of raw requests: one for transaction version 2, and one for earlier versions.

Several may use one transactional id, each as if it were the only one. Transactions span several partitions and commit offsets; they are
committed, aborted, or abandoned by a process that sleeps or dies.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from random import Random

from msgspec import Struct

from headrace.base.errors import RETRIABLE, ErrorCode
from headrace.base.ids import TopicPartition
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from testkit.simulator.clients import BACKOFF_S, World
from testkit.simulator.producers import BROKER_TIMEOUT_MS, CODECS
from testkit.simulator.transactions.clients import (
    END,
    NO_PRODUCER,
    OFFSETS,
    SEND,
    Died,
    Fenced,
    Identity,
    Spoiled,
    TransactionalClient,
)

RECORDS_MAX, VALUE_BYTES_MAX = 3, 300
STEPS_MAX = 4
COMMIT_SHARE, OFFSETS_SHARE, LEAVING_SHARE, SLEEP_SHARE = 0.7, 0.4, 0.08, 0.03
PACE_S = 0.08
SLEEP_S_MAX = 4.0
ALL_ACKS = -1
# Longer than any request is in flight: before version 2, a late request must not reach the next transaction.
QUIET_S = 4.0


class Batch(Struct):
    call: int
    records: bytes


class TransactionalProducer(TransactionalClient, ABC):
    produce_versions: tuple[int, ...]
    offsets_version: int
    end_version: int

    def __init__(
        self,
        name: str,
        world: World,
        random: Random,
        identity: Identity,
        topic: str,
        partitions: int,
        transactions: int,
    ) -> None:
        super().__init__(name, world, random, identity)
        self.topic = topic
        self._partitions = partitions
        self._left = transactions
        self._transaction = ""
        self._transactions = self._values = 0
        self._is_sure = False  # whether its id and epoch are valid as far as the producer knows
        self._sequences: dict[int, int] = {}
        self._in_flight = random.choice((1, 1, 4))
        self._version = random.choice(self.produce_versions)
        self._codec = random.choice(CODECS)

    async def run(self) -> None:
        await self.find_topic(self.topic)
        while self._left > 0 and not self.world.stopping:
            self._left -= 1
            try:
                if not self._is_sure:
                    await self.initialize()
                await self.run_transaction()
            except Fenced:
                self._is_sure = False
            except Died:
                self._is_sure, self.producer = False, NO_PRODUCER
                await self.pause(SLEEP_S_MAX)
            await self.rest()
        await self.close()

    def finish(self) -> None:
        """Begin no more transactions."""
        self._left = 0

    async def initialize(self) -> None:
        """Get an id and epoch with which the next transaction can begin."""
        await self._begin_anew()

    async def rest(self) -> None:
        """Pause between two transactions."""
        await self.pause(PACE_S)

    async def _begin_anew(self) -> None:
        self._is_sure = False
        await self.init()
        self._is_sure, self._sequences = True, {}

    async def run_transaction(self) -> None:
        self._transactions += 1
        self._transaction = f"{self.name}-{self._transactions}"
        self.is_lost = False
        is_whole, is_open = True, False
        try:
            for _ in range(self.random.randint(1, STEPS_MAX)):
                indexes = self.random.sample(range(self._partitions), self.random.randint(1, self._partitions))
                await self.join(indexes)
                is_open = True
                await self._send(indexes)
                await self._wait()
            if self.random.random() < OFFSETS_SHARE:
                await self._commit_offsets()
        except Spoiled:
            is_whole = False
        if self.random.random() < LEAVING_SHARE:
            raise Died
        if is_open:
            await self._end(is_whole and self.random.random() < COMMIT_SHARE)
        await self.settle(is_whole)

    async def _wait(self) -> None:
        if not self.world.stopping and self.random.random() < SLEEP_SHARE:
            await self.pause(SLEEP_S_MAX)
        else:
            await self.pause(PACE_S)

    # --- implemented for each transaction version

    @abstractmethod
    async def join(self, indexes: Sequence[int]) -> None:
        """Add these partitions to the transaction before they are written, if the version requires it."""

    @abstractmethod
    async def join_offsets(self) -> None: ...

    @abstractmethod
    async def settle(self, is_whole: bool) -> None:
        """Do what the version requires between two transactions."""

    # --- records

    def _next_batch(self, index: int) -> Batch:
        count = self.random.randint(1, RECORDS_MAX)
        names = [f"{self._transaction}.{number}" for number in range(self._values, self._values + count)]
        self._values += count
        sequence = self._sequences.get(index, 0)
        self._sequences[index] = sequence + count
        records = self.batch(
            names,
            VALUE_BYTES_MAX,
            self._codec,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        call = self.history.invoke(
            self.name,
            SEND,
            place=(self.topic, index),
            values=names,
            transaction=self._transaction,
            producer=self.producer,
        )
        return Batch(call, bytes(records))

    async def _send(self, indexes: Sequence[int]) -> None:
        """Send up to `in_flight` batches per partition, and resend the same bytes until their outcome is known."""
        waiting = {
            index: deque(self._next_batch(index) for _ in range(self.random.randint(1, self._in_flight)))
            for index in indexes
        }
        try:
            while waiting:
                place = TopicPartition(self.topic, next(iter(waiting)))
                together = self._led_together(place, waiting)
                requests = [self._request(together, turn) for turn in range(max(map(len, together.values())))]
                failed: set[int] = set()
                for response in await self.attempt(partial(self.leader, place), requests, self._version):
                    self._take(response, waiting, failed)
                waiting = {index: batches for index, batches in waiting.items() if batches}
                if waiting:
                    await self.pause(BACKOFF_S)
        finally:
            for batches in waiting.values():
                for batch in batches:
                    self.history.info(batch.call)

    def _led_together(self, place: TopicPartition, waiting: dict[int, deque[Batch]]) -> dict[int, deque[Batch]]:
        """Return the batches for the leader of this partition, as far as its leader is known."""
        leader = self.cluster.known_leader(place)
        places = {index: TopicPartition(self.topic, index) for index in waiting}
        return {
            index: batches
            for index, batches in waiting.items()
            if places[index] == place or self.cluster.known_leader(places[index]) == leader
        }

    def _take(self, response: ProduceResponse, waiting: dict[int, deque[Batch]], failed: set[int]) -> None:
        """Handle a response; batches after a failed one of the same partition stay waiting, whatever their result."""
        for partition in response.responses[0].partition_responses:
            code = ErrorCode(partition.error_code)
            if partition.index in failed:
                continue
            if code is ErrorCode.NONE:
                self.history.ok(waiting[partition.index].popleft().call, offset=partition.base_offset)
                continue
            failed.add(partition.index)
            if self.world.is_cluster:
                self.cluster.forget_leader(TopicPartition(self.topic, partition.index))
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._in_flight > 1:
                # All were written. As in Kafka, a snapshot has only the last batch of each producer: after a clean restart, the
                # broker does not recognize earlier batches as duplicates.
                raise Spoiled
            if code not in RETRIABLE:
                self.judge("Produce", code)

    def _request(self, waiting: dict[int, deque[Batch]], turn: int) -> ProduceRequest:
        """Return a request with the batch number `turn` of each partition that has one."""
        data = ProduceRequest.TopicProduceData(
            name=self.topic,
            topic_id=self.cluster.topic_id(self.topic),
            partition_data=[
                ProduceRequest.PartitionProduceData(index=index, records=batches[turn].records)
                for index, batches in waiting.items()
                if turn < len(batches)
            ],
        )
        return ProduceRequest(
            transactional_id=self.identity.transactional_id,
            acks=ALL_ACKS,
            timeout_ms=BROKER_TIMEOUT_MS,
            topic_data=[data],
        )

    # --- offsets

    async def _commit_offsets(self) -> None:
        await self.join_offsets()
        count = self.random.randint(1, self._partitions)
        offsets = {index: self.identity.take_offset() for index in range(count)}
        partitions = [
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(index, offset) for index, offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self.identity.transactional_id,
            group_id=self.identity.group,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(self.topic, partitions)],
        )
        call = self.history.invoke(
            self.name,
            OFFSETS,
            group=self.identity.group,
            offsets=[[self.topic, index, offset] for index, offset in offsets.items()],
            transaction=self._transaction,
            producer=self.producer,
        )
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            _, code = await self.send_request(self.of_group, request, self.offsets_version, _offsets_code)
        finally:
            (self.history.ok if code is ErrorCode.NONE else self.history.info)(call)
        self.judge("TxnOffsetCommit", code)

    # --- the end

    async def _end(self, commit: bool) -> None:
        request = EndTxnRequest(self.identity.transactional_id, *self.producer, commit)
        call = self.history.invoke(self.name, END, transaction=self._transaction, commit=commit, producer=self.producer)
        response: EndTxnResponse | None = None
        self.is_certain = True
        try:
            response, code = await self.send_request(
                self.of_transactions, request, self.end_version, lambda response: ErrorCode(response.error_code)
            )
        finally:
            if response is None:
                self.history.info(call)
        if code is ErrorCode.NONE:
            self.history.ok(call, next_producer=(response.producer_id, response.producer_epoch))
            if response.producer_id >= 0:
                self.producer = (response.producer_id, response.producer_epoch)
                self._sequences = {}
            return
        (self.history.fail if self.is_certain else self.history.info)(call, error=code.name)
        try:
            self.judge("EndTxn", code)
        except Spoiled:
            raise Fenced from None  # the coordinator ended it after its timeout


def _offsets_code(response: TxnOffsetCommitResponse) -> ErrorCode:
    return ErrorCode(max(one.error_code for topic in response.topics for one in topic.partitions))


class EpochProducer(TransactionalProducer):
    """A producer of transaction version 2: writing to a partition adds it, and each transaction has a new epoch."""

    has_ghosts = True
    produce_versions = (12, 13)
    offsets_version = 5
    end_version = 5

    async def join(self, indexes: Sequence[int]) -> None:
        return

    async def join_offsets(self) -> None:
        return

    async def settle(self, is_whole: bool) -> None:
        return


class AddingProducer(TransactionalProducer):
    """A producer of earlier versions: it adds partitions before it writes to them, and keeps its epoch."""

    produce_versions = (9, 11)
    offsets_version = 3
    end_version = 4
    adding_version = 3

    async def join(self, indexes: Sequence[int]) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.identity.transactional_id,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(self.topic, list(indexes))],
        )
        _, code = await self.send_request(self.of_transactions, request, self.adding_version, _added_code)
        self.judge("AddPartitionsToTxn", code)

    async def join_offsets(self) -> None:
        request = AddOffsetsToTxnRequest(self.identity.transactional_id, *self.producer, self.identity.group)
        _, code = await self.send_request(
            self.of_transactions, request, self.adding_version, lambda response: ErrorCode(response.error_code)
        )
        self.judge("AddOffsetsToTxn", code)

    async def settle(self, is_whole: bool) -> None:
        if not is_whole or (self.is_lost and self.random.random() < 0.5):
            await self._begin_anew()
        elif self.is_lost:
            await asyncio.sleep(QUIET_S)


def _added_code(response: AddPartitionsToTxnResponse) -> ErrorCode:
    codes = [
        one.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]
    return ErrorCode(max(codes))
