"""Refusals of producers that are not, or no longer, the current producer of their transactional id.

Every fenced producer is logged with the epoch it sent, the current epoch and why it is current: a producer that fails with
PRODUCER_FENCED cannot determine by itself whether a second instance, a timeout or a bug is the cause.
"""

from __future__ import annotations

import logging
from enum import StrEnum

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.log_limit import LogLimit
from headrace.coordinators.transaction.request import AddPartitions, EndTransaction, InitProducer
from headrace.coordinators.transaction.state import Transaction

log = logging.getLogger(__name__)

FENCING_LOG_LINES_PER_SECOND = 10
# Version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn; older clients know INVALID_PRODUCER_EPOCH.
FENCED_VERSION_MIN = 2
INIT_FENCED_VERSION_MIN = 4  # version of InitProducerId

Request = InitProducer | AddPartitions | EndTransaction


class EpochCause(StrEnum):
    """Why a transactional id has its current producer epoch. Stored in memory only."""

    INIT = "a producer called InitProducerId"
    INIT_OVER_ONGOING = "a producer called InitProducerId while a transaction was open"
    TIMEOUT = "a transaction was open longer than its timeout"
    END = "the producer ended a transaction"
    UNKNOWN = "it was assigned before this coordinator loaded the transactional id"


class ProducerFenced(KafkaError):
    """The producer's epoch is not the current one of its transactional id."""


def fenced(request: Request) -> ProducerFenced:
    """Return the refusal with the error code that clients of the request's version know."""
    version_min = INIT_FENCED_VERSION_MIN if isinstance(request, InitProducer) else FENCED_VERSION_MIN
    known = request.version >= version_min
    return ProducerFenced(ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_EPOCH)


class FencingLog:
    """Logs fenced producers, with a limited number of lines per second."""

    def __init__(self) -> None:
        self._limit = LogLimit(FENCING_LOG_LINES_PER_SECOND)

    def refused(self, request: Request, current: Transaction, cause: EpochCause, now_ms: int) -> None:
        producer_id, epoch = current.client
        self._log(
            now_ms,
            f"Fenced a producer of transactional id {request.transactional_id!r}: {type(request).__name__} was sent by"
            f" producer id {request.producer_id} epoch {request.producer_epoch}, the current producer is {producer_id}"
            f" epoch {epoch}, because {cause}",
        )

    def aborted(self, transactional_id: str, old: Transaction, cause: EpochCause, now_ms: int) -> None:
        producer_id, epoch = old.client
        self._log(
            now_ms,
            f"Fencing producer id {producer_id} epoch {epoch} of transactional id {transactional_id!r} and aborting its"
            f" transaction of {len(old.partitions)} partitions (timeout {old.timeout_ms} ms), because {cause}",
        )

    def _log(self, now_ms: int, text: str) -> None:
        suppressed = self._limit.take(now_ms)
        if suppressed is not None:
            log.info("%s%s", text, f" ({suppressed} earlier lines were suppressed)" if suppressed else "")
