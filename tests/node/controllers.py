"""Controllers of one quorum in one process, on real disks and over loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from headrace.base.clock import SystemClock
from headrace.base.errors import ErrorCode
from headrace.client.wire.connection import Connection
from headrace.metadata.image import BROKER_CONFIG
from headrace.node.configuration.settings import Settings, make_settings
from headrace.node.new_cluster.formatting import format_log_dirs
from headrace.node.node import Node, Ports
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.stored.metadata_cluster import NoOpRecord
from headrace.quorum.log import MetadataBatch
from headrace.storage.disk import DiskFiles
from headrace.storage.log_dirs import close_log_dirs, open_log_dirs
from headrace.testing.processes import free_port

LOOPBACK = "127.0.0.1"
CLUSTER_ID = "AAAAAAAAQAGAAAAAAAAAAQ"
WAIT_S_MAX = 20.0
TIMES = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "100",
    "controller.quorum.fetch.timeout.ms": "1000",
}


class Controllers:
    """A quorum of controllers with ids from 1 on, which may be brokers too. `start`, `stop` and `kill` take the ids."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *,
        are_brokers: bool = False,
        cluster_ids: dict[int, str] | None = None,
    ) -> None:
        self.broker_ports = {node_id: free_port() for node_id in range(1, count + 1)} if are_brokers else {}
        self.ports = {node_id: free_port() for node_id in range(1, count + 1)}
        self.nodes: dict[int, Node] = {}
        self._directory = directory
        for node_id in self.ports:
            self.format(self.settings(node_id), (cluster_ids or {}).get(node_id, CLUSTER_ID))

    def settings(self, node_id: int, **options: str) -> Settings:
        own = {"process.roles": "controller", "listeners": f"CONTROLLER://{LOOPBACK}:{self.ports[node_id]}"}
        if node_id in self.broker_ports:
            own["process.roles"] = "broker,controller"
            own["listeners"] += f",PLAINTEXT://{LOOPBACK}:{self.broker_ports[node_id]}"
        voters = ",".join(f"{one}@{LOOPBACK}:{port}" for one, port in self.ports.items())
        return make_settings(
            {
                **own,
                "node.id": str(node_id),
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
                "log.dirs": str(self._directory / f"node-{node_id}"),
                "headrace.http.listener": "",
                **TIMES,
                **options,
            },
            single_node=False,
        )

    def format(self, settings: Settings, cluster_id: str = CLUSTER_ID) -> None:
        for path in settings.log_dirs:
            Path(path).mkdir(parents=True, exist_ok=True)
        log_dirs = open_log_dirs(DiskFiles(), settings.log_dirs)
        format_log_dirs(log_dirs, settings.metadata_dir, settings.node_id, cluster_id, 1, Random(settings.node_id))
        close_log_dirs(log_dirs)

    async def start(self, *node_ids: int, **options: str) -> None:
        """Start the nodes at the same time, and return when all have joined the quorum."""
        ids = node_ids or tuple(self.ports)
        started = await asyncio.wait_for(asyncio.gather(*(self.start_one(one, **options) for one in ids)), WAIT_S_MAX)
        assert len(started) == len(ids)

    async def start_one(self, node_id: int, **options: str) -> Node:
        node = self.nodes[node_id] = await Node.start(self.settings(node_id, **options), self.node_ports())
        return node

    @staticmethod
    def node_ports() -> Ports:
        return Ports(DiskFiles(), SystemClock(), Random(time.monotonic_ns()), asyncio.get_running_loop())

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self.nodes):
            await self.nodes.pop(node_id).stop()

    async def kill(self, *node_ids: int) -> None:
        for node_id in node_ids:
            await self.nodes.pop(node_id).kill()

    @property
    def leader(self) -> int:
        """Return the node whose controller is active, or -1."""
        active = [node_id for node_id, node in self.nodes.items() if node.controller.runtime.leading]
        return max(active, key=lambda node_id: self.nodes[node_id].controller.driver.raft.epoch, default=-1)

    def end_offset(self, node_id: int) -> int:
        return self.nodes[node_id].controller.driver.log.end_offset

    async def until(self, wanted: Callable[[], bool], seconds: float = WAIT_S_MAX) -> None:
        deadline = time.monotonic() + seconds
        while not wanted():
            assert time.monotonic() < deadline, "it did not happen"
            await asyncio.sleep(0.005)

    async def until_leader(self, seconds: float = WAIT_S_MAX) -> int:
        await self.until(lambda: self.leader > 0, seconds)
        return self.leader

    async def until_registered(self) -> None:
        """Wait until the active controller knows all controllers, so that nothing is written any more."""
        await self.until_leader()
        state = self.nodes[self.leader].controller._machine.context.committed_state
        await self.until(lambda: len(state().controllers) == len(self.ports))

    async def until_equal(self) -> None:
        """Wait until all running nodes have the same committed log."""

        def is_equal() -> bool:
            drivers = [node.controller.driver for node in self.nodes.values()]
            ends = {driver.log.end_offset for driver in drivers} | {driver.high_watermark for driver in drivers}
            return len(ends) == 1

        await self.until(is_equal)

    def batches(self, node_id: int) -> list[MetadataBatch]:
        metadata = self.nodes[node_id].controller.driver.log
        return list(metadata.read(metadata.log.log_start, metadata.end_offset))

    async def create_topic(self, node_id: int, name: str) -> ErrorCode:
        """Ask one controller to create a topic without partitions on brokers; return the error code of the response."""
        connection = await Connection.connect(LOOPBACK, self.ports[node_id])
        try:
            topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            response: CreateTopicsResponse = await connection.request(CreateTopicsRequest(topics=[topic]))
            return ErrorCode(response.topics[0].error_code)
        finally:
            await connection.close()

    async def set_broker_option(self, node_id: int, name: str, value: str) -> None:
        """Have a controller set an option of all brokers."""
        connection = await Connection.connect(LOOPBACK, self.ports[node_id])
        try:
            config = IncrementalAlterConfigsRequest.AlterableConfig(name=name, value=value)
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=BROKER_CONFIG, configs=[config]
            )
            response = await connection.request(IncrementalAlterConfigsRequest(resources=[resource]))
            assert response.responses[0].error_code == ErrorCode.NONE, response
        finally:
            await connection.close()

    async def write(self, count: int = 1) -> None:
        """Have the leader commit records."""
        driver = self.nodes[self.leader].controller.driver
        for _ in range(count):
            end = driver.propose([NoOpRecord()]) + 1
        await self.until(lambda: driver.high_watermark >= end)
