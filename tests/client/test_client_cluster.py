"""A client of a cluster in which one broker hangs: its connection is open, but it does not respond."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.scripted_broker import HOST, TOPIC, ScriptedBroker

from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import NoResponse
from headrace.protocol.messages.fetch import FetchResponse


def test_requests_go_to_other_brokers_after_one_has_not_responded() -> None:
    async def main() -> None:
        good = ScriptedBroker(lambda request: FetchResponse())
        connected: list[asyncio.StreamWriter] = []

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Answer the first request, for the versions, and no other."""
            connected.append(writer)
            size = await reader.readexactly(4)
            first = asyncio.StreamReader()
            first.feed_data(size + await reader.readexactly(int.from_bytes(size, "big")))
            await good.serve(first, writer)

        servers = [await asyncio.start_server(serve, HOST, 0) for serve in (hang, good.serve)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        good.port = ports[1]
        async with Cluster([(HOST, port) for port in ports], timeout_s=3.0) as cluster:
            with pytest.raises(NoResponse):
                await cluster.refresh([TOPIC])
            for _ in range(3):
                assert (await cluster.refresh([TOPIC])).topics[0].name == TOPIC
        assert len(connected) == 1
        for writer in connected:
            writer.close()
        for server in servers:
            server.close()
            await server.wait_closed()

    asyncio.run(main())
