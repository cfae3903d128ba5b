"""The controller of this node: raft on the metadata log, the machine on raft, and the door by which brokers come."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

from headrace.api.controller import ControllerApi
from headrace.api.table import controller_table
from headrace.api.versions import VersionsApi
from headrace.base.clock import Clock
from headrace.base.ids import METADATA_TOPIC_ID, TopicPartition
from headrace.base.metrics import Metrics
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.metadata.image import Image
from headrace.node.formatting import SUPPORTED_FEATURES, read_bootstrap
from headrace.node.listeners import open_listeners
from headrace.node.settings import Settings
from headrace.quorum.driver import QuorumDriver
from headrace.quorum.journal import QuorumJournal
from headrace.quorum.log import MetadataLog
from headrace.quorum.store import ElectionStore
from headrace.raft.node import RaftNode
from headrace.raft.voters import Voters
from headrace.server.dispatch import Dispatcher
from headrace.server.listener import Listener
from headrace.statemachine.runtime import Runtime
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dirs import METADATA_PARTITION

log = logging.getLogger(__name__)

TICK_S = 0.1
LOAD_SLICE_S = 0.005


class ControllerRole:
    def __init__(
        self,
        settings: Settings,
        files: Files,
        clock: Clock,
        chance: Random,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        cluster_id: str,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._loop = loop
        self._metrics = metrics
        self._listeners: list[Listener] = []
        self._ticker: asyncio.Task[None] | None = None
        opened = self._open_log(files)
        voters = Voters(frozenset({settings.node_id}))
        store = ElectionStore(files, opened.directory, voters.ids)
        raft = RaftNode(settings.node_id, voters, store.load(), opened.log_end)
        self.driver = QuorumDriver(raft, MetadataLog(opened, clock), store, loop)
        context = ControllerContext(
            cluster_id=cluster_id,
            chance=chance,
            defaults=settings.topic_defaults,
            num_partitions=settings.number("num.partitions"),
            replication_factor=settings.number("default.replication.factor"),
            session_timeout_ms=settings.number("broker.session.timeout.ms"),
        )
        self._machine = Controller(context, read_bootstrap(files, settings.metadata_dir))
        self._wire(cluster_id)

    def _open_log(self, files: Files) -> Log:
        directory = f"{self._settings.metadata_dir}/{METADATA_PARTITION}"
        opened, report = Log.open(
            files,
            directory,
            TopicPartition(*METADATA_PARTITION),
            LogConfig(
                segment_bytes=self._settings.number("metadata.log.segment.bytes"),
                segment_ms=self._settings.number("metadata.log.segment.ms"),
            ),
            topic_id=METADATA_TOPIC_ID,
            now_ms=self._clock.now_ms(),
        )
        for message in report.messages():
            log.warning("recovery of the metadata log: %s", message)
        return opened

    def _wire(self, cluster_id: str) -> None:
        # The API subscribes to commits BEFORE the journal does: observers are sent a change before its author is answered.
        api = ControllerApi(
            lambda: self.runtime, self.driver, cluster_id, self._clock, self._loop, lambda: self.dispatcher
        )
        self.runtime: Runtime[Any, Any] = Runtime(self._machine, QuorumJournal(self.driver))
        versions = VersionsApi(
            lambda: self._table, lambda: Image(features=self._committed_features()), SUPPORTED_FEATURES
        )
        self._table = controller_table(versions=versions, controller=api)
        self.dispatcher = Dispatcher(self._table, versions.unsupported, self._metrics, self._loop)

    def _committed_features(self) -> dict[str, int]:
        return self._machine.context.committed_features()

    @property
    def bound_ports(self) -> dict[str, int]:
        return {listener.settings.name: listener.port for listener in self._listeners}

    async def start(self) -> None:
        """Returns when this node leads the quorum, knows all of the log, and has written what a new cluster begins with."""
        await self.driver.lead()
        slice_end = self._loop.time() + LOAD_SLICE_S
        for _ in self.runtime.load(self.driver.log.log.log_start):
            if self._loop.time() > slice_end:
                await asyncio.sleep(0)
                slice_end = self._loop.time() + LOAD_SLICE_S
        self.runtime.lead(self._clock.now_ms())
        self._ticker = self._loop.create_task(self._tick())
        self._listeners = await open_listeners(
            self._settings, self._settings.controller_listeners, self.dispatcher, self._metrics
        )
        for listener in self._listeners:
            await listener.serve()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.runtime.tick(self._clock.now_ms())

    async def stop(self) -> None:
        self._end()
        await self.driver.stop()

    def kill(self) -> None:
        self._end()
        self.driver.abandon()

    def _end(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for listener in self._listeners:
            listener.stop()
