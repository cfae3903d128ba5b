"""Connects a broker's partitions to the other brokers and to the controller: links, fetchers, changes of ISRs."""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.channels.broker_channel import BrokerLinks
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.broker.fetching.followed import FetchOptions, FollowerIdentity
from headrace.broker.fetching.replica_fetchers import ReplicaFetchers
from headrace.broker.membership.alter_partitions import AlterPartitions
from headrace.metadata.image import Image
from headrace.node.configuration.settings import Settings
from headrace.node.context import NodeContext
from headrace.node.wiring.link_options import inter_broker_link_options, inter_broker_listener
from headrace.replication.replicas import Replicas
from headrace.server.frames import MessageHandler


def make_links(
    context: NodeContext, dispatcher: Callable[[], MessageHandler], image: Callable[[], Image]
) -> BrokerLinks:
    settings = context.settings
    return BrokerLinks(
        settings.node_id,
        dispatcher,
        image,
        lambda: inter_broker_listener(settings),
        lambda: inter_broker_link_options(settings, context.random),
        context.random,
        context.loop,
    )


class Replication:
    """What replicates the partitions of one broker. It starts with the first partition that has several replicas."""

    def __init__(
        self,
        context: NodeContext,
        replicas: Replicas,
        image: Callable[[], Image],
        links: BrokerLinks,
        channel: ControllerChannel,
        identity: FollowerIdentity,
    ) -> None:
        settings = context.settings
        self._links = links
        self._alterations = AlterPartitions(
            channel,
            identity.node_id,
            identity.broker_epoch,
            image,
            context.clock,
            context.loop,
            context.metrics,
            settings.number("replica.lag.time.max.ms"),
        )
        self._fetchers = ReplicaFetchers(
            identity,
            links,
            _fetch_options(settings),
            settings.number("num.replica.fetchers"),
            context.loop,
        )
        self._fetchers.export(context.metrics)
        replicas.port = self._alterations
        replicas.on_role = self._fetchers.update

    def cancel(self) -> None:
        self._alterations.cancel()
        self._fetchers.cancel()
        self._links.cancel()

    async def stop(self) -> None:
        await self._fetchers.stop()
        await self._alterations.stop()
        await self._links.close()


def _fetch_options(settings: Settings) -> FetchOptions:
    return FetchOptions(
        wait_ms=settings.number("replica.fetch.wait.max.ms"),
        bytes_min=settings.number("replica.fetch.min.bytes"),
        partition_bytes_max=settings.number("replica.fetch.max.bytes"),
        response_bytes_max=settings.number("replica.fetch.response.max.bytes"),
        backoff_ms=settings.number("replica.fetch.backoff.ms"),
    )
