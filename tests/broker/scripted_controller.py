"""A controller that answers over a real connection as a script says: it leads, refuses, hangs, or closes the connection."""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Any

from headrace.base.errors import ErrorCode
from headrace.client.wire.node_link import Address
from headrace.protocol.apis import APIS, REQUESTS, RESPONSES, ApiKey
from headrace.protocol.compiler import codec
from headrace.protocol.headers import read_request_header, response_header
from headrace.protocol.messages.api_versions import ApiVersionsResponse

HOST = "127.0.0.1"
_SIZE = Struct(">i")
_KEYS = (
    ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT, ApiKey.API_VERSIONS, ApiKey.ENVELOPE, ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT, ApiKey.ALTER_PARTITION, ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.CREATE_TOPICS,
)  # fmt: skip


class ScriptedController:
    """Records the requests that it receives. Set the flags to change how it answers, also while it runs."""

    def __init__(self, answer: Any = None) -> None:
        self.leads = True
        self.hangs = False
        self.closes = False  # closes the connection instead of answering
        self.answer = answer  # called with a request, if it leads: returns the response
        self.refusal: Any = None  # called with a request, if it does not lead: returns the response
        self.requests: list[Any] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> Address:
        return Address(HOST, self.port)

    async def __aenter__(self) -> ScriptedController:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                (size,) = _SIZE.unpack(await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, correlation, _, position = read_request_header(frame)
                request = codec(REQUESTS[key], version).decode(frame, position)
                response = self._respond(key, request)
                if response is None:
                    return
                body = response_header(key, version, correlation) + codec(RESPONSES[key], version).encode(response)
                writer.write(_SIZE.pack(len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if not self.hangs:
                writer.close()

    def _respond(self, key: int, request: Any) -> Any:
        """Return the response, or None to stop answering on this connection."""
        if key == ApiKey.API_VERSIONS:
            versions = [
                ApiVersionsResponse.ApiVersion(api, APIS[api].versions.low, APIS[api].stable_version_max)
                for api in _KEYS
            ]
            return ApiVersionsResponse(api_keys=versions)
        self.requests.append(request)
        if self.hangs or self.closes:
            return None
        if self.leads:
            return RESPONSES[key]() if self.answer is None else self.answer(request)
        if self.refusal is not None:
            return self.refusal(request)
        return RESPONSES[key](error_code=ErrorCode.NOT_CONTROLLER)
