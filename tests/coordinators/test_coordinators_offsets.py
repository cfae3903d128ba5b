"""Committed offsets: who may commit, what is written and read, expiry, and deletion with a topic."""

import pytest
from classic_stage import GROUP, TOPIC, TOPIC_ID, Cast, Stage, commit_request

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, Uuid
from headrace.coordinators.group.expiry import LOOKED_AT_ONCE
from headrace.coordinators.group.groups import describe_group, list_groups
from headrace.coordinators.group.offset_reads import FetchGroup, fetch
from headrace.coordinators.group.offsets import TopicsDeleted
from headrace.coordinators.group.records import GroupRecord, encode_group_record
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.stored.offsets import (
    GroupMetadataKey,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
)

MINUTE_MS = 60_000
RETENTION = {"offsets_retention_minutes": 10, "offsets_retention_check_interval_ms": MINUTE_MS}


def commit(stage, offsets, version=9, group=GROUP, **more):
    answer = stage.ask(commit_request(group, offsets, **more), version)
    return [ErrorCode(partition.error_code) for partition in answer.topics[0].partitions]


def committed(stage, group=GROUP, *, newest=False):
    """Return all committed offsets by topic and partition."""
    answer = fetch(stage.shard, FetchGroup(group, topics=None), newest=newest)
    return {
        (topic.name, one.partition_index): one.committed_offset for topic in answer.topics for one in topic.partitions
    }


def delete_offsets(stage, *topics, group=GROUP):
    wanted = [
        OffsetDeleteRequest.OffsetDeleteRequestTopic(name, [OffsetDeleteRequest.OffsetDeleteRequestPartition(0)])
        for name in topics
    ]
    answer = stage.ask(OffsetDeleteRequest(group, wanted), 0)
    return [ErrorCode(topic.partitions[0].error_code) for topic in answer.topics]


def codes(expected):
    return pytest.raises(KafkaError, match=expected.name)


def test_what_is_committed_is_read_and_loaded_again():
    stage = Stage()
    assert commit(stage, {0: 5, 1: 6}) == [ErrorCode.NONE] * 2
    assert commit(stage, {1: 7}) == [ErrorCode.NONE]
    stage.move()
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics(TOPIC, TOPIC_ID, [0, 1, 3])]
    [topic] = fetch(stage.shard, FetchGroup(GROUP, topics=topics)).topics
    assert [(one.committed_offset, one.committed_leader_epoch, one.metadata) for one in topic.partitions] == [
        (5, 3, "m"),
        (7, 3, "m"),
        (-1, -1, ""),
    ]
    assert committed(stage) == {(TOPIC, 0): 5, (TOPIC, 1): 7} and committed(stage, "nobody") == {}


def test_records_are_those_of_kafka():
    stage = Stage()
    commit(stage, {0: 5})
    request = commit_request(GROUP, {1: 6}, metadata=None)
    request.retention_time_ms = 1000
    stage.ask(request, 2)
    one, other = stage.stored()
    assert (one.key, one.version) == (OffsetCommitKey(GROUP, TOPIC, 0), 4)
    assert (one.value.commit_timestamp, one.value.topic_id) == (stage.now_ms, TOPIC_ID)
    assert (other.version, other.value.expire_timestamp, other.value.metadata) == (1, stage.now_ms + 1000, "")


def test_what_kafka_wrote_once_is_read():
    stage = Stage()
    legacy = GroupRecord(LegacyOffsetCommitKey(GROUP, TOPIC, 2), LegacyOffsetCommitValue(9, "old", 1))
    stage.journal.written.append(encode_group_record(legacy))
    stage.journal.commit()
    stage.move()
    assert committed(stage) == {(TOPIC, 2): 9}


def test_readers_see_what_is_committed_unless_they_wait_for_it():
    stage = Stage()
    commit(stage, {0: 5})
    stage.journal.late = True
    heard = []
    stage.hear(commit_request(GROUP, {0: 6, 1: 1}), 9, heard.append)
    assert committed(stage) == {(TOPIC, 0): 5}
    stage.hear(FetchGroup(GROUP, topics=None), 9, heard.append)
    assert heard == []
    stage.journal.commit()
    assert heard[1].topics[0].partitions[0].committed_offset == 6
    assert committed(stage) == {(TOPIC, 0): 6, (TOPIC, 1): 1}


def test_offsets_never_go_back_when_a_commit_is_lost_or_refused():
    stage = Stage()
    commit(stage, {0: 5})
    stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    with codes(ErrorCode.NOT_ENOUGH_REPLICAS):
        commit(stage, {0: 6, 1: 6})
    stage.journal.refusal = None
    assert committed(stage) == committed(stage, newest=True) == {(TOPIC, 0): 5}
    stage.journal.late = True
    heard = []
    stage.hear(commit_request(GROUP, {0: 7}), 9, heard.append)
    stage.move()
    assert [type(answer).__name__ for answer in heard] == ["NotLeader"]
    assert committed(stage) == {(TOPIC, 0): 5}


def test_long_metadata_is_refused_for_its_partition_alone():
    stage = Stage(offset_metadata_max_bytes=3)
    request = commit_request(GROUP, {0: 1, 1: 2}, metadata="four")
    request.topics[0].partitions[1].committed_metadata = "abc"
    answer = stage.ask(request, 9).topics[0].partitions
    assert [one.error_code for one in answer] == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert committed(stage) == {(TOPIC, 1): 2}


def test_who_may_commit():
    cast = Cast()
    stage = cast.stage
    with codes(ErrorCode.GROUP_ID_NOT_FOUND):
        commit(stage, {0: 1}, generation=3, member="who")
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit(stage, {0: 1}, version=8, generation=3, member="who")
    assert commit(stage, {0: 1}) == [ErrorCode.NONE]  # a commit without a member creates the group
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit(stage, {0: 1}, generation=3, member="who")
    [a] = cast.stable("a")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit(stage, {0: 2})
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit(stage, {0: 2}, generation=0, member=a.id)
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit(stage, {0: 2}, generation=1, member=a.id, instance="i")
    assert commit(stage, {0: 2}, generation=1, member=a.id) == [ErrorCode.NONE]
    a.leave()
    assert commit(stage, {0: 3}) == [ErrorCode.NONE]


def test_a_commit_keeps_the_session():
    cast = Cast()
    [a] = cast.stable("a")
    for _ in range(3):
        cast.stage.pass_time(9000)
        a.commit(1)
    assert cast.heard() == ["a commit: NONE"] * 3


def test_offsets_of_subscribed_topics_stay():
    cast = Cast()
    stage = cast.stage
    stage.set_topics({TOPIC: 4, "clicks": 4})
    commit(stage, {0: 1})
    commit(stage, {0: 1}, topic="clicks")
    [a] = cast.stable("a")
    assert delete_offsets(stage, TOPIC, "clicks") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert committed(stage) == {(TOPIC, 0): 1}
    a.leave()
    assert delete_offsets(stage, TOPIC) == [ErrorCode.NONE] and committed(stage) == {}
    with codes(ErrorCode.GROUP_ID_NOT_FOUND):
        delete_offsets(stage, TOPIC, group="nobody")


def test_other_types_of_groups_have_to_be_empty_for_that():
    cast = Cast()
    commit(cast.stage, {0: 1})
    cast.member("a").join(kind="connect")
    cast.stage.pass_time(0)
    with codes(ErrorCode.NON_EMPTY_GROUP):
        delete_offsets(cast.stage, TOPIC)


def test_a_group_of_offsets_is_an_empty_classic_group():
    stage = Stage()
    commit(stage, {0: 1})
    [listed] = list_groups(stage.shard, [], [])
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        GROUP,
        "",
        "Empty",
        "classic",
    )
    assert list_groups(stage.shard, ["STABLE"], []) == list_groups(stage.shard, [], ["consumer"]) == []
    assert list_groups(stage.shard, ["empty"], ["Classic"]) == [listed]
    assert describe_group(stage.shard, GROUP, 6).group_state == "Empty"


def test_deleting_a_group_takes_its_offsets():
    cast = Cast()
    stage = cast.stage
    [a] = cast.stable("a")
    a.commit(1)
    with codes(ErrorCode.NON_EMPTY_GROUP):
        stage.ask(DeleteGroupsRequest([GROUP]), 2)
    a.leave()
    stage.ask(DeleteGroupsRequest([GROUP]), 2)
    assert stage.stored() == [] and committed(stage) == {}
    assert describe_group(stage.shard, GROUP, 5).group_state == "Dead"
    with codes(ErrorCode.GROUP_ID_NOT_FOUND):
        stage.ask(DeleteGroupsRequest([GROUP]), 2)


def test_offsets_of_a_simple_group_expire_by_their_commit():
    stage = Stage(**RETENTION)
    commit(stage, {0: 1})
    stage.pass_time(8 * MINUTE_MS)
    commit(stage, {1: 1})
    stage.pass_time(2 * MINUTE_MS)
    assert committed(stage) == {(TOPIC, 1): 1}
    stage.pass_time(8 * MINUTE_MS)
    assert committed(stage) == {} and stage.stored() == []


def test_offsets_of_a_group_expire_when_it_was_empty_for_long_enough():
    cast = Cast(**RETENTION)
    [a] = cast.stable("a")
    a.commit(1)
    for _ in range(100):
        cast.stage.pass_time(9000)
        a.beat()
    assert committed(cast.stage) == {(TOPIC, 0): 1}  # offsets of a subscribed topic never expire
    a.leave()
    cast.stage.pass_time(9 * MINUTE_MS)
    assert committed(cast.stage) == {(TOPIC, 0): 1}
    cast.stage.pass_time(2 * MINUTE_MS)
    assert committed(cast.stage) == {} and cast.stage.stored() == []
    assert len(cast.stage.shard.classic.groups) == 0


def test_a_live_group_loses_the_offsets_of_topics_that_it_reads_no_more():
    cast = Cast(**RETENTION)
    commit(cast.stage, {0: 1}, topic="clicks", topic_id=ZERO_UUID)
    [a] = cast.stable("a")
    for _ in range(80):
        cast.stage.pass_time(9000)
        a.commit(2)
    assert committed(cast.stage) == {(TOPIC, 0): 2}


def test_a_retention_that_the_client_chose_counts_alone():
    stage = Stage(**RETENTION)
    request = commit_request(GROUP, {0: 1})
    request.retention_time_ms = 3 * MINUTE_MS
    stage.ask(request, 4)
    stage.pass_time(2 * MINUTE_MS)
    assert committed(stage)
    stage.pass_time(2 * MINUTE_MS)
    assert committed(stage) == {}


def test_groups_that_were_joined_and_left_without_offsets_go_too():
    cast = Cast(**RETENTION)
    [a] = cast.stable("a")
    a.leave()
    [record] = cast.stage.stored()
    assert record.key == GroupMetadataKey(GROUP)
    cast.stage.pass_time(2 * MINUTE_MS)
    assert cast.stage.stored() == []


def test_a_long_sweep_takes_turns():
    stage = Stage(**RETENTION)
    for group in range(3):
        commit(stage, dict.fromkeys(range(LOOKED_AT_ONCE), 1), group=f"g{group}")
    before = len(stage.journal.written)
    stage.now_ms += 10 * MINUTE_MS
    stage.runtime.tick(stage.now_ms)
    stage.settle()
    assert before < len(stage.journal.written) <= before + LOOKED_AT_ONCE
    stage.pass_time(1000)
    assert stage.stored() == []


def test_a_sweep_goes_on_after_a_refusal():
    stage = Stage(**RETENTION)
    commit(stage, {0: 1})
    stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    stage.pass_time(11 * MINUTE_MS)
    stage.journal.refusal = None
    assert committed(stage)
    stage.pass_time(2 * MINUTE_MS)
    assert committed(stage) == {}


def test_a_deleted_topic_takes_its_offsets_and_leaves_those_of_its_successor():
    stage = Stage()
    old, new = TOPIC_ID, Uuid(b"n" * 16)
    commit(stage, {0: 1, 1: 1}, topic_id=old)
    commit(stage, {2: 1}, topic_id=ZERO_UUID)
    commit(stage, {3: 1}, topic_id=new)
    commit(stage, {0: 1}, topic="clicks")
    stage.ask(TopicsDeleted([TopicsDeleted.Topic(TOPIC, old)]), 0)
    stage.pass_time(1)
    assert committed(stage) == {(TOPIC, 3): 1, ("clicks", 0): 1}


def test_an_offset_of_another_topic_of_the_name_is_not_read():
    stage = Stage()
    commit(stage, {0: 1})
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics(TOPIC, Uuid(b"n" * 16), [0])]
    assert fetch(stage.shard, FetchGroup(GROUP, topics=topics)).topics[0].partitions[0].committed_offset == -1
