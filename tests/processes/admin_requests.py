"""Admin requests, mostly invalid ones, that real Kafka and Headrace must respond to alike, each with its version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.protocol.apis import APIS, ApiKey

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
VersionedRequest = tuple[Any, int]


def of(key: ApiKey, /, **fields: Any) -> Any:
    return APIS[key].request(**fields)


def part(key: ApiKey, struct: str, /, **fields: Any) -> Any:
    return getattr(APIS[key].request, struct)(**fields)


def alter(*resources: Any, validate_only: bool = False) -> VersionedRequest:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    return of(
        key,
        validate_only=validate_only,
        resources=[
            part(
                key,
                "AlterConfigsResource",
                resource_type=kind,
                resource_name=name,
                configs=[
                    part(key, "AlterableConfig", name=option, config_operation=operation, value=value)
                    for option, operation, value in changes
                ],
            )
            for kind, name, changes in resources
        ],
    ), 1


def replace(kind: int, name: str, *options: tuple[str, str | None]) -> VersionedRequest:
    key = ApiKey.ALTER_CONFIGS
    configs = [part(key, "AlterableConfig", name=option, value=value) for option, value in options]
    resource = part(key, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)
    return of(key, resources=[resource]), 2


def describe(kind: int, name: str, *keys: str, version: int = 4) -> VersionedRequest:
    key = ApiKey.DESCRIBE_CONFIGS
    resource = part(
        key, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    return of(key, include_synonyms=True, resources=[resource]), version


def create(
    name: str, partitions: int = 1, factor: int = 1, options: Any = (), assignment: Any = (), **more: Any
) -> VersionedRequest:
    key = ApiKey.CREATE_TOPICS
    topic = part(
        key,
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[part(key, "CreatableTopicConfig", name=option, value=value) for option, value in options],
        assignments=[
            part(key, "CreatableReplicaAssignment", partition_index=index, broker_ids=brokers)
            for index, brokers in assignment
        ],
    )
    return of(key, topics=[topic], timeout_ms=10_000, **more), 7


def topic_options() -> Iterator[VersionedRequest]:
    for name, value in (
        ("nokey", "1"), ("retention.ms", "x"), ("retention.ms", "-2"), ("retention.ms", "7"), ("message.timestamp.type", "x"),
        ("cleanup.policy", "x"), ("cleanup.policy", "compact,delete"), ("compression.gzip.level", "0"), ("preallocate", "no"),
        ("min.cleanable.dirty.ratio", "2"), ("min.cleanable.dirty.ratio", "a"), ("min.insync.replicas", "0"),
        ("leader.replication.throttled.replicas", "a"), ("leader.replication.throttled.replicas", "*"),
        ("segment.bytes", "99999999999999"), ("segment.bytes", "1000"), ("remote.storage.enable", "true"),
        ("max.message.bytes", " 5000 "), ("unclean.leader.election.enable", "TRUE"), ("internal.segment.bytes", "100000"),
    ):  # fmt: skip
        yield alter((TOPIC, "one", [(name, SET, value)]), validate_only=True)
        yield alter((TOPIC, "one", [(name, SET, value)]))
    yield alter((TOPIC, "one", [("min.compaction.lag.ms", SET, "100"), ("max.compaction.lag.ms", SET, "50")]))
    yield describe(TOPIC, "one")
    for operation in (SUBTRACT, APPEND):
        yield alter((TOPIC, "one", [("retention.ms", operation, "1")]))
        yield alter((TOPIC, "one", [("cleanup.policy", operation, "compact")]))
        yield describe(TOPIC, "one", "cleanup.policy")
    yield alter((TOPIC, "one", [("retention.ms", SET, None)]))
    yield alter((TOPIC, "one", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]))
    yield alter((TOPIC, "one", [("flush.ms", DELETE, None), ("zzz", DELETE, None)]))
    yield alter((TOPIC, "one", []), (TOPIC, "one", []))
    for name in ("nope", "", "a b"):
        yield alter((TOPIC, name, [("retention.ms", SET, "1")]))
        yield describe(TOPIC, name)
    yield alter((3, "one", [("a", SET, "1")]))
    yield replace(TOPIC, "one", ("retention.ms", "9"))
    yield replace(TOPIC, "one", ("retention.ms", None))
    yield describe(TOPIC, "one")
    yield describe(TOPIC, "one", "retention.ms", version=1)


def broker_options() -> Iterator[VersionedRequest]:
    for broker in ("1", "", "2", "x", "-1"):
        yield alter((BROKER, broker, [("log.retention.ms", SET, "100000")]))
    for broker, name, value in (
        ("1", "num.partitions", "3"), ("", "listeners", "PLAINTEXT://:1"), ("", "log.retention.ms", "a"),
        ("", "message.max.bytes", "-1"), ("1", "min.insync.replicas", "1"), ("", "min.insync.replicas", "1"),
        ("", "num.io.threads", "100"), ("1", "num.io.threads", "2"), ("1", "num.io.threads", "9"), ("", "max.connections", "999"),
        ("1", "cordoned.log.dirs", "/nope"), ("", "cordoned.log.dirs", "*"), ("1", "ssl.keystore.location", "/x"),
        ("1", "leader.replication.throttled.rate", "1000"), ("1", "log.cleanup.policy", "compact"),
    ):  # fmt: skip
        yield alter((BROKER, broker, [(name, SET, value)]))
    yield alter((BROKER, "", [("min.insync.replicas", DELETE, None)]))
    yield alter((BROKER, "1", [("log.cleanup.policy", APPEND, "delete")]))
    yield alter((BROKER, "1", [("log.retention.ms", APPEND, "1")]))
    yield alter((BROKER, "1", [("blub", APPEND, "1")]))
    yield describe(BROKER, "")
    yield describe(
        BROKER, "1", "log.retention.ms", "log.retention.hours", "min.insync.replicas", "num.io.threads", "log.cleanup.policy",
        "node.id", "broker.id", "leader.replication.throttled.rate", "log.flush.interval.ms", "ssl.keystore.password",
        "max.connections",
    )  # fmt: skip
    yield describe(TOPIC, "two", "retention.ms", "min.insync.replicas", "cleanup.policy", "flush.ms", "segment.ms")
    for kind, name in ((BROKER, "2"), (BROKER, "x"), (LOGGER, ""), (LOGGER, "2"), (METRICS, ""), (GROUP, "")):
        yield describe(kind, name)
    yield alter((LOGGER, "1", [("no.such", SET, "DEBUG")]))
    yield alter((LOGGER, "1", [("root", APPEND, "DEBUG")]))
    yield alter((LOGGER, "2", [("root", SET, "DEBUG")]))
    yield alter((LOGGER, "1", [("root", DELETE, None)]))
    yield replace(BROKER, "", ("log.retention.ms", "5000"))
    yield replace(LOGGER, "1", ("root", "DEBUG"))


def other_options() -> Iterator[VersionedRequest]:
    for name, option, value in (
        ("m", "interval.ms", "1000"), ("m", "interval.ms", "10"), ("m", "interval.ms", "a"), ("m", "match", "foo=bar"),
        ("m", "match", "client_id=["), ("m", "match", "client_id"), ("m", "zzz", "1"), ("", "interval.ms", "1000"),
        ("m", "match", "client_id=a.*"),
    ):  # fmt: skip
        yield alter((METRICS, name, [(option, SET, value)]))
    yield alter((METRICS, "m", [("metrics", APPEND, "b")]))
    yield describe(METRICS, "m")
    yield describe(METRICS, "unknown")
    for option, value in (
        ("consumer.session.timeout.ms", "50000"), ("consumer.session.timeout.ms", "10"),
        ("consumer.session.timeout.ms", "99999999"), ("consumer.heartbeat.interval.ms", "1"), ("zz", "1"),
        ("share.auto.offset.reset", "x"), ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.auto.offset.reset", "by_duration:-PT1H"), ("share.isolation.level", "x"),
        ("share.record.lock.duration.ms", "1000000"), ("share.delivery.count.limit", "50"),
        ("streams.num.standby.replicas", "5"), ("share.partition.max.record.locks", "50000"),
        ("streams.session.timeout.ms", "5"), ("share.heartbeat.interval.ms", "50000"),
    ):  # fmt: skip
        yield alter((GROUP, "g", [(option, SET, value)]))
    yield alter((GROUP, "", [("consumer.session.timeout.ms", SET, "50000")]))
    yield describe(GROUP, "g")
    for version, types in ((0, []), (1, []), (1, [TOPIC, METRICS]), (1, [3])):
        yield of(ApiKey.LIST_CONFIG_RESOURCES, resource_types=types), version


def topics() -> Iterator[VersionedRequest]:
    twice = create("twice")[0]
    twice.topics *= 2
    yield twice, 7
    for name in ("one", "a b", ".", "", "x" * 250, "__cluster_metadata"):
        yield create(name)
    yield create("a.b")
    yield create("a_b")
    for partitions, factor in ((1, 2), (1, 0), (0, 1), (-2, 1), (10_001, 1)):
        yield create("counts", partitions, factor, validate_only=True)
    for option in (("retention.ms", None), ("retention.ms", "x"), ("zz", "x")):
        yield create("optional", options=[option])
    yield create("optional", options=[("retention.ms", "5")])
    by_hand: tuple[list[tuple[int, list[int]]], ...] = (
        [(0, [1]), (2, [1])], [(0, [7])], [(0, [1, 1])], [(0, [])], [(0, [1]), (0, [1])], [(0, [1]), (1, [1, 2])],
    )  # fmt: skip
    for assignment in by_hand:
        yield create("by-hand", -1, -1, assignment=assignment)
    yield create("by-hand", 1, 1, assignment=[(0, [1])])
    for name, count, hand in (
        ("two", 2, None), ("two", 1, None), ("nope", 3, None), ("two", 4, [[1]]), ("two", 3, [[3]]), ("two", 3, [[1, 1]]),
        ("two", 3, [[]]), ("two", -1, None), ("two", 3, None), ("two", 4, [[1]]),
    ):  # fmt: skip
        key = ApiKey.CREATE_PARTITIONS
        assignments = (
            None if hand is None else [part(key, "CreatePartitionsAssignment", broker_ids=ids) for ids in hand]
        )
        topic = part(key, "CreatePartitionsTopic", name=name, count=count, assignments=assignments)
        yield of(key, topics=[topic], timeout_ms=10_000), 3
    state = APIS[ApiKey.DELETE_TOPICS].request.DeleteTopicState  # type: ignore[attr-defined]
    for wanted in (
        [state(name="nope")],
        [state(name="nope")] * 2,
        [state(name=None)],
        [state(name="one", topic_id=b"x" * 16)],
    ):
        yield of(ApiKey.DELETE_TOPICS, topics=wanted, timeout_ms=5_000), 6
    yield of(ApiKey.DELETE_TOPICS, topic_names=["nope"], timeout_ms=5_000), 1


def partitions() -> Iterator[VersionedRequest]:
    key = ApiKey.ELECT_LEADERS
    for kind, wanted in ((0, None), (0, [("one", [0, 9]), ("nope", [0])]), (1, [("one", [0])]), (7, [("one", [0])])):
        named = None if wanted is None else [part(key, "TopicPartitions", topic=t, partitions=p) for t, p in wanted]
        yield of(key, election_type=kind, topic_partitions=named, timeout_ms=10_000), 2
    yield of(ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=None), 0
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    for name, index, replicas in (
        ("one", 0, [1]), ("one", 0, [2]), ("one", 0, None), ("nope", 0, [1]), ("one", 9, [1]), ("one", 0, []), ("one", 0, [1, 1]),
    ):  # fmt: skip
        moved = part(key, "ReassignablePartition", partition_index=index, replicas=replicas)
        yield of(key, topics=[part(key, "ReassignableTopic", name=name, partitions=[moved])]), 1
    for feature, level, kind in (
        ("metadata.version", 29, 1), ("metadata.version", 29, 2), ("metadata.version", 29, 3), ("metadata.version", 30, 1),
        ("metadata.version", 99, 1), ("nope", 1, 1), ("nope", 0, 2), ("group.version", -1, 1), ("group.version", 1, 0),
        ("eligible.leader.replicas.version", 0, 2), ("transaction.version", 3, 1),
    ):  # fmt: skip
        update = part(
            ApiKey.UPDATE_FEATURES, "FeatureUpdateKey", feature=feature, max_version_level=level, upgrade_type=kind
        )
        yield of(ApiKey.UPDATE_FEATURES, feature_updates=[update], validate_only=True), 2
    yield of(ApiKey.UNREGISTER_BROKER, broker_id=9), 0
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    for names, limit, cursor in (
        ([], 2000, None), (["two", "one"], 2, None), (["two", "one"], 3, ("two", 1)), (["nope", "a b", "one"], 9, None),
        (["one", "one"], 9, None), ([], 1, ("ona", 0)), (["one"], 9, ("one", 50)), ([], 0, None), ([], -1, None),
    ):  # fmt: skip
        at = None if cursor is None else part(key, "Cursor", topic_name=cursor[0], partition_index=cursor[1])
        wanted = [part(key, "TopicRequest", name=name) for name in names]
        yield of(key, topics=wanted, response_partition_limit=limit, cursor=at), 0


def logs() -> Iterator[VersionedRequest]:
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    for name, index, current, epoch in (
        ("one", 0, -1, 0), ("one", 0, 0, 0), ("one", 0, 5, 0), ("one", 0, -1, 5), ("one", 0, -1, -1), ("one", 9, -1, 0),
        ("nope", 0, -1, 0),
    ):  # fmt: skip
        wanted = part(
            key, "OffsetForLeaderPartition", partition=index, current_leader_epoch=current, leader_epoch=epoch
        )
        yield of(key, replica_id=-1, topics=[part(key, "OffsetForLeaderTopic", topic=name, partitions=[wanted])]), 4
    key = ApiKey.DELETE_RECORDS
    for name, index, offset in (
        ("one", 0, 0),
        ("one", 0, -1),
        ("one", 0, -2),
        ("one", 0, 5),
        ("nope", 0, 0),
        ("one", 77, 0),
    ):
        wanted = part(key, "DeleteRecordsPartition", partition_index=index, offset=offset)
        yield of(key, timeout_ms=2_000, topics=[part(key, "DeleteRecordsTopic", name=name, partitions=[wanted])]), 2
    key = ApiKey.ALTER_REPLICA_LOG_DIRS
    for name in ("one", "nope"):
        topic = part(key, "AlterReplicaLogDirTopic", name=name, partitions=[0])
        yield of(key, dirs=[part(key, "AlterReplicaLogDir", path="/nowhere", topics=[topic])]), 2
    key = ApiKey.DESCRIBE_CLIENT_QUOTAS
    for parts in (
        [], [("user", 2, None)], [("user", 0, "bob")], [("blub", 0, "bob")], [("", 0, "bob")], [("user", 5, "bob")],
        [("user", 2, None)] * 2, [("user", 2, None), ("ip", 2, None)], [("user", 1, "x")], [("user", 0, None)],
    ):  # fmt: skip
        wanted = [
            part(key, "ComponentData", entity_type=kind, match_type=how, match=match) for kind, how, match in parts
        ]
        yield of(key, components=wanted), 1


def all_requests() -> Iterator[VersionedRequest]:
    yield create("one", 1)
    yield create("two", 2)
    for group in (topics, topic_options, broker_options, other_options, partitions, logs):
        yield from group()
