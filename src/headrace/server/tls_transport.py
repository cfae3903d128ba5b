"""TLS directly on a client's socket: the handshake, then a transport.

asyncio's TLS uses memory buffers and copies every byte in both directions. Here OpenSSL reads and writes the socket itself.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from headrace.base.errors import HeadraceError
from headrace.security.certificates import BadCertificate
from headrace.server.connection import Connection
from headrace.server.plain import PlainTransport
from headrace.server.readiness import AcceptedClient
from headrace.server.tls import Tls, reason_of

HANDSHAKE_S_MAX = 10.0
RECORD_BYTES = 16 * 1024  # maximum size of one TLS record
_CORK = getattr(socket, "TCP_CORK", None)


class Handshake:
    """A TLS handshake in progress.

    `done` is called once, with None when there is a connection, or with the reason why there is none.
    """

    def __init__(
        self,
        client: AcceptedClient,
        tls: Tls,
        make: Callable[[], Connection],
        done: Callable[[Handshake, str | None], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.address = client.address[0]
        self._accepted = client
        # The current context: a new certificate applies to clients that connect later.
        self._client = tls.context.wrap_socket(client.client_socket, server_side=True, do_handshake_on_connect=False)
        self._tls = tls
        self._make = make
        self._done = done
        self._readiness = client.readiness
        self._loop = loop
        self._descriptor = self._client.fileno()
        self._timeout = loop.call_later(HANDSHAKE_S_MAX, self._end, "it took too long")
        self._readiness.add(self._descriptor, self)

    def readable(self) -> None:
        try:
            self._client.do_handshake()
        except ssl.SSLWantReadError:
            self._readiness.watch(self._descriptor, reading=True, writing=False)
        except ssl.SSLWantWriteError:
            self._readiness.watch(self._descriptor, reading=False, writing=True)
        except (ssl.SSLEOFError, ConnectionError):
            self._end("the client closed the connection")
        except OSError as error:  # includes every other SSLError
            self._end(reason_of(error))
        else:
            self._connect()

    writable = readable

    def _connect(self) -> None:
        try:
            principal = self._tls.principal(self._client)
        except (HeadraceError, BadCertificate) as error:
            self._end(str(error))
            return
        self._leave()
        connection = self._make()
        transport = TlsTransport(self._client, self._accepted, connection, self._loop)
        connection.peer.principal = principal
        self._done(self, None)
        transport.readable()  # data that arrived with the end of the handshake

    def close(self) -> None:
        self._end("the node is stopping")

    def _end(self, problem: str) -> None:
        self._leave()
        self._client.close()
        self._done(self, problem)

    def _leave(self) -> None:
        self._timeout.cancel()
        self._readiness.remove(self._descriptor)


class TlsTransport(PlainTransport):
    def __init__(
        self,
        client: ssl.SSLSocket,
        accepted: AcceptedClient,
        protocol: asyncio.BufferedProtocol,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._client = client
        super().__init__(accepted._replace(client_socket=client), protocol, loop)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._client.context if name == "sslcontext" else super().get_extra_info(name, default)

    def readable(self) -> None:
        """Fill the protocol's buffer: a TLS record holds only 16 KB, and calling the protocol for each is expensive."""
        if self._closing or not self._reading:
            if not self._reading and not self._closing:
                self._end(None)
            return
        view = memoryview(self._protocol.get_buffer(-1))
        size, total, ended = len(view), 0, False
        try:
            while total < size:
                received = self._receive(view[total:] if total else view)
                if not received:
                    ended = True
                    break
                total += received
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, InterruptedError):
            pass
        except OSError as error:
            self._end(error)
            return
        if total:
            self._protocol.buffer_updated(total)
        if ended:
            self.close()
        elif total == size:
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read the data that OpenSSL has already decrypted, for which the descriptor does not become readable."""
        if self._reading and not self._closing and self._client.pending():
            self.readable()

    def resume_reading(self) -> None:
        super().resume_reading()
        self._loop.call_soon(self._read_on)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        if not self._unsent:
            try:
                sent = self._send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, InterruptedError):
                sent = 0  # OpenSSL may have sent a part, but must be given all of it again
            except OSError as error:
                self._end(error)
                return
            if sent == len(data):
                return
            self._unsent += memoryview(data)[sent:]
            self._watch()
        else:
            self._unsent += data
        self._pause_if_full()

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        """Send the data, corked if it takes several TLS records, so that the client is not woken for each of them."""
        if len(data) <= RECORD_BYTES or _CORK is None:
            return self._client.send(data)
        self._client.setsockopt(socket.IPPROTO_TCP, _CORK, 1)
        try:
            return self._client.send(data)
        finally:
            self._client.setsockopt(socket.IPPROTO_TCP, _CORK, 0)

    def writable(self) -> None:
        try:
            sent = self._send(self._unsent)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        self._sent(sent)

    def _end(self, error: OSError | None) -> None:
        if self._descriptor >= 0 and error is None:
            with suppress(OSError, ValueError):
                self._client.unwrap()  # sends close_notify without waiting for the peer's
        super()._end(error)
