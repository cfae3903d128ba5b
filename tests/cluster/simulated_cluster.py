"""Three combined nodes on simulated machines, in virtual time, with a producer whose acknowledged records must all stay readable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from testkit.history import History
from testkit.simulator.cluster.machines import Machines
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.machine import DATA, FAILURES_MAX, Machine
from testkit.simulator.network import Network

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.range_reader import read_once
from headrace.client.producer.producer import AsyncProducer
from headrace.client.retry import UNREACHABLE
from headrace.client.wire.cluster import Cluster
from headrace.metadata.image import Image
from headrace.metadata.image import Partition as PartitionState
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.quorum.snapshots import len_of
from headrace.replication.partition import Partition

T0 = TopicPartition("t", 0)
WAIT_S_MAX = 120.0
STEP_S = 0.05
STEPS_MAX = 4_000_000
METADATA_DIR = f"{DATA}/__cluster_metadata-0"
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "1",
    "replica.lag.time.max.ms": "4000",
}
PRODUCER: dict[str, object] = {"linger.ms": 0, "request.timeout.ms": 2000, "delivery.timeout.ms": 100_000}


class SimulatedCluster:
    """The machines are numbered from 1, as their nodes. `acknowledged` has the offsets and values of the producer."""

    def __init__(self, seed: int = 1, options: dict[str, str] | None = None) -> None:
        self.loop = SimulatedLoop(Random(seed), STEPS_MAX)
        self.network = Network(self.loop, Random(seed + 1))
        self._machines = Machines(
            3,
            self.loop,
            self.network,
            Random(seed + 2),
            History(),
            {**REPLICATED, **(options or {})},
            lambda text: None,
        )
        self._supervisors: dict[Machine, asyncio.Task[None]] = {}
        self.machines = dict(enumerate(self._machines.all, 1))
        self.acknowledged: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        self.client = Cluster(list(self._machines.bootstrap), timeout_s=5.0, random=Random(seed + 3))
        self._producer = AsyncProducer(
            PRODUCER, cluster=self.client, clock=self._machines.all[0].files, random=Random(seed + 4)
        )
        self._sent = 0

    def run(self, main: Callable[[SimulatedCluster], Awaitable[None]], *, started: bool = True) -> None:
        """Start the nodes unless `started` is false, run `main` and check that everything acknowledged can be read."""

        async def whole() -> None:
            if started:
                self.start()
                await self.until_up()
                await self._producer.start()
            await main(self)
            if started:
                await self.check_acknowledged()
                await self._producer.close(0)
                await self.client.close()
            for machine in self.machines.values():
                self.down(machine)

        self.loop.run_until_complete(whole())
        assert self.loop.unhandled() == []
        self.loop.close()

    # --- machines

    def start(self, *node_ids: int) -> None:
        """Start the nodes; they are restarted whenever they end, until `down`."""
        for node_id in node_ids or self.machines:
            machine = self.machines[node_id]
            self._supervisors[machine] = self.loop.create_task(machine.supervise())

    def down(self, machine: Machine, *, power: bool = False) -> None:
        """Kill a node that stays down until `start`; with `power`, its disk loses what was not synced."""
        supervisor = self._supervisors.pop(machine, None)
        if supervisor is not None:
            supervisor.cancel()
        machine.lose_power() if power else machine.kill()

    def format_again(self, node_id: int) -> None:
        """Give a node that is down an empty disk, formatted for this cluster."""
        machine = self.machines[node_id]
        cluster_id = next(one.node.cluster_id for one in self.running.values())
        machine.files.remove(DATA)
        machine.files.make_dirs(DATA)
        machine.files.sync_dir("/")
        machine.format(cluster_id)

    async def until(self, wanted: Callable[[], bool], seconds: float = WAIT_S_MAX) -> None:
        deadline = self.loop.now + seconds
        while not wanted():
            assert self.loop.now < deadline, "it did not happen"
            await asyncio.sleep(STEP_S)

    async def until_up(self, *node_ids: int) -> None:
        machines = [self.machines[node_id] for node_id in node_ids or self.machines]
        await self.until(lambda: all(machine.node is not None for machine in machines))

    async def until_refused(self, node_id: int) -> str:
        """Wait until a node has failed to start as often as its supervisor tries, and return why it did."""
        machine = self.machines[node_id]
        await self.until(lambda: len(machine.failures) >= FAILURES_MAX)
        supervisor = self._supervisors.pop(machine)
        await supervisor
        reasons, machine.failures = machine.failures, []
        assert len(set(reasons)) == 1, reasons
        return reasons[0]

    @property
    def failures(self) -> dict[int, list[str]]:
        """Return why nodes have ended or failed to start, for nodes that have."""
        return {node_id: machine.failures for node_id, machine in self.machines.items() if machine.failures}

    @property
    def running(self) -> dict[int, Machine]:
        return {node_id: one for node_id, one in self.machines.items() if one.node is not None}

    def image(self) -> Image:
        """Return the newest metadata that a running broker has."""
        images = [machine.node.broker.image for machine in self.running.values()]
        return max(images, key=lambda image: image.offset, default=Image())

    def active_controller(self) -> int:
        """Return the id of the node that leads the metadata quorum, or -1."""
        leading = {
            machine.node.controller.driver.raft.epoch: node_id
            for node_id, machine in self.running.items()
            if machine.node.controller.driver.is_leader
        }
        return leading[max(leading)] if leading else -1

    async def until_controller(self) -> int:
        await self.until(lambda: self.active_controller() > 0)
        return self.active_controller()

    # --- partitions

    async def create(
        self, topic: str = "t", partitions: int = 1, replicas: int = 3, on: tuple[int, ...] = (), **configs: str
    ) -> None:
        """Create a topic; with three replicas, wait until all of them are in sync.

        `on` places the replicas of its only partition on these nodes, which need not be up.
        """
        assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=list(on))
        wanted = CreateTopicsRequest.CreatableTopic(
            name=topic,
            num_partitions=-1 if on else partitions,
            replication_factor=-1 if on else replicas,
            assignments=[assignment] if on else [],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )
        await self._until_created(wanted)
        for index in range(partitions if replicas == len(self.machines) and not on else 0):
            await self.until_in_sync(TopicPartition(topic, index))

    async def _until_created(self, wanted: CreateTopicsRequest.CreatableTopic) -> None:
        deadline = self.loop.now + WAIT_S_MAX
        while True:
            try:
                response: CreateTopicsResponse = await self.client.request(CreateTopicsRequest(topics=[wanted]))
                code = ErrorCode(response.topics[0].error_code)
            except UNREACHABLE:
                code = ErrorCode.NETWORK_EXCEPTION
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            assert code in RETRIABLE and self.loop.now < deadline, code
            await asyncio.sleep(STEP_S)

    def state(self, name: TopicPartition = T0) -> PartitionState | None:
        return self.image().partition(*name)

    def leader(self, name: TopicPartition = T0) -> int:
        state = self.state(name)
        return -1 if state is None else state.leader

    def replica(self, node_id: int, name: TopicPartition = T0) -> Partition | None:
        node = self.machines[node_id].node
        if node is None:
            return None
        try:
            return node.broker.replicas.get(*name)
        except KafkaError:
            return None

    def is_in_sync(self, name: TopicPartition = T0) -> bool:
        """Return whether all three replicas are in the ISR and have the same log, all of it committed."""
        state, replicas = self.state(name), [self.replica(node_id, name) for node_id in self.machines]
        if state is None or len(state.isr) < len(self.machines) or None in replicas:
            return False
        return len({end for one in replicas for end in (one.log.log_end, one.high_watermark)}) == 1

    async def until_in_sync(self, name: TopicPartition = T0) -> None:
        await self.until(lambda: self.is_in_sync(name))

    def log_files(self, node_id: int, name: TopicPartition = T0) -> list[str]:
        """Return the paths of the segments of one replica, oldest first."""
        return self._files(node_id, f"{DATA}/{name.topic}-{name.partition}", ".log")

    def metadata_files(self, node_id: int, suffix: str) -> list[str]:
        return self._files(node_id, METADATA_DIR, suffix)

    def file_size(self, node_id: int, path: str) -> int:
        return len_of(self.machines[node_id].files, path)

    def _files(self, node_id: int, directory: str, suffix: str) -> list[str]:
        names = self.machines[node_id].files.list_dir(directory)
        return [f"{directory}/{name}" for name in sorted(names) if name.endswith(suffix)]

    # --- records

    async def send(self, count: int = 1, name: TopicPartition = T0, size: int = 20) -> None:
        """Send records one by one, with acks=all and retries."""
        for _ in range(count):
            self._sent += 1
            value = f"record {self._sent} ".encode().ljust(size, b".")
            sent = await self._producer.send(name.topic, value, partition=name.partition)
            self.acknowledged.setdefault(name, []).append(((await sent).offset, value))

    async def read(self, name: TopicPartition, offset: int, cluster: Cluster | None = None) -> Any:
        """Return the records from an offset on, from whichever broker leads; retry until there is one."""
        deadline = self.loop.now + WAIT_S_MAX
        while True:
            try:
                return (await read_once(cluster or self.client, name, offset, wait_ms=0)).records
            except UNREACHABLE as error:
                assert self.loop.now < deadline, error
            except KafkaError as error:
                assert error.code in RETRIABLE and self.loop.now < deadline, error
            await asyncio.sleep(STEP_S)

    async def check_acknowledged(self) -> None:
        """Read all partitions with a fresh client, and compare with what was acknowledged."""
        reader = Cluster(list(self._machines.bootstrap), timeout_s=5.0, random=Random(5))
        try:
            for name, sent in self.acknowledged.items():
                found: dict[int, bytes | None] = {}
                end = max(offset for offset, _ in sent) + 1
                position = min(offset for offset, _ in sent)
                deadline = self.loop.now + WAIT_S_MAX
                while position < end:
                    for record in await self.read(name, position, reader):
                        found[record.offset] = record.value
                        position = record.offset + 1
                    assert self.loop.now < deadline, f"{name} cannot be read at offset {position}"
                    await asyncio.sleep(STEP_S)
                lost = [(offset, value) for offset, value in sent if found.get(offset) != value]
                assert not lost, f"{len(lost)} acknowledged records of {name} are lost, the first is {lost[0]}"
        finally:
            await reader.close()


def simulate(
    main: Callable[[SimulatedCluster], Awaitable[None]], seed: int = 1, options: dict[str, str] | None = None
) -> None:
    SimulatedCluster(seed, options).run(main)
