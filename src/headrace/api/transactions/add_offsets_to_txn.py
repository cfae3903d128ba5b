"""AddOffsetsToTxn 0–4: adds the partition of a group's committed offsets to a transaction."""

from __future__ import annotations

from collections.abc import Callable

from headrace.api.permissions import on_transactional_ids
from headrace.base.eager import at_once
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.partitioning import GROUPS_TOPIC, coordinator_partition
from headrace.coordinators.transaction.request import (
    AddPartitions,
    PartitionResults,
)
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service


class AddOffsetsToTxnApi:
    """The handler of AddOffsetsToTxn.

    `offsets_partitions` is the partition count that __consumer_offsets will have once it is created.
    """

    def __init__(
        self, transactions: Coordination[TransactionShard], image: Callable[[], Image], offsets_partitions: int
    ) -> None:
        self._transactions = transactions
        self._image = image
        self._offsets_partitions = offsets_partitions

    def services(self) -> list[Service]:
        return [Service(ApiKey.ADD_OFFSETS_TO_TXN, (0, 4), at_once(self.handle), on_transactional_ids(Operation.WRITE))]

    async def handle(self, context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        if not context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        # The topic may not exist yet: clients look up the group's coordinator, which creates it, only after this.
        topic = self._image().topics.get(GROUPS_TOPIC)
        partitions = self._offsets_partitions if topic is None else len(topic.partitions)
        partition = TopicPartition(GROUPS_TOPIC, coordinator_partition(request.group_id, partitions))
        coordinator_request = AddPartitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            (partition,),
            version=context.api_version,
        )
        try:
            decided: PartitionResults = await self._transactions.decide(request.transactional_id, coordinator_request)
        except KafkaError as error:
            return AddOffsetsToTxnResponse(error_code=error.code)
        return AddOffsetsToTxnResponse(error_code=decided.codes[partition])
