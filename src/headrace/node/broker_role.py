"""The broker of this node: partitions, metadata, sessions, APIs, and its life with the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

from headrace.api.cluster import ClusterApi
from headrace.api.configs import ConfigsApi
from headrace.api.fetch import FetchApi
from headrace.api.metadata import MetadataApi
from headrace.api.offsets import OffsetsApi
from headrace.api.produce import ProduceApi
from headrace.api.produce_single import SingleProduce
from headrace.api.producers import ProducersApi
from headrace.api.table import broker_table
from headrace.api.topics import TopicsApi
from headrace.api.versions import VersionsApi
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.base.ids import new_uuid
from headrace.base.metrics import Metrics
from headrace.broker.background import Background
from headrace.broker.controller_channel import LocalChannel
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.forwarding import Forwarding
from headrace.broker.observer import MetadataObserver
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.registration import Registration
from headrace.broker.topic_creation import TopicCreation
from headrace.metadata.image import Image
from headrace.metadata.loader import MetadataLoader
from headrace.node.formatting import SUPPORTED_FEATURES
from headrace.node.listeners import open_listeners
from headrace.node.settings import Settings
from headrace.protocol.apis import ApiKey
from headrace.replication.replicas import Replicas
from headrace.server.connection import FrameHandler
from headrace.server.dispatch import Dispatcher
from headrace.server.listener import Listener
from headrace.storage.log_dirs import LogDir

log = logging.getLogger(__name__)

CATCH_UP_POLL_S = 0.002
# What every client asks first, in the versions that today's clients use.
WARM = {ApiKey.API_VERSIONS: 4, ApiKey.METADATA: 13, ApiKey.PRODUCE: 13, ApiKey.FETCH: 18}


class BrokerRole:
    def __init__(
        self,
        settings: Settings,
        log_dirs: Sequence[LogDir],
        controller: FrameHandler,
        clock: Clock,
        chance: Random,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        cluster_id: str,
        *,
        clean: bool,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._metrics = metrics
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []
        channel = LocalChannel(lambda: controller, f"broker-{settings.node_id}")
        self.replicas = Replicas(
            log_dirs,
            settings.node_id,
            settings.topic_defaults,
            settings.number("producer.id.expiration.ms"),
            clock,
            chance,
            loop,
            clean=clean,
        )
        forwarding = Forwarding(channel)
        self._creation = TopicCreation(forwarding, lambda: self.image, self.replicas.settle)
        self._single_produce = SingleProduce(self.replicas, clock, loop, metrics)
        self._loader = MetadataLoader([self.replicas, self._creation, self._single_produce])
        self._observer = MetadataObserver(channel, self._loader, settings.node_id, cluster_id)
        self.registration = Registration(
            channel,
            settings.node_id,
            cluster_id,
            new_uuid(chance),
            lambda: settings.endpoints(self.bound_ports),
            SUPPORTED_FEATURES,
            settings.text("broker.rack"),
            [log_dir.meta.directory_id for log_dir in log_dirs if log_dir.meta is not None],
            lambda: self.image.offset,
            settings.number("broker.heartbeat.interval.ms") / 1000,
        )
        self._background = Background(
            self.replicas,
            loop,
            metrics,
            high_watermark_s=settings.number("replica.high.watermark.checkpoint.interval.ms") / 1000,
            recovery_point_s=settings.number("log.flush.offset.checkpoint.interval.ms") / 1000,
        )
        producer_ids = ProducerIds(channel, settings.node_id, lambda: self.registration.broker_epoch)
        self.dispatcher = self._make_dispatcher(forwarding, producer_ids, clock, chance, cluster_id)

    def _make_dispatcher(
        self, forwarding: Forwarding, producer_ids: ProducerIds, clock: Clock, chance: Random, cluster_id: str
    ) -> Dispatcher:
        settings = self._settings

        def image() -> Image:
            return self.image

        sessions = FetchSessions(chance, settings.number("max.incremental.fetch.session.cache.slots"))
        self._metrics.gauge(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            "Open fetch sessions.",
            lambda: float(len(sessions)),
        )
        bytes_out = self._metrics.counter("kafka_server_brokertopicmetrics_bytesout_total", "Bytes of records fetched.")
        versions = VersionsApi(lambda: table, image, SUPPORTED_FEATURES)
        table = broker_table(
            versions=versions,
            produce=ProduceApi(self.replicas, image, clock, self._loop, self._metrics),
            fetch=FetchApi(self.replicas, sessions, image, self._loop, settings.number("fetch.max.bytes"), bytes_out),
            offsets=OffsetsApi(self.replicas),
            metadata=MetadataApi(
                image, self._creation, settings.node_id, cluster_id, settings.flag("auto.create.topics.enable")
            ),
            topics=TopicsApi(forwarding, self._creation, deletion_enabled=settings.flag("delete.topic.enable")),
            producers=ProducersApi(producer_ids),
            cluster=ClusterApi(image, settings.node_id, cluster_id),
            configs=ConfigsApi(image, settings.node_id, settings.values, settings.explicit),
        )
        self._metrics.gauge(
            "kafka_server_replicamanager_partitioncount",
            "Partitions on this broker.",
            lambda: float(len(self.replicas.all())),
        )
        return Dispatcher(table, versions.unsupported, self._metrics, self._loop, self._single_produce.handle)

    @property
    def image(self) -> Image:
        return self._loader.image

    @property
    def bound_ports(self) -> dict[str, int]:
        return {listener.settings.name: listener.port for listener in self._listeners}

    async def start(self, previous_broker_epoch: int) -> None:
        """Returns when clients are served and every partition that this broker leads is open."""
        self._listeners = await open_listeners(
            self._settings, self._settings.broker_listeners, self.dispatcher, self._metrics
        )
        self.dispatcher.warm(WARM)
        await self.registration.register(previous_broker_epoch)
        self._tasks.append(self._loop.create_task(self._observer.run()))
        await self._caught_up()
        await self.replicas.finish_loading()
        await self.registration.become_active()
        await self._caught_up()
        await self.replicas.settle()
        self._tasks.append(self._loop.create_task(self.registration.run()))
        self._background.start()
        for listener in self._listeners:
            await listener.serve()

    async def _caught_up(self) -> None:
        """Our image has what was committed when we asked: the registration, or the leadership that followed it."""
        while self.image.offset < max(self.registration.broker_epoch, self._observer.high_watermark - 1) or (
            not self.registration.fenced and self.image.brokers[self._settings.node_id].fenced
        ):
            await asyncio.sleep(CATCH_UP_POLL_S)

    async def stop(self) -> None:
        for listener in self._listeners:
            listener.stop_accepting()
        try:
            await self.registration.leave()
        except (OSError, HeadraceError) as error:
            log.warning("the controller could not be told of the stop: %s", error)
        self._cancel()
        await self._background.stop()
        for listener in self._listeners:
            listener.stop()
        await self.replicas.settle()
        await self._loop.run_in_executor(None, self.replicas.close)

    def kill(self) -> None:
        self._cancel()
        self._background.cancel()
        for listener in self._listeners:
            listener.stop()
        self.replicas.abandon()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
