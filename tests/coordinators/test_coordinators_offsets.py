"""Committed offsets: who may commit, what is written and read, expiry, and deletion with a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.coordinators.classic_harness import GROUP, TOPIC, TOPIC_ID, ClassicHarness, Scenario, commit_request

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, Uuid
from headrace.coordinators.group.expiry import EXAMINED_PER_TURN
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
from headrace.statemachine.journal import NotLeader

MINUTE_MS = 60_000
RETENTION = {"offsets_retention_minutes": 10, "offsets_retention_check_interval_ms": MINUTE_MS}


def commit(
    harness: ClassicHarness, offsets: Mapping[int, int], version: int = 9, group: str = GROUP, **more: Any
) -> list[ErrorCode]:
    response = harness.execute(commit_request(group, offsets, **more), version)
    return [ErrorCode(partition.error_code) for partition in response.topics[0].partitions]


def committed(harness: ClassicHarness, group: str = GROUP, *, newest: bool = False) -> dict[tuple[str, int], int]:
    """Return all committed offsets by topic and partition."""
    response = fetch(harness.shard, FetchGroup(group, topics=None), newest=newest)
    return {
        (topic.name, one.partition_index): one.committed_offset for topic in response.topics for one in topic.partitions
    }


def delete_offsets(harness: ClassicHarness, *topics: str, group: str = GROUP) -> list[ErrorCode]:
    wanted = [
        OffsetDeleteRequest.OffsetDeleteRequestTopic(name, [OffsetDeleteRequest.OffsetDeleteRequestPartition(0)])
        for name in topics
    ]
    response = harness.execute(OffsetDeleteRequest(group, wanted), 0)
    return [ErrorCode(topic.partitions[0].error_code) for topic in response.topics]


def codes(expected: ErrorCode) -> Any:
    return pytest.raises(KafkaError, match=expected.name)


def test_committed_offsets_are_fetched_after_a_coordinator_move() -> None:
    harness = ClassicHarness()
    assert commit(harness, {0: 5, 1: 6}) == [ErrorCode.NONE] * 2
    assert commit(harness, {1: 7}) == [ErrorCode.NONE]
    harness.move()
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics(TOPIC, TOPIC_ID, [0, 1, 3])]
    [topic] = fetch(harness.shard, FetchGroup(GROUP, topics=topics)).topics
    assert [(one.committed_offset, one.committed_leader_epoch, one.metadata) for one in topic.partitions] == [
        (5, 3, "m"),
        (7, 3, "m"),
        (-1, -1, ""),
    ]
    assert committed(harness) == {(TOPIC, 0): 5, (TOPIC, 1): 7} and committed(harness, "nobody") == {}


def test_offset_commit_records_match_kafka() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 5})
    request = commit_request(GROUP, {1: 6}, metadata=None)
    request.retention_time_ms = 1000
    harness.execute(request, 2)
    one, other = harness.stored()
    assert (one.key, one.version) == (OffsetCommitKey(GROUP, TOPIC, 0), 4)
    assert (one.value.commit_timestamp, one.value.topic_id) == (harness.now_ms, TOPIC_ID)
    assert (other.version, other.value.expire_timestamp, other.value.metadata) == (1, harness.now_ms + 1000, "")


def test_legacy_offset_records_are_loaded() -> None:
    harness = ClassicHarness()
    legacy = GroupRecord(LegacyOffsetCommitKey(GROUP, TOPIC, 2), LegacyOffsetCommitValue(9, "old", 1))
    harness.journal.written.append(encode_group_record(legacy))
    harness.journal.commit()
    harness.move()
    assert committed(harness) == {(TOPIC, 2): 9}


def test_fetches_see_committed_offsets_or_wait_for_pending_writes() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 5})
    harness.journal.late = True
    responses: list[Any] = []
    harness.send(commit_request(GROUP, {0: 6, 1: 1}), 9, responses.append)
    assert committed(harness) == {(TOPIC, 0): 5}
    harness.send(FetchGroup(GROUP, topics=None), 9, responses.append)
    assert responses == []
    harness.journal.commit()
    assert responses[1].topics[0].partitions[0].committed_offset == 6
    assert committed(harness) == {(TOPIC, 0): 6, (TOPIC, 1): 1}


def test_a_lost_or_refused_commit_keeps_the_previous_offset() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 5})
    harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    with codes(ErrorCode.NOT_ENOUGH_REPLICAS):
        commit(harness, {0: 6, 1: 6})
    harness.journal.refusal = None
    assert committed(harness) == committed(harness, newest=True) == {(TOPIC, 0): 5}
    harness.journal.late = True
    responses: list[NotLeader] = []
    harness.send(commit_request(GROUP, {0: 7}), 9, responses.append)
    harness.move()
    assert [type(response).__name__ for response in responses] == ["NotLeader"]
    assert committed(harness) == {(TOPIC, 0): 5}


def test_oversized_metadata_fails_only_its_partition() -> None:
    harness = ClassicHarness(offset_metadata_max_bytes=3)
    request = commit_request(GROUP, {0: 1, 1: 2}, metadata="four")
    request.topics[0].partitions[1].committed_metadata = "abc"
    response = harness.execute(request, 9).topics[0].partitions
    assert [one.error_code for one in response] == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert committed(harness) == {(TOPIC, 1): 2}


def test_commits_are_checked_against_members_and_generations() -> None:
    scenario = Scenario()
    harness = scenario.harness
    with codes(ErrorCode.GROUP_ID_NOT_FOUND):
        commit(harness, {0: 1}, generation=3, member="who")
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit(harness, {0: 1}, version=8, generation=3, member="who")
    assert commit(harness, {0: 1}) == [ErrorCode.NONE]  # a commit without a member creates the group
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit(harness, {0: 1}, generation=3, member="who")
    [a] = scenario.stable("a")
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit(harness, {0: 2})
    with codes(ErrorCode.ILLEGAL_GENERATION):
        commit(harness, {0: 2}, generation=0, member=a.id)
    with codes(ErrorCode.UNKNOWN_MEMBER_ID):
        commit(harness, {0: 2}, generation=1, member=a.id, instance="i")
    assert commit(harness, {0: 2}, generation=1, member=a.id) == [ErrorCode.NONE]
    a.leave()
    assert commit(harness, {0: 3}) == [ErrorCode.NONE]


def test_a_commit_keeps_the_session_alive() -> None:
    scenario = Scenario()
    [a] = scenario.stable("a")
    for _ in range(3):
        scenario.harness.pass_time(9000)
        a.commit(1)
    assert scenario.responses() == ["a commit: NONE"] * 3


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    scenario = Scenario()
    harness = scenario.harness
    harness.set_topics({TOPIC: 4, "clicks": 4})
    commit(harness, {0: 1})
    commit(harness, {0: 1}, topic="clicks")
    [a] = scenario.stable("a")
    assert delete_offsets(harness, TOPIC, "clicks") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert committed(harness) == {(TOPIC, 0): 1}
    a.leave()
    assert delete_offsets(harness, TOPIC) == [ErrorCode.NONE] and committed(harness) == {}
    with codes(ErrorCode.GROUP_ID_NOT_FOUND):
        delete_offsets(harness, TOPIC, group="nobody")


def test_deleting_offsets_of_a_non_consumer_group_requires_it_to_be_empty() -> None:
    scenario = Scenario()
    commit(scenario.harness, {0: 1})
    scenario.member("a").join(kind="connect")
    scenario.harness.pass_time(0)
    with codes(ErrorCode.NON_EMPTY_GROUP):
        delete_offsets(scenario.harness, TOPIC)


def test_a_group_with_only_offsets_is_an_empty_classic_group() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 1})
    [listed] = list_groups(harness.shard, [], [])
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        GROUP,
        "",
        "Empty",
        "classic",
    )
    assert list_groups(harness.shard, ["STABLE"], []) == list_groups(harness.shard, [], ["consumer"]) == []
    assert list_groups(harness.shard, ["empty"], ["Classic"]) == [listed]
    assert describe_group(harness.shard, GROUP, 6).group_state == "Empty"


def test_deleting_a_group_deletes_its_offsets() -> None:
    scenario = Scenario()
    harness = scenario.harness
    [a] = scenario.stable("a")
    a.commit(1)
    with codes(ErrorCode.NON_EMPTY_GROUP):
        harness.execute(DeleteGroupsRequest([GROUP]), 2)
    a.leave()
    harness.execute(DeleteGroupsRequest([GROUP]), 2)
    assert harness.stored() == [] and committed(harness) == {}
    assert describe_group(harness.shard, GROUP, 5).group_state == "Dead"
    with codes(ErrorCode.GROUP_ID_NOT_FOUND):
        harness.execute(DeleteGroupsRequest([GROUP]), 2)


def test_offsets_of_a_simple_group_expire_by_commit_time() -> None:
    harness = ClassicHarness(**RETENTION)
    commit(harness, {0: 1})
    harness.pass_time(8 * MINUTE_MS)
    commit(harness, {1: 1})
    harness.pass_time(2 * MINUTE_MS)
    assert committed(harness) == {(TOPIC, 1): 1}
    harness.pass_time(8 * MINUTE_MS)
    assert committed(harness) == {} and harness.stored() == []


def test_offsets_expire_after_the_group_was_empty_for_the_retention_time() -> None:
    scenario = Scenario(**RETENTION)
    [a] = scenario.stable("a")
    a.commit(1)
    for _ in range(100):
        scenario.harness.pass_time(9000)
        a.beat()
    assert committed(scenario.harness) == {(TOPIC, 0): 1}  # offsets of a subscribed topic never expire
    a.leave()
    scenario.harness.pass_time(9 * MINUTE_MS)
    assert committed(scenario.harness) == {(TOPIC, 0): 1}
    scenario.harness.pass_time(2 * MINUTE_MS)
    assert committed(scenario.harness) == {} and scenario.harness.stored() == []
    assert len(scenario.harness.shard.classic.groups) == 0


def test_offsets_of_unsubscribed_topics_expire_in_a_live_group() -> None:
    scenario = Scenario(**RETENTION)
    commit(scenario.harness, {0: 1}, topic="clicks", topic_id=ZERO_UUID)
    [a] = scenario.stable("a")
    for _ in range(80):
        scenario.harness.pass_time(9000)
        a.commit(2)
    assert committed(scenario.harness) == {(TOPIC, 0): 2}


def test_the_retention_time_of_a_commit_overrides_the_broker_setting() -> None:
    harness = ClassicHarness(**RETENTION)
    request = commit_request(GROUP, {0: 1})
    request.retention_time_ms = 3 * MINUTE_MS
    harness.execute(request, 4)
    harness.pass_time(2 * MINUTE_MS)
    assert committed(harness)
    harness.pass_time(2 * MINUTE_MS)
    assert committed(harness) == {}


def test_empty_groups_without_offsets_are_removed() -> None:
    scenario = Scenario(**RETENTION)
    [a] = scenario.stable("a")
    a.leave()
    [record] = scenario.harness.stored()
    assert record.key == GroupMetadataKey(GROUP)
    scenario.harness.pass_time(2 * MINUTE_MS)
    assert scenario.harness.stored() == []


def test_an_expiry_sweep_writes_a_limited_number_of_records_per_turn() -> None:
    harness = ClassicHarness(**RETENTION)
    for group in range(3):
        commit(harness, dict.fromkeys(range(EXAMINED_PER_TURN), 1), group=f"g{group}")
    before = len(harness.journal.written)
    harness.now_ms += 10 * MINUTE_MS
    harness.runtime.tick(harness.now_ms)
    harness.settle()
    assert before < len(harness.journal.written) <= before + EXAMINED_PER_TURN
    harness.pass_time(1000)
    assert harness.stored() == []


def test_an_expiry_sweep_is_retried_after_a_refused_write() -> None:
    harness = ClassicHarness(**RETENTION)
    commit(harness, {0: 1})
    harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.pass_time(11 * MINUTE_MS)
    harness.journal.refusal = None
    assert committed(harness)
    harness.pass_time(2 * MINUTE_MS)
    assert committed(harness) == {}


def test_deleting_a_topic_deletes_its_offsets_but_not_those_of_its_successor() -> None:
    harness = ClassicHarness()
    old, new = TOPIC_ID, Uuid(b"n" * 16)
    commit(harness, {0: 1, 1: 1}, topic_id=old)
    commit(harness, {2: 1}, topic_id=ZERO_UUID)
    commit(harness, {3: 1}, topic_id=new)
    commit(harness, {0: 1}, topic="clicks")
    harness.execute(TopicsDeleted([TopicsDeleted.Topic(TOPIC, old)]), 0)
    harness.pass_time(1)
    assert committed(harness) == {(TOPIC, 3): 1, ("clicks", 0): 1}


def test_offsets_of_another_topic_id_are_not_returned() -> None:
    harness = ClassicHarness()
    commit(harness, {0: 1})
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics(TOPIC, Uuid(b"n" * 16), [0])]
    assert fetch(harness.shard, FetchGroup(GROUP, topics=topics)).topics[0].partitions[0].committed_offset == -1
