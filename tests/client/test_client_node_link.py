"""Links between nodes: shared connections, reconnecting, and the pause after a failed attempt to connect."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from tests.client.scripted_broker import HOST, ScriptedBroker

from headrace.base.eager import Rest, begin
from headrace.client.retry import Backoff
from headrace.client.wire.connection import Disconnected, NoResponse
from headrace.client.wire.node_link import Address, LinkOptions, NodeLink
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.metadata import MetadataRequest

OPTIONS = LinkOptions(client_id="node-1", backoff=Backoff(first_s=0.1, max_s=0.1))


class CountedBroker(ScriptedBroker):
    """Counts connections, and can close them all."""

    def __init__(self) -> None:
        super().__init__(lambda request: FetchResponse())
        self.writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        await super().serve(reader, writer)

    async def __aenter__(self) -> CountedBroker:
        self.server = await asyncio.start_server(self.serve, HOST, self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()


def make_link(port: int) -> NodeLink:
    return NodeLink(Address(HOST, port), OPTIONS, random.Random(1))


def test_concurrent_requests_share_one_connection_which_is_opened_again_after_a_loss() -> None:
    async def work() -> None:
        async with CountedBroker() as broker:
            link = make_link(broker.port)
            responses = await asyncio.gather(*(link.request(MetadataRequest(topics=[])) for _ in range(5)))
            assert [len(response.brokers) for response in responses] == [1] * 5
            assert broker.connections == 1 and link.is_connected
            broker.writers[0].close()
            while link.is_connected:
                await asyncio.sleep(0.001)
            await link.request(MetadataRequest(topics=[]))
            assert broker.connections == 2
            await link.close()
            with pytest.raises(Disconnected, match="closed"):
                await link.request(MetadataRequest(topics=[]))

    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_coroutine_that_has_no_task_yet_may_send_requests() -> None:
    async def work() -> None:
        async with CountedBroker() as broker:
            link = make_link(broker.port)
            loop = asyncio.get_running_loop()
            begun: list[Any] = []
            for _ in range(2):  # without a connection, and with one
                loop.call_soon(lambda: begun.append(begin(link.request(MetadataRequest(topics=[])))))
                await asyncio.sleep(0.01)
                rest = begun.pop()
                assert isinstance(rest, Rest)
                assert (await rest).brokers
            await link.close()

    asyncio.run(asyncio.wait_for(work(), 10))


def test_an_exchange_answers_in_the_call_that_receives_the_response() -> None:
    async def work() -> None:
        async with CountedBroker() as broker:
            link = make_link(broker.port)
            assert link.exchange(MetadataRequest(topics=[])) is None  # the link is not open yet
            await link.request(MetadataRequest(topics=[]))
            promises = [link.exchange(MetadataRequest(topics=[])) for _ in range(3)]
            answered: list[int] = []
            for promise in promises:
                assert promise is not None
                promise.add_done_callback(lambda done: answered.append(len(done.result().brokers)))
            request = await link.request(MetadataRequest(topics=[]))
            assert request.brokers and answered == [1, 1, 1]
            await link.close()
            assert link.exchange(MetadataRequest(topics=[])) is None

    asyncio.run(asyncio.wait_for(work(), 10))


def test_an_exchange_fails_when_the_response_does_not_come_in_time_or_the_link_is_closed() -> None:
    async def work() -> None:
        async with CountedBroker() as broker:
            options = LinkOptions(client_id="node-1", request_timeout_s=0.2)
            link = NodeLink(Address(HOST, broker.port), options, random.Random(1))
            await link.request(MetadataRequest(topics=[]))
            broker.is_silent = True
            first = link.exchange(MetadataRequest(topics=[]))
            await asyncio.sleep(0.1)
            second = link.exchange(MetadataRequest(topics=[]))
            assert first is not None and second is not None
            with pytest.raises(NoResponse, match=r"within 0\.2 s"):
                await first
            assert not second.done()  # it was sent later
            with pytest.raises(NoResponse):
                await second
            third = link.exchange(MetadataRequest(topics=[]))
            assert third is not None
            link.abort()
            with pytest.raises(Disconnected):
                await third

    asyncio.run(asyncio.wait_for(work(), 10))


def test_after_a_failed_attempt_requests_fail_at_once_until_the_pause_is_over() -> None:
    async def work() -> None:
        broker = CountedBroker()
        async with broker:
            pass  # its port refuses connections from now on
        options = LinkOptions(client_id="node-1", backoff=Backoff(first_s=2.0, max_s=2.0))
        link = NodeLink(Address(HOST, broker.port), options, random.Random(1))
        with pytest.raises(Disconnected, match="cannot connect"):
            await link.request(MetadataRequest(topics=[]))
        async with broker:
            with pytest.raises(Disconnected, match="a moment ago"):
                await link.request(MetadataRequest(topics=[]))
            assert broker.connections == 0
            while broker.connections == 0:
                await asyncio.sleep(0.05)
                with contextlib.suppress(Disconnected):
                    assert (await link.request(MetadataRequest(topics=[]))).brokers
            await link.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_cancelled_request_ends_even_if_its_link_is_closed_at_the_same_time() -> None:
    async def work() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(10), HOST, 0)
        link = make_link(silent.sockets[0].getsockname()[1])
        request = asyncio.create_task(link.request(MetadataRequest(topics=[])))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(link.close())
        asyncio.get_running_loop().call_soon(request.cancel)
        with pytest.raises(asyncio.CancelledError):
            await request
        await closing
        silent.close()

    asyncio.run(asyncio.wait_for(work(), 10))


def test_closing_a_link_fails_the_requests_that_wait_for_its_connection() -> None:
    async def work() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(10), HOST, 0)
        link = make_link(silent.sockets[0].getsockname()[1])
        request = asyncio.create_task(link.request(MetadataRequest(topics=[])))
        await asyncio.sleep(0.05)
        await link.close()
        with pytest.raises(Disconnected, match="closed"):
            await request
        silent.close()

    asyncio.run(asyncio.wait_for(work(), 10))
