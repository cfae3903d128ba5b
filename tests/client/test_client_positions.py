"""Positions without a cluster."""

from __future__ import annotations

import pytest

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.consumer.fetching import READ_COMMITTED, FetchedPartition
from headrace.client.consumer.positions import NotAssigned, Positions
from headrace.client.group.membership import CommittedOffset

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def fetched_partition(partition: TopicPartition, high: int, stable: int, isolation: int = 0) -> FetchedPartition:
    return FetchedPartition(partition, 0, memoryview(b""), high, stable, 0, [], ErrorCode.NONE, None, isolation)


def test_a_position_is_looked_up_and_advances_with_fetched_and_consumed_records() -> None:
    positions = Positions()
    positions.assign([A, B])
    assert positions.unknown(0.0) == [A, B] and positions.resets(0.0) == {} and positions.to_commit() == {}
    positions.of(A).jump(5, 2)
    positions.of(B).jump(None, reset_to=-2)
    assert positions.unknown(0.0) == [] and positions.resets(0.0) == {B: -2}
    positions.fetched(A, 20, 3)
    positions.consumed(A, 8, 3)
    assert positions.of(A).fetch_offset == 20 and positions.to_commit() == {A: CommittedOffset(8, 3)}


def test_a_jump_or_reassignment_changes_the_serial_of_a_position() -> None:
    positions = Positions()
    positions.assign([A])
    serials = {positions.of(A).serial}
    positions.of(A).jump(5)
    serials.add(positions.of(A).serial)
    positions.remove([A])
    positions.add([A])  # revoked and assigned again: the same partition, a new position
    serials.add(positions.of(A).serial)
    assert len(serials) == 3


def test_partitions_that_stay_assigned_keep_their_positions() -> None:
    positions = Positions()
    positions.assign([A])
    positions.of(A).jump(7)
    positions.assign([A, B])
    assert positions.of(A).offset == 7 and positions.of(B).offset is None
    positions.assign([B])
    with pytest.raises(NotAssigned, match="t-0 is not assigned to this consumer"):
        positions.of(A)


def test_lag_is_measured_to_the_high_watermark_or_last_stable_offset() -> None:
    positions = Positions()
    positions.assign([A, B])
    assert positions.of(A).lag is None
    positions.of(A).jump(5)
    positions.update_log(fetched_partition(A, 100, 40))
    assert positions.of(A).lag == 95
    positions.update_log(fetched_partition(A, 100, 40, READ_COMMITTED))
    assert positions.of(A).lag == 35
    positions.of(A).jump(60)
    assert positions.of(A).lag == 0


def test_a_partition_that_had_its_turn_moves_to_the_end() -> None:
    positions = Positions()
    positions.assign([A, B])
    positions.had_its_turn(A)
    assert list(positions) == [B, A]


def test_a_position_is_not_looked_up_before_its_retry_time() -> None:
    positions = Positions()
    positions.assign([A])
    positions.of(A).retry_at = 9.0
    assert positions.unknown(8.9) == [] and positions.unknown(9.0) == [A]
