"""AddPartitionsToTxn 0–5: adds partitions to a transaction or verifies that it has them; its coordinator decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from headrace.api.permissions import on_transactional_ids
from headrace.api.transactions.end_txn import EPOCHS_CLIENT
from headrace.base.eager import at_once
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.partitioning import INTERNAL_TOPICS
from headrace.coordinators.transaction.request import (
    AddPartitions,
    PartitionResults,
)
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

BATCHED_VERSION_MIN = 4  # version from which partition leaders send it

Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


class AddPartitionsToTxnApi:
    def __init__(self, transactions: Coordination[TransactionShard], image: Callable[[], Image]) -> None:
        self._transactions = transactions
        self._image = image

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.ADD_PARTITIONS_TO_TXN, (0, 5), at_once(self.handle), on_transactional_ids(Operation.WRITE))
        ]

    async def handle(self, context: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if context.api_version < BATCHED_VERSION_MIN:
            transaction = Transaction(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                False,
                request.v3_and_below_topics,
            )
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=await self._add_for_client(context, transaction)
            )
        if not context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if len(request.transactions) == 1:
            results = [await self._add_for_leader(context, request.transactions[0])]
        else:
            results = await asyncio.gather(*(self._add_for_leader(context, one) for one in request.transactions))
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(one.transactional_id, result)
                for one, result in zip(request.transactions, results, strict=True)
            ]
        )

    async def _add_for_client(self, context: RequestContext, transaction: Transaction) -> list[TopicResult]:
        """Add all partitions or none; if one is refused, the others get OPERATION_NOT_ATTEMPTED."""
        if not context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, transaction.transactional_id):
            return _same(transaction.topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        # As in Kafka, internal topics fail authorization regardless of the client's permissions.
        names = [topic.name for topic in transaction.topics if topic.name not in INTERNAL_TOPICS]
        permitted = context.permitted(Operation.WRITE, Resource.TOPIC, names)
        codes = self._codes(transaction.topics, permitted)
        if any(codes.values()):
            return _results(
                transaction.topics,
                {partition: code or ErrorCode.OPERATION_NOT_ATTEMPTED for partition, code in codes.items()},
            )
        return await self._add(context, transaction, client_version=0)

    async def _add_for_leader(self, context: RequestContext, transaction: Transaction) -> list[TopicResult]:
        codes = self._codes(transaction.topics, {topic.name for topic in transaction.topics})
        if any(codes.values()):
            return _results(
                transaction.topics,
                {partition: code or ErrorCode.OPERATION_NOT_ATTEMPTED for partition, code in codes.items()},
            )
        return await self._add(context, transaction, client_version=EPOCHS_CLIENT)

    def _codes(self, topics: Iterable[Topic], permitted: set[str]) -> dict[TopicPartition, ErrorCode]:
        known = self._image().topics
        codes = {}
        for topic in topics:
            found = known.get(topic.name)
            for index in topic.partitions:
                code = ErrorCode.NONE
                if topic.name not in permitted:
                    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif found is None or not 0 <= index < len(found.partitions):
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                codes[TopicPartition(topic.name, index)] = code
        return codes

    async def _add(self, context: RequestContext, transaction: Transaction, client_version: int) -> list[TopicResult]:
        partitions = tuple(
            TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions
        )
        request = AddPartitions(
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            partitions,
            transaction.verify_only,
            client_version,
            context.api_version,
        )
        try:
            decided: PartitionResults = await self._transactions.decide(transaction.transactional_id, request)
        except KafkaError as error:
            return _same(transaction.topics, error.code)
        return _results(transaction.topics, decided.codes)


def _results(topics: Iterable[Topic], codes: dict[TopicPartition, ErrorCode]) -> list[TopicResult]:
    return [
        TopicResult(topic.name, [Result(index, codes[TopicPartition(topic.name, index)]) for index in topic.partitions])
        for topic in topics
    ]


def _same(topics: Iterable[Topic], code: ErrorCode) -> list[TopicResult]:
    return [TopicResult(topic.name, [Result(index, code) for index in topic.partitions]) for topic in topics]
