"""Sends requests of producers to the transaction coordinator, with a producer id where its decision needs one."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headrace.broker.shard_runner import Coordination
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.coordinators.transaction.request import (
    EndTransaction,
    InitProducer,
    ProducerIdNeeded,
)
from headrace.coordinators.transaction.shard import TransactionShard


class CoordinatorDecisions:
    def __init__(self, transactions: Coordination[TransactionShard], producer_ids: ProducerIds) -> None:
        self._transactions = transactions
        self._producer_ids = producer_ids

    async def decide(self, request: InitProducer | EndTransaction) -> Any:
        """Return the coordinator's decision; allocate a producer id if one is needed.

        One is needed if the transactional id is new, or its producer id has used up its epochs.
        """
        try:
            return await self._transactions.decide(request.transactional_id, request)
        except ProducerIdNeeded:
            fresh = replace(request, fresh_producer_id=await self._producer_ids.allocate())
            return await self._transactions.decide(request.transactional_id, fresh)
