"""A simulated operator that creates topics, writes a little to them, deletes them, and reuses their names."""

from __future__ import annotations

from random import Random

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from testkit.simulator.clients import BACKOFF_S, LOST, Client, World, read_batches
from testkit.simulator.producers import PlainProducer
from testkit.simulator.readers import Reader

PACE_S = 0.8
CHURN_BATCHES = 3
PARTITIONS_MAX = 2
READS, READ_WAIT_MS, READ_BYTES = 8, 5, 100_000


async def create_topic(
    client: Client, topic: str, partitions: int, options: dict[str, str], replicas: int = 1
) -> str | None:
    """Create a topic and return its id; return None if it was refused or the outcome is unknown.

    Errors, lost connections included, are recorded in the history and not raised.
    """
    configs = [CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in options.items()]
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=replicas, configs=configs
    )
    call = client.history.invoke(client.name, "create_topic", topic=topic)
    try:
        response: CreateTopicsResponse = await client.cluster.request(CreateTopicsRequest(topics=[wanted]))
    except LOST as error:
        client.history.info(call, error=type(error).__name__)
        return None
    made = response.topics[0]
    code = ErrorCode(made.error_code)
    if code is ErrorCode.NONE:
        client.history.ok(call, id=made.topic_id.hex())
        return made.topic_id.hex()
    # A controller may return a retriable code after it has written the topic.
    end = client.history.info if code in RETRIABLE else client.history.fail
    end(call, error=code.name)
    return None


class Operator(Client):
    def __init__(self, name: str, world: World, random: Random, topics: int, replicas: int = 1) -> None:
        super().__init__(name, world, random)
        self._topics = topics
        self._replicas = replicas

    async def run(self) -> None:
        while not self.world.stopping:
            topic = f"churn-{self.random.randrange(self._topics)}"
            partitions = self.random.randint(1, PARTITIONS_MAX)
            options = {"internal.segment.bytes": "4000"}
            topic_id = await create_topic(self, topic, partitions, options, self._replicas)
            if topic_id is not None:
                await self._use(topic, topic_id, partitions)
            if self.random.random() < 0.7:
                reading = self.world.loop.create_task(self._read(topic))
                await self._delete(topic)
                await reading
            await self.pause(PACE_S)
        await self.close()

    async def _use(self, topic: str, topic_id: str, partitions: int) -> None:
        name = f"{self.name}-{topic}-{topic_id[:8]}"
        producer = PlainProducer(name, self.world, self.random, topic, CHURN_BATCHES, -1, partitions)
        producer.place = f"{topic}/{topic_id}"
        await producer.run()

    async def _read(self, topic: str) -> None:
        """Read while the topic is deleted: any error is allowed, but no corrupt records."""
        reader = Reader(f"{self.name}-reader", self.world, self.random, topic, PARTITIONS_MAX)
        try:
            partitions = await reader.cluster.partitions(topic)
            connection = await reader.leader(TopicPartition(topic, partitions[0]))
            for _ in range(READS):
                for data in await reader.fetch(connection, dict.fromkeys(partitions, 0), READ_WAIT_MS, READ_BYTES):
                    read_batches(data.records or b"")  # type: ignore[arg-type]
        except (*LOST, KafkaError):
            pass
        await reader.close()

    async def _delete(self, topic: str) -> None:
        try:
            found = (await self.cluster.refresh([topic])).topics[0]
        except (*LOST, KafkaError):
            await self.pause(BACKOFF_S)
            return
        if found.error_code != ErrorCode.NONE:
            return
        state = DeleteTopicsRequest.DeleteTopicState(topic_id=found.topic_id)
        call = self.history.invoke(self.name, "delete_topic", topic=topic, id=found.topic_id.hex())
        try:
            response: DeleteTopicsResponse = await self.cluster.request(
                DeleteTopicsRequest(topics=[state], timeout_ms=1000)
            )
        except LOST as error:
            self.history.info(call, error=type(error).__name__)
            return
        code = ErrorCode(response.responses[0].error_code)
        if code is ErrorCode.NONE:
            self.history.ok(call)
        elif code in RETRIABLE:
            self.history.info(call, error=code.name)
        else:
            self.history.fail(call, error=code.name)
