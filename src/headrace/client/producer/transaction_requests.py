"""Requests of a transaction to its coordinators, retried until a final response, and the errors they may end in.

Any process that knows transactional id, producer id and epoch may end a transaction: `end_transaction`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, indexes_by_topic
from headrace.client.group.membership import CommittedOffset, GroupMetadata, offsets_by_topic
from headrace.client.retry import UNREACHABLE, Backoff, DeadlineExceeded, Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection, NoResponse
from headrace.client.wire.coordinator_lookup import COORDINATOR_MOVED, TRANSACTION, CoordinatorConnection
from headrace.client.wire.frames import UnexpectedResponse
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

T = TypeVar("T")

FEATURE = "transaction.version"
IMPLICIT_VERSION = (
    2  # feature level at which batches add their partitions themselves, and every end bumps the epoch (KIP-890)
)
PRODUCE_IMPLICIT_MIN, END_TXN_IMPLICIT_MIN, OFFSETS_IMPLICIT_MIN = 12, 5, 5
ADD_PARTITIONS_CLIENT_MAX = 3  # newer versions are for brokers
TWO_PHASE_VERSION = 6  # version of InitProducerId; not stable yet, and offered only by brokers configured to do so
TIMEOUT_S = 60.0

_TRANSIENT = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # just created: brokers learn of it one after another
    }
)
_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_FATAL = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


class TransactionError(KafkaError):
    """A transaction failed; the subclass says what can be done about it."""


class AbortableTransactionError(TransactionError):
    """The transaction cannot be committed: abort it, and begin another one."""


class FatalTransactionError(TransactionError):
    """The producer cannot continue: close it."""


class ProducerFenced(FatalTransactionError):
    """Another producer uses the transactional id, or a timeout ended the transaction.

    The code is PRODUCER_FENCED or INVALID_PRODUCER_EPOCH.
    """


class InvalidTransactionState(FatalTransactionError):
    """The transaction cannot be ended this way (INVALID_TXN_STATE); it may have been ended the other way."""


_POLICY = RetryPolicy(
    # Markers of the previous transaction are mostly written within a few milliseconds.
    Backoff(0.02, 1.0),
    codes=_TRANSIENT | {ErrorCode.BROKER_NOT_AVAILABLE},
    final=(TransactionError,),
)


def transaction_error(code: ErrorCode, message: str) -> TransactionError:
    if code in _FENCED:
        return ProducerFenced(code, message)
    if code is ErrorCode.INVALID_TXN_STATE:
        return InvalidTransactionState(code, message)
    return FatalTransactionError(code, message) if code in _FATAL else AbortableTransactionError(code, message)


class TransactionIdentity(NamedTuple):
    """All that is needed to end a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def is_implicit(connection: Connection) -> bool:
    """Return whether the cluster uses transaction version 2 and both sides support it."""
    return (
        connection.features.get(FEATURE, 0) >= IMPLICIT_VERSION
        and connection.version_for(ProduceRequest) >= PRODUCE_IMPLICIT_MIN
        and connection.version_for(EndTxnRequest) >= END_TXN_IMPLICIT_MIN
    )


async def request_until_final(
    coordinator: CoordinatorConnection,
    attempt: Callable[[Connection], Awaitable[tuple[ErrorCode, T]]],
    *,
    what: str,
    timeout_s: float,
) -> T:
    """Run `attempt` until it succeeds, retrying transient errors within the timeout.

    Raise TransactionError for other errors; after the timeout, raise the last transient error.
    """

    async def attempt_once() -> T:
        try:
            code, result = await attempt(await coordinator.connect())
        except UnexpectedResponse as error:
            raise FatalTransactionError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
        except TransactionError:
            raise
        except KafkaError as error:  # the coordinator could not be found
            if error.code not in _POLICY.codes:
                raise transaction_error(error.code, error.message) from error
            coordinator.forget()
            raise
        except UNREACHABLE:
            coordinator.forget()
            raise
        if code is ErrorCode.NONE:
            return result
        if code in COORDINATOR_MOVED:
            coordinator.forget()
        raise KafkaError(code, what) if code in _TRANSIENT else transaction_error(code, what)

    try:
        return await Retry(_POLICY, timeout_s).run(attempt_once, cut_off=True)
    except DeadlineExceeded as error:
        raise NoResponse(f"REQUEST_TIMED_OUT: no response within {timeout_s:g} s: {what}") from error


async def init_producer_id(
    coordinator: CoordinatorConnection, request: InitProducerIdRequest, *, timeout_s: float
) -> tuple[InitProducerIdResponse, bool]:
    """Return the response, and whether transactions are of version 2 from now on."""

    async def attempt(connection: Connection) -> tuple[ErrorCode, tuple[InitProducerIdResponse, bool]]:
        version = connection.version_for(InitProducerIdRequest, unstable=request.enable2_pc)
        if request.enable2_pc and version < TWO_PHASE_VERSION:
            raise FatalTransactionError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"transaction.two.phase.commit.enable: the broker offers InitProducerId only up to version {version}",
            )
        response: InitProducerIdResponse = await connection.request(request, version=version)
        return ErrorCode(response.error_code), (response, is_implicit(connection))

    what = f"transactional id {request.transactional_id}: no producer id was given"
    return await request_until_final(coordinator, attempt, what=what, timeout_s=timeout_s)


async def add_partitions(
    coordinator: CoordinatorConnection,
    identity: TransactionIdentity,
    partitions: Collection[TopicPartition],
    *,
    timeout_s: float,
) -> None:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=identity.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=some)
            for name, some in indexes_by_topic(sorted(partitions)).items()
        ],
    )

    async def attempt(connection: Connection) -> tuple[ErrorCode, None]:
        version = connection.version_for(AddPartitionsToTxnRequest, ADD_PARTITIONS_CLIENT_MAX)
        response: AddPartitionsToTxnResponse = await connection.request(request, version=version)
        codes = [
            ErrorCode(one.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]
        return _worst(codes), None

    what = f"{identity.transactional_id}: {', '.join(map(str, sorted(partitions)[:3]))} …"
    await request_until_final(coordinator, attempt, what=what, timeout_s=timeout_s)


def _worst(codes: list[ErrorCode]) -> ErrorCode:
    """Return the decisive code; OPERATION_NOT_ATTEMPTED only follows from another error."""
    errors = [code for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    lasting = [code for code in errors if code not in _TRANSIENT]
    return next(iter([*lasting, *errors]), ErrorCode.NONE)


async def add_offsets(
    coordinator: CoordinatorConnection, identity: TransactionIdentity, group: str, *, timeout_s: float
) -> None:
    request = AddOffsetsToTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=group,
    )

    async def attempt(connection: Connection) -> tuple[ErrorCode, None]:
        response: AddOffsetsToTxnResponse = await connection.request(request)
        return ErrorCode(response.error_code), None

    await request_until_final(
        coordinator, attempt, what=f"{identity.transactional_id}: offsets of group {group}", timeout_s=timeout_s
    )


async def commit_offsets(
    cluster: Cluster,
    identity: TransactionIdentity,
    offsets: Mapping[TopicPartition, CommittedOffset],
    group: GroupMetadata,
    *,
    implicit: bool,
    timeout_s: float,
) -> None:
    """Send offsets to the group's coordinator, where they are pending until the transaction ends."""
    topics = offsets_by_topic(offsets, TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition)
    request = TxnOffsetCommitRequest(
        transactional_id=identity.transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        generation_id=group.generation,
        member_id=group.member_id,
        group_instance_id=group.instance_id,
        topics=[
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=some)
            for name, some in topics.items()
        ],
    )

    async def attempt(connection: Connection) -> tuple[ErrorCode, None]:
        version = connection.version_for(TxnOffsetCommitRequest, None if implicit else OFFSETS_IMPLICIT_MIN - 1)
        response: TxnOffsetCommitResponse = await connection.request(request, version=version)
        codes = [ErrorCode(one.error_code) for topic in response.topics for one in topic.partitions]
        return _worst(codes), None

    what = f"{identity.transactional_id}: offsets of group {group.group_id}"
    await request_until_final(CoordinatorConnection(cluster, group.group_id), attempt, what=what, timeout_s=timeout_s)


async def end_transaction(
    cluster: Cluster,
    identity: TransactionIdentity,
    *,
    commit: bool,
    timeout_s: float = TIMEOUT_S,
    implicit: bool | None = None,
    coordinator: CoordinatorConnection | None = None,
) -> TransactionIdentity:
    """Commit or abort a transaction, and return the identity for the next one.

    This may be repeated, also by another process: ending the same transaction in the same way again is not an error.
    `implicit` says whether the transaction is of version 2, which its producer knows; None: use the cluster's version.

    Raise ProducerFenced if the transaction has already ended (timed out, or another producer took over),
    InvalidTransactionState if it was ended the other way.
    """
    request = EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
    )

    async def attempt(connection: Connection) -> tuple[ErrorCode, TransactionIdentity]:
        bumps = is_implicit(connection) if implicit is None else implicit
        version = connection.version_for(EndTxnRequest, None if bumps else END_TXN_IMPLICIT_MIN - 1)
        response: EndTxnResponse = await connection.request(request, version=version)
        after = identity
        if version >= END_TXN_IMPLICIT_MIN and response.producer_id >= 0:
            after = identity._replace(producer_id=response.producer_id, producer_epoch=response.producer_epoch)
        return ErrorCode(response.error_code), after

    word = "commit" if commit else "abort"
    what = f"{word} of {identity.transactional_id} (producer {identity.producer_id}, epoch {identity.producer_epoch})"
    coordinator = coordinator or CoordinatorConnection(cluster, identity.transactional_id, TRANSACTION)
    return await request_until_final(coordinator, attempt, what=what, timeout_s=timeout_s)
