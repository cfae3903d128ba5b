"""What the admin client must do on any cluster, ours or Kafka's; each check creates its own topics at `bootstrap`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client import AsyncAdmin, AsyncConsumer, AsyncProducer, CommittedOffset, NewTopic
from headrace.client.admin.hanging_transactions import NotHanging
from headrace.client.admin.item_errors import ItemsFailed
from headrace.client.admin.transactions import TransactionFilter
from headrace.client.group.membership import GroupMetadata
from headrace.client.producer.transaction_requests import TransactionError

T0 = 1_700_000_000_000
WAIT_S_MAX = 20.0


def unique(prefix: str = "a") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def admin_of(bootstrap: str, **options: object) -> AsyncAdmin:
    return AsyncAdmin({"bootstrap.servers": bootstrap, **options})


async def write(bootstrap: str, topic: str, count: int, **options: object) -> None:
    async with AsyncProducer({"bootstrap.servers": bootstrap, **options}) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, timestamp_ms=T0 + number, partition=0)


async def until(check: Callable[..., Any], seconds: float = WAIT_S_MAX) -> None:
    """Poll until a change is visible; raise TimeoutError if it does not become so."""
    async with asyncio.timeout(seconds):
        while not await check():
            await asyncio.sleep(0.02)


async def topics(bootstrap: str) -> None:
    one, two = unique(), unique()
    async with admin_of(bootstrap) as admin:
        await admin.create_topics([NewTopic(one, 3, configs={"retention.ms": "1000000"}), two])
        await until(lambda: _exist(admin, {one, two}))
        described = await admin.describe_topics([one, two])
        assert [len(described[name].partitions) for name in (one, two)] == [3, 1]
        assert described[one].partitions[2].leader == (await admin.describe_cluster()).brokers[0].id
        with pytest.raises(ItemsFailed) as refused:
            await admin.create_topics([NewTopic(one), NewTopic("not a name"), NewTopic(f"{one}-new")])
        assert {name: error.code for name, error in refused.value.failures.items()} == {
            one: ErrorCode.TOPIC_ALREADY_EXISTS,
            "not a name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        await until(lambda: _exist(admin, {f"{one}-new"}))
        await admin.create_topics([f"{one}-not"], validate_only=True)
        await admin.create_partitions({one: 5})
        await until(lambda: _has_partitions(admin, one, 5))
        with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
            await admin.create_partitions({one: 4})
        broker = (await admin.describe_cluster()).brokers[0].id
        await admin.create_topics([NewTopic(f"{one}-placed", assignments=[[broker], [broker]])])
        await until(lambda: _has_partitions(admin, f"{one}-placed", 2))
        await admin.delete_topics([one, two])
        await until(lambda: _are_deleted(admin, {one, two, f"{one}-not"}))
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.delete_topics([one])
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.describe_topics([one])
        with pytest.raises(TypeError):
            await admin.delete_topics(one)


async def _exist(admin: AsyncAdmin, names: set[str]) -> bool:
    return names <= set(await admin.list_topics())


async def _are_deleted(admin: AsyncAdmin, names: set[str]) -> bool:
    return not names & set(await admin.list_topics())


async def _has_partitions(admin: AsyncAdmin, name: str, count: int) -> bool:
    try:
        return len((await admin.describe_topics([name]))[name].partitions) == count
    except KafkaError:
        return False


async def lists_offsets_and_deletes_records(bootstrap: str) -> None:
    topic = unique()
    here, there = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with admin_of(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 2)])
        await write(bootstrap, topic, 10)
        found = await admin.list_offsets({here: "latest", there: "earliest"})
        assert (found[here].offset, found[there].offset) == (10, 0)
        assert (await admin.list_offsets({here: T0 + 4}))[here][:2] == (4, T0 + 4)
        assert (await admin.list_offsets({here: "max_timestamp"}))[here][:2] == (9, T0 + 9)
        assert await admin.delete_records({here: 6}) == {here: 6}
        assert (await admin.list_offsets({here: "earliest"}))[here].offset == 6
        with pytest.raises(ItemsFailed, match="OFFSET_OUT_OF_RANGE"):
            await admin.delete_records({here: 99})
        with pytest.raises(ItemsFailed, match="UNKNOWN_TOPIC_OR_PARTITION") as refused:
            await admin.delete_records({here: -1, TopicPartition(topic, 7): 0})
        assert list(refused.value.failures) == [TopicPartition(topic, 7)]
        assert (await admin.list_offsets({here: "earliest"}))[here].offset == 10


async def options(bootstrap: str) -> None:
    topic = unique()
    async with admin_of(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, configs={"retention.ms": "7"})])

        async def retention_is_seven() -> bool:
            return (await admin.describe_configs("topic", topic))["retention.ms"].value == "7"

        async def both_are_changed() -> bool:
            found = await admin.describe_configs("topic", topic)
            return found["segment.bytes"].value == "2000000" and found["retention.ms"].value != "7"

        # A broker of Kafka replies before it has received the controller's decision.
        await until(retention_is_seven)
        await admin.alter_configs("topic", topic, {"retention.ms": None, "segment.bytes": "2000000"})
        await until(both_are_changed)
        await admin.alter_configs("topic", topic, {"segment.bytes": "3000000"}, validate_only=True)
        with pytest.raises(KafkaError, match="INVALID_CONFIG"):
            await admin.alter_configs("topic", topic, {"segment.bytes": "many"})
        broker = (await admin.describe_cluster()).brokers[0].id
        assert "log.dirs" in await admin.describe_configs("broker", str(broker))


async def groups_and_committed_offsets(bootstrap: str) -> None:
    topic, group = unique(), unique("g")
    here = TopicPartition(topic, 0)
    async with admin_of(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic)])
        await write(bootstrap, topic, 10)
        reading = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        async with AsyncConsumer(reading) as consumer:
            consumer.subscribe([topic])
            while not await consumer.poll(0.2):
                pass
            await consumer.commit()
            assert group in [one.group for one in await admin.list_groups(states=["Stable"])]
            described = await admin.describe_group(group)
            assert described.members[0].assigned == [here] and described.state == "Stable"
            with pytest.raises(ItemsFailed, match="NON_EMPTY_GROUP"):
                await admin.delete_groups([group])
            with pytest.raises(ItemsFailed, match="UNKNOWN_MEMBER_ID"):
                await admin.alter_committed_offsets(group, {here: 2})
            assert (await admin.committed_offsets(group))[here].offset == 10
        await admin.alter_committed_offsets(group, {here: 2})
        assert (await admin.committed_offsets(group))[here].offset == 2
        await admin.delete_committed_offsets(group, [here])
        assert await admin.committed_offsets(group) == {}
        await admin.delete_groups([group])
        with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
            await admin.describe_group(group)


async def transactions(bootstrap: str) -> None:
    topic, name = unique(), unique("tx")
    here = TopicPartition(topic, 0)
    async with admin_of(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic)])
        async with AsyncProducer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
            await producer.transaction.init()
            await producer.transaction.begin()
            await (await producer.send(topic, b"open"))
            [listed] = await admin.list_transactions(TransactionFilter(states=["Ongoing"]))
            assert listed.transactional_id == name
            assert (await admin.describe_transaction(name)).partitions == [here]
            [active] = await admin.describe_producers(here)
            assert active.start_offset == 0 and active.producer_id == listed.producer_id
            with pytest.raises(NotHanging):
                await admin.abort_transaction(here, 0)
            before = await admin.fence_producer(name)
            assert before.state == "Ongoing"
            offsets, group = {here: CommittedOffset(1)}, GroupMetadata(unique("g"))
            with pytest.raises(TransactionError):
                await producer.transaction.send_offsets(offsets, group)
        with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
            await admin.describe_transaction(f"{name}-not")


async def quotas(bootstrap: str) -> None:
    user = unique("u")
    async with admin_of(bootstrap) as admin:
        await admin.alter_quotas({"user": user}, {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0})

        async def rates() -> dict[str, float]:
            found = await admin.describe_quotas(["user"])
            return next((one.rates for one in found if one.entity == {"user": user}), {})

        async def both() -> bool:
            return await rates() == {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}

        async def one() -> bool:
            return await rates() == {"consumer_byte_rate": 2000.0}

        await until(both)
        await admin.alter_quotas({"user": user}, {"producer_byte_rate": None})
        await until(one)
        with pytest.raises(KafkaError):
            await admin.alter_quotas({"user": user}, {"no_such_rate": 1.0})


async def describes_the_cluster(bootstrap: str) -> None:
    async with admin_of(bootstrap) as admin:
        found = await admin.describe_cluster()
        assert found.id and found.controller == found.brokers[0].id
        assert f"{found.brokers[0].host}:{found.brokers[0].port}" == bootstrap
    with pytest.raises(KafkaError, match="SECURITY_DISABLED"):
        async with admin_of(bootstrap) as admin:
            await admin.describe_acls()


CHECKS = [
    topics,
    lists_offsets_and_deletes_records,
    options,
    groups_and_committed_offsets,
    transactions,
    describes_the_cluster,
]
KAFKA_ONLY = [quotas]  # Headrace does not serve AlterClientQuotas yet
