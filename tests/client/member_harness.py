"""Group members and topics for them to share, for tests against any cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headrace.base.ids import TopicPartition
from headrace.client.consumer.options import CONSUMER_OPTIONS
from headrace.client.group.classic_member import ClassicMember
from headrace.client.group.commits import Commits
from headrace.client.group.consumer_member import ConsumerMember
from headrace.client.group.membership import Subscription
from headrace.client.tasks import end_tasks
from headrace.client.wire.opening import client_values, open_cluster
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest

WAIT_S_MAX = 20.0
POLL_S = 0.05
# Sessions are so short that a test notices a member's death.
SHORT_TIMEOUTS = {
    "log.retention.ms": "-1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "2500",
    "group.consumer.session.timeout.ms": "2500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}
PROTOCOLS = {
    "range": {"partition.assignment.strategy": "range"},
    "sticky": {"partition.assignment.strategy": "sticky"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


class Application:
    """A group member that polls, accepts its assignment and records rebalance events."""

    def __init__(self, bootstrap: str, subscription: Subscription, **more: Any) -> None:
        given = {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "session.timeout.ms": 2500,
            "heartbeat.interval.ms": 100,
            "metadata.max.age.ms": 300,
            **more,
        }
        values = client_values(given, CONSUMER_OPTIONS)
        self._woken = asyncio.Event()
        self.cluster = open_cluster(values)
        self.commits = Commits(self.cluster, values)
        kind = ConsumerMember if values["group.protocol"] == "consumer" else ClassicMember
        self.member = kind(self.cluster, values, self)
        self.member.subscribe(subscription)
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []
        self.failure: Exception | None = None
        self.settled = False
        self.on_revoked: Callable[..., Any] | None = None
        self._polling: asyncio.Task[Any] | None = None

    # --- RebalanceListener

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        assert partitions <= self.member.assignment
        if self.on_revoked is not None:
            await self.on_revoked(partitions)
        self.events.append(("revoked", partitions))

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        assert partitions.isdisjoint(self.member.assignment)
        self.events.append(("lost", partitions))

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        assert partitions <= self.member.assignment
        self.events.append(("assigned", partitions))

    def wake(self) -> None:
        self._woken.set()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self.member.assignment

    def start(self) -> Application:
        self._polling = asyncio.create_task(self._poll_forever())
        return self

    async def _poll_forever(self) -> None:
        while True:
            try:
                self.settled = await self.member.poll(POLL_S)
            except Exception as error:
                self.failure = error
                return
            try:
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
                self._woken.clear()
            except TimeoutError:
                pass

    async def stop_polling(self) -> None:
        await end_tasks([self._polling])

    async def die(self) -> None:
        """Stop without leaving the group, as a killed process does."""
        await self.stop_polling()
        member = self.member
        classic = isinstance(member, ClassicMember)
        tasks = [*member._tasks, member._joining] if classic else [member._task]  # type: ignore[union-attr]
        await end_tasks(task for task in tasks if task is not None)
        await self.cluster.close()

    async def close(self, **how: Any) -> None:
        if self._polling is not None:
            await self.stop_polling()
        await self.member.leave(5.0, **how)
        await self.cluster.close()


@asynccontextmanager
async def applications(bootstrap: str, protocol: str) -> AsyncIterator[Callable[..., Any]]:
    """Yield a function that makes applications; kill them at the end."""
    made: list[Application] = []

    def make(*topics: str, pattern: str | None = None, **more: Any) -> Application:
        one = Application(bootstrap, Subscription(frozenset(topics), pattern), **{**PROTOCOLS[protocol], **more})
        made.append(one)
        return one.start()

    try:
        yield make
    finally:
        for one in made:
            await one.die()


async def until(condition: Callable[..., Any], what: str = "it") -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S_MAX
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come true"
        await asyncio.sleep(0.01)


def partitions(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, index) for index in range(count)}


def share(applications: Sequence[Application], wanted: set[TopicPartition]) -> bool:
    """Return whether the applications hold exactly the wanted partitions, none twice."""
    held = [one for application in applications for one in application.assignment]
    return len(held) == len(set(held)) and set(held) == set(wanted)


def share_evenly(applications: Sequence[Application], wanted: set[TopicPartition]) -> bool:
    sizes = [len(application.assignment) for application in applications]
    return share(applications, wanted) and max(sizes) - min(sizes) <= 1 and all(one.settled for one in applications)


async def make_topic(bootstrap: str, name: str, count: int) -> None:
    async with open_cluster(client_values({"bootstrap.servers": bootstrap}, CONSUMER_OPTIONS)) as cluster:
        topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        response = await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert response.topics[0].error_code == 0, response.topics[0]
        await cluster.partitions(name, create=True)  # waits until the topic is known; automatic creation is disabled


async def delete_topic(bootstrap: str, name: str) -> None:
    async with open_cluster(client_values({"bootstrap.servers": bootstrap}, CONSUMER_OPTIONS)) as cluster:
        topic = DeleteTopicsRequest.DeleteTopicState(name=name)
        response = await cluster.request(DeleteTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert response.responses[0].error_code == 0


async def grow_topic(bootstrap: str, name: str, count: int) -> None:
    async with open_cluster(client_values({"bootstrap.servers": bootstrap}, CONSUMER_OPTIONS)) as cluster:
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        response = await cluster.request(CreatePartitionsRequest(topics=[topic], timeout_ms=10_000))
        assert response.results[0].error_code == 0
