"""Images and the changes between them, built from records alone; a published image never changes."""

from __future__ import annotations

from headrace.base.ids import TopicPartition, Uuid
from headrace.metadata.image import TOPIC_CONFIG, Image
from headrace.metadata.loader import Changes, MetadataLoader
from headrace.metadata.records import decode_record, encode_record
from headrace.protocol.messages.stored.metadata_brokers import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord, FeatureLevelRecord, NoOpRecord
from headrace.protocol.messages.stored.metadata_topics import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)


class RecordingPublisher(list[tuple[Image, Image, Changes]]):
    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        self.append((old, new, changes))


def partition(topic_id: Uuid, index: int, leader: int = 1) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=[1],
        isr=[1],
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=[Uuid(b"d" * 16)],
    )


def load_topic() -> tuple[MetadataLoader, RecordingPublisher]:
    seen = RecordingPublisher()
    loader = MetadataLoader([seen])
    loader.apply([TopicRecord(name="t", topic_id=A), partition(A, 0), partition(A, 1)], 2, 1)
    return loader, seen


def test_an_image_finds_topics_by_name_and_id() -> None:
    loader, seen = load_topic()
    image = loader.image
    assert image.offset == 2 and image.topic_by_id(A) is image.topics["t"] and len(image.topics["t"].partitions) == 2
    assert image.partition("t", 1).leader == 1 and image.partition("t", 2) is None and image.partition("x", 0) is None
    assert seen[0][2].topics == ("t",)


def test_a_partition_change_leaves_earlier_images_unchanged() -> None:
    loader, seen = load_topic()
    before = loader.image
    loader.apply([PartitionChangeRecord(partition_id=1, topic_id=A, leader=-1, isr=[])], 3, 1)
    assert before.partition("t", 1).leader == 1
    after = loader.image.partition("t", 1)
    assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (-1, (), 1, 1)
    loader.apply([PartitionChangeRecord(partition_id=1, topic_id=A, isr=[1])], 4, 1)
    assert (loader.image.partition("t", 1).leader_epoch, loader.image.partition("t", 1).partition_epoch) == (1, 2)
    assert seen[-1][2].topics == ("t",) and loader.image.brokers is before.brokers


def test_a_topic_can_be_deleted_and_recreated_in_one_batch() -> None:
    loader, seen = load_topic()
    loader.apply([RemoveTopicRecord(topic_id=A), TopicRecord(name="t", topic_id=B), partition(B, 0)], 5, 1)
    assert loader.image.topics["t"].id == B and len(loader.image.topics["t"].partitions) == 1
    assert seen[-1][2].deleted_topics == (("t", A),) and seen[-1][2].topics == ("t",)
    loader.apply([RemoveTopicRecord(topic_id=B)], 6, 1)
    assert not loader.image.topics and not loader.image.topic_names


def test_images_include_configs_features_and_unfenced_brokers() -> None:
    loader, seen = load_topic()
    config = ConfigRecord(resource_type=TOPIC_CONFIG, resource_name="t", name="retention.ms", value="1")
    loader.apply([config, FeatureLevelRecord(name="metadata.version", feature_level=30)], 3, 1)
    assert loader.image.config(TOPIC_CONFIG, "t") == {"retention.ms": "1"} and loader.image.features == {
        "metadata.version": 30
    }
    assert seen[-1][2].configs == ((TOPIC_CONFIG, "t"),)
    config.value = None
    loader.apply([config], 4, 1)
    assert loader.image.config(TOPIC_CONFIG, "t") == {}
    loader.apply([RegisterBrokerRecord(broker_id=7, broker_epoch=5, incarnation_id=A)], 5, 1)
    assert loader.image.live_brokers() == []
    loader.apply([BrokerRegistrationChangeRecord(broker_id=7, broker_epoch=5, fenced=-1)], 6, 1)
    assert [broker.id for broker in loader.image.live_brokers()] == [7]


def test_metadata_records_round_trip_through_encoding() -> None:
    for record in (
        partition(A, 3),
        NoOpRecord(),
        RegisterBrokerRecord(broker_id=1, incarnation_id=A, rack=None, log_dirs=[B]),
    ):
        assert decode_record(encode_record(record)) == record


def test_a_change_names_the_partitions_that_it_concerns() -> None:
    loader, seen = load_topic()
    assert seen[-1][2].partitions == (TopicPartition("t", 0), TopicPartition("t", 1))
    others = loader.image.partition("t", 0)
    loader.apply([PartitionChangeRecord(partition_id=1, topic_id=A, isr=[])], 3, 1)
    changes = seen[-1][2]
    assert (changes.topics, changes.partitions) == (("t",), (TopicPartition("t", 1),))
    assert loader.image.partition("t", 0) is others
    loader.apply([RemoveTopicRecord(topic_id=A)], 4, 1)
    assert seen[-1][2].partitions == ()
