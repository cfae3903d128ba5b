"""Deciding from the coordinator's state whether a transaction that is open on a partition is hanging."""

from __future__ import annotations

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.admin.hanging_transactions import why_hanging
from headrace.client.admin.transactions import ActiveProducer, TransactionFilter, TransactionInfo, _list_request

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
OPEN = ActiveProducer(
    HERE, producer_id=7, producer_epoch=4, coordinator_epoch=-1, last_sequence=0, last_timestamp_ms=0, start_offset=9
)


def known(
    state: str,
    epoch: int = 4,
    producer_id: int = 7,
    partitions: tuple[TopicPartition, ...] | list[TopicPartition] = (HERE,),
) -> TransactionInfo:
    return TransactionInfo("orders", 1, producer_id, epoch, state, 60_000, 0, list(partitions))


@pytest.mark.parametrize(
    "found",
    [
        known("Ongoing"),
        known("Ongoing", partitions=[HERE, THERE]),
        known("PrepareCommit"),
        known("PrepareCommit", epoch=5),  # KIP-890: the marker will have the next epoch
        known("PrepareAbort", epoch=5),
        known("PrepareEpochFence", epoch=5),
    ],
)
def test_a_transaction_that_its_coordinator_will_end_is_not_hanging(found: TransactionInfo) -> None:
    assert why_hanging(OPEN, found) is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "no coordinator"),
        (known("Ongoing", producer_id=8), "no coordinator"),  # the transactional id has another producer by now
        (known("Empty", partitions=[]), "orders is Empty"),
        (known("CompleteCommit", partitions=[HERE]), "orders is CompleteCommit"),
        (known("CompleteAbort", epoch=5, partitions=[]), "orders is CompleteAbort"),
        (known("Ongoing", partitions=[THERE]), "without this partition"),
        (known("PrepareCommit", partitions=[THERE]), "without this partition"),
        (known("Ongoing", epoch=5), "epoch 5"),
    ],
)
def test_a_transaction_that_no_coordinator_will_end_is_hanging(found: TransactionInfo | None, reason: str) -> None:
    assert reason in why_hanging(OPEN, found)


@pytest.mark.parametrize(
    ("wanted", "version"), [(TransactionFilter(duration_ms=0), 1), (TransactionFilter(pattern="a"), 2)]
)
def test_filters_that_an_old_broker_lacks_raise_unsupported_version(wanted: TransactionFilter, version: int) -> None:
    assert _list_request(wanted, version, 1).duration_filter == (0 if version == 1 else -1)
    with pytest.raises(KafkaError, match="broker 1 cannot list") as refused:
        _list_request(wanted, version - 1, 1)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
