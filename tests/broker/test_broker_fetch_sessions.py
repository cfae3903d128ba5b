"""Incremental fetch sessions (KIP-227): what is remembered, what is sent again, what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.fetching.fetch_sessions import EPOCH_MAX, EVICT_AFTER_S, FetchSessions
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse


def request(
    session_id: int = 0,
    epoch: int = 0,
    partitions: tuple[Any, ...] | list[tuple[int, int]] = (),
    forgotten: tuple[Any, ...] | list[int] = (),
    topic: str = "t",
) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(partition=index, fetch_offset=offset) for index, offset in partitions
                ],
            )
        ],
        forgotten_topics_data=[FetchRequest.ForgottenTopic(topic=topic, partitions=list(forgotten))]
        if forgotten
        else [],
    )


def data(high_watermark: int, records: bytes = b"", error: int = 0) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(
        high_watermark=high_watermark, records=records, error_code=error, log_start_offset=0
    )


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(random.Random(1), slots=2)


def test_an_incremental_response_contains_only_changed_partitions(sessions: FetchSessions) -> None:
    plan = sessions.plan(request(partitions=[(0, 5), (1, 5)]), 12, 0.0)
    assert plan.session_id > 0 and not plan.incremental
    assert all(plan.keep(key, data(10)) for key in plan.partitions)  # a full response contains every partition
    plan = sessions.plan(request(plan.session_id, 1), 12, 0.0)
    assert plan.incremental and list(plan.partitions) == [("t", 0), ("t", 1)]
    assert not plan.keep(("t", 0), data(10))
    assert plan.keep(("t", 1), data(11))
    plan = sessions.plan(request(plan.session_id, 2), 12, 0.0)
    assert plan.keep(("t", 0), data(10, b"records")) and not plan.keep(("t", 1), data(11))


def test_a_partition_is_included_in_the_response_after_an_error(sessions: FetchSessions) -> None:
    plan = sessions.plan(request(partitions=[(0, 5)]), 12, 0.0)
    plan.keep(("t", 0), data(10))
    plan = sessions.plan(request(plan.session_id, 1), 12, 0.0)
    assert plan.keep(("t", 0), data(-1, error=6))
    plan = sessions.plan(request(plan.session_id, 2), 12, 0.0)
    assert plan.keep(("t", 0), data(10))
    plan = sessions.plan(request(plan.session_id, 3), 12, 0.0)
    assert not plan.keep(("t", 0), data(10))


def test_an_incremental_request_changes_adds_and_forgets_partitions(sessions: FetchSessions) -> None:
    plan = sessions.plan(request(partitions=[(0, 5), (1, 5)]), 12, 0.0)
    plan = sessions.plan(request(plan.session_id, 1, [(1, 9), (2, 0)], forgotten=[0]), 12, 0.0)
    assert {key: one.fetch.fetch_offset for key, one in plan.partitions.items()} == {("t", 1): 9, ("t", 2): 0}


def test_a_partition_that_returned_records_moves_to_the_end_of_the_session(sessions: FetchSessions) -> None:
    plan = sessions.plan(request(partitions=[(0, 0), (1, 0)]), 12, 0.0)
    for key in plan.partitions:
        plan.keep(key, data(1, b"x"))
    plan = sessions.plan(request(plan.session_id, 1), 12, 0.0)
    assert list(plan.partitions) == [("t", 0), ("t", 1)]
    plan.keep(("t", 0), data(2, b"x"))
    plan.keep(("t", 1), data(1))
    plan = sessions.plan(request(plan.session_id, 2), 12, 0.0)
    assert list(plan.partitions) == [("t", 1), ("t", 0)]


@pytest.mark.parametrize(
    ("session", "epoch", "version", "code"),
    [
        (999, 1, 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (None, 5, 12, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (None, 1, 13, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_unknown_sessions_wrong_epochs_and_topic_id_mismatches_are_refused(
    sessions: FetchSessions, session: int | None, epoch: int, version: int, code: ErrorCode
) -> None:
    plan = sessions.plan(request(partitions=[(0, 0)]), 12, 0.0)
    with pytest.raises(KafkaError) as caught:
        sessions.plan(request(plan.session_id if session is None else session, epoch), version, 0.0)
    assert caught.value.code is code


def test_a_final_epoch_closes_the_session_and_old_versions_get_none(sessions: FetchSessions) -> None:
    plan = sessions.plan(request(partitions=[(0, 0)]), 12, 0.0)
    assert sessions.plan(request(plan.session_id, -1, [(0, 0)]), 12, 0.0).session is None
    assert len(sessions) == 0
    assert sessions.plan(request(partitions=[(0, 0)]), 6, 0.0).session_id == 0


def test_a_full_cache_gives_no_session_until_one_is_stale(sessions: FetchSessions) -> None:
    first = sessions.plan(request(partitions=[(0, 0)]), 12, 0.0)
    sessions.plan(request(partitions=[(0, 0)]), 12, 1.0)
    assert sessions.plan(request(partitions=[(0, 0)]), 12, 2.0).session_id == 0
    assert sessions.plan(request(partitions=[(0, 0)]), 12, EVICT_AFTER_S + 1).session_id > 0
    with pytest.raises(KafkaError):
        sessions.plan(request(first.session_id, 1), 12, EVICT_AFTER_S + 1)


def test_the_session_epoch_wraps_to_one(sessions: FetchSessions) -> None:
    plan = sessions.plan(request(partitions=[(0, 0)]), 12, 0.0)
    plan.session.epoch = EPOCH_MAX
    sessions.plan(request(plan.session_id, EPOCH_MAX), 12, 0.0)
    assert plan.session.epoch == 1


def test_a_later_request_may_forget_a_partition_while_an_earlier_one_is_in_progress(sessions: FetchSessions) -> None:
    plan = sessions.plan(request(partitions=[(0, 5), (1, 5)]), 12, 0.0)
    parked = sessions.plan(request(plan.session_id, 1), 12, 0.0)
    sessions.plan(request(plan.session_id, 2, forgotten=[0]), 12, 0.0)
    assert parked.keep(("t", 0), data(10, b"records"))
    plan = sessions.plan(request(plan.session_id, 3), 12, 0.0)
    assert list(plan.partitions) == [("t", 1)]


def test_a_follower_gets_the_session_of_a_consumer_if_the_cache_is_full(sessions: FetchSessions) -> None:
    def follower_request(replica: int) -> FetchRequest:
        follower_request = request(partitions=[(0, 0)])
        follower_request.replica_id = replica
        return follower_request

    sessions.plan(request(partitions=[(0, 0)]), 12, 0.0)
    used = sessions.plan(request(partitions=[(0, 0)]), 12, 1.0)
    sessions.plan(request(used.session_id, 1), 12, 2.0)
    first = sessions.plan(follower_request(2), 12, 2.0)
    assert first.session_id > 0
    assert sessions.plan(request(used.session_id, 2), 12, 2.0).session_id == used.session_id
    assert sessions.plan(follower_request(3), 12, 2.0).session_id > 0
    assert sessions.plan(follower_request(4), 12, 2.0).session_id == 0
    assert sessions.plan(request(partitions=[(0, 0)]), 12, 2.0).session_id == 0
