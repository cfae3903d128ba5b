"""Metadata state and the records that recreate it, metadata transactions, and records that this node does not use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import Uuid
from headrace.metadata.image import Image
from headrace.metadata.loader import Changes, MetadataLoader
from headrace.metadata.records import METADATA_VERSION_MAX, UnknownRecord, decode_record, encode_record
from headrace.metadata.snapshot import snapshot_records
from headrace.metadata.state import ClusterState, replay
from headrace.metadata.transactions import TransactionBuffer
from headrace.protocol.declare import Struct
from headrace.protocol.messages.stored.metadata_brokers import RegisterBrokerRecord, RegisterControllerRecord
from headrace.protocol.messages.stored.metadata_cluster import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    ProducerIdsRecord,
)
from headrace.protocol.messages.stored.metadata_security import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    UserScramCredentialRecord,
)
from headrace.protocol.messages.stored.metadata_topics import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

DIRECTORY = Uuid(b"d" * 16)


def topic(number: int, partitions: int) -> Iterator[Struct]:
    topic_id = Uuid(bytes([number]) * 16)
    yield TopicRecord(name=f"t{number}", topic_id=topic_id)
    for index in range(partitions):
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=[1, 2],
            isr=[1],
            leader=1,
            leader_epoch=index,
            partition_epoch=3,
            directories=[DIRECTORY, DIRECTORY],
            eligible_leader_replicas=[2] if index % 2 else None,
        )


ALL_RECORD_TYPES: list[Any] = [
    FeatureLevelRecord(name="metadata.version", feature_level=30),
    FeatureLevelRecord(name="group.version", feature_level=1),
    RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=Uuid(b"i" * 16),
        broker_epoch=5,
        end_points=[RegisterBrokerRecord.BrokerEndpoint(name="P", host="h", port=9092)],
        features=[RegisterBrokerRecord.BrokerFeature(name="metadata.version", max_supported_version=30)],
        rack="r",
        fenced=False,
        log_dirs=[DIRECTORY],
        cordoned_log_dirs=[DIRECTORY],
    ),
    RegisterControllerRecord(controller_id=1, incarnation_id=Uuid(b"c" * 16)),
    *topic(1, 3),
    ConfigRecord(resource_type=2, resource_name="t1", name="retention.ms", value="5"),
    ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="1"),
    ClientQuotaRecord(
        entity=[ClientQuotaRecord.EntityData(entity_type="user", entity_name=None)], key="producer_byte_rate", value=1.5
    ),
    ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=3000),
    AccessControlEntryRecord(id=Uuid(b"a" * 16), resource_type=2, resource_name="t1", principal="User:a", host="*"),
    UserScramCredentialRecord(name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096),
    DelegationTokenRecord(owner="User:a", token_id="t"),
    UnknownRecord(b"\x01\x7e\x00rest"),
]


def state_of(records: Sequence[Struct]) -> ClusterState:
    state = ClusterState(dict)
    for record in records:
        replay(state, record)
    return state


def test_a_snapshot_preserves_all_records_including_unknown_ones() -> None:
    state = state_of(ALL_RECORD_TYPES)
    written = [decode_record(encode_record(record)) for record in snapshot_records(state)]
    assert vars(state_of(written)) == vars(state)
    assert written[0] == FeatureLevelRecord(name="metadata.version", feature_level=30)
    assert written[-1] == UnknownRecord(b"\x01\x7e\x00rest")


def test_snapshots_are_encoded_for_older_metadata_versions() -> None:
    for level in (7, 8, 17, 23, 30):
        level_record = FeatureLevelRecord(name="metadata.version", feature_level=level)
        old = [record for record in ALL_RECORD_TYPES[1:] if not isinstance(record, TopicRecord | PartitionRecord)]
        state = state_of([level_record, *old])
        written = [decode_record(encode_record(record, level)) for record in snapshot_records(state)]
        again = state_of(written)
        assert again.features["metadata.version"] == level
        assert (again.brokers[1].log_dirs, again.brokers[1].cordoned_log_dirs) == (
            (DIRECTORY,) if level >= 17 else (),
            (DIRECTORY,) if level >= 30 else (),
        )
    assert METADATA_VERSION_MAX == 30


@st.composite
def histories(draw: st.DrawFn) -> list[Struct]:
    """Draw topic creations, changes and deletions, options and ACLs in an order that a controller could have written."""
    records: list[Struct] = [FeatureLevelRecord(name="metadata.version", feature_level=30)]
    alive: dict[int, int] = {}
    for _ in range(draw(st.integers(0, 25))):
        number = draw(st.integers(1, 4))
        topic_id = Uuid(bytes([number]) * 16)
        what = draw(st.sampled_from(["make", "drop", "change", "option", "acl", "no acl"]))
        if what == "make" and number not in alive:
            alive[number] = draw(st.integers(1, 3))
            records += topic(number, alive[number])
        elif what == "drop" and number in alive:
            del alive[number]
            records.append(RemoveTopicRecord(topic_id=topic_id))
        elif what == "change" and number in alive:
            leader = draw(st.sampled_from([-2, -1, 1, 2]))
            isr = draw(st.sampled_from([None, [], [1], [1, 2]]))
            records.append(PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=leader, isr=isr))
        elif what == "option":
            value = draw(st.sampled_from([None, "1", "2"]))
            records.append(ConfigRecord(resource_type=4, resource_name=str(number), name="a", value=value))
        elif what == "acl":
            records.append(AccessControlEntryRecord(id=topic_id, resource_name=f"t{number}"))
        elif what == "no acl":
            records.append(RemoveAccessControlEntryRecord(id=topic_id))
    return records


class RecordingPublisher(list[tuple[Image, Image, Changes]]):
    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        self.append((old, new, changes))


@settings(deadline=None, max_examples=80)
@given(histories(), st.data())
def test_adopting_a_snapshot_gives_the_image_of_the_log_and_exact_changes(
    records: list[Struct], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(records)))
    slow, fast, seen = MetadataLoader([]), MetadataLoader([]), RecordingPublisher()
    slow.apply(records, len(records), 1)
    fast = MetadataLoader([seen])
    fast.apply(records[:cut], cut, 1)
    state = fast.empty_state()
    for record in snapshot_records(state_of(records)):
        replay(state, record)
    fast.adopt(state, len(records), 1)
    assert fast.image == slow.image
    old, new, changes = seen[-1]
    assert set(changes.topics) == {name for name, one in new.topics.items() if old.topics.get(name) != one}
    gone = {(name, one.id) for name, one in old.topics.items() if one.id not in new.topic_names}
    assert set(changes.deleted_topics) == gone
    assert set(changes.acls) == {key for key in {**old.acls, **new.acls} if old.acls.get(key) != new.acls.get(key)}


def test_a_snapshot_is_not_published_while_more_records_follow() -> None:
    seen = RecordingPublisher()
    loader = MetadataLoader([seen])
    state = loader.empty_state()
    for record in topic(1, 1):
        replay(state, record)
    loader.adopt(state, 5, 1, more=True)
    assert seen == [] and loader.image.offset == -1
    loader.apply([RemoveTopicRecord(topic_id=Uuid(bytes([1]) * 16))], 6, 1)
    assert loader.image.topics == {} and seen[0][2].topics == ()


def test_a_metadata_transaction_is_applied_atomically() -> None:
    seen = RecordingPublisher()
    loader = MetadataLoader([seen])
    made = list(topic(1, 1))
    loader.apply([BeginTransactionRecord(name="x"), made[0]], 1, 1)
    assert seen == []
    loader.apply([made[1], EndTransactionRecord(), NoOpRecord()], 4, 1)
    assert list(loader.image.topics) == ["t1"] and loader.image.offset == 4
    loader.apply(
        [BeginTransactionRecord(), RemoveTopicRecord(topic_id=Uuid(bytes([1]) * 16)), AbortTransactionRecord()], 7, 1
    )
    assert list(loader.image.topics) == ["t1"] and loader.image.offset == 7


@pytest.mark.parametrize(
    "records",
    [
        [EndTransactionRecord()],
        [AbortTransactionRecord()],
        [BeginTransactionRecord(), BeginTransactionRecord()],
    ],
)
def test_unbalanced_transaction_records_are_corrupt(records: list[Struct]) -> None:
    buffer = TransactionBuffer()
    with pytest.raises(CorruptData):
        for record in records:
            buffer.admit(record)


def test_kraft_version_levels_are_ignored_and_level_zero_removes_a_feature() -> None:
    state = state_of(
        [
            FeatureLevelRecord(name="kraft.version", feature_level=1),
            FeatureLevelRecord(name="group.version", feature_level=1),
            FeatureLevelRecord(name="group.version", feature_level=0),
        ]
    )
    assert state.features == {}
