"""Offsets in transactions: who may commit them, what readers see before and after their end, and recovery."""

import pytest
from classic_stage import GROUP, TOPIC, TOPIC_ID, Cast, Stage, commit_request
from consumer_clients import Client
from group_stage import read
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID
from headrace.coordinators.group.groups import describe_group, list_groups
from headrace.coordinators.group.handler_table import GROUP_ROOMS
from headrace.coordinators.group.offset_reads import FetchGroup, fetch
from headrace.coordinators.group.offsets import TopicsDeleted
from headrace.coordinators.group.records import GroupRecord
from headrace.coordinators.group.settings import GroupSettings
from headrace.coordinators.group.shard import GroupShard
from headrace.coordinators.group.transactional_commits import EndOffsets
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.stored.offsets import OffsetCommitKey
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.statemachine.transactional import MarkerRecord

MINUTE_MS = 60_000
RETENTION = {"offsets_retention_minutes": 10, "offsets_retention_check_interval_ms": MINUTE_MS}
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
P, Q = 7, 8  # producer ids


def pending_request(producer, offsets, group=GROUP, generation=-1, member="", instance=None, epoch=0, metadata="m"):
    partitions = [
        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(index, offset, 3, metadata)
        for index, offset in offsets.items()
    ]
    topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(TOPIC, partitions)]
    return TxnOffsetCommitRequest("tx", group, producer, epoch, generation, member, instance, topics)


def commit_pending(stage, producer, offsets, **more):
    answer = stage.ask(pending_request(producer, offsets, **more), 5)
    return [ErrorCode(partition.error_code) for partition in answer.topics[0].partitions]


def commit(stage, offsets, **more):
    stage.ask(commit_request(GROUP, offsets, **more), 9)


def end(stage, producer, *, commit, epoch=0):
    stage.ask(EndOffsets(MarkerRecord(producer, epoch, 1, commit, 2)), 0)


def committed(stage, group=GROUP):
    answer = fetch(stage.shard, FetchGroup(group, topics=None))
    return {one.partition_index: one.committed_offset for topic in answer.topics for one in topic.partitions}


def stable(stage, *indexes, group=GROUP):
    """Return offsets, or error codes, fetched with require_stable."""
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics(TOPIC, TOPIC_ID, list(indexes))] if indexes else None
    answer = stage.ask(FetchGroup(group, topics=topics), 9)
    return {
        one.partition_index: ErrorCode(one.error_code) if one.error_code else one.committed_offset
        for topic in answer.topics
        for one in topic.partitions
    }


def codes(expected):
    return pytest.raises(KafkaError, match=expected.name)


# --- visibility


def test_offsets_count_when_their_transaction_is_committed():
    stage = Stage()
    commit(stage, {0: 1, 1: 1})
    assert commit_pending(stage, P, {0: 5, 2: 6}) == [ErrorCode.NONE] * 2
    for _ in range(2):
        assert committed(stage) == {0: 1, 1: 1}
        assert stable(stage, 0, 1, 2, 3) == {0: UNSTABLE, 1: 1, 2: UNSTABLE, 3: -1}
        assert stable(stage) == {0: UNSTABLE, 1: 1}
        stage.move()
    end(stage, P, commit=True)
    for _ in range(2):
        assert committed(stage) == stable(stage) == {0: 5, 1: 1, 2: 6}
        stage.move()


def test_offsets_are_gone_when_their_transaction_is_aborted():
    stage = Stage()
    commit(stage, {0: 1})
    commit_pending(stage, P, {0: 5, 1: 5})
    end(stage, P, commit=False)
    for _ in range(2):
        assert committed(stage) == stable(stage) == {0: 1}
        assert len(stage.shard.offsets.pending.producers) == len(stage.shard.offsets.pending.groups) == 0
        stage.move()


def test_records_are_those_of_kafka():
    stage = Stage()
    commit_pending(stage, P, {1: 5}, epoch=3, metadata=None)
    [record] = [read(written) for written in stage.journal.written]
    assert (record.key, record.version, record.producer) == (OffsetCommitKey(GROUP, TOPIC, 1), 4, (P, 3))
    assert (record.value.offset, record.value.leader_epoch, record.value.metadata) == (5, 3, "")
    assert (record.value.commit_timestamp, record.value.topic_id) == (stage.now_ms, ZERO_UUID)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_lies_later_in_the_log_wins(is_first):
    stage = Stage()
    if is_first:
        commit_pending(stage, P, {0: 5})
        commit(stage, {0: 9})
        assert stable(stage, 0) == {0: UNSTABLE}
    else:
        commit(stage, {0: 9})
        commit_pending(stage, P, {0: 5})
    end(stage, P, commit=True)
    for _ in range(2):
        assert committed(stage) == stable(stage) == {0: 9 if is_first else 5}
        stage.move()


def test_of_two_transactions_the_later_record_wins_whichever_ends_first():
    for order in ((P, Q), (Q, P)):
        stage = Stage()
        commit_pending(stage, P, {0: 1})
        commit_pending(stage, Q, {0: 2})
        end(stage, order[0], commit=True)
        assert stable(stage, 0) == {0: UNSTABLE}
        end(stage, order[1], commit=True)
        assert committed(stage) == stable(stage) == {0: 2}


def test_a_transaction_that_commits_again_is_newer_than_what_came_between():
    stage = Stage()
    commit_pending(stage, P, {0: 1})
    commit(stage, {0: 2})
    commit_pending(stage, P, {0: 3})
    end(stage, P, commit=True)
    assert committed(stage) == {0: 3}


def test_a_marker_of_a_later_epoch_ends_what_is_there():
    stage = Stage()
    commit_pending(stage, P, {0: 1}, epoch=4)
    end(stage, P, commit=True, epoch=5)
    end(stage, P, commit=False, epoch=6)
    end(stage, Q, commit=True)
    assert committed(stage) == {0: 1}


def test_readers_of_what_is_committed_wait_for_the_marker_to_be():
    stage = Stage()
    commit_pending(stage, P, {0: 5})
    stage.journal.late = True
    heard = []
    stage.hear(EndOffsets(MarkerRecord(P, 0, 1, True)), 0, heard.append)
    stage.hear(FetchGroup(GROUP, topics=None), 9, heard.append)
    assert committed(stage) == {} and heard == []
    stage.journal.commit()
    assert committed(stage) == {0: 5} and heard[1].topics[0].partitions[0].committed_offset == 5


def test_a_marker_that_is_refused_or_lost_changes_nothing():
    stage = Stage()
    commit(stage, {0: 1})
    commit_pending(stage, P, {0: 5, 1: 5})
    stage.journal.refusal = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    with codes(ErrorCode.INVALID_PRODUCER_EPOCH):
        end(stage, P, commit=True)
    with codes(ErrorCode.INVALID_PRODUCER_EPOCH):
        commit_pending(stage, Q, {2: 5})
    stage.journal.refusal = None
    assert stable(stage, 0, 1, 2) == {0: UNSTABLE, 1: UNSTABLE, 2: -1}
    stage.journal.late = True
    heard = []
    stage.hear(EndOffsets(MarkerRecord(P, 0, 1, False)), 0, heard.append)
    stage.move()
    assert [type(answer).__name__ for answer in heard] == ["NotLeader"]
    end(stage, P, commit=True)
    assert committed(stage) == {0: 5, 1: 5}


# --- permission to commit


def test_long_metadata_is_refused_for_its_partition_alone():
    stage = Stage(offset_metadata_max_bytes=3)
    request = pending_request(P, {0: 1, 1: 2}, metadata="four")
    request.topics[0].partitions[1].committed_metadata = "abc"
    answer = stage.ask(request, 5).topics[0].partitions
    assert [one.error_code for one in answer] == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert stable(stage, 0, 1) == {0: -1, 1: UNSTABLE}


def test_a_transaction_needs_a_producer():
    stage = Stage()
    with codes(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        commit_pending(stage, -1, {0: 1})
    with codes(ErrorCode.INVALID_PRODUCER_EPOCH):
        commit_pending(stage, P, {0: 1}, epoch=-1)
    assert stage.journal.written == []


def test_members_of_classic_groups_say_who_they_are_since_version_3():
    cast = Cast()
    stage = cast.stage
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit_pending(stage, P, {0: 1}, generation=3, member="who")
    assert commit_pending(stage, P, {0: 1}) == [ErrorCode.NONE]
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(stage, P, {0: 1}, generation=3, member="who")
    [a] = cast.stable("a")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(stage, P, {0: 2}, generation=1, member="who")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(stage, P, {0: 2}, generation=1, member=a.id, instance="i")
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit_pending(stage, P, {0: 2}, generation=0, member=a.id)
    assert commit_pending(stage, P, {0: 2}, generation=1, member=a.id) == [ErrorCode.NONE]
    assert commit_pending(stage, P, {0: 3}) == [ErrorCode.NONE]  # without a member, as in versions below 3
    cast.member("b").join()  # unlike OffsetCommit, a rebalance does not matter
    assert commit_pending(stage, P, {0: 4}, generation=1, member=a.id) == [ErrorCode.NONE]
    end(stage, P, commit=True)
    assert committed(stage) == {0: 4}


def test_members_of_consumer_groups_too_by_their_epoch_or_by_an_older_one_for_what_they_had_then():
    stage = Stage(group_consumer_assignment_interval_ms=0)
    a, b = Client(stage, "a", TOPIC, group=GROUP), Client(stage, "b", TOPIC, group=GROUP)
    for _ in range(4):
        a.beat()
        b.beat()
    kept, other = (min(partition for _, partition in client.owned) for client in (a, b))
    assert commit_pending(stage, P, {kept: 1, other: 1}, generation=a.epoch, member="a") == [ErrorCode.NONE] * 2
    assert commit_pending(stage, P, {kept: 2}, generation=a.epoch - 1, member="a") == [ErrorCode.NONE]
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit_pending(stage, P, {kept: 3, other: 3}, generation=a.epoch - 1, member="a")
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit_pending(stage, P, {kept: 3}, generation=a.epoch + 1, member="a")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(stage, P, {kept: 3}, generation=a.epoch, member="c")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit_pending(stage, P, {kept: 3}, member="c")
    assert commit_pending(stage, Q, {3: 9}) == [ErrorCode.NONE]
    end(stage, P, commit=True)
    end(stage, Q, commit=True)
    assert committed(stage) == {kept: 2, other: 1, 3: 9}


# --- groups with only pending offsets


def test_a_group_of_pending_offsets_is_an_empty_classic_group():
    stage = Stage()
    commit_pending(stage, P, {0: 1})
    assert [group.group_id for group in list_groups(stage.shard, ["empty"], ["classic"])] == [GROUP]
    assert describe_group(stage.shard, GROUP, 6).group_state == "Empty"
    end(stage, P, commit=False)
    assert list_groups(stage.shard, [], []) == []


def delete_offset(stage, index):
    partitions = [OffsetDeleteRequest.OffsetDeleteRequestPartition(index)]
    stage.ask(OffsetDeleteRequest(GROUP, [OffsetDeleteRequest.OffsetDeleteRequestTopic(TOPIC, partitions)]), 0)


def test_deleting_takes_what_is_pending_too():
    stage = Stage()
    commit(stage, {0: 1})
    commit_pending(stage, P, {0: 5, 1: 6, 2: 7})
    delete_offset(stage, 0)
    delete_offset(stage, 1)
    delete_offset(stage, 3)
    for _ in range(2):
        assert stable(stage, 0, 1, 2) == {0: -1, 1: -1, 2: UNSTABLE}
        stage.move()
    stage.ask(DeleteGroupsRequest([GROUP]), 2)
    assert stable(stage, 2) == {2: -1}
    end(stage, P, commit=True)
    for _ in range(2):
        assert committed(stage) == {} and not stage.shard.offsets.has(GROUP)
        stage.move()
    with codes(ErrorCode.GROUP_ID_NOT_FOUND):
        stage.ask(DeleteGroupsRequest([GROUP]), 2)


def test_nothing_expires_that_a_transaction_is_about_to_renew():
    stage = Stage(**RETENTION)
    commit(stage, {0: 1, 1: 1})
    commit_pending(stage, P, {0: 2})
    stage.pass_time(30 * MINUTE_MS)
    assert committed(stage) == {0: 1}
    end(stage, P, commit=False)
    stage.pass_time(2 * MINUTE_MS)
    assert committed(stage) == {}


def test_a_group_does_not_expire_while_it_has_pending_offsets():
    cast = Cast(**RETENTION)
    [a] = cast.stable("a")
    a.leave()
    commit_pending(cast.stage, P, {0: 2})
    cast.stage.pass_time(30 * MINUTE_MS)
    assert len(cast.stage.shard.classic.groups) == 1
    end(cast.stage, P, commit=False)
    cast.stage.pass_time(2 * MINUTE_MS)
    assert len(cast.stage.shard.classic.groups) == 0


def test_a_deleted_topic_takes_what_is_pending():
    stage = Stage()
    commit_pending(stage, P, {0: 2})
    stage.ask(TopicsDeleted([TopicsDeleted.Topic(TOPIC, TOPIC_ID)]), 0)
    stage.pass_time(1)
    end(stage, P, commit=True)
    assert committed(stage) == {}


# --- recovery from the log


def replay(written):
    """Return (committed offsets, keys with an open transaction) by Kafka's rule: later log positions win."""
    done, waiting = {}, {}
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


def compacted(written):
    """Return what a cleaner may leave: the last record of every key below the first record of an open transaction."""
    records = list(map(read, written))
    first_open, aborted = {}, set()
    for position, record in enumerate(records):
        if not isinstance(record, MarkerRecord):
            if record.producer is not None:
                first_open.setdefault(record.producer[0], []).append(position)
        elif not record.commit:
            aborted.update(first_open.pop(record.producer_id, ()))
        else:
            first_open.pop(record.producer_id, None)
    bound = min((positions[0] for positions in first_open.values()), default=len(records))
    last = {}
    for position, record in enumerate(records[:bound]):
        if not isinstance(record, MarkerRecord) and position not in aborted:
            last[written[position][0]] = position
    kept = set(last.values()) | set(range(bound, len(records)))
    return [
        (position, [record])
        for position, record in enumerate(records)
        if position in kept or isinstance(record, MarkerRecord)
    ]


def state_of(shard):
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


def take(stage, step, heard):
    match step:
        case ("commit", group, offsets):
            stage.hear(commit_request(group, offsets), 9, heard)
        case ("pending", producer, group, offsets):
            stage.hear(pending_request(producer, offsets, group), 5, heard)
        case ("end", producer, commit):
            stage.hear(EndOffsets(MarkerRecord(producer, 0, 1, commit)), 0, heard)
        case ("delete", group):
            stage.hear(DeleteGroupsRequest([group]), 2, heard)
        case ("delete offset", group, index):
            partitions = [OffsetDeleteRequest.OffsetDeleteRequestPartition(index)]
            topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(TOPIC, partitions)]
            stage.hear(OffsetDeleteRequest(group, topics), 0, heard)
        case ("refuse", producer, group, offsets):
            stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            stage.hear(pending_request(producer, offsets, group), 5, heard)
            stage.hear(EndOffsets(MarkerRecord(producer, 0, 1, True)), 0, heard)
            stage.journal.refusal = None
        case ("late",):
            stage.journal.late = True
        case ("on time",):
            stage.journal.late = False
            stage.journal.commit()
        case _:
            stage.move()


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_what_is_there_is_what_the_log_says(steps):
    stage = Stage()
    for step in steps:
        take(stage, step, lambda answer: None)
        assert state_of(stage.shard) == replay(stage.journal.written)
        before = replay(stage.journal.written[: stage.journal.committed])[0]
        for group in ("g", "h"):
            assert committed(stage, group) == {index: at for (name, index), at in before.items() if name == group}
    stage.journal.late = False
    stage.journal.commit()
    done, waiting = replay(stage.journal.written)
    for group in ("g", "h"):
        expected = {index: at for (name, index), at in done.items() if name == group}
        expected |= {index: UNSTABLE for name, index in waiting if name == group}
        seen = stable(stage, 0, 1, 2, 3, group=group)
        assert {index: at for index, at in seen.items() if at != -1} == expected
    stage.move()
    assert state_of(stage.shard) == (done, waiting)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_a_compacted_log_says_the_same(steps):
    stage = Stage()
    for step in steps:
        take(stage, step, lambda answer: None)
    stage.journal.commit()
    shard = GroupShard(GROUP_ROOMS, GroupSettings(), lambda: stage.image, stage.chance)
    for position, records in compacted(stage.journal.written):
        for record in records:
            shard.apply(record, position)
    assert state_of(shard) == state_of(stage.shard)
