"""The simulated network: ordered streams in any fragmentation, back-pressure, cuts, partitions, vanishing processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.network import Network


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.pieces = 0
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("reset" if exc else "closed")


class Echo(Recorder):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)


class BufferedRecorder(asyncio.BufferedProtocol):
    """A protocol with a buffer of 99 bytes, so that one chunk takes many reads."""

    def __init__(self) -> None:
        self.buffer = bytearray(99)
        self.received = bytearray()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]


class Net:
    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(Random(seed))
        self.network = Network(self.loop, Random(seed + 1000))
        self.accepted: list[Any] = []

    async def serve(self, make: Callable[[], Any] = Recorder, **options: Any) -> Any:
        def accept() -> Any:
            self.accepted.append(make())
            return self.accepted[-1]

        return await self.loop.create_server(accept, "host", 9092, **options)

    async def connect(self, make: Callable[[], Any] = Recorder) -> tuple[Any, Any]:
        return await self.loop.create_connection(make, "host", 9092)


def simulate(main: Callable[[Net], Coroutine[Any, Any, Any]], seed: int = 0) -> Any:
    net = Net(seed)
    result = net.loop.run_until_complete(main(net))
    assert net.loop.unhandled() == []
    return result


@pytest.mark.parametrize("make", [Recorder, BufferedRecorder])
def test_a_stream_arrives_complete_and_in_order_however_it_is_split(make: Callable[[], Any]) -> None:
    data = Random(1).randbytes(300_000)

    async def main(net: Net) -> int:
        net.network.split_share = 0.5
        server = await net.serve(make)
        assert server.sockets[0].getsockname() == ("host", 9092)
        transport, _ = await net.connect()
        for start in range(0, len(data), 10_000):
            transport.write(memoryview(data)[start : start + 10_000])
        await asyncio.sleep(10)
        assert bytes(net.accepted[0].received) == data
        return getattr(net.accepted[0], "pieces", 0)

    pieces = {simulate(main, seed) for seed in range(5)}
    assert make is BufferedRecorder or len(pieces) > 1


def test_data_written_before_the_server_accepts_is_delivered() -> None:
    async def main(net: Net) -> None:
        await net.serve(Echo)
        transport, protocol = await net.connect()
        assert transport.get_extra_info("peername")[1] == 9092
        transport.write(b"hello")
        await asyncio.sleep(1)
        assert (net.accepted[0].events, bytes(protocol.received)) == (["made"], b"hello")

    simulate(main)


def test_connections_are_refused_unless_the_server_is_serving() -> None:
    async def main(net: Net) -> None:
        server = await net.serve(start_serving=False)
        with pytest.raises(ConnectionRefusedError):
            await net.connect()
        with pytest.raises(OSError):
            await net.serve()
        await server.start_serving()
        await net.connect()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await net.connect()
        await net.serve()

    simulate(main)


def test_close_delivers_written_data_and_abort_resets_the_peer() -> None:
    async def main(net: Net) -> None:
        await net.serve()
        transport, protocol = await net.connect()
        transport.write(bytes(200_000))
        transport.close()
        assert transport.is_closing()
        transport.write(b"too late")
        await asyncio.sleep(5)
        assert len(net.accepted[0].received) == 200_000
        assert net.accepted[0].events == ["made", "eof", "closed"]
        assert protocol.events[-1] == "closed"
        transport, protocol = await net.connect()
        await asyncio.sleep(1)
        transport.abort()
        await asyncio.sleep(1)
        assert (protocol.events, net.accepted[1].events) == (["made", "closed"], ["made", "reset"])

    simulate(main)


def test_a_paused_reader_applies_back_pressure_to_the_writer() -> None:
    async def main(net: Net) -> None:
        await net.serve()
        transport, protocol = await net.connect()
        await asyncio.sleep(1)
        net.accepted[0].transport.pause_reading()
        transport.set_write_buffer_limits(high=1000)
        transport.write(bytes(500_000))
        assert protocol.events == ["made", "pause"]
        await asyncio.sleep(1)
        assert len(net.accepted[0].received) == 0
        assert transport.get_write_buffer_size() > 400_000
        net.accepted[0].transport.resume_reading()
        await asyncio.sleep(5)
        assert len(net.accepted[0].received) == 500_000
        assert protocol.events == ["made", "pause", "resume"]

    simulate(main)


def test_a_cut_loses_the_tail_and_resets_both_ends() -> None:
    data = Random(2).randbytes(40_000)

    async def main(net: Net) -> int:
        net.network.split_share = 1.0
        await net.serve()
        transport, protocol = await net.connect()
        await asyncio.sleep(1)
        transport.write(data)
        await asyncio.sleep(0.0004)
        net.network.cut_some(1)
        await asyncio.sleep(2)
        received = bytes(net.accepted[0].received)
        assert data.startswith(received)
        assert net.accepted[0].events == protocol.events == ["made", "reset"]
        assert net.network.connections() == []
        return len(received)

    sizes = {simulate(main, seed) for seed in range(20)}
    assert min(sizes) < 40_000 and len(sizes) > 10


def test_no_data_arrives_after_the_gap_left_by_a_cut() -> None:
    """Let the server write until it notices the cut: bytes after the gap would corrupt the stream."""
    for seed in range(40):
        net = Net(seed)

        async def main(net: Net = net) -> None:
            await net.serve()
            transport, client = await net.connect()
            await asyncio.sleep(0.01)
            [server] = net.accepted
            sent = bytes(range(256)) * 8
            server.transport.write(sent[:1024])
            net.network.cut(transport)
            server.transport.write(sent[1024:])
            await asyncio.sleep(5)
            assert sent.startswith(bytes(client.received))
            assert client.events[-1] == server.events[-1] == "reset"

        net.loop.run_until_complete(main())
        net.loop.close()


def test_the_seed_determines_the_order_across_connections() -> None:
    async def main(net: Net) -> tuple[int, ...]:
        order: list[int] = []

        class OrderRecorder(Recorder):
            def data_received(self, data: bytes) -> None:
                order.append(data[0])

        await net.serve(OrderRecorder)
        transports = [(await net.connect())[0] for _ in range(5)]
        await asyncio.sleep(1)
        for number, transport in enumerate(transports):
            transport.write(bytes([number]))
        await asyncio.sleep(1)
        return tuple(order)

    orders = [simulate(main, seed) for seed in range(10)]
    assert len(set(orders)) > 5
    assert orders == [simulate(main, seed) for seed in range(10)]


def test_a_partition_resets_and_refuses_connections_until_it_heals() -> None:
    async def main(net: Net) -> None:
        await net.serve()
        _, protocol = await net.connect()
        net.network.partition(5)
        with pytest.raises(OSError):
            await net.connect()
        await asyncio.sleep(6)
        assert protocol.events == ["made", "reset"]
        await net.connect()
        net.network.partition(500)
        net.network.heal()
        await net.connect()

    for seed in range(5):
        simulate(main, seed)


@pytest.mark.parametrize("silently", [False, True])
def test_connections_of_a_dead_process_are_reset_without_a_response(silently: bool) -> None:
    async def main(net: Net) -> None:
        process = net.loop.new_process("server")
        await net.loop.spawn(process, net.serve(Echo))
        transport, protocol = await net.connect()
        transport.write(b"one")
        await asyncio.sleep(1)
        transport.write(b"two")
        net.loop.end(process)
        net.network.process_died(process, silently=silently)
        await asyncio.sleep(3)
        assert bytes(protocol.received) == b"one"
        assert protocol.events == ["made", "reset"]
        assert net.accepted[0].events == ["made"]
        with pytest.raises(ConnectionRefusedError):
            await net.connect()

    simulate(main)


def test_a_protocol_that_raises_loses_its_connection() -> None:
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise RuntimeError("no")

    net = Net(0)

    async def main() -> list[str]:
        await net.serve(Failing)
        transport, protocol = await net.connect()
        transport.write(b"x")
        await asyncio.sleep(1)
        return list(protocol.events)

    assert net.loop.run_until_complete(main()) == ["made", "reset"]
    assert len(net.loop.errors) == 1
