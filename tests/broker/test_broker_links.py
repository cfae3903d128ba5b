"""Links to other brokers: they follow the metadata, have a lane for requests that wait, and leave out this broker itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.client.scripted_broker import HOST
from tests.client.test_client_node_link import CountedBroker

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId, Uuid
from headrace.broker.channels.broker_channel import BrokerLinks
from headrace.client.wire.connection import Disconnected
from headrace.client.wire.node_link import LinkOptions
from headrace.metadata.image import Broker, Endpoint, Image
from headrace.metadata.loader import Changes
from headrace.protocol.messages.metadata import MetadataRequest

OTHER = 2


class OwnDispatcher:
    async def send(self, peer: Any, message: Any, version: int, client_id: str) -> str:
        assert peer.authority.is_own_node
        return f"{client_id} handles {type(message).__name__}"


def make_image(port: int, incarnation: bytes = b"a" * 16) -> Image:
    endpoints = (Endpoint("PUBLIC", "unreachable.invalid", 1, 0), Endpoint("INTERNAL", HOST, port, 0))
    return Image(brokers={OTHER: Broker(OTHER, 5, Uuid(incarnation), endpoints, {}, None, False, False, ())})


class LinksHarness:
    def __init__(self, image: Image, options: Callable[[], LinkOptions] = lambda: LinkOptions("node-1")) -> None:
        self.image = image
        self.links = BrokerLinks(
            NodeId(1),
            lambda: OwnDispatcher(),
            lambda: self.image,
            lambda: "INTERNAL",
            options,
            random.Random(1),
            asyncio.get_running_loop(),
        )

    def publish(self, new: Image) -> None:
        old, self.image = self.image, new
        self.links.publish(old, new, Changes((), (), (OTHER,), ()))


def test_requests_to_this_broker_go_to_its_dispatcher() -> None:
    async def work() -> None:
        links = LinksHarness(Image()).links
        assert await links.request(1, MetadataRequest()) == "broker-1 handles MetadataRequest"
        await links.close()

    asyncio.run(asyncio.wait_for(work(), 10))


def test_requests_to_another_broker_use_its_internal_listener_and_one_connection_for_each_lane() -> None:
    async def work() -> None:
        async with CountedBroker() as broker:
            harness = LinksHarness(make_image(broker.port))
            for _ in range(3):
                await harness.links.request(OTHER, MetadataRequest(topics=[]))
                await harness.links.request(OTHER, MetadataRequest(topics=[]), lane="fetcher-0")
            assert broker.connections == 2
            await harness.links.close()

    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_broker_that_registers_elsewhere_is_reached_there_and_one_that_is_gone_is_not_reached() -> None:
    async def work() -> None:
        async with CountedBroker() as first, CountedBroker() as second:
            harness = LinksHarness(make_image(first.port))
            await harness.links.request(OTHER, MetadataRequest(topics=[]))
            harness.publish(make_image(second.port, b"b" * 16))
            await harness.links.request(OTHER, MetadataRequest(topics=[]))
            assert (first.connections, second.connections) == (1, 1)
            harness.publish(Image())
            with pytest.raises(Disconnected, match="not registered"):
                await harness.links.request(OTHER, MetadataRequest(topics=[]))
            assert not harness.links._links
            await harness.links.close()

    asyncio.run(asyncio.wait_for(work(), 10))


def test_fencing_a_broker_keeps_the_link_to_it() -> None:
    async def work() -> None:
        async with CountedBroker() as broker:
            harness = LinksHarness(make_image(broker.port))
            await harness.links.request(OTHER, MetadataRequest(topics=[]))
            fenced = replace(harness.image.brokers[OTHER], fenced=True)
            harness.publish(Image(brokers={OTHER: fenced}))
            await harness.links.request(OTHER, MetadataRequest(topics=[]))
            assert broker.connections == 1
            await harness.links.close()

    asyncio.run(asyncio.wait_for(work(), 10))


def test_an_unusable_security_configuration_matters_only_when_another_broker_is_contacted() -> None:
    def refuse() -> LinkOptions:
        raise ConfigError("no login")

    async def work() -> None:
        links = LinksHarness(make_image(1), refuse).links
        await links.request(1, MetadataRequest())
        with pytest.raises(Disconnected, match="no login"):
            await links.request(OTHER, MetadataRequest(topics=[]))
        await links.close()
        with pytest.raises(Disconnected, match="stopping"):
            await links.request(OTHER, MetadataRequest(topics=[]))

    asyncio.run(asyncio.wait_for(work(), 10))
