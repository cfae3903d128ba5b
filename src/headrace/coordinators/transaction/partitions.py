"""AddPartitionsToTxn 0–5 and AddOffsetsToTxn: a partition belongs to a transaction BEFORE anything is written to it.

From version 4 on, the partition's leader sends the request: for a client that leaves it to the leader (KIP-890), or only to verify that
the client has added the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.transaction.fencing import fenced
from headrace.coordinators.transaction.request import AddPartitions, PartitionResults
from headrace.coordinators.transaction.state import EPOCH_MAX, Transaction
from headrace.coordinators.transaction.states import PREPARED, RESTING, State

if TYPE_CHECKING:
    from headrace.coordinators.transaction.shard import TransactionShard, Tx

ABORTABLE_VERSION_MIN = 5


def add_partitions(shard: TransactionShard, request: AddPartitions, now_ms: int, tx: Tx) -> None:
    old = _check(shard, request)
    requested = frozenset(request.partitions)
    if request.verify_only:
        tx.reply(tx.ticket, _verified(request, old))
        return
    if requested and not (old.state is State.ONGOING and requested <= old.partitions):
        new = old.replace(
            state=State.ONGOING,
            partitions=old.partitions | requested,
            started_ms=now_ms if old.state in RESTING else old.started_ms,
            updated_ms=now_ms,
            client_version=request.client_version,
        )
        shard.change(request.transactional_id, old, new, tx)
    tx.reply(tx.ticket, PartitionResults(dict.fromkeys(request.partitions, ErrorCode.NONE)))


def _check(shard: TransactionShard, request: AddPartitions) -> Transaction:
    """Raise KafkaError unless the producer may add partitions now.

    While markers are being written, adding fails with CONCURRENT_TRANSACTIONS for every producer, including one whose new producer id
    only takes effect with the last marker.
    """
    old = shard.tables.all.get(request.transactional_id)
    if old is not None and old.state in PREPARED and not request.verify_only:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if old is None or request.producer_id not in (old.producer_id, old.client[0]):
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if (request.producer_id, request.producer_epoch) != old.client or request.producer_epoch == EPOCH_MAX:
        raise fenced(request)
    if old.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if old.is_kept:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)  # already prepared by all participants: nothing can be added
    return old


def _verified(request: AddPartitions, old: Transaction) -> PartitionResults:
    known = request.version >= ABORTABLE_VERSION_MIN
    missing = ErrorCode.TRANSACTION_ABORTABLE if known else ErrorCode.INVALID_TXN_STATE
    return PartitionResults(
        {
            topic_partition: ErrorCode.NONE if topic_partition in old.partitions else missing
            for topic_partition in request.partitions
        }
    )
