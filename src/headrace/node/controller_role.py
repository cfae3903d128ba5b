"""The controller role of a node: raft on the metadata log, the controller's state machine on raft, and its listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.api.admin.acls import ControllerAclsApi
from headrace.api.admin.describe_cluster import ControllerClusterApi
from headrace.api.admin.user_scram_credentials import ControllerScramApi
from headrace.api.api_versions import ApiVersionsApi
from headrace.api.controller.admin_requests import ControllerAdminApi
from headrace.api.controller.broker_requests import ControllerApi
from headrace.api.controller.quorum.describe import DescribeQuorumApi, Endpoints
from headrace.api.controller.quorum.fetch import QuorumFetchApi
from headrace.api.controller.quorum.membership import QuorumMembership
from headrace.api.controller.quorum.snapshots import FetchSnapshotApi
from headrace.api.controller.quorum.voters import VotersApi
from headrace.api.controller.quorum.votes import VotesApi
from headrace.api.sasl import SaslApi
from headrace.api.table import Api, make_table
from headrace.base.ids import NodeId, Uuid
from headrace.client.wire.node_link import Address
from headrace.controller.acls import AclFollower, committed_acls
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.controller.metrics import ControllerMetrics
from headrace.metadata.image import Image
from headrace.node.configuration.settings import Settings
from headrace.node.context import NodeContext
from headrace.node.controller_registration import ControllerRegistration
from headrace.node.listeners import open_listeners
from headrace.node.new_cluster.feature_levels import SUPPORTED_FEATURES
from headrace.node.new_cluster.formatting import read_bootstrap
from headrace.node.security import SecurityOfListeners, authority_of, make_authorizer
from headrace.node.voter_requests import keep_voter_current
from headrace.node.wiring.channel import make_controller_channel
from headrace.node.wiring.quorum import controller_listener, make_driver, own_voter
from headrace.options.node_options import NODE_OPTIONS
from headrace.options.table import Kind
from headrace.quorum.journal import QuorumJournal
from headrace.quorum.opening import open_metadata
from headrace.quorum.snapshots import SnapshotFiles
from headrace.quorum.snapshotter import SnapshotPolicy, Snapshotter
from headrace.quorum.standby import Standby
from headrace.quorum.voter_changes import VoterChanges
from headrace.quorum.voter_upkeep import VoterUpkeep
from headrace.raft.voters import Voter
from headrace.server.dispatch import Dispatcher
from headrace.server.listener import Listener
from headrace.statemachine.runtime import Runtime
from headrace.storage.files import Files
from headrace.storage.log_dirs import METADATA_PARTITION

log = logging.getLogger(__name__)

TICK_S = 0.1
REPORT_S = 3.0  # how often a start that waits says for what


class ControllerRole:
    """A controller: it leads the cluster while its replica leads the quorum, and is a hot standby otherwise."""

    def __init__(self, node: NodeContext, files: Files, directory_id: Uuid) -> None:
        self._node = node
        self._settings = settings = node.settings
        self._clock = node.clock
        self._loop = node.loop
        self._metrics = node.metrics
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []
        directory = f"{settings.metadata_dir}/{METADATA_PARTITION}"
        stored = open_metadata(
            files,
            directory,
            settings.number("metadata.log.segment.bytes"),
            settings.number("metadata.log.segment.ms"),
            node.clock,
        )
        self.driver, self._addresses = make_driver(node, files, directory, stored, directory_id)
        self._changes = VoterChanges(self.driver, self._own_voter, controller_listener(settings), node.loop)
        context = _make_context(node, lambda: self.driver.raft.kraft_version)
        self._machine = Controller(context, read_bootstrap(files, settings.metadata_dir))
        self._authorizer = make_authorizer(settings)
        self._authority = authority_of(self._authorizer)
        self._security = SecurityOfListeners(
            settings, node.clock.now_ms, node.random, context.find_credential, self._authority
        )
        # The fetch handler subscribes to commits BEFORE the journal does: observers are sent a change before its author gets a
        # response.
        quorum = self._make_quorum_apis(stored.snapshots)
        journal = QuorumJournal(self.driver, lambda: context.metadata_version)
        self.runtime: Runtime[Any, Any] = Runtime(self._machine, journal)
        self._standby = Standby(
            self.driver, journal, self.runtime, self._machine, stored.snapshots, node.clock, node.loop
        )
        if self._authorizer is not None:
            # AFTER the journal: the tables commit a change BEFORE the authorizer reads it.
            acls = AclFollower(context, self._authorizer)
            self._machine.on_applied = acls.applied
            journal.on_committed(acls.committed)
            self._standby.on_followed = acls.committed
            self._standby.on_loaded = acls.load
        self._snapshotter = Snapshotter(
            self.driver,
            stored.snapshots,
            context.committed_state,
            lambda: self._standby.applied_end,
            _snapshot_policy(settings),
            node.clock,
            node.loop,
        )
        self.dispatcher = self._make_dispatcher(quorum)
        self._standby.on_active = partial(self._broker_requests.probe_brokers, settings.node_id)
        self._channel = make_controller_channel(node, self)
        self._registration = ControllerRegistration(node, self._channel, self._endpoints)
        node.metrics.texts.append(ControllerMetrics(context, lambda: self.driver.is_leader).expose)

    @property
    def leader(self) -> NodeId:
        """Return the leader of the quorum as far as this node knows, or NO_NODE."""
        return self.driver.leader

    @property
    def is_alone(self) -> bool:
        """Return whether this controller is the only voter."""
        return self.driver.raft.voters.ids == [self._settings.node_id]

    def address_of(self, node: NodeId) -> Address | None:
        """Return where another controller is reached, None if that is unknown."""
        return self._addresses.of(node)

    def _own_voter(self) -> Voter:
        return own_voter(self._settings, self.driver.raft.key.directory, self.bound_ports)

    def _make_quorum_apis(self, snapshots: SnapshotFiles) -> list[Api]:
        membership = QuorumMembership(self.driver, self._node.cluster_id)
        return [
            QuorumFetchApi(membership, self._loop),
            VotesApi(membership),
            VotersApi(membership, self._changes, controller_listener(self._settings)),
            FetchSnapshotApi(membership, snapshots, self._loop),
            DescribeQuorumApi(self.driver, self._voter_endpoints, self._clock),
        ]

    def _make_dispatcher(self, quorum: list[Api]) -> Dispatcher:
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
            lambda: self.driver.raft.kraft_version,
        )
        table = make_table(
            [
                versions,
                *quorum,
                controller,
                ControllerAdminApi(controller.decide, self._changes),
                ControllerClusterApi(lambda: self.leader, node.cluster_id, self._voter_endpoints),
                ControllerAclsApi(lambda: committed_acls(context).values(), controller.decide, self._authorizer),
                ControllerScramApi(context.committed_scram, controller.decide),
                SaslApi(),
            ]
        )
        return Dispatcher(table, versions.unsupported, self._metrics, self._loop)

    def _committed_features(self) -> dict[str, int]:
        return self._machine.context.committed_features()

    @property
    def bound_ports(self) -> dict[str, int]:
        return {listener.settings.name: listener.port for listener in self._listeners}

    async def start(self) -> None:
        """Start, and return when this controller is active, or has caught up with the one that is.

        The listeners open first: without them, no quorum could form.
        """
        self._listeners = await open_listeners(
            self._settings, self._settings.controller_listeners, self.dispatcher, self._metrics, self._security
        )
        for listener in self._listeners:
            await listener.serve()
        self._tasks += [self._loop.create_task(self._standby.run()), self._loop.create_task(self._tick())]
        voters = ", ".join(map(str, self.driver.raft.voters.ids)) or "that the bootstrap servers know"
        log.info("joining the metadata quorum of the voters %s", voters)
        self.driver.start()
        await self._until_ready()
        if not self._settings.controller_listeners:
            return  # no other node can reach this controller, so none needs to know of it
        upkeep = VoterUpkeep(
            self.driver.raft,
            self._node.cluster_id,
            may_join=self._settings.flag("controller.quorum.auto.join.enable"),
        )
        self._tasks += [
            self._loop.create_task(self._registration.run()),
            self._loop.create_task(keep_voter_current(upkeep, self._own_voter, self._channel)),
        ]

    async def _until_ready(self) -> None:
        waited_for = [self._standby.ready, self.driver.failed]
        while not any(future.done() for future in waited_for):
            await asyncio.wait(waited_for, timeout=REPORT_S, return_when=asyncio.FIRST_COMPLETED)
            if not any(future.done() for future in waited_for):
                log.info("%s", self._reason_to_wait())
        if self.driver.failed.done():
            self.driver.failed.result()

    def _reason_to_wait(self) -> str:
        leader = self.driver.leader
        if leader >= 0:
            return f"catching up with node {leader}, which leads the metadata quorum"
        others = [voter for voter in self.driver.raft.voters.ids if voter != self._settings.node_id]
        waiting = f"waiting for a majority of the voters {', '.join(map(str, others))} to elect a leader"
        if not others:
            others = list(self._addresses.bootstrap_ids)
            waiting = "waiting for one of controller.quorum.bootstrap.servers to say who leads the metadata quorum"
        problems = self.driver.peers.problems
        reasons = [problems[voter] for voter in others if voter in problems]
        return waiting + (f": {'; '.join(reasons)}" if reasons else "")

    def _endpoints(self) -> Endpoints:
        """Return the addresses of this node's controller listeners, by listener name."""
        return {name: (host, port) for name, host, port in self._own_voter().endpoints}

    def _voter_endpoints(self) -> dict[NodeId, Endpoints]:
        """Return the addresses of all voters; those of this node as its listeners are bound."""
        found: dict[NodeId, Endpoints] = {
            voter.key.id: {name: (host, port) for name, host, port in voter.endpoints}
            for voter in self.driver.raft.voters.voters
        }
        return found | {self._settings.node_id: self._endpoints()}

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.runtime.tick(self._clock.now_ms())
            self._snapshotter.tick()

    async def stop(self) -> None:
        """Give up leadership, if this node has it, and close the log."""
        self.driver.resign()
        self._end()
        await self._channel.close()
        await self._snapshotter.stop()
        await self.driver.stop()

    def kill(self) -> None:
        self._end()
        self._channel.abort()
        self._snapshotter.cancel()
        self.driver.abandon()

    def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._broker_requests.stop()
        for listener in self._listeners:
            listener.stop()


def _make_context(node: NodeContext, kraft_version: Callable[[], int]) -> ControllerContext:
    settings = node.settings
    return ControllerContext(
        cluster_id=node.cluster_id,
        random=node.random,
        static=settings.static_texts(),
        settings=settings.values,
        list_options={
            name: option.text(option.default) or "" for name, option in NODE_OPTIONS.items() if option.kind is Kind.LIST
        },
        supported_features=SUPPORTED_FEATURES,
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
