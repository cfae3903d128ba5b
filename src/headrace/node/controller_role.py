"""The controller role of a node: raft on the metadata log, the controller's state machine on raft, and its listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from headrace.api.admin.acls import ControllerAclsApi
from headrace.api.admin.describe_cluster import ControllerClusterApi
from headrace.api.admin.user_scram_credentials import ControllerScramApi
from headrace.api.api_versions import ApiVersionsApi
from headrace.api.controller.admin_requests import ControllerAdminApi
from headrace.api.controller.broker_requests import ControllerApi
from headrace.api.controller.quorum_requests import Endpoints, QuorumApi
from headrace.api.sasl import SaslApi
from headrace.api.table import make_table
from headrace.base.ids import NO_NODE, NodeId
from headrace.controller.acls import AclFollower, committed_acls
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.controller.metrics import ControllerMetrics
from headrace.metadata.image import Image
from headrace.metadata.state import KRAFT_VERSION
from headrace.node.context import NodeContext
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
    def __init__(self, node: NodeContext, files: Files) -> None:
        self._node = node
        self._settings = settings = node.settings
        self._clock = node.clock
        self._loop = node.loop
        self._metrics = node.metrics
        self._listeners: list[Listener] = []
        self._ticker: asyncio.Task[None] | None = None
        directory = f"{settings.metadata_dir}/{METADATA_PARTITION}"
        self._stored = open_metadata(
            files,
            directory,
            settings.number("metadata.log.segment.bytes"),
            settings.number("metadata.log.segment.ms"),
            node.clock,
        )
        check_voters(self._stored.voters, settings.node_id)
        self.driver = self._make_driver(files, directory)
        context = _make_context(node, self._stored.voters.kraft_version)
        self._machine = Controller(context, read_bootstrap(files, settings.metadata_dir))
        self._authorizer = make_authorizer(settings)
        self._authority = authority_of(self._authorizer)
        self._security = SecurityOfListeners(
            settings, node.clock.now_ms, node.random, context.find_credential, self._authority
        )
        self._snapshotter = Snapshotter(
            self.driver,
            self._stored.snapshots,
            context.committed_state,
            lambda: self._stored.voters,
            _snapshot_policy(settings),
            node.clock,
            node.loop,
        )
        # QuorumApi subscribes to commits BEFORE the journal does: observers are sent a change before its author gets a response.
        quorum = self._make_quorum_api()
        self._journal = QuorumJournal(self.driver, lambda: context.metadata_version)
        self.runtime: Runtime[Any, Any] = Runtime(self._machine, self._journal)
        if self._authorizer is not None:
            # AFTER the journal: the tables commit a change BEFORE the authorizer reads it.
            self._acls = AclFollower(context, self._authorizer)
            self._machine.on_applied = self._acls.applied
            self._journal.on_committed(self._acls.committed)
        self.dispatcher = self._make_dispatcher(quorum)
        node.metrics.texts.append(ControllerMetrics(context, lambda: self.driver.is_leader).expose)

    def _make_driver(self, files: Files, directory: str) -> QuorumDriver:
        node_id, stored = self._settings.node_id, self._stored
        store = ElectionStore(files, directory, [node_id], stored.voters.kraft_version)
        raft = RaftNode(
            ReplicaKey(node_id, directory_of(stored.voters, node_id)),
            VoterHistory(VoterSet.of_ids(node_id)),
            store.load(),
            MetadataLogView(stored.log, stored.snapshots),
            Timeouts(),
            self._node.random,
        )
        return QuorumDriver(raft, stored.log, store, self._loop, stored.first_control())

    def _make_quorum_api(self) -> QuorumApi:
        return QuorumApi(
            self.driver,
            self._stored.snapshots,
            self._node.cluster_id,
            lambda: directory_of(self._stored.voters, self._settings.node_id),
            self._endpoints,
            self._clock,
            self._loop,
        )

    def _make_dispatcher(self, quorum: QuorumApi) -> Dispatcher:
        context, node = self._machine.context, self._node
        controller = self._broker_requests = ControllerApi(
            lambda: self.runtime,
            self._clock,
            self._loop,
            lambda: self.dispatcher,
            context.state,
            self._authority,
            (self._settings.text("inter.broker.listener.name") or "").upper(),
        )
        versions = ApiVersionsApi(
            lambda: table,
            lambda: Image(self.driver.high_watermark - 1, features=self._committed_features()),
            SUPPORTED_FEATURES,
            self._stored.voters.kraft_version,
        )
        table = make_table(
            [
                versions,
                quorum,
                controller,
                ControllerAdminApi(controller.decide),
                ControllerClusterApi(self._settings.node_id, node.cluster_id, self._endpoints),
                ControllerAclsApi(lambda: committed_acls(context).values(), controller.decide, self._authorizer),
                ControllerScramApi(context.committed_scram, controller.decide),
                SaslApi(),
            ]
        )
        return Dispatcher(table, versions.unsupported, self._metrics, self._loop)

    def _committed_features(self) -> dict[str, int]:
        return self._machine.context.committed_features()

    @property
    def leader(self) -> NodeId:
        """Return the leader of the quorum, NO_NODE if there is none."""
        return self._settings.node_id if self.driver.is_leader else NO_NODE

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
        self._broker_requests.stop()
        for listener in self._listeners:
            listener.stop()


def _make_context(node: NodeContext, kraft_version: int) -> ControllerContext:
    settings = node.settings
    return ControllerContext(
        cluster_id=node.cluster_id,
        random=node.random,
        static=settings.static_texts(),
        settings=settings.values,
        list_options={
            name: option.text(option.default) or "" for name, option in NODE_OPTIONS.items() if option.kind is Kind.LIST
        },
        supported_features={**SUPPORTED_FEATURES, KRAFT_VERSION: (0, kraft_version)},
        node_id=settings.node_id,
        kraft_version=kraft_version,
        num_partitions=settings.number("num.partitions"),
        replication_factor=settings.number("default.replication.factor"),
        session_timeout_ms=settings.number("broker.session.timeout.ms"),
    )


def _snapshot_policy(settings: Settings) -> SnapshotPolicy:
    return SnapshotPolicy(
        bytes_between=settings.number("metadata.log.max.record.bytes.between.snapshots"),
        interval_ms=settings.number("metadata.log.max.snapshot.interval.ms"),
        retention_bytes=settings.number("metadata.max.retention.bytes"),
        retention_ms=settings.number("metadata.max.retention.ms"),
    )
