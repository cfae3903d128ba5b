"""Offsets in transactions: who may commit them, what readers see before and after their end, and recovery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinators.classic_harness import GROUP, TOPIC, TOPIC_ID, ClassicHarness, Scenario, commit_request
from tests.coordinators.consumer_clients import Client
from tests.coordinators.group_harness import read

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID
from headrace.coordinators.group.groups import describe_group, list_groups
from headrace.coordinators.group.handler_table import GROUP_HANDLERS
from headrace.coordinators.group.offset_reads import FetchGroup, fetch
from headrace.coordinators.group.offsets import TopicsDeleted
from headrace.coordinators.group.records import GroupRecord
from headrace.coordinators.group.settings import GroupSettings
from headrace.coordinators.group.shard import GroupShard
from headrace.coordinators.group.transactional_commits import EndOffsets
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from headrace.protocol.messages.stored.offsets import OffsetCommitKey
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.statemachine.journal import NotLeader
from headrace.statemachine.transactional import MarkerRecord

MINUTE_MS = 60_000
RETENTION = {"offsets_retention_minutes": 10, "offsets_retention_check_interval_ms": MINUTE_MS}
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
P, Q = 7, 8  # producer ids


def pending_request(
    producer: int,
    offsets: Mapping[int, int],
    group: str = GROUP,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    epoch: int = 0,
    metadata: str | None = "m",
) -> TxnOffsetCommitRequest:
    partitions = [
        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(index, offset, 3, metadata)
        for index, offset in offsets.items()
    ]
    topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(TOPIC, partitions)]
    return TxnOffsetCommitRequest("tx", group, producer, epoch, generation, member, instance, topics)


def commit_pending(harness: ClassicHarness, producer: int, offsets: Mapping[int, int], **more: Any) -> list[ErrorCode]:
    response = harness.execute(pending_request(producer, offsets, **more), 5)
    return [ErrorCode(partition.error_code) for partition in response.topics[0].partitions]


def commit(harness: ClassicHarness, offsets: Mapping[int, int], **more: Any) -> None:
    harness.execute(commit_request(GROUP, offsets, **more), 9)


def end(harness: ClassicHarness, producer: int, *, commit: bool, epoch: int = 0) -> None:
    harness.execute(EndOffsets(MarkerRecord(producer, epoch, 1, commit, 2)), 0)


def committed(harness: ClassicHarness, group: str = GROUP) -> dict[int, int]:
    response = fetch(harness.shard, FetchGroup(group, topics=None))
    return {one.partition_index: one.committed_offset for topic in response.topics for one in topic.partitions}


def stable(harness: ClassicHarness, *indexes: int, group: str = GROUP) -> dict[int, ErrorCode | int]:
    """Return offsets, or error codes, fetched with require_stable."""
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics(TOPIC, TOPIC_ID, list(indexes))] if indexes else None
    response = harness.execute(FetchGroup(group, topics=topics), 9)
    return {
        one.partition_index: ErrorCode(one.error_code) if one.error_code else one.committed_offset
        for topic in response.topics
        for one in topic.partitions
    }


def codes(expected: ErrorCode) -> Any:
    return pytest.raises(KafkaError, match=expected.name)


# --- visibility


def test_pending_offsets_become_visible_when_their_transaction_commits() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 1, 1: 1})
    assert commit_pending(harness, P, {0: 5, 2: 6}) == [ErrorCode.NONE] * 2
    for _ in range(2):
        assert committed(harness) == {0: 1, 1: 1}
        assert stable(harness, 0, 1, 2, 3) == {0: UNSTABLE, 1: 1, 2: UNSTABLE, 3: -1}
        assert stable(harness) == {0: UNSTABLE, 1: 1}
        harness.move()
    end(harness, P, commit=True)
    for _ in range(2):
        assert committed(harness) == stable(harness) == {0: 5, 1: 1, 2: 6}
        harness.move()


def test_pending_offsets_are_dropped_when_their_transaction_aborts() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 1})
    commit_pending(harness, P, {0: 5, 1: 5})
    end(harness, P, commit=False)
    for _ in range(2):
        assert committed(harness) == stable(harness) == {0: 1}
        assert len(harness.shard.offsets.pending.producers) == len(harness.shard.offsets.pending.groups) == 0
        harness.move()


def test_pending_offset_records_match_kafka() -> None:
    harness = ClassicHarness()
    commit_pending(harness, P, {1: 5}, epoch=3, metadata=None)
    [record] = [read(written) for written in harness.journal.written]
    assert isinstance(record, GroupRecord)
    assert (record.key, record.version, record.producer) == (OffsetCommitKey(GROUP, TOPIC, 1), 4, (P, 3))
    assert (record.value.offset, record.value.leader_epoch, record.value.metadata) == (5, 3, "")
    assert (record.value.commit_timestamp, record.value.topic_id) == (harness.now_ms, ZERO_UUID)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_later_offset_in_the_log_wins(is_first: bool) -> None:
    harness = ClassicHarness()
    if is_first:
        commit_pending(harness, P, {0: 5})
        commit(harness, {0: 9})
        assert stable(harness, 0) == {0: UNSTABLE}
    else:
        commit(harness, {0: 9})
        commit_pending(harness, P, {0: 5})
    end(harness, P, commit=True)
    for _ in range(2):
        assert committed(harness) == stable(harness) == {0: 9 if is_first else 5}
        harness.move()


def test_the_later_pending_offset_wins_whichever_transaction_ends_first() -> None:
    for order in ((P, Q), (Q, P)):
        harness = ClassicHarness()
        commit_pending(harness, P, {0: 1})
        commit_pending(harness, Q, {0: 2})
        end(harness, order[0], commit=True)
        assert stable(harness, 0) == {0: UNSTABLE}
        end(harness, order[1], commit=True)
        assert committed(harness) == stable(harness) == {0: 2}


def test_a_repeated_pending_commit_overrides_a_plain_commit_before_it() -> None:
    harness = ClassicHarness()
    commit_pending(harness, P, {0: 1})
    commit(harness, {0: 2})
    commit_pending(harness, P, {0: 3})
    end(harness, P, commit=True)
    assert committed(harness) == {0: 3}


def test_a_marker_with_a_later_epoch_ends_the_transaction() -> None:
    harness = ClassicHarness()
    commit_pending(harness, P, {0: 1}, epoch=4)
    end(harness, P, commit=True, epoch=5)
    end(harness, P, commit=False, epoch=6)
    end(harness, Q, commit=True)
    assert committed(harness) == {0: 1}


def test_stable_fetches_wait_until_the_marker_is_committed() -> None:
    harness = ClassicHarness()
    commit_pending(harness, P, {0: 5})
    harness.journal.late = True
    responses: list[OffsetFetchResponse.OffsetFetchResponseGroup | None] = []
    harness.send(EndOffsets(MarkerRecord(P, 0, 1, True)), 0, responses.append)
    harness.send(FetchGroup(GROUP, topics=None), 9, responses.append)
    assert committed(harness) == {} and responses == []
    harness.journal.commit()
    assert committed(harness) == {0: 5} and responses[1].topics[0].partitions[0].committed_offset == 5


def test_a_refused_or_lost_marker_changes_nothing() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 1})
    commit_pending(harness, P, {0: 5, 1: 5})
    harness.journal.refusal = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    with codes(ErrorCode.INVALID_PRODUCER_EPOCH):
        end(harness, P, commit=True)
    with codes(ErrorCode.INVALID_PRODUCER_EPOCH):
        commit_pending(harness, Q, {2: 5})
    harness.journal.refusal = None
    assert stable(harness, 0, 1, 2) == {0: UNSTABLE, 1: UNSTABLE, 2: -1}
    harness.journal.late = True
    responses: list[NotLeader] = []
    harness.send(EndOffsets(MarkerRecord(P, 0, 1, False)), 0, responses.append)
    harness.move()
    assert [type(response).__name__ for response in responses] == ["NotLeader"]
    end(harness, P, commit=True)
    assert committed(harness) == {0: 5, 1: 5}


# --- permission to commit


def test_oversized_metadata_fails_only_its_partition() -> None:
    harness = ClassicHarness(offset_metadata_max_bytes=3)
    request = pending_request(P, {0: 1, 1: 2}, metadata="four")
    request.topics[0].partitions[1].committed_metadata = "abc"
    response = harness.execute(request, 5).topics[0].partitions
    assert [one.error_code for one in response] == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert stable(harness, 0, 1) == {0: -1, 1: UNSTABLE}


def test_pending_commits_require_a_producer_id_and_epoch() -> None:
    harness = ClassicHarness()
    with codes(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        commit_pending(harness, -1, {0: 1})
    with codes(ErrorCode.INVALID_PRODUCER_EPOCH):
        commit_pending(harness, P, {0: 1}, epoch=-1)
    assert harness.journal.written == []


def test_pending_commits_of_classic_members_are_checked_against_the_generation() -> None:
    scenario = Scenario()
    harness = scenario.harness
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit_pending(harness, P, {0: 1}, generation=3, member="who")
    assert commit_pending(harness, P, {0: 1}) == [ErrorCode.NONE]
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(harness, P, {0: 1}, generation=3, member="who")
    [a] = scenario.stable("a")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(harness, P, {0: 2}, generation=1, member="who")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(harness, P, {0: 2}, generation=1, member=a.id, instance="i")
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit_pending(harness, P, {0: 2}, generation=0, member=a.id)
    assert commit_pending(harness, P, {0: 2}, generation=1, member=a.id) == [ErrorCode.NONE]
    assert commit_pending(harness, P, {0: 3}) == [ErrorCode.NONE]  # without a member, as in versions below 3
    scenario.member("b").join()  # unlike OffsetCommit, a rebalance does not matter
    assert commit_pending(harness, P, {0: 4}, generation=1, member=a.id) == [ErrorCode.NONE]
    end(harness, P, commit=True)
    assert committed(harness) == {0: 4}


def test_pending_commits_of_consumer_members_accept_an_older_epoch_for_kept_partitions() -> None:
    harness = ClassicHarness(group_consumer_assignment_interval_ms=0)
    a, b = Client(harness, "a", TOPIC, group=GROUP), Client(harness, "b", TOPIC, group=GROUP)
    for _ in range(4):
        a.beat()
        b.beat()
    kept, other = (min(partition for _, partition in client.owned) for client in (a, b))
    assert commit_pending(harness, P, {kept: 1, other: 1}, generation=a.epoch, member="a") == [ErrorCode.NONE] * 2
    assert commit_pending(harness, P, {kept: 2}, generation=a.epoch - 1, member="a") == [ErrorCode.NONE]
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit_pending(harness, P, {kept: 3, other: 3}, generation=a.epoch - 1, member="a")
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit_pending(harness, P, {kept: 3}, generation=a.epoch + 1, member="a")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(harness, P, {kept: 3}, generation=a.epoch, member="c")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(harness, P, {kept: 3}, member="c")
    assert commit_pending(harness, Q, {3: 9}) == [ErrorCode.NONE]
    end(harness, P, commit=True)
    end(harness, Q, commit=True)
    assert committed(harness) == {kept: 2, other: 1, 3: 9}


# --- groups with only pending offsets


def test_a_group_with_only_pending_offsets_is_an_empty_classic_group() -> None:
    harness = ClassicHarness()
    commit_pending(harness, P, {0: 1})
    assert [group.group_id for group in list_groups(harness.shard, ["empty"], ["classic"])] == [GROUP]
    assert describe_group(harness.shard, GROUP, 6).group_state == "Empty"
    end(harness, P, commit=False)
    assert list_groups(harness.shard, [], []) == []


def delete_offset(harness: ClassicHarness, index: int) -> None:
    partitions = [OffsetDeleteRequest.OffsetDeleteRequestPartition(index)]
    harness.execute(OffsetDeleteRequest(GROUP, [OffsetDeleteRequest.OffsetDeleteRequestTopic(TOPIC, partitions)]), 0)


def test_deleting_offsets_or_their_group_deletes_pending_offsets() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 1})
    commit_pending(harness, P, {0: 5, 1: 6, 2: 7})
    delete_offset(harness, 0)
    delete_offset(harness, 1)
    delete_offset(harness, 3)
    for _ in range(2):
        assert stable(harness, 0, 1, 2) == {0: -1, 1: -1, 2: UNSTABLE}
        harness.move()
    harness.execute(DeleteGroupsRequest([GROUP]), 2)
    assert stable(harness, 2) == {2: -1}
    end(harness, P, commit=True)
    for _ in range(2):
        assert committed(harness) == {} and not harness.shard.offsets.has(GROUP)
        harness.move()
    with codes(ErrorCode.GROUP_ID_NOT_FOUND):
        harness.execute(DeleteGroupsRequest([GROUP]), 2)


def test_offsets_with_a_pending_update_do_not_expire() -> None:
    harness = ClassicHarness(**RETENTION)
    commit(harness, {0: 1, 1: 1})
    commit_pending(harness, P, {0: 2})
    harness.pass_time(30 * MINUTE_MS)
    assert committed(harness) == {0: 1}
    end(harness, P, commit=False)
    harness.pass_time(2 * MINUTE_MS)
    assert committed(harness) == {}


def test_a_group_does_not_expire_while_it_has_pending_offsets() -> None:
    scenario = Scenario(**RETENTION)
    [a] = scenario.stable("a")
    a.leave()
    commit_pending(scenario.harness, P, {0: 2})
    scenario.harness.pass_time(30 * MINUTE_MS)
    assert len(scenario.harness.shard.classic.groups) == 1
    end(scenario.harness, P, commit=False)
    scenario.harness.pass_time(2 * MINUTE_MS)
    assert len(scenario.harness.shard.classic.groups) == 0


def test_deleting_a_topic_deletes_its_pending_offsets() -> None:
    harness = ClassicHarness()
    commit_pending(harness, P, {0: 2})
    harness.execute(TopicsDeleted([TopicsDeleted.Topic(TOPIC, TOPIC_ID)]), 0)
    harness.pass_time(1)
    end(harness, P, commit=True)
    assert committed(harness) == {}


# --- recovery from the log


def replay(
    written: Sequence[Any],
) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
    """Return (committed offsets, keys with an open transaction) by Kafka's rule: later log positions win."""
    done: dict[tuple[str, int], tuple[int, int]] = {}
    waiting: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
    for position, record in enumerate(map(read, written)):
        if isinstance(record, MarkerRecord):
            for key, found in waiting.pop(record.producer_id, {}).items():
                if record.commit and (key not in done or found[0] > done[key][0]):
                    done[key] = found
            continue
        assert isinstance(record, GroupRecord)
        if not isinstance(record.key, OffsetCommitKey):
            continue
        key = (record.key.group, record.key.partition)
        if record.value is None:
            done.pop(key, None)
            for own in waiting.values():
                own.pop(key, None)
        elif record.producer is None:
            done[key] = (position, record.value.offset)
        else:
            waiting.setdefault(record.producer[0], {})[key] = (position, record.value.offset)
    return {key: offset for key, (_, offset) in done.items()}, {key for own in waiting.values() for key in own}


def compacted(
    written: Sequence[Any],
) -> list[tuple[int, list[Any]]]:
    """Return what a cleaner may leave: the last record of every key below the first record of an open transaction."""
    records = list(map(read, written))
    first_open: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for position, record in enumerate(records):
        if not isinstance(record, MarkerRecord):
            if record.producer is not None:
                first_open.setdefault(record.producer[0], []).append(position)
        elif not record.commit:
            aborted.update(first_open.pop(record.producer_id, ()))
        else:
            first_open.pop(record.producer_id, None)
    bound = min((positions[0] for positions in first_open.values()), default=len(records))
    last: dict[bytes, int] = {}
    for position, record in enumerate(records[:bound]):
        if not isinstance(record, MarkerRecord) and position not in aborted:
            last[written[position][0]] = position
    kept = set(last.values()) | set(range(bound, len(records)))
    return [
        (position, [record])
        for position, record in enumerate(records)
        if position in kept or isinstance(record, MarkerRecord)
    ]


def state_of(shard: GroupShard) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
    done = {
        (group, index): offset.offset
        for group, table in shard.offsets.groups.items()
        for (_, index), offset in table.items()
    }
    waiting = {
        (group, index)
        for group, table in shard.offsets.pending.groups.items()
        for _, index in table.keys()  # noqa: SIM118
    }
    held = {
        (group, index)
        for own in shard.offsets.pending.producers.values()
        for group, (_, index) in own.keys()  # noqa: SIM118
    }
    assert waiting == held
    return done, waiting


GROUPS = st.sampled_from(["g", "h"])
PRODUCERS = st.sampled_from([1, 2, 3])
OFFSETS = st.dictionaries(st.integers(0, 3), st.integers(0, 99), min_size=1, max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("commit"), GROUPS, OFFSETS),
    st.tuples(st.just("pending"), PRODUCERS, GROUPS, OFFSETS),
    st.tuples(st.just("end"), PRODUCERS, st.booleans()),
    st.tuples(st.just("delete"), GROUPS),
    st.tuples(st.just("delete offset"), GROUPS, st.integers(0, 3)),
    st.tuples(st.just("refuse"), PRODUCERS, GROUPS, OFFSETS),
    st.sampled_from([("late",), ("on time",), ("move",)]),
)


def take(harness: ClassicHarness, step: tuple[Any, ...], responses: Callable[..., Any]) -> None:
    match step:
        case ("commit", group, offsets):
            harness.send(commit_request(group, offsets), 9, responses)
        case ("pending", producer, group, offsets):
            harness.send(pending_request(producer, offsets, group), 5, responses)
        case ("end", producer, commit):
            harness.send(EndOffsets(MarkerRecord(producer, 0, 1, commit)), 0, responses)
        case ("delete", group):
            harness.send(DeleteGroupsRequest([group]), 2, responses)
        case ("delete offset", group, index):
            partitions = [OffsetDeleteRequest.OffsetDeleteRequestPartition(index)]
            topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(TOPIC, partitions)]
            harness.send(OffsetDeleteRequest(group, topics), 0, responses)
        case ("refuse", producer, group, offsets):
            harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            harness.send(pending_request(producer, offsets, group), 5, responses)
            harness.send(EndOffsets(MarkerRecord(producer, 0, 1, True)), 0, responses)
            harness.journal.refusal = None
        case ("late",):
            harness.journal.late = True
        case ("on time",):
            harness.journal.late = False
            harness.journal.commit()
        case _:
            harness.move()


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_offset_state_equals_a_replay_of_the_log(steps: list[tuple[Any, ...]]) -> None:
    harness = ClassicHarness()
    for step in steps:
        take(harness, step, lambda response: None)
        assert state_of(harness.shard) == replay(harness.journal.written)
        before = replay(harness.journal.written[: harness.journal.committed])[0]
        for group in ("g", "h"):
            assert committed(harness, group) == {index: at for (name, index), at in before.items() if name == group}
    harness.journal.late = False
    harness.journal.commit()
    done, waiting = replay(harness.journal.written)
    for group in ("g", "h"):
        expected = {index: at for (name, index), at in done.items() if name == group}
        expected |= {index: UNSTABLE for name, index in waiting if name == group}
        seen = stable(harness, 0, 1, 2, 3, group=group)
        assert {index: at for index, at in seen.items() if at != -1} == expected
    harness.move()
    assert state_of(harness.shard) == (done, waiting)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_a_compacted_log_replays_to_the_same_state(steps: list[tuple[Any, ...]]) -> None:
    harness = ClassicHarness()
    for step in steps:
        take(harness, step, lambda response: None)
    harness.journal.commit()
    shard = GroupShard(GROUP_HANDLERS, GroupSettings(), lambda: harness.image, harness.random_source)
    for position, records in compacted(harness.journal.written):
        for record in records:
            shard.apply(record, position)
    assert state_of(shard) == state_of(harness.shard)
