"""The broker role of a node: partitions, metadata, sessions, APIs, and the registration with the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from msgspec.structs import replace

from headrace.api.api_versions import ApiVersionsApi
from headrace.api.data.produce_single import SingleProduce
from headrace.api.table import make_table
from headrace.base.errors import HeadraceError
from headrace.base.ids import NO_NODE, new_uuid
from headrace.broker.authorization import AclPublisher, find_credential
from headrace.broker.background import Background, Intervals
from headrace.broker.channels.controller_channel import OwnController
from headrace.broker.channels.forwarding import Forwarding
from headrace.broker.client_telemetry import ClientTelemetry
from headrace.broker.dynamic_options import PRODUCER_EXPIRY, DynamicOptions
from headrace.broker.fetching.fetch_sessions import FetchSessions
from headrace.broker.fetching.followed import FollowerIdentity
from headrace.broker.group_metadata import GroupMetadataPublisher
from headrace.broker.log_cleaner import LogCleaner
from headrace.broker.membership.directory_assignments import DirectoryAssignments
from headrace.broker.membership.lost_brokers import LostBrokers
from headrace.broker.membership.observer import MetadataObserver
from headrace.broker.membership.registration import BrokerIdentity, HeartbeatTimes, Registration
from headrace.broker.metrics.isr_metrics import IsrMetrics
from headrace.broker.metrics.partition_metrics import PartitionMetrics
from headrace.broker.metrics.topic_metrics import TopicMetrics
from headrace.broker.topic_creation import TopicCreation
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.coordinators.internal_topics import internal_topics
from headrace.metadata.image import Image
from headrace.metadata.loader import MetadataLoader, Publisher
from headrace.metadata.records import CORDONED_LEVEL
from headrace.metadata.state import METADATA_VERSION
from headrace.node.configuration.settings import Settings
from headrace.node.context import NodeContext
from headrace.node.listeners import open_listeners
from headrace.node.new_cluster.feature_levels import SUPPORTED_FEATURES
from headrace.node.security import SecurityOfListeners, authority_of, make_authorizer
from headrace.node.wiring.broker_apis import BrokerParts, make_broker_apis
from headrace.node.wiring.channel import make_controller_channel
from headrace.node.wiring.coordinators import Coordinators
from headrace.node.wiring.replication import Replication, make_links
from headrace.observe.client_series import ClientSeries
from headrace.observe.request_times import RequestTimes
from headrace.options.table import Value
from headrace.protocol.apis import ApiKey
from headrace.replication.dir_moves import DirMoves
from headrace.replication.directories import Directories
from headrace.replication.replicas import Replicas
from headrace.server.dispatch import Dispatcher
from headrace.server.listener import Listener
from headrace.storage.checkpoints import CLEANER_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from headrace.storage.log_dirs import LogDir

log = logging.getLogger(__name__)

CATCH_UP_POLL_S = 0.002
# The first requests of every client, in the versions that current clients use.
WARM = {ApiKey.API_VERSIONS: 4, ApiKey.METADATA: 13, ApiKey.PRODUCE: 13, ApiKey.FETCH: 18}

BROKER_RECOVERS, BROKER_RUNS = 2, 3


class BrokerRole:
    def __init__(self, context: NodeContext, directories: Directories, own: OwnController | None) -> None:
        settings = context.settings
        self._context = context
        self._settings = settings
        self._loop = context.loop
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._channel = make_controller_channel(context, own)
        self._options = DynamicOptions(settings.values, settings.explicit, settings.node_id)
        self.replicas = _make_replicas(context, directories, self._options)
        self._forwarding = Forwarding(self._channel)
        self._creation = TopicCreation(
            self._channel, self._forwarding, self._get_image, self.replicas.settle, internal_topics(settings.values)
        )
        self._authorizer = make_authorizer(settings)
        self._security = SecurityOfListeners(
            settings,
            context.clock.now_ms,
            context.random,
            lambda mechanism, user: find_credential(self.image, mechanism, user),
            authority_of(self._authorizer),
        )
        self._lost_brokers = LostBrokers(self._get_image, context.loop)
        self._fetch_sessions = FetchSessions(
            context.random, settings.number("max.incremental.fetch.session.cache.slots"), settings.node_id
        )
        self._single_produce = SingleProduce(self.replicas, context.clock, context.loop, context.metrics)
        self._client_series = ClientSeries()
        self._telemetry = ClientTelemetry(self._client_series, settings.number("telemetry.max.bytes"), context.random)
        self._links = make_links(context, lambda: self.dispatcher, self._get_image)
        self._coordinators = Coordinators(context, self._options, self._get_image, self.replicas, self._links)
        self.groups = self._coordinators.groups
        self.transactions = self._coordinators.transactions
        self._loader = MetadataLoader(self._publishers())
        # The broker of a combined node fetches without an id: under its own it would vouch for the disk of the voter.
        observer_id = NO_NODE if settings.is_controller else settings.node_id
        self._observer = MetadataObserver(self._channel, self._loader, observer_id, context.cluster_id)
        self.registration = self._make_registration(directories)
        self.replicas.on_directory_failed = self.registration.heartbeat_now
        directories.may_cordon = lambda: self.image.features.get(METADATA_VERSION, 0) >= CORDONED_LEVEL
        self._assignments = DirectoryAssignments(
            self._channel, settings.node_id, self.replicas, lambda: self.registration.broker_epoch
        )
        self._moves = self._make_moves(directories)
        self._background = _make_background(context, self.replicas)
        self.replicas.rewrite_checkpoints = self._background.checkpoint
        self._replication = Replication(
            context,
            self.replicas,
            self._get_image,
            self._links,
            self._channel,
            FollowerIdentity(
                settings.node_id,
                lambda: self.registration.broker_epoch,
                context.clock,
                lambda: self._background.checkpoint([LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT]),
                self._lost_brokers.note,
            ),
        )
        self._cleaner = self._make_cleaner()
        self._options.subscribe(self._apply_options)
        self._options.subscribe(lambda values: self._security.apply(self._options.layers().dynamic))
        self._options.subscribe(lambda values: self._cleaner.wake())
        self.dispatcher = self._make_dispatcher()

    def _get_image(self) -> Image:
        return self._loader.image

    def _publishers(self) -> list[Publisher]:
        """Return what receives each new metadata image, in this order."""
        return [
            *([] if self._authorizer is None else [AclPublisher(self._authorizer)]),
            # BEFORE the replicas, which are opened with these options.
            self._options,
            self._links,
            self.replicas,
            self._creation,
            self._single_produce,
            self._fetch_sessions,
            self._lost_brokers,
            self._telemetry,
            IsrMetrics(self._context.metrics, self._settings.node_id),
            GroupMetadataPublisher(self.groups),
        ]

    def _make_registration(self, directories: Directories) -> Registration:
        settings = self._settings
        return Registration(
            self._channel,
            BrokerIdentity(
                node_id=settings.node_id,
                cluster_id=self._context.cluster_id,
                incarnation_id=new_uuid(self._context.random),
                rack=settings.text("broker.rack"),
                features=SUPPORTED_FEATURES,
            ),
            HeartbeatTimes(
                interval_s=settings.number("broker.heartbeat.interval.ms") / 1000,
                failure_timeout_s=settings.number("log.dir.failure.timeout.ms") / 1000,
                registration_timeout_s=settings.number("initial.broker.registration.timeout.ms") / 1000,
            ),
            lambda: settings.endpoints(self.bound_ports),
            directories,
            lambda: self.image.offset,
            self.replicas.stop_node,
        )

    def _make_moves(self, directories: Directories) -> DirMoves:
        return DirMoves(
            self.replicas,
            directories,
            self._context.clock,
            self._context.random,
            self._loop,
            lambda: self._options.number("replica.alter.log.dirs.io.max.bytes.per.second"),
        )

    def _make_cleaner(self) -> LogCleaner:
        context = self._context
        return LogCleaner(
            self.replicas,
            lambda: self._options.values,
            context.clock,
            context.random,
            context.loop,
            context.metrics,
            lambda: self._background.checkpoint([CLEANER_CHECKPOINT]),
        )

    def _make_dispatcher(self) -> Dispatcher:
        context = self._context
        parts = BrokerParts(
            image=self._get_image,
            options=self._options,
            replicas=self.replicas,
            fetch_sessions=self._fetch_sessions,
            lost_brokers=self._lost_brokers,
            moves=self._moves,
            forwarding=self._forwarding,
            creation=self._creation,
            coordinators=self._coordinators,
            producer_ids=ProducerIds(self._channel, self._settings.node_id, lambda: self.registration.broker_epoch),
            telemetry=self._telemetry,
            client_series=self._client_series,
            authorizer=self._authorizer,
        )
        versions = ApiVersionsApi(
            lambda: table, self._get_image, SUPPORTED_FEATURES, lambda: self._observer.kraft_version
        )
        table = make_table([versions, *make_broker_apis(context, parts)])
        self._export_metrics()
        return Dispatcher(table, versions.unsupported, context.metrics, context.loop, self._single_produce.handle)

    def _export_metrics(self) -> None:
        metrics = self._context.metrics
        metrics.gauge(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Directories of log.dirs that have failed.",
            lambda: float(self.replicas.directories.offline_count()),
        )
        metrics.gauge(
            "kafka_server_kafkaserver_brokerstate",
            "Kafka's number for the state of a broker: 2 while it recovers, 3 while it serves.",
            lambda: float(BROKER_RECOVERS if self.registration.fenced else BROKER_RUNS),
        )
        metrics.texts += [
            TopicMetrics(self.replicas.traffic).expose,
            PartitionMetrics(self.replicas, self._get_image).expose,
            RequestTimes(metrics, self._loop.time).expose,
        ]

    def _apply_options(self, values: Mapping[str, Value]) -> None:
        """Apply dynamic options to the components that keep a copy of them."""
        self.replicas.expire_producers_after(self._options.number(PRODUCER_EXPIRY))
        cordoned = values["cordoned.log.dirs"]
        if isinstance(cordoned, list) and self.replicas.directories.cordon(cordoned):
            self.registration.heartbeat_now()
        for listener in self._listeners:
            if not self._settings.has_listener_option(listener.settings.name, "max.connections"):
                limit = self._options.number("max.connections")
                listener.settings = replace(listener.settings, connections_max=limit)

    @property
    def image(self) -> Image:
        return self._loader.image

    @property
    def bound_ports(self) -> dict[str, int]:
        return {listener.settings.name: listener.port for listener in self._listeners}

    async def start(self, previous_broker_epoch: int) -> None:
        """Start, and return when clients are served and every partition that this broker leads is open."""
        self._listeners = await open_listeners(
            self._settings, self._settings.broker_listeners, self.dispatcher, self._context.metrics, self._security
        )
        self.dispatcher.warm(WARM)
        await self.registration.register_at_start(previous_broker_epoch)
        self._tasks.append(self._loop.create_task(self._observer.run()))
        await self._caught_up()
        if self.replicas.directories.ignores_cordons():
            log.warning("cordoned.log.dirs has no effect: it needs metadata.version 4.3-IV0")
        await self.replicas.finish_loading()
        await self.registration.become_active()
        self._tasks.append(self._loop.create_task(self.registration.run()))
        await self._caught_up()
        await self.replicas.settle()
        await self._coordinators.start()
        self._tasks.append(self._loop.create_task(self._assignments.run()))
        self._background.start()
        self._cleaner.start()
        self._moves.clean_up()
        for listener in self._listeners:
            await listener.serve()

    async def _caught_up(self) -> None:
        """Wait until the image includes this broker's registration, its unfencing, and all that was committed so far."""
        while self.image.offset < max(self.registration.broker_epoch, self._observer.high_watermark - 1) or (
            not self.registration.fenced
            and ((own := self.image.brokers.get(self._settings.node_id)) is None or own.fenced)
        ):
            await asyncio.sleep(CATCH_UP_POLL_S)

    async def stop(self) -> list[LogDir]:
        """Shut down cleanly and return the directories that were closed without errors."""
        for listener in self._listeners:
            listener.stop_accepting()
        try:
            if self._settings.flag("controlled.shutdown.enable"):
                await self.registration.leave()
        except (OSError, HeadraceError) as error:
            log.warning(
                "the shutdown of this broker could not be reported to the controller: %s; stopping anyway", error
            )
        self._cancel()
        await self._coordinators.stop()
        await self._cleaner.stop()
        await self._moves.stop()
        await self._replication.stop()
        await self._background.stop()
        await self.replicas.quiet()
        for listener in self._listeners:
            listener.stop()
        await self.replicas.settle()
        await self.replicas.quiet()
        await self._channel.close()
        return await self.replicas.close()

    def kill(self) -> None:
        self._cancel()
        self._coordinators.kill()
        self._moves.cancel()
        self._cleaner.cancel()
        self._replication.cancel()
        self._background.cancel()
        for listener in self._listeners:
            listener.stop()
        self._channel.abort()
        self.replicas.abandon()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _make_replicas(context: NodeContext, directories: Directories, options: DynamicOptions) -> Replicas:
    return Replicas(
        directories,
        context.settings.node_id,
        options.topic_defaults,
        context.settings.number("producer.id.expiration.ms"),
        context.clock,
        context.random,
        context.loop,
    )


def _make_background(context: NodeContext, replicas: Replicas) -> Background:
    return Background(replicas, context.clock, context.loop, context.metrics, _intervals(context.settings))


def _intervals(settings: Settings) -> Intervals:
    return Intervals(
        high_watermark_ms=settings.number("replica.high.watermark.checkpoint.interval.ms"),
        recovery_point_ms=settings.number("log.flush.offset.checkpoint.interval.ms"),
        log_start_ms=settings.number("log.flush.start.offset.checkpoint.interval.ms"),
        retention_ms=settings.number("log.retention.check.interval.ms"),
        producer_expiry_ms=settings.number("producer.id.expiration.check.interval.ms"),
        flush_ms=settings.number("log.flush.scheduler.interval.ms"),
        isr_ms=settings.number("replica.lag.time.max.ms") // 2,
        first_ms=settings.number("log.initial.task.delay.ms"),
    )
