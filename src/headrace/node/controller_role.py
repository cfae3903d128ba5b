"""The controller role of a node: raft on the metadata log, the controller's state machine on raft, and its listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from random import Random
from typing import Any

from headrace.api.admin.acls import ControllerAclsApi
from headrace.api.admin.describe_cluster import ControllerClusterApi
from headrace.api.admin.user_scram_credentials import ControllerScramApi
from headrace.api.api_versions import VersionsApi
from headrace.api.controller.admin_requests import ControllerAdminApi
from headrace.api.controller.broker_requests import ControllerApi
from headrace.api.controller.foreign_brokers import ForeignBrokers
from headrace.api.controller.quorum_requests import Endpoints, QuorumApi
from headrace.api.table import controller_table
from headrace.base.clock import Clock
from headrace.base.metrics import Metrics
from headrace.controller.acls import AclFollower, committed_acls
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.controller.metrics import ControllerMetrics
from headrace.metadata.image import Image
from headrace.metadata.state import KRAFT_VERSION
from headrace.node.feature_levels import SUPPORTED_FEATURES
from headrace.node.formatting import read_bootstrap
from headrace.node.listeners import open_listeners
from headrace.node.security import SecurityOfListeners, authority_of, make_authorizer
from headrace.node.settings import Settings
from headrace.options.node_options import NODE_OPTIONS
from headrace.options.table import Kind
from headrace.quorum.driver import QuorumDriver
from headrace.quorum.journal import QuorumJournal
from headrace.quorum.log_view import MetadataLogView
from headrace.quorum.opening import open_metadata
from headrace.quorum.snapshotter import SnapshotPolicy, Snapshotter
from headrace.quorum.store import ElectionStore
from headrace.quorum.voter_records import check_voters, directory_of
from headrace.raft.election import Timeouts
from headrace.raft.membership import VoterHistory
from headrace.raft.node import RaftNode
from headrace.raft.voters import ReplicaKey, VoterSet
from headrace.server.dispatch import Dispatcher
from headrace.server.listener import Listener
from headrace.statemachine.runtime import Runtime
from headrace.storage.files import Files
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
        directory = f"{settings.metadata_dir}/{METADATA_PARTITION}"
        self._stored = stored = open_metadata(
            files,
            directory,
            settings.number("metadata.log.segment.bytes"),
            settings.number("metadata.log.segment.ms"),
            clock,
        )
        check_voters(stored.voters, settings.node_id)
        store = ElectionStore(files, directory, [settings.node_id], stored.voters.kraft_version)
        raft = RaftNode(
            ReplicaKey(settings.node_id, directory_of(stored.voters, settings.node_id)),
            VoterHistory(VoterSet.of_ids(settings.node_id)),
            store.load(),
            MetadataLogView(stored.log, stored.snapshots),
            Timeouts(),
            chance,
        )
        self.driver = QuorumDriver(raft, stored.log, store, loop, stored.first_control())
        context = ControllerContext(
            cluster_id=cluster_id,
            chance=chance,
            static=settings.static_texts(),
            settings=settings.values,
            list_options={
                name: option.text(option.default) or ""
                for name, option in NODE_OPTIONS.items()
                if option.kind is Kind.LIST
            },
            supported_features={**SUPPORTED_FEATURES, KRAFT_VERSION: (0, stored.voters.kraft_version)},
            node_id=settings.node_id,
            kraft_version=stored.voters.kraft_version,
            num_partitions=settings.number("num.partitions"),
            replication_factor=settings.number("default.replication.factor"),
            session_timeout_ms=settings.number("broker.session.timeout.ms"),
        )
        self._machine = Controller(context, read_bootstrap(files, settings.metadata_dir))
        self._authorizer = make_authorizer(settings)
        self._authority = authority_of(self._authorizer)
        self._security = SecurityOfListeners(settings, clock.now_ms, chance, context.find_credential, self._authority)
        self._snapshotter = Snapshotter(
            self.driver,
            stored.snapshots,
            context.committed_state,
            lambda: self._stored.voters,
            SnapshotPolicy(
                bytes_between=settings.number("metadata.log.max.record.bytes.between.snapshots"),
                interval_ms=settings.number("metadata.log.max.snapshot.interval.ms"),
                retention_bytes=settings.number("metadata.max.retention.bytes"),
                retention_ms=settings.number("metadata.max.retention.ms"),
            ),
            clock,
            loop,
        )
        self._wire(cluster_id)
        metrics.texts.append(ControllerMetrics(context, lambda: self.driver.is_leader).expose)

    def _wire(self, cluster_id: str) -> None:
        # QuorumApi subscribes to commits BEFORE the journal does: observers are sent a change before its author gets a response.
        context = self._machine.context
        quorum = QuorumApi(
            self.driver,
            self._stored.snapshots,
            cluster_id,
            lambda: directory_of(self._stored.voters, self._settings.node_id),
            self._endpoints,
            self._clock,
            self._loop,
        )
        api = ControllerApi(
            lambda: self.runtime,
            self._clock,
            self._loop,
            lambda: self.dispatcher,
            context.state,
            self._authority,
            ForeignBrokers(self._settings.node_id, self._loop.time),
        )
        self._journal = QuorumJournal(self.driver, lambda: context.metadata_version)
        self.runtime: Runtime[Any, Any] = Runtime(self._machine, self._journal)
        if self._authorizer is not None:
            # AFTER the journal: the tables commit a change BEFORE the authorizer reads it.
            self._acls = AclFollower(context, self._authorizer)
            self._machine.on_applied = self._acls.applied
            self._journal.on_committed(self._acls.committed)
        versions = VersionsApi(
            lambda: self._table,
            lambda: Image(self.driver.high_watermark - 1, features=self._committed_features()),
            SUPPORTED_FEATURES,
            self._stored.voters.kraft_version,
        )
        self._table = controller_table(
            versions=versions,
            controller=api,
            admin=ControllerAdminApi(api.decide),
            quorum=quorum,
            cluster=ControllerClusterApi(self._settings.node_id, cluster_id, self._endpoints),
            acls=ControllerAclsApi(lambda: committed_acls(context).values(), api.decide, self._authorizer),
            scram=ControllerScramApi(context.committed_scram, api.decide),
        )
        self.dispatcher = Dispatcher(self._table, versions.unsupported, self._metrics, self._loop)

    def _committed_features(self) -> dict[str, int]:
        return self._machine.context.committed_features()

    @property
    def bound_ports(self) -> dict[str, int]:
        return {listener.settings.name: listener.port for listener in self._listeners}

    async def start(self) -> None:
        """Start, and return when this node leads the quorum, has loaded the log, and listens.

        In a new cluster, the bootstrap records have been written by then.
        """
        await self.driver.lead()
        await self._load()
        if self._authorizer is not None:
            self._acls.load()
        self.runtime.lead(self._clock.now_ms())
        self._ticker = self._loop.create_task(self._tick())
        self._listeners = await open_listeners(
            self._settings, self._settings.controller_listeners, self.dispatcher, self._metrics, self._security
        )
        for listener in self._listeners:
            await listener.serve()

    async def _load(self) -> None:
        """Load the newest snapshot and the log after it, in slices."""
        slice_end = self._loop.time() + LOAD_SLICE_S
        for _ in self._everything():
            if self._loop.time() > slice_end:
                await asyncio.sleep(0)
                slice_end = self._loop.time() + LOAD_SLICE_S

    def _everything(self) -> Iterator[object]:
        stored = self._stored
        if stored.newest is not None:
            for batch in stored.snapshots.read(stored.newest):
                for record in batch.records:
                    self._machine.apply(record, stored.newest.end_offset - 1)
                yield batch
        yield from self.runtime.load(self._journal.read(stored.first_offset))

    def _endpoints(self) -> Endpoints:
        """Return the addresses of this node's controller listeners, by listener name."""
        ports = self.bound_ports
        return {
            listener.name: (listener.host or self._settings.host_name, ports.get(listener.name, listener.port))
            for listener in self._settings.controller_listeners
        }

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.runtime.tick(self._clock.now_ms())
            self._snapshotter.tick()

    async def stop(self) -> None:
        self._end()
        await self._snapshotter.stop()
        await self.driver.stop()

    def kill(self) -> None:
        self._end()
        self._snapshotter.cancel()
        self.driver.abandon()

    def _end(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for listener in self._listeners:
            listener.stop()
