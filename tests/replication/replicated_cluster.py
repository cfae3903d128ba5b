"""Three brokers with one partition on a simulated event loop, connected in memory, and a model of the controller.

Each broker is a real `Replicas` with the real fetchers, the real sender of AlterPartition and the real APIs for Produce and Fetch;
requests are encoded and decoded. The controller, the metadata log and the network are models that can fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from msgspec.structs import replace
from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import Process, SimulatedLoop
from tests.fakes import FakeClock

from headrace.api.data.delete_records import DeleteRecordsApi
from headrace.api.data.fetch import FetchApi
from headrace.api.data.list_offsets import ListOffsetsApi
from headrace.api.data.produce import ProduceApi
from headrace.api.table import Api, make_table
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NO_NODE, NodeId, TopicPartition, Uuid
from headrace.base.metrics import Metrics
from headrace.base.promise import Promise
from headrace.broker.channels.broker_channel import SHARED_LANE
from headrace.broker.fetching.fetch_sessions import FetchSessions
from headrace.broker.fetching.followed import FetchOptions, FollowerIdentity
from headrace.broker.fetching.replica_fetchers import ReplicaFetchers
from headrace.broker.membership.alter_partitions import AlterPartitions
from headrace.client.wire.connection import Disconnected
from headrace.client.wire.frames import decode_response, encode_request
from headrace.metadata.image import TOPIC_CONFIG, UNASSIGNED, Broker, Image, Topic
from headrace.metadata.image import Partition as PartitionState
from headrace.metadata.loader import Changes
from headrace.options.table import LONG_MAX
from headrace.options.topic_options import topic_defaults
from headrace.protocol.apis import APIS
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.batch import iterate_batches
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.replication.directories import Directories
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.server.authority import ALLOW_ALL
from headrace.server.context import Peer
from headrace.server.dispatch import Dispatcher
from headrace.server.frames import Deferred
from headrace.server.response_writer import joined
from headrace.storage.checkpoints import LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, MetaProperties
from headrace.storage.log_dirs import LogDir, open_usable_log_dirs

NOW_MS = 1_700_000_000_000
NODES = (1, 2, 3)
NAME = TopicPartition("t", 0)
TOPIC_ID = Uuid(b"t" * 16)
LAG_MS_MAX = 400
CLOSED_LINKS = 0.1  # how often a link has to be opened before a request
OPTIONS = FetchOptions(wait_ms=100, backoff_ms=20)


class ModelController:
    """Decides about one partition as the controller does; brokers read its metadata log late, but in order."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self.cluster = cluster
        self.brokers = {node: _broker(node, epoch=node, fenced=True) for node in NODES}
        self.partition = PartitionState(NODES, NODES, NO_NODE, 0, 0, (UNASSIGNED,) * len(NODES))
        self.log: list[tuple[dict[int, Broker], PartitionState]] = []
        self.next_epoch = 10

    def append(self) -> None:
        self.log.append((dict(self.brokers), self.partition))
        self.cluster.metadata_changed()

    def change(self, isr: tuple[int, ...], leader: int) -> None:
        old = self.partition
        bump = leader != old.leader
        self.partition = replace(
            old, isr=isr, leader=leader, leader_epoch=old.leader_epoch + bump, partition_epoch=old.partition_epoch + 1
        )

    def elect(self, leader: int | None = None) -> None:
        """Elect a live member of the ISR, which is a new leader epoch even if it is the same broker."""
        live = [node for node in self.partition.isr if not self.brokers[node].fenced]
        chosen = leader if leader in live else next(iter(live), NO_NODE)
        old = self.partition
        self.partition = replace(
            old, leader=chosen, leader_epoch=old.leader_epoch + 1, partition_epoch=old.partition_epoch + 1
        )
        self.append()

    def fence(self, node: int) -> None:
        """Take a broker out of the ISR, unless it is the last member, and move leadership away from it."""
        self.brokers[node] = replace(self.brokers[node], fenced=True)
        old = self.partition
        isr = tuple(one for one in old.isr if one != node) or old.isr
        live = [one for one in isr if not self.brokers[one].fenced]
        leader = old.leader if old.leader != node else next(iter(live), NO_NODE)
        if node in old.isr or leader != old.leader:
            self.change(isr, leader)
        self.append()

    def register(self, node: int) -> int:
        self.next_epoch += 1
        self.brokers[node] = _broker(node, epoch=self.next_epoch, fenced=False)
        if self.partition.leader == NO_NODE:
            self.elect()
        else:
            self.append()
        return self.next_epoch

    def register_again(self, node: int) -> None:
        """Unfence a broker whose session had ended although it is alive."""
        self.brokers[node] = replace(self.brokers[node], fenced=False)
        if self.partition.leader == NO_NODE:
            self.elect()
        else:
            self.append()

    def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        (topic,) = request.topics
        (proposed,) = topic.partitions
        result = AlterPartitionResponse.PartitionData(partition_index=proposed.partition_index)
        result.error_code = self._decide(request, proposed)
        if not result.error_code:
            now = self.partition
            result.leader_id, result.leader_epoch, result.isr = now.leader, now.leader_epoch, list(now.isr)
            result.partition_epoch = now.partition_epoch
        return AlterPartitionResponse(
            topics=[AlterPartitionResponse.TopicData(topic_id=topic.topic_id, partitions=[result])]
        )

    def _decide(self, request: AlterPartitionRequest, proposed: AlterPartitionRequest.PartitionData) -> ErrorCode:
        now = self.partition
        if self.brokers[request.broker_id].epoch != request.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if proposed.leader_epoch < now.leader_epoch or request.broker_id != now.leader:
            return ErrorCode.FENCED_LEADER_EPOCH
        if proposed.partition_epoch != now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for one in proposed.new_isr_with_epochs:
            broker = self.brokers[one.broker_id]
            if broker.fenced or one.broker_epoch not in (-1, broker.epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        self.change(tuple(one.broker_id for one in proposed.new_isr_with_epochs), now.leader)
        self.append()
        return ErrorCode.NONE


class ReplicatedBroker:
    """One run of a broker; a restart makes another one on the same disk."""

    def __init__(self, cluster: ReplicatedCluster, node_id: int, files: SimulatedFiles, process: Process) -> None:
        self.cluster, self.node_id, self.files, self.process = cluster, NodeId(node_id), files, process
        self.epoch = -1
        self.read = 0  # entries of the metadata log that were published here
        self.image = Image()
        loop, clock = cluster.loop, FakeClock(NOW_MS, cluster.loop)
        log_dirs, _ = open_usable_log_dirs(files, ["/data"], "/data", node_id=self.node_id)
        for log_dir in log_dirs:
            log_dir.take_clean_shutdown()
        self.replicas = Replicas(
            Directories(log_dirs, "/data"), self.node_id, lambda: topic_defaults({}), LONG_MAX, clock, Random(4), loop
        )
        metrics = Metrics()
        self.alterations = AlterPartitions(
            ControllerLink(self), self.node_id, lambda: self.epoch, lambda: self.image, clock, loop, metrics, LAG_MS_MAX
        )
        self.fetchers = ReplicaFetchers(
            FollowerIdentity(self.node_id, lambda: self.epoch, clock, self.checkpoint), self, OPTIONS, 1, loop
        )
        self.replicas.port = self.alterations
        self.replicas.on_role = self.fetchers.update
        self.fetch = FetchApi(self.replicas, FetchSessions(Random(1), 10), lambda: self.image, loop, 1 << 20, clock)
        apis: list[Api] = [
            ProduceApi(self.replicas, lambda: self.image, clock, loop),
            self.fetch,
            ListOffsetsApi(self.replicas),
            DeleteRecordsApi(self.replicas, clock),
        ]
        self.dispatcher = Dispatcher(make_table(apis), bytes, metrics, loop)
        self.clock = clock

    async def handle(self, message: Any) -> Any:
        """Handle a request as it would arrive over a connection."""
        key = message.facts.api_key
        version = APIS[key].stable_version_max
        frame = memoryview(bytearray(b"".join(encode_request(message, version, 5, "peer"))))[4:]
        response = self.dispatcher.handle(Peer("BROKER", "127.0.0.1", authority=ALLOW_ALL), frame)
        if isinstance(response, Deferred):
            response = await response.wait()
        return decode_response(key, version, 5, memoryview(joined(response))[4:])

    async def checkpoint(self) -> None:
        write = self.replicas.checkpoint([LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT])
        assert await self.cluster.loop.run_in_executor(None, write) == []

    async def run(self) -> None:
        """Follow the metadata log and review the ISR until the process ends."""
        self.cluster.loop.create_task(self._review())
        while True:
            while self.read < len(self.cluster.controller.log):
                brokers, state = self.cluster.controller.log[self.read]
                self.read += 1
                await self._publish(brokers, state)
            await self.cluster.changed()
            await asyncio.sleep(self.cluster.random.uniform(0, self.cluster.metadata_delay_s))

    async def _publish(self, brokers: dict[int, Broker], state: PartitionState) -> None:
        old, topic = self.image, Topic("t", TOPIC_ID, (state,))
        config = {(TOPIC_CONFIG, "t"): self.cluster.config}
        self.image = Image(self.read, 0, brokers, {"t": topic}, {TOPIC_ID: "t"}, config)
        self.replicas.publish(old, self.image, Changes(("t",), (), NODES, (), (NAME,)))
        await self.replicas.settle()

    async def _review(self) -> None:
        while True:
            await asyncio.sleep(LAG_MS_MAX / 2000)
            for partition in self.replicas.all():
                partition.review_isr(self.clock.now_ms())

    @property
    def partition(self) -> Partition | None:
        try:
            return self.replicas.get(*NAME)
        except KafkaError:
            return None

    # --- the BrokerChannel of its fetchers

    async def request(self, node_id: int, message: Any, *, lane: str = SHARED_LANE) -> Any:
        return await self.cluster.deliver(self.node_id, node_id, lambda broker: broker.handle(message))

    def exchange(self, node_id: int, message: Any, *, lane: str) -> Promise[Any] | None:
        """Behave like a link that is open most of the time."""
        if self.cluster.random.random() < CLOSED_LINKS:
            return None
        promise = Promise[Any]()

        def done(task: asyncio.Task[Any]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                promise.set_result(task.result())
            elif isinstance(error, Exception):
                promise.set_exception(error)

        self.cluster.loop.spawn(self.process, self.request(node_id, message, lane=lane)).add_done_callback(done)
        return promise


class ControllerLink:
    def __init__(self, broker: ReplicatedBroker) -> None:
        self._broker = broker

    async def request(self, message: Any) -> Any:
        cluster = self._broker.cluster
        await cluster.transfer(self._broker.node_id, 0)
        response = cluster.controller.alter(message)
        await cluster.transfer(0, self._broker.node_id)
        return response


class ReplicatedCluster:
    def __init__(self, seed: int, config: Mapping[str, str] | None = None) -> None:
        self.random = Random(seed)
        self.loop = SimulatedLoop(self.random)
        self.config = {"min.insync.replicas": "2", **(config or {})}
        self.metadata_delay_s = 0.02
        self.network_delay_s = 0.002
        self.loss = 0.0  # probability that a message is lost
        self.cut: set[frozenset[int]] = set()  # pairs that cannot reach each other; 0 is the controller
        self.disks = {node: _format(node, self.random) for node in NODES}
        self.controller = ModelController(self)
        self.brokers: dict[int, ReplicatedBroker] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.acknowledged: dict[int, bytes] = {}  # payloads of acknowledged batches by offset
        self.sent = 0

    # --- metadata and network

    def metadata_changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def changed(self) -> None:
        self._waiting.append(self.loop.create_future())
        await self._waiting[-1]

    async def transfer(self, source: int, target: int) -> None:
        await asyncio.sleep(self.random.uniform(0, self.network_delay_s))
        if frozenset((source, target)) in self.cut or self.random.random() < self.loss:
            raise Disconnected(f"{source} does not reach {target}")

    async def deliver(self, source: int, target: int, work: Callable[[ReplicatedBroker], Any]) -> Any:
        await self.transfer(source, target)
        broker = self.brokers.get(target)
        if broker is None:
            raise Disconnected(f"{target} is down")
        task = self.loop.spawn(broker.process, work(broker))
        await asyncio.wait([task, broker.process.died], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Disconnected(f"{target} has died")
        await self.transfer(target, source)
        return task.result()

    # --- brokers

    def start(self) -> None:
        """Start the brokers that are down."""
        for node in NODES:
            if node not in self.brokers:
                self.start_one(node)

    def start_one(self, node: int) -> None:
        process = self.loop.new_process(f"broker {node}")
        broker = self.brokers[node] = ReplicatedBroker(self, node, self.disks[node], process)
        broker.epoch = self.controller.register(node)
        broker.read = len(self.controller.log) - 1  # a starting broker publishes only the newest state
        self.loop.spawn(process, broker.run())

    def crash(self, node: int, *, power: bool = False) -> None:
        """Kill a broker; with `power`, its disk loses what was not synced."""
        broker = self.brokers.pop(node)
        self.loop.end(broker.process)
        if power:
            self.disks[node].power_loss()
        else:
            self.disks[node].process_crash()
        self.controller.fence(node)

    def heal(self) -> None:
        self.cut.clear()
        self.loss, self.network_delay_s, self.metadata_delay_s = 0.0, 0.002, 0.02

    @property
    def leader(self) -> ReplicatedBroker | None:
        return self.brokers.get(self.controller.partition.leader)

    async def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, self.describe()
            await asyncio.sleep(0.01)

    def is_in_sync(self) -> bool:
        """Return whether all brokers are in the ISR and have the same log and high watermark."""
        partitions = [broker.partition for broker in self.brokers.values()]
        if len(partitions) != len(NODES) or None in partitions or set(self.controller.partition.isr) != set(NODES):
            return False
        return len({(one.log.log_end, one.high_watermark, one.log.log_end) for one in partitions}) == 1 and all(
            one.high_watermark == one.log.log_end for one in partitions
        )

    def describe(self) -> str:
        states = [
            f"{node}: {one.partition.leader} epoch {one.partition.leader_epoch} end {one.partition.log.log_end}"
            f" hw {one.partition.high_watermark} isr {one.partition.isr} pending {one.partition.pending_isr}"
            for node, one in self.brokers.items()
            if one.partition is not None
        ]
        return f"{self.controller.partition} | " + " | ".join(states)

    # --- producing

    def produce_request(self, acks: int = -1, timeout_ms: int = 1000, **producer: Any) -> ProduceRequest:
        self.sent += 1
        payload = f"record {self.sent:08d}".encode()
        batch = build_batch([Record(0, NOW_MS, None, payload)] * self.random.randint(1, 3), **producer)
        data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
        topic = ProduceRequest.TopicProduceData(topic_id=TOPIC_ID, partition_data=[data])
        return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])

    async def produce(
        self, target: int, acks: int = -1, timeout_ms: int = 1000, **producer: Any
    ) -> tuple[ErrorCode, int]:
        """Send one batch to a broker and return the error code and the base offset."""
        request = self.produce_request(acks, timeout_ms, **producer)
        payload = f"record {self.sent:08d}".encode()
        response = await self.deliver(-1, target, lambda broker: broker.handle(request))
        result = response.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE and acks == -1:
            self.acknowledged[result.base_offset] = payload
        return code, result.base_offset


def batches(partition: Partition, start: int, end: int) -> dict[int, bytes]:
    """Return the batches from `start` to `end` by their base offsets."""
    found: dict[int, bytes] = {}
    while start < end:
        data = partition.log.read(start, 1 << 20, end).range.read()
        if not data:
            break
        for position, header in iterate_batches(data):
            found[header.base_offset] = data[position : position + header.size]
            start = header.next_offset
    return found


def _broker(node: int, epoch: int, *, fenced: bool) -> Broker:
    incarnation = Uuid(epoch.to_bytes(16, "big"))
    return Broker(node, epoch, incarnation, (), {}, None, fenced, False, ())


def _format(node: int, random: Random) -> SimulatedFiles:
    files = SimulatedFiles(Random(random.random()))
    files.make_dirs("/data")
    files.sync_dir("/")
    log_dir = LogDir.open(files, "/data")
    log_dir.format(MetaProperties(cluster_id="c", node_id=NodeId(node), directory_id=Uuid(node.to_bytes(16, "big"))))
    log_dir.close()
    return files
