"""The broker role of a node: partitions, metadata, sessions, APIs, and the registration with the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from random import Random

from msgspec.structs import replace

from headrace.api.admin.acls import AclsApi
from headrace.api.admin.alter_configs import AlterConfigsApi
from headrace.api.admin.client_quotas import ClientQuotasApi
from headrace.api.admin.describe_cluster import ClusterApi
from headrace.api.admin.describe_configs import ConfigsApi
from headrace.api.admin.forwarded import ForwardedApi
from headrace.api.admin.log_dirs import LogDirsApi
from headrace.api.admin.telemetry import TelemetryApi
from headrace.api.admin.user_scram_credentials import ScramApi
from headrace.api.api_versions import VersionsApi
from headrace.api.data.delete_records import RecordsApi
from headrace.api.data.fetch import FetchApi
from headrace.api.data.list_offsets import OffsetsApi
from headrace.api.data.produce import ProduceApi
from headrace.api.data.produce_single import SingleProduce
from headrace.api.groups.classic_groups import GroupsApi
from headrace.api.groups.consumer_groups import ConsumerGroupsApi
from headrace.api.groups.find_coordinator import FindCoordinatorApi
from headrace.api.groups.offset_commit import CommittedOffsetsApi
from headrace.api.table import broker_table
from headrace.api.topics.create_topics import TopicsApi
from headrace.api.topics.describe_topic_partitions import TopicPagesApi
from headrace.api.topics.metadata import MetadataApi
from headrace.api.transactions.add_partitions_to_txn import TransactionsApi
from headrace.api.transactions.describe_transactions import TransactionReadsApi
from headrace.api.transactions.init_producer_id import ProducersApi
from headrace.api.transactions.txn_offset_commit import TransactionalOffsetsApi
from headrace.api.transactions.write_txn_markers import MarkersApi
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.base.ids import new_uuid
from headrace.base.metrics import Metrics
from headrace.broker.authorization import AclPublisher, find_credential
from headrace.broker.background import Background, Intervals
from headrace.broker.client_telemetry import ClientTelemetry
from headrace.broker.controller_channel import LocalChannel
from headrace.broker.directory_assignments import DirectoryAssignments
from headrace.broker.dynamic_options import PRODUCER_EXPIRY, DynamicOptions
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.forwarding import Forwarding
from headrace.broker.group_metadata import GroupMetadataPublisher
from headrace.broker.log_cleaner import LogCleaner
from headrace.broker.metrics.isr_metrics import IsrMetrics
from headrace.broker.metrics.partition_metrics import PartitionMetrics
from headrace.broker.metrics.topic_metrics import TopicMetrics
from headrace.broker.observer import MetadataObserver
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.registration import Registration
from headrace.broker.topic_creation import TopicCreation
from headrace.coordinators.internal_topics import internal_topics
from headrace.metadata.image import Image
from headrace.metadata.loader import MetadataLoader
from headrace.metadata.records import CORDONED_LEVEL
from headrace.metadata.state import KRAFT_VERSION, METADATA_VERSION
from headrace.node.coordinator_wiring import Coordinators
from headrace.node.feature_levels import SUPPORTED_FEATURES
from headrace.node.listeners import open_listeners
from headrace.node.security import SecurityOfListeners, authority_of, make_authorizer
from headrace.node.settings import Settings
from headrace.observe.client_series import ClientSeries
from headrace.observe.request_times import RequestTimes
from headrace.options.table import Value
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.replication.dir_moves import DirMoves
from headrace.replication.directories import Directories
from headrace.replication.replicas import Replicas
from headrace.server.dispatch import Dispatcher
from headrace.server.frames import FrameHandler
from headrace.server.listener import Listener
from headrace.storage.checkpoints import CLEANER_CHECKPOINT
from headrace.storage.log_dirs import LogDir

log = logging.getLogger(__name__)

CATCH_UP_POLL_S = 0.002
# The first requests of every client, in the versions that current clients use.
WARM = {ApiKey.API_VERSIONS: 4, ApiKey.METADATA: 13, ApiKey.PRODUCE: 13, ApiKey.FETCH: 18}

BROKER_RECOVERS, BROKER_RUNS = 2, 3


class BrokerRole:
    def __init__(
        self,
        settings: Settings,
        directories: Directories,
        controller: FrameHandler,
        clock: Clock,
        chance: Random,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        cluster_id: str,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._metrics = metrics
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._channel = channel = LocalChannel(lambda: controller, f"broker-{settings.node_id}")
        self._options = DynamicOptions(settings.values, settings.explicit, settings.node_id)
        self.replicas = Replicas(
            directories,
            settings.node_id,
            self._options.topic_defaults,
            settings.number("producer.id.expiration.ms"),
            clock,
            chance,
            loop,
        )
        forwarding = Forwarding(channel)
        self._creation = TopicCreation(
            channel, forwarding, lambda: self.image, self.replicas.settle, internal_topics(settings.values)
        )
        self._authorizer = make_authorizer(settings)
        self._security = SecurityOfListeners(
            settings,
            clock.now_ms,
            chance,
            lambda mechanism, user: find_credential(self.image, mechanism, user),
            authority_of(self._authorizer),
        )
        acls = [] if self._authorizer is None else [AclPublisher(self._authorizer)]
        self._single_produce = SingleProduce(self.replicas, clock, loop, metrics)
        self._client_series = ClientSeries()
        self._telemetry = ClientTelemetry(self._client_series, settings.number("telemetry.max.bytes"), chance)
        self._coordinators = Coordinators(
            settings,
            self._options,
            lambda: self.image,
            self.replicas,
            lambda: self.dispatcher,
            clock,
            chance,
            loop,
            metrics,
        )
        self.groups = self._coordinators.groups
        self.transactions = self._coordinators.transactions
        self._loader = MetadataLoader(
            [
                *acls,
                # BEFORE the replicas, which are opened with these options.
                self._options,
                self.replicas,
                self._creation,
                self._single_produce,
                self._telemetry,
                IsrMetrics(metrics, settings.node_id),
                GroupMetadataPublisher(self.groups),
            ]
        )
        self._observer = MetadataObserver(channel, self._loader, settings.node_id, cluster_id)
        self.registration = Registration(
            channel,
            settings.node_id,
            cluster_id,
            new_uuid(chance),
            lambda: settings.endpoints(self.bound_ports),
            SUPPORTED_FEATURES,
            settings.text("broker.rack"),
            directories,
            lambda: self.image.offset,
            settings.number("broker.heartbeat.interval.ms") / 1000,
            settings.number("log.dir.failure.timeout.ms") / 1000,
            self.replicas.stop_node,
        )
        self.replicas.on_directory_failed = self.registration.hurry
        directories.may_cordon = lambda: self.image.features.get(METADATA_VERSION, 0) >= CORDONED_LEVEL
        self._assignments = DirectoryAssignments(
            channel, settings.node_id, self.replicas, lambda: self.registration.broker_epoch
        )
        self._moves = self._make_moves(directories, clock, chance)
        self._options.subscribe(self._take_over)
        self._options.subscribe(lambda values: self._security.take_over(self._options.layers().dynamic))
        self._background = background = self._make_background(clock)
        self._cleaner = LogCleaner(
            self.replicas,
            lambda: self._options.values,
            clock,
            chance,
            loop,
            metrics,
            lambda: background.checkpoint([CLEANER_CHECKPOINT]),
        )
        self._options.subscribe(lambda values: self._cleaner.wake())
        producer_ids = ProducerIds(channel, settings.node_id, lambda: self.registration.broker_epoch)
        self.dispatcher = self._make_dispatcher(forwarding, producer_ids, clock, chance, cluster_id)

    def _make_moves(self, directories: Directories, clock: Clock, chance: Random) -> DirMoves:
        return DirMoves(
            self.replicas,
            directories,
            clock,
            chance,
            self._loop,
            lambda: self._options.number("replica.alter.log.dirs.io.max.bytes.per.second"),
        )

    def _make_background(self, clock: Clock) -> Background:
        settings = self._settings
        return Background(
            self.replicas,
            clock,
            self._loop,
            self._metrics,
            Intervals(
                high_watermark_ms=settings.number("replica.high.watermark.checkpoint.interval.ms"),
                recovery_point_ms=settings.number("log.flush.offset.checkpoint.interval.ms"),
                log_start_ms=settings.number("log.flush.start.offset.checkpoint.interval.ms"),
                retention_ms=settings.number("log.retention.check.interval.ms"),
                producer_expiry_ms=settings.number("producer.id.expiration.check.interval.ms"),
                flush_ms=settings.number("log.flush.scheduler.interval.ms"),
                first_ms=settings.number("log.initial.task.delay.ms"),
            ),
        )

    def _make_dispatcher(
        self, forwarding: Forwarding, producer_ids: ProducerIds, clock: Clock, chance: Random, cluster_id: str
    ) -> Dispatcher:
        settings = self._settings

        def image() -> Image:
            return self.image

        coordinators = self._coordinators
        offsets_partitions = settings.number("offsets.topic.num.partitions")
        transactions = TransactionsApi(coordinators.transactions, producer_ids, image, offsets_partitions)
        sessions = FetchSessions(chance, settings.number("max.incremental.fetch.session.cache.slots"))
        self._metrics.gauge(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            "Open fetch sessions.",
            lambda: float(len(sessions)),
        )
        self._versions = versions = VersionsApi(
            lambda: table, image, SUPPORTED_FEATURES, telemetry_wanted=lambda: self._telemetry.is_wanted
        )
        table = broker_table(
            versions=versions,
            produce=ProduceApi(
                self.replicas,
                image,
                clock,
                self._loop,
                coordinators.verifier,
                coordinators.is_verifying,
            ),
            fetch=FetchApi(self.replicas, sessions, image, self._loop, settings.number("fetch.max.bytes")),
            offsets=OffsetsApi(self.replicas),
            metadata=MetadataApi(
                image, self._creation, settings.node_id, cluster_id, settings.flag("auto.create.topics.enable")
            ),
            topics=TopicsApi(forwarding, self._creation, deletion_enabled=settings.flag("delete.topic.enable")),
            producers=ProducersApi(producer_ids, transactions),
            coordinator=FindCoordinatorApi(image, self._creation, settings.node_id, self.groups, self.transactions),
            committed=CommittedOffsetsApi(self.groups, image),
            groups=GroupsApi(self.groups),
            consumer_groups=ConsumerGroupsApi(
                self.groups,
                image,
                is_enabled="consumer" in settings.texts("group.coordinator.rebalance.protocols"),
            ),
            cluster=ClusterApi(image, settings.node_id, cluster_id),
            configs=ConfigsApi(image, self._options, settings.node_id),
            alter_configs=AlterConfigsApi(image, self._options, forwarding, settings.node_id),
            records=RecordsApi(self.replicas, clock),
            pages=TopicPagesApi(image, settings.number("max.request.partition.size.limit")),
            log_dirs=LogDirsApi(self.replicas, self.replicas.directories, self._moves, self._loop),
            quotas=ClientQuotasApi(image),
            forwarded=ForwardedApi(forwarding, self._creation),
            acls=AclsApi(lambda: self.image.acls.values(), forwarding, self._creation, self._authorizer),
            scram=ScramApi(lambda: self.image.scram, forwarding, self._creation),
            telemetry=TelemetryApi(self._telemetry, self._client_series, self._metrics, self._loop),
            transactions=transactions,
            transaction_reads=TransactionReadsApi(coordinators.transactions, clock),
            transactional_offsets=TransactionalOffsetsApi(
                self.groups, image, coordinators.verifier, coordinators.is_verifying
            ),
            markers=MarkersApi(self.replicas, clock, self.groups.end_transaction),
            unstable_versions=settings.flag("unstable.api.versions.enable"),
        )
        self._metrics.gauge(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Directories of log.dirs that have failed.",
            lambda: float(self.replicas.directories.offline_count()),
        )
        self._metrics.gauge(
            "kafka_server_kafkaserver_brokerstate",
            "Kafka's number for the state of a broker: 2 while it recovers, 3 while it serves.",
            lambda: float(BROKER_RECOVERS if self.registration.fenced else BROKER_RUNS),
        )
        self._metrics.texts += [
            TopicMetrics(self.replicas.traffic).expose,
            PartitionMetrics(self.replicas, image).expose,
            RequestTimes(self._metrics, self._loop.time).expose,
        ]
        return Dispatcher(table, versions.unsupported, self._metrics, self._loop, self._single_produce.handle)

    def _take_over(self, values: Mapping[str, Value]) -> None:
        """Apply dynamic options to the components that keep a copy of them."""
        self.replicas.expire_producers_after(self._options.number(PRODUCER_EXPIRY))
        cordoned = values["cordoned.log.dirs"]
        if isinstance(cordoned, list) and self.replicas.directories.cordon(cordoned):
            self.registration.hurry()
        for listener in self._listeners:
            if not self._settings.has_listener_option(listener.settings.name, "max.connections"):
                limit = self._options.number("max.connections")
                listener.settings = replace(listener.settings, connections_max=limit)

    async def _learn_kraft_version(self) -> None:
        ask = ApiVersionsRequest(client_software_name="headrace", client_software_version="0.1.0")
        answer: ApiVersionsResponse = await self._channel.request(ask)
        self._versions.kraft_version = next(
            (one.max_version_level for one in answer.finalized_features if one.name == KRAFT_VERSION), 0
        )

    @property
    def image(self) -> Image:
        return self._loader.image

    @property
    def bound_ports(self) -> dict[str, int]:
        return {listener.settings.name: listener.port for listener in self._listeners}

    async def start(self, previous_broker_epoch: int) -> None:
        """Start, and return when clients are served and every partition that this broker leads is open."""
        self._listeners = await open_listeners(
            self._settings, self._settings.broker_listeners, self.dispatcher, self._metrics, self._security
        )
        self.dispatcher.warm(WARM)
        await self._learn_kraft_version()
        await self.registration.register(previous_broker_epoch)
        self._tasks.append(self._loop.create_task(self._observer.run()))
        await self._caught_up()
        if self.replicas.directories.ignores_cordons():
            log.warning("cordoned.log.dirs has no effect: it needs metadata.version 4.3-IV0")
        await self.replicas.finish_loading()
        await self.registration.become_active()
        await self._caught_up()
        await self.replicas.settle()
        await self._coordinators.start()
        self._tasks.append(self._loop.create_task(self.registration.run()))
        self._tasks.append(self._loop.create_task(self._assignments.run()))
        self._background.start()
        self._cleaner.start()
        self._moves.clean_up()
        for listener in self._listeners:
            await listener.serve()

    async def _caught_up(self) -> None:
        """Wait until the image includes this broker's registration, its unfencing, and all that was committed so far."""
        while self.image.offset < max(self.registration.broker_epoch, self._observer.high_watermark - 1) or (
            not self.registration.fenced and self.image.brokers[self._settings.node_id].fenced
        ):
            await asyncio.sleep(CATCH_UP_POLL_S)

    async def stop(self) -> list[LogDir]:
        """Shut down cleanly and return the directories that were closed without errors."""
        for listener in self._listeners:
            listener.stop_accepting()
        try:
            await self.registration.leave()
        except (OSError, HeadraceError) as error:
            log.warning("the controller could not be told of the stop: %s", error)
        self._cancel()
        await self._coordinators.stop()
        await self._cleaner.stop()
        await self._moves.stop()
        await self._background.stop()
        await self.replicas.quiet()
        for listener in self._listeners:
            listener.stop()
        await self.replicas.settle()
        await self.replicas.quiet()
        return await self.replicas.close()

    def kill(self) -> None:
        self._cancel()
        self._coordinators.kill()
        self._moves.cancel()
        self._cleaner.cancel()
        self._background.cancel()
        for listener in self._listeners:
            listener.stop()
        self.replicas.abandon()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
