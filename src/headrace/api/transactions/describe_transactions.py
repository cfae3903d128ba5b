"""DescribeTransactions 0 and ListTransactions 0–2: the transactions that this broker coordinates."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.permissions import on_transactional_ids
from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.transaction.reads import describe, list_transactions, unknown_states
from headrace.coordinators.transaction.request import ListFilters
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from headrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

Described = DescribeTransactionsResponse.TransactionState


class DescribeTransactionsApi:
    def __init__(self, transactions: Coordination[TransactionShard], clock: Clock) -> None:
        self._transactions = transactions
        self._clock = clock

    def services(self) -> Sequence[Service]:
        return [
            Service(ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), self.describe, on_transactional_ids(Operation.DESCRIBE)),
            Service(ApiKey.LIST_TRANSACTIONS, (0, 2), self.list, on_transactional_ids(Operation.DESCRIBE)),
        ]

    def describe(self, context: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        states = []
        for name in request.transactional_ids:
            try:
                if not context.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name):
                    raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                states.append(self._describe(context, name))
            except KafkaError as error:
                states.append(Described(error_code=error.code, transactional_id=name))
        return DescribeTransactionsResponse(transaction_states=states)

    def _describe(self, context: RequestContext, name: str) -> Described:
        found = describe(self._transactions.machine_of(name), name)
        topics: dict[str, list[int]] = {}
        for topic, index in found.partitions:
            topics.setdefault(topic, []).append(index)
        permitted = context.permitted(Operation.DESCRIBE, Resource.TOPIC, topics, quietly=True)
        return Described(
            ErrorCode.NONE,
            name,
            found.state.text,
            found.timeout_ms,
            found.started_ms,
            found.producer_id,
            found.producer_epoch,
            [
                DescribeTransactionsResponse.TopicData(topic, indexes)
                for topic, indexes in topics.items()
                if topic in permitted
            ],
        )

    def list(self, context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
        filters = ListFilters(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            request.duration_filter,
            request.transactional_id_pattern,
        )
        try:
            listed = list_transactions(self._transactions.machines(), filters, self._clock.now_ms())
        except KafkaError as error:
            return ListTransactionsResponse(error_code=error.code)
        return ListTransactionsResponse(
            unknown_state_filters=unknown_states(filters),
            transaction_states=[
                ListTransactionsResponse.TransactionState(one.transactional_id, one.producer_id, one.state.text)
                for one in listed
                if context.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, one.transactional_id, quietly=True)
            ],
        )
