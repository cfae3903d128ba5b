"""Looking up positions: which errors reach the application, and which are retried."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.options import CONSUMER_OPTIONS, consumer_settings
from headrace.client.consumer.position_lookup import PositionLookup
from headrace.client.consumer.positions import Positions
from headrace.client.group.membership import CommittedOffset
from headrace.client.wire.opening import client_values

A = TopicPartition("t", 0)
GIVEN = {"bootstrap.servers": "localhost:9092", "group.id": "g", "retry.backoff.ms": 1}


async def look_up(codes: list[ErrorCode]) -> tuple[Positions, list[Exception]]:
    """Look up a committed offset that is refused with these codes first; return the position and reported errors."""
    left = list(codes)

    async def committed(partitions: list[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        if left:
            raise KafkaError(left.pop(0), "refused")
        return {A: CommittedOffset(7, 1)}

    failures: list[Exception] = []
    woken = asyncio.Event()
    positions = Positions()
    positions.assign([A])
    settings = consumer_settings(client_values(GIVEN, CONSUMER_OPTIONS), GIVEN)
    cluster: Any = None  # only lookups by time need it
    lookup = PositionLookup(cluster, positions, settings, committed, failures.append, woken.set)
    while positions.of(A).offset is None and not failures:
        woken.clear()
        lookup.start()
        await asyncio.wait_for(woken.wait(), 5.0)
    await lookup.close()
    return positions, failures


@pytest.mark.parametrize(
    "code",
    [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH],
    ids=lambda code: code.name,
)
def test_a_fenced_member_does_not_fail_the_application_but_looks_up_again(code: ErrorCode) -> None:
    positions, failures = asyncio.run(look_up([code, code]))
    assert failures == [] and positions.of(A).offset == 7


def test_an_error_that_a_retry_does_not_fix_reaches_the_application() -> None:
    _, failures = asyncio.run(look_up([ErrorCode.GROUP_AUTHORIZATION_FAILED]))
    assert [type(one) for one in failures] == [KafkaError]
