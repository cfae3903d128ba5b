"""Checks of transactional batches in Produce requests.

The client must be permitted to use the transactional id, and the coordinator must confirm the first batch of a transaction on a
partition (KIP-890). Clients of Produce 12 and later rely on the leader to add the partition to the transaction; older ones have
added it themselves, and it is only verified.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.base.log_limit import LogLimit
from headrace.records.batch import BatchHeader
from headrace.replication.partition import Partition
from headrace.replication.verification import UNGUARDED, Guard, TransactionVerifier
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext

log = logging.getLogger(__name__)

FENCING_LOG_LINES_PER_SECOND = 10
ABORTABLE_VERSION_MIN = 11  # Produce version whose clients know TRANSACTION_ABORTABLE
ADDING_VERSION_MIN = 12  # Produce version from which the leader adds the partition

# Returned as NOT_ENOUGH_REPLICAS, on which producers retry without refreshing metadata; they do not expect coordinator errors.
_UNVERIFIED = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_NOT_PART_OF_TRANSACTION = frozenset(
    {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)


class TransactionalBatches:
    def __init__(self, verifier: TransactionVerifier, verification_enabled: Callable[[], bool]) -> None:
        self._verifier = verifier
        self._verification_enabled = verification_enabled
        self._fencing_log = LogLimit(FENCING_LOG_LINES_PER_SECOND)

    @staticmethod
    def check(context: RequestContext, header: BatchHeader, transactional_id: str | None) -> None:
        if transactional_id is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the request names no transactional id")
        if not context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if header.producer_id < 0 or header.producer_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id and epoch")

    def guard(
        self, version: int, partition: Partition, header: BatchHeader, transactional_id: str | None, now_ms: int
    ) -> Guard:
        """Return the guard of the partition; log and raise KafkaError if it knows the producer with a later epoch."""
        adds = version >= ADDING_VERSION_MIN
        if not adds and not self._verification_enabled():
            return UNGUARDED
        try:
            return partition.guard(header.producer_id, header.producer_epoch, header.base_sequence, adds=adds)
        except KafkaError as error:
            suppressed = self._fencing_log.take(now_ms)
            if error.code is ErrorCode.INVALID_PRODUCER_EPOCH and suppressed is not None:
                log.info(
                    "Fenced a producer of transactional id %r on %s: %s%s",
                    transactional_id,
                    partition.name,
                    error.message,
                    f" ({suppressed} earlier lines were suppressed)" if suppressed else "",
                )
            raise

    async def verify(
        self, version: int, transactional_id: str, waiting: Sequence[tuple[TopicPartition, BatchHeader]]
    ) -> list[KafkaError | None]:
        """Return for each waiting batch None, or the reason why it may not be appended.

        One request to the coordinator covers all batches: a client has one transaction at a time.
        """
        first = waiting[0][1]
        partitions = {name: None for name, header in waiting if _is_of_one(header, first)}
        adds = version >= ADDING_VERSION_MIN
        codes = await self._verifier.verify(
            transactional_id, first.producer_id, first.producer_epoch, list(partitions), add=adds
        )
        return [
            _refusal(codes.get(name, ErrorCode.COORDINATOR_NOT_AVAILABLE), version)
            if _is_of_one(header, first)
            else KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a request is of one transactional producer")
            for name, header in waiting
        ]


def _is_of_one(header: BatchHeader, first: BatchHeader) -> bool:
    return header.producer_id == first.producer_id and header.producer_epoch == first.producer_epoch


def _refusal(code: ErrorCode, version: int) -> KafkaError | None:
    """Return the coordinator's error as one that producers of that version understand, None if there is none."""
    if code is ErrorCode.NONE:
        return None
    if code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code in _UNVERIFIED or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDING_VERSION_MIN):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the transaction's coordinator could not verify that the partition is part of it: {code.name}",
        )
    if code is ErrorCode.TRANSACTION_ABORTABLE and version >= ABORTABLE_VERSION_MIN:
        return KafkaError(code)
    if code in _NOT_PART_OF_TRANSACTION:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "the partition is not part of the transaction")
    return KafkaError(code)
