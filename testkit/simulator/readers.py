"""Simulated readers: one follows from the beginning, one reads at random offsets, one looks up offsets."""

from __future__ import annotations

from random import Random

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from headrace.records.batch import CorruptBatch
from testkit.simulator.clients import (
    BACKOFF_S,
    LOST,
    REQUEST_TIMEOUT_S,
    Client,
    Read,
    World,
    raise_for,
    read_batches,
)

LATEST, MAX_TIMESTAMP = -1, -3
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCH_WAIT_MS = 200
FETCH_BYTES = (1, 300, 2_000, 50_000, 1_000_000)
VERSIONS = (8, 11, 12, 13, 18)
PACE_S = 0.1
CORRUPT = "CORRUPT"  # error in the history: a batch with a wrong checksum or structure, which no broker may send

Data = FetchResponse.PartitionData


class Reader(Client):
    isolation_level = READ_UNCOMMITTED
    sends_leader_epoch = False  # as clients of a cluster do: a replica that no longer leads then refuses the fetch

    def __init__(self, name: str, world: World, random: Random, topic: str, partitions: int) -> None:
        super().__init__(name, world, random)
        self.topic = topic
        self.place = topic
        self.partitions = partitions
        self._version = random.choice(VERSIONS)

    async def fetch(self, connection: Connection, positions: dict[int, int], wait_ms: int, size: int) -> list[Data]:
        """Return the data of each partition; raise KafkaError if the whole request fails."""
        topic = FetchRequest.FetchTopic(
            topic=self.topic,
            topic_id=self.cluster.topic_id(self.topic),
            partitions=[
                FetchRequest.FetchPartition(
                    partition=index,
                    current_leader_epoch=self._leader_epoch(index),
                    fetch_offset=position,
                    partition_max_bytes=size,
                )
                for index, position in positions.items()
            ],
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max(size, 1000),
            isolation_level=self.isolation_level,
            topics=[topic],
        )
        response: FetchResponse = await connection.request(request, version=self._version, timeout_s=REQUEST_TIMEOUT_S)
        raise_for(response.error_code, "Fetch")
        return response.responses[0].partitions if response.responses else []

    def _leader_epoch(self, partition: int) -> int:
        return self.cluster.leader_epoch(TopicPartition(self.topic, partition)) if self.sends_leader_epoch else -1

    async def refresh(self) -> None:
        try:
            await self.cluster.refresh([self.topic])
        except (*LOST, KafkaError):
            return

    async def list_offset(self, partition: int, timestamp: int) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
        connection = await self.leader(TopicPartition(self.topic, partition))
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=self.topic, partitions=[wanted])
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=self.isolation_level, topics=[topic], timeout_ms=1000
        )
        response: ListOffsetsResponse = await connection.request(request, timeout_s=REQUEST_TIMEOUT_S)
        found = response.topics[0].partitions[0]
        raise_for(found.error_code, "ListOffsets")
        return found

    async def latest(self, partition: int) -> int:
        call = self.history.invoke(self.name, "latest", topic=self.place, partition=partition)
        try:
            found = await self.list_offset(partition, LATEST)
        except (*LOST, KafkaError) as error:
            self.history.info(call, error=str(error))
            raise
        self.history.ok(call, offset=found.offset)
        return found.offset

    def take(self, call: int, data: Data, position: int) -> list[Read] | None:
        """End a poll in the history and return its records; return None after an error."""
        code = ErrorCode(data.error_code)
        if code is not ErrorCode.NONE:
            self.history.fail(call, error=code.name)
            return None
        try:
            found = [read for read in read_batches(data.records or b"") if read.offset >= position]  # type: ignore[arg-type]
        except CorruptBatch as error:
            self.history.fail(call, error=CORRUPT, text=str(error))
            return None
        self.history.ok(call, records=[(read.offset, read.value) for read in found])
        return found

    def invoke_poll(self, partition: int, position: int) -> int:
        return self.history.invoke(self.name, "poll", topic=self.place, partition=partition, position=position)

    def seek(self, partition: int, position: int) -> None:
        call = self.history.invoke(self.name, "seek", topic=self.place, partition=partition, position=position)
        self.history.ok(call)


class FollowingReader(Reader):
    async def run(self) -> None:
        await self.find_topic(self.topic)
        positions = dict.fromkeys(range(self.partitions), 0)
        while not self.world.stopping:
            try:
                connection = await self.leader(TopicPartition(self.topic, 0))
                await self._poll(connection, positions)
            except LOST:
                await self.pause(BACKOFF_S)
            except KafkaError as error:
                assert error.code in RETRIABLE, error
                await self.pause(BACKOFF_S)
        await self.close()

    async def _poll(self, connection: Connection, positions: dict[int, int]) -> None:
        calls = {index: self.invoke_poll(index, position) for index, position in positions.items()}
        try:
            results = await self.fetch(connection, positions, FETCH_WAIT_MS, self.random.choice(FETCH_BYTES))
        except LOST as error:
            for call in calls.values():
                self.history.info(call, error=type(error).__name__)
            await connection.close()
            raise
        failed = False
        for data in results:
            index = data.partition_index
            found = self.take(calls.pop(index), data, positions[index])
            if found:
                positions[index] = found[-1].offset + 1
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                positions[index] = 0
                self.seek(index, 0)
            failed = failed or found is None
        for call in calls.values():
            self.history.info(call, error="not answered")
        if failed:
            await self.pause(BACKOFF_S)
            await self.cluster.refresh([self.topic])


class JumpingReader(Reader):
    """Reads at random offsets, mostly in the middle of a batch; the record at the offset must be returned."""

    async def run(self) -> None:
        await self.find_topic(self.topic)
        while not self.world.stopping:
            try:
                await self._jump(self.random.randrange(self.partitions))
            except LOST:
                await self.pause(BACKOFF_S)
            except KafkaError as error:
                assert error.code in RETRIABLE, error
                await self.pause(BACKOFF_S)
            await self.pause(PACE_S)
        await self.close()

    async def _jump(self, partition: int) -> None:
        end = await self.latest(partition)
        if end <= 0:
            return
        position = self.random.randrange(end)
        connection = await self.leader(TopicPartition(self.topic, partition))
        self.seek(partition, position)
        call = self.invoke_poll(partition, position)
        try:
            results = await self.fetch(connection, {partition: position}, 0, self.random.choice(FETCH_BYTES))
        except LOST as error:
            self.history.info(call, error=type(error).__name__)
            await connection.close()
            raise
        if not results:
            self.history.info(call, error="not answered")
            return
        found = self.take(call, results[0], position)
        if found == []:
            # The position was below the log end, and a fetch returns at least one batch.
            self.history.note("nothing there", reader=self.name, partition=partition, position=position, end=end)


class OffsetFinder(Reader):
    async def run(self) -> None:
        await self.find_topic(self.topic)
        while not self.world.stopping:
            try:
                await self._ask(self.random.randrange(self.partitions))
            except LOST:
                await self.pause(BACKOFF_S)
            except KafkaError as error:
                assert error.code in RETRIABLE, error
                await self.pause(BACKOFF_S)
            await self.pause(2 * PACE_S)
        await self.close()

    async def _ask(self, partition: int) -> None:
        await self.latest(partition)
        now_ms = self.world.clock.now_ms()
        timestamp = MAX_TIMESTAMP if self.random.random() < 0.2 else now_ms - self.random.randint(0, 5000)
        call = self.history.invoke(
            self.name, "offset_for_time", topic=self.place, partition=partition, timestamp=timestamp
        )
        try:
            found = await self.list_offset(partition, timestamp)
        except (*LOST, KafkaError) as error:
            self.history.info(call, error=str(error))
            raise
        self.history.ok(call, offset=found.offset, found_timestamp=found.timestamp)
