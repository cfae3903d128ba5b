"""InitProducerId 0–6 with a transactional id, AddPartitionsToTxn 0–5, AddOffsetsToTxn 0–4 and EndTxn 0–5.

The transaction coordinator decides on all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.partitioning import GROUPS_TOPIC, INTERNAL_TOPICS, coordinator_partition
from headrace.coordinators.transaction.request import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionResults,
    ProducerIdNeeded,
    ProducerInitialized,
    TransactionEnded,
)
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.metadata.image import Image
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext

BATCHED_VERSION_MIN = 4  # AddPartitionsToTxn version from which partition leaders send it
EPOCHS_VERSION_MIN = 5  # EndTxn version whose clients expect a new epoch for each transaction
EPOCHS_CLIENT = 2  # transaction version of such clients

Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


class TransactionsApi:
    """Handlers of transactional requests.

    `offsets_partitions` is the partition count that __consumer_offsets will have once it is created.
    """

    def __init__(
        self,
        transactions: Coordination[TransactionShard],
        producer_ids: ProducerIds,
        image: Callable[[], Image],
        offsets_partitions: int,
    ) -> None:
        self._transactions = transactions
        self._producer_ids = producer_ids
        self._image = image
        self._offsets_partitions = offsets_partitions

    # --- InitProducerId

    async def init(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Initialize the producer of a transactional id; the caller has checked the client's permissions."""
        assert request.transactional_id is not None
        asked = InitProducer(
            request.transactional_id,
            request.transaction_timeout_ms,
            request.producer_id,
            request.producer_epoch,
            enable_two_phase_commit=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
            version=context.api_version,
        )
        try:
            initialized: ProducerInitialized = await self._decide(asked)
        except KafkaError as error:
            return InitProducerIdResponse(error_code=error.code, producer_epoch=-1)
        except (OSError, HeadraceError):
            return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
        return InitProducerIdResponse(
            producer_id=initialized.producer_id,
            producer_epoch=initialized.producer_epoch,
            ongoing_txn_producer_id=initialized.ongoing_producer_id,
            ongoing_txn_producer_epoch=initialized.ongoing_producer_epoch,
        )

    async def _decide(self, asked: InitProducer | EndTransaction) -> Any:
        """Return the coordinator's decision; allocate a producer id if one is needed.

        One is needed if the transactional id is new, or its producer id has used up its epochs.
        """
        try:
            return await self._transactions.decide(asked.transactional_id, asked)
        except ProducerIdNeeded:
            fresh = replace(asked, fresh_producer_id=await self._producer_ids.allocate())
            return await self._transactions.decide(asked.transactional_id, fresh)

    # --- AddPartitionsToTxn

    async def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        if context.api_version < BATCHED_VERSION_MIN:
            asked = Transaction(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                False,
                request.v3_and_below_topics,
            )
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await self._add_for_client(context, asked))
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

    async def _add_for_client(self, context: RequestContext, asked: Transaction) -> list[TopicResult]:
        """Add all partitions or none; if one is refused, the others get OPERATION_NOT_ATTEMPTED."""
        if not context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, asked.transactional_id):
            return _same(asked.topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        # As in Kafka, internal topics fail authorization regardless of the client's permissions.
        names = [topic.name for topic in asked.topics if topic.name not in INTERNAL_TOPICS]
        permitted = context.permitted(Operation.WRITE, Resource.TOPIC, names)
        codes = self._codes(asked.topics, permitted)
        if any(codes.values()):
            return _results(
                asked.topics, {place: code or ErrorCode.OPERATION_NOT_ATTEMPTED for place, code in codes.items()}
            )
        return await self._add(context, asked, client_version=0)

    async def _add_for_leader(self, context: RequestContext, asked: Transaction) -> list[TopicResult]:
        codes = self._codes(asked.topics, {topic.name for topic in asked.topics})
        if any(codes.values()):
            return _results(
                asked.topics, {place: code or ErrorCode.OPERATION_NOT_ATTEMPTED for place, code in codes.items()}
            )
        return await self._add(context, asked, client_version=EPOCHS_CLIENT)

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

    async def _add(self, context: RequestContext, asked: Transaction, client_version: int) -> list[TopicResult]:
        places = tuple(TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions)
        request = AddPartitions(
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            places,
            asked.verify_only,
            client_version,
            context.api_version,
        )
        try:
            answered: PartitionResults = await self._transactions.decide(asked.transactional_id, request)
        except KafkaError as error:
            return _same(asked.topics, error.code)
        return _results(asked.topics, answered.codes)

    # --- AddOffsetsToTxn

    async def add_offsets(self, context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        if not context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        # The topic may not exist yet: clients look up the group's coordinator, which creates it, only after this.
        topic = self._image().topics.get(GROUPS_TOPIC)
        partitions = self._offsets_partitions if topic is None else len(topic.partitions)
        place = TopicPartition(GROUPS_TOPIC, coordinator_partition(request.group_id, partitions))
        asked = AddPartitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            (place,),
            version=context.api_version,
        )
        try:
            answered: PartitionResults = await self._transactions.decide(request.transactional_id, asked)
        except KafkaError as error:
            return AddOffsetsToTxnResponse(error_code=error.code)
        return AddOffsetsToTxnResponse(error_code=answered.codes[place])

    # --- EndTxn

    async def end(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        if not context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        asked = EndTransaction(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            EPOCHS_CLIENT if context.api_version >= EPOCHS_VERSION_MIN else 0,
            version=context.api_version,
        )
        try:
            ended: TransactionEnded = await self._decide(asked)
        except KafkaError as error:
            return EndTxnResponse(error_code=error.code)
        except (OSError, HeadraceError):
            return EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return EndTxnResponse(producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)


def _results(topics: Iterable[Topic], codes: dict[TopicPartition, ErrorCode]) -> list[TopicResult]:
    return [
        TopicResult(topic.name, [Result(index, codes[TopicPartition(topic.name, index)]) for index in topic.partitions])
        for topic in topics
    ]


def _same(topics: Iterable[Topic], code: ErrorCode) -> list[TopicResult]:
    return [TopicResult(topic.name, [Result(index, code) for index in topic.partitions]) for topic in topics]
