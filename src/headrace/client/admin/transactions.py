"""Transactions as an administrator sees them: on coordinators, on partition leaders, and how to end them there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Self

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, indexes_by_topic
from headrace.client.retry import Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection
from headrace.client.wire.coordinator_lookup import TRANSACTION, find_coordinator
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

TWO_PHASE_VERSION_MIN = 6  # version of InitProducerId
DURATION_VERSION_MIN = 1  # version of ListTransactions
PATTERN_VERSION_MIN = 2
NO_TIMEOUT_MS = 2_147_483_647  # timeout of a transaction in a two-phase commit (KIP-939)
ONGOING = "Ongoing"
_TRANSIENT = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class TransactionFilter(NamedTuple):
    """A filter of transactions; fields that are not set match everything."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    duration_ms: int | None = None  # only transactions that began longer ago
    pattern: str | None = None  # pattern of transactional ids


class ListedTransaction(NamedTuple):
    """The latest transaction of a transactional id, as its coordinator lists it."""

    transactional_id: str
    coordinator: int  # id of the broker
    producer_id: int
    state: str  # "Ongoing", "CompleteCommit" …


class TransactionInfo(NamedTuple):
    """The latest transaction of a transactional id, as its coordinator describes it."""

    transactional_id: str
    coordinator: int  # id of the broker
    producer_id: int
    producer_epoch: int
    state: str  # "Ongoing", "CompleteCommit" …
    timeout_ms: int | None  # None: part of a two-phase commit; it may be prepared and wait for its decision
    started_ms: int | None  # milliseconds since the epoch; None if no transaction has begun
    partitions: list[TopicPartition]  # partitions of the transaction; none once it has ended


class PreparedTransaction(NamedTuple):
    """What an external coordinator stores after preparing; its text is Kafka's `PreparedTxnState`."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse two numbers separated by a colon. Raise ValueError for anything else."""
        producer_id, _, epoch = text.partition(":")
        if not (producer_id.isascii() and producer_id.isdigit() and epoch.isascii() and epoch.isdigit()):
            raise ValueError(f"{text!r} is not PRODUCER-ID:EPOCH")
        return cls(int(producer_id), int(epoch))


class ActiveProducer(NamedTuple):
    """A producer as the leader of a partition remembers it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int  # -1 if no transaction of it has ended here
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None  # first offset of its open transaction, if there is one


EVERYTHING = TransactionFilter()


# --- on coordinators


async def list_transactions(
    cluster: Cluster, transaction_filter: TransactionFilter = EVERYTHING
) -> list[ListedTransaction]:
    """Return the transactions of all brokers; each broker knows those that it coordinates."""
    listed: list[ListedTransaction] = []
    unknown: set[str] = set()
    for node_id in await cluster.brokers():
        connection = await cluster.broker(node_id)
        version = connection.version_for(ListTransactionsRequest)
        request = _list_request(transaction_filter, version, node_id)
        response: ListTransactionsResponse = await connection.request(request, version=version)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), f"the transactions of broker {node_id}")
        unknown.update(response.unknown_state_filters)
        listed += [
            ListedTransaction(one.transactional_id, node_id, one.producer_id, one.transaction_state)
            for one in response.transaction_states
        ]
    if unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no transaction is ever {', '.join(sorted(unknown))}")
    return sorted(listed)


def _list_request(transaction_filter: TransactionFilter, version: int, node_id: int) -> ListTransactionsRequest:
    request = ListTransactionsRequest(
        state_filters=list(transaction_filter.states), producer_id_filters=list(transaction_filter.producer_ids)
    )
    if transaction_filter.duration_ms is not None:
        if version < DURATION_VERSION_MIN:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"broker {node_id} cannot list by duration")
        request.duration_filter = transaction_filter.duration_ms
    if transaction_filter.pattern is not None:
        if version < PATTERN_VERSION_MIN:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"broker {node_id} cannot list by a pattern")
        request.transactional_id_pattern = transaction_filter.pattern
    return request


async def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionInfo:
    """Describe a transaction. Raise KafkaError TRANSACTIONAL_ID_NOT_FOUND if it does not exist."""
    node_id, connection = await find_coordinator(cluster, transactional_id, TRANSACTION)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response: DescribeTransactionsResponse = await connection.request(request)
    found = response.transaction_states[0]
    if found.error_code:
        raise KafkaError(ErrorCode(found.error_code), f"transactional id {transactional_id}")
    return TransactionInfo(
        found.transactional_id,
        node_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_state,
        None if found.transaction_timeout_ms == NO_TIMEOUT_MS else found.transaction_timeout_ms,
        None if found.transaction_start_time_ms < 0 else found.transaction_start_time_ms,
        sorted(TopicPartition(topic.topic, index) for topic in found.topics for index in topic.partitions),
    )


async def terminate_transaction(cluster: Cluster, transactional_id: str) -> TransactionInfo:
    """Fence the producer of a transactional id, aborting its open transaction; return its previous state.

    Raise KafkaError if the transactional id does not exist.
    """
    before = await describe_transaction(
        cluster, transactional_id
    )  # raises for an unknown id, which InitProducerId would create
    timeout_ms = int(cluster.timeout_s * 1000)  # arbitrary, as no producer writes with the new epoch
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    await _request_coordinator(cluster, transactional_id, request)
    return before


async def commit_prepared(
    cluster: Cluster, transactional_id: str, prepared: PreparedTransaction | None = None
) -> TransactionInfo:
    """Commit the open transaction of a two-phase commit, fencing its producer; return its previous state.

    Raise KafkaError INVALID_TXN_STATE, and commit nothing, if there is none or it is not `prepared`;
    UNSUPPORTED_VERSION if brokers do not offer two-phase commit.
    """
    before = await describe_transaction(cluster, transactional_id)
    found = PreparedTransaction(before.producer_id, before.producer_epoch)
    if before.state != ONGOING:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"no transaction is open ({before.state})")
    if before.timeout_ms is not None:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"transaction {found} takes part in no two-phase commit")
    if prepared not in (None, found):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"transaction {found} is open, and not {prepared}")
    request = InitProducerIdRequest(transactional_id=transactional_id, enable2_pc=True, keep_prepared_txn=True)
    kept: InitProducerIdResponse = await _request_coordinator(cluster, transactional_id, request)
    if (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) != found:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, f"transaction {found} was ended by another client at the same time"
        )
    end = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=kept.producer_id,
        producer_epoch=kept.producer_epoch,
        committed=True,
    )
    await _request_coordinator(cluster, transactional_id, end)
    return before


async def _request_coordinator(
    cluster: Cluster, transactional_id: str, request: InitProducerIdRequest | EndTxnRequest
) -> Any:
    """Send a request, retrying while a transaction is being ended or its coordinator is not available.

    Raise KafkaError for any other error, or after the cluster's timeout.
    """
    two_phase = isinstance(request, InitProducerIdRequest) and request.keep_prepared_txn

    async def attempt() -> Any:
        _, connection = await find_coordinator(cluster, transactional_id, TRANSACTION)
        version = connection.version_for(type(request), unstable=two_phase)
        if two_phase and version < TWO_PHASE_VERSION_MIN:
            message = "the broker offers no two-phase commit: see unstable.api.versions.enable"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        response = await connection.request(request, version=version)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(response.error_code), f"transactional id {transactional_id}")
        return response

    policy = RetryPolicy(codes=_TRANSIENT, exceptions=())
    return await Retry(policy, cluster.timeout_s).run(attempt)


# --- on partition leaders


async def describe_producers(
    cluster: Cluster, partition: TopicPartition, broker: int | None = None
) -> list[ActiveProducer]:
    """Return the producers that the partition's leader, or the given broker, remembers."""
    connection = await _leader(cluster, partition) if broker is None else await cluster.broker(broker)
    found, refused = await producers_of(connection, [partition])
    if refused:
        raise refused[partition]
    return found


async def _leader(cluster: Cluster, partition: TopicPartition) -> Connection:
    known = await cluster.partitions(partition.topic)
    if partition.partition not in known:
        message = f"{partition}: the topic has partitions 0 to {len(known) - 1}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return await cluster.leader(partition)


async def producers_of(
    connection: Connection, partitions: Sequence[TopicPartition]
) -> tuple[list[ActiveProducer], dict[TopicPartition, KafkaError]]:
    """Return the producers that this broker remembers, and the errors of partitions it did not describe."""
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=name, partition_indexes=some)
            for name, some in indexes_by_topic(partitions).items()
        ]
    )
    response: DescribeProducersResponse = await connection.request(request)
    found: list[ActiveProducer] = []
    refused = {}
    for answered in response.topics:
        for one in answered.partitions:
            partition = TopicPartition(answered.name, one.partition_index)
            if one.error_code:
                refused[partition] = KafkaError(ErrorCode(one.error_code), one.error_message or str(partition))
            found += [_active(partition, state) for state in one.active_producers]
    return sorted(found), refused


def _active(partition: TopicPartition, state: DescribeProducersResponse.ProducerState) -> ActiveProducer:
    return ActiveProducer(
        partition,
        state.producer_id,
        state.producer_epoch,
        state.coordinator_epoch,
        state.last_sequence,
        state.last_timestamp,
        None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
    )


async def write_abort(
    cluster: Cluster, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Abort what the producer has open on this partition, and only there, without checking whether it hangs."""
    connection = await _leader(cluster, partition)
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=max(0, coordinator_epoch),  # -1: no marker seen yet; no epoch is earlier than 0
    )
    response: WriteTxnMarkersResponse = await connection.request(WriteTxnMarkersRequest(markers=[marker]))
    code = ErrorCode(response.markers[0].topics[0].partitions[0].error_code)
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"{partition}: producer {producer_id} of epoch {producer_epoch}")
