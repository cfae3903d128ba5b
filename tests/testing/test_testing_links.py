"""Links that tests can cut: the proxies. `examples/test_failures.py`, which a test runs, cuts those of a cluster."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from headrace.testing.links import CLIENTS, LOOPBACK, Links, owner_of
from headrace.testing.processes import free_port

WAIT_S_MAX = 100.0
SILENCE_S = 0.3
TO_CLIENTS = {frozenset((1, CLIENTS))}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class EchoServer:
    """Answers every connection with what it sends, until it is closed."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_server((LOOPBACK, port))
        self._accepted: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            self._accepted.append(one)
            self._threads.append(threading.Thread(target=self._echo, args=(one,)))
            self._threads[-1].start()

    def _echo(self, one: socket.socket) -> None:
        with one:
            try:
                while data := one.recv(65_536):
                    one.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._threads[0].join()
        for one in self._accepted:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join()


class Proxied:
    """An echo server as node 1, with a proxy in front of it."""

    def __init__(self) -> None:
        self.server_port, self.port = free_port(), free_port()
        self.links = Links(dict)
        self.links.add(1, self.server_port, self.port)
        self.server: EchoServer | None = None

    def serve(self) -> None:
        self.server = EchoServer(self.server_port)

    def stop_serving(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def connect(self) -> socket.socket:
        return socket.create_connection((LOOPBACK, self.port), WAIT_S_MAX)

    def accepted(self) -> set[tuple[str, int]]:
        """Return the addresses of the clients whose connections the proxy has accepted."""
        (proxy,) = self.links._proxies
        return {writer.get_extra_info("peername") for writer in list(proxy._writers)}

    def is_refused(self) -> bool:
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return True
        return False


@pytest.fixture
def proxied() -> Iterator[Proxied]:
    proxied = Proxied()
    proxied.links.start()
    try:
        yield proxied
    finally:
        proxied.links.close()
        proxied.stop_serving()


def test_a_proxy_passes_bytes_while_its_node_listens_and_refuses_connections_otherwise(proxied: Proxied) -> None:
    assert proxied.is_refused()
    for _ in range(2):
        proxied.serve()
        until(lambda: not proxied.is_refused())
        with proxied.connect() as connection:
            large = os.urandom(1 << 20)
            sender = threading.Thread(target=connection.sendall, args=(large,))
            sender.start()
            received = b""
            while len(received) < len(large):
                received += connection.recv(1 << 16)
            sender.join()
            assert received == large
            proxied.stop_serving()
            assert connection.recv(1) == b"", "the end of the node's side is passed on"
        until(proxied.is_refused)


def test_nothing_passes_a_cut_link_until_it_is_healed(proxied: Proxied) -> None:
    proxied.serve()
    until(lambda: not proxied.is_refused())
    with closing(proxied.connect()) as connection:
        connection.sendall(b"before")
        assert connection.recv(10) == b"before"
        proxied.links.cut(TO_CLIENTS)
        connection.sendall(b"during")
        connection.settimeout(SILENCE_S)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        proxied.links.heal()
        connection.settimeout(WAIT_S_MAX)
        assert connection.recv(10) == b"during", "as TCP would have sent it again"


def test_a_connection_opened_while_its_link_is_cut_is_reset_when_it_is_healed(proxied: Proxied) -> None:
    proxied.serve()
    until(lambda: not proxied.is_refused())
    proxied.links.cut(TO_CLIENTS)
    with closing(proxied.connect()) as connection:
        connection.sendall(b"lost")
        until(lambda: connection.getsockname() in proxied.accepted())
        proxied.links.heal()
        with suppress(ConnectionResetError):
            assert connection.recv(10) == b""
    proxied.links.cut({frozenset((1, 2))})
    with closing(proxied.connect()) as connection:
        connection.sendall(b"other links are whole")
        assert connection.recv(100) == b"other links are whole"


def test_the_owner_of_a_connection_is_the_node_whose_process_opened_it() -> None:
    with socket.create_server((LOOPBACK, 0)) as server, socket.socket() as connecting:
        port = server.getsockname()[1]
        connecting.connect((LOOPBACK, port))
        own = connecting.getsockname()[1]
        assert owner_of(own, port, {3: os.getppid(), 5: os.getpid()}) == 5
        assert owner_of(own, port, {3: os.getppid(), 4: 2**22 + 7}) == CLIENTS
        assert owner_of(own, 1, {5: os.getpid()}) == CLIENTS, "no such connection"
