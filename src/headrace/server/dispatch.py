"""Dispatching: reads a frame's header, finds the handler by (API, version), decodes, authorizes, calls, encodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from typing import Any

import msgspec

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.metrics import Metrics
from headrace.base.promise import Awaited, Promise
from headrace.observe.request_times import (
    DEFERRED_REQUEST_LOCAL_SECONDS,
    DEFERRED_REQUEST_REMOTE_SECONDS,
    DEFERRED_REQUEST_SECONDS,
    IMMEDIATE_REQUEST_SECONDS,
)
from headrace.protocol.apis import APIS, ApiKey
from headrace.protocol.compiler import codec
from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.headers import has_flexible_response_header, read_request_header
from headrace.security.resources import Need
from headrace.server.acl_authority import REFUSED, Refusal, need_of_whole, refusal_for
from headrace.server.context import Peer, RequestContext
from headrace.server.frames import CloseConnection, Deferred, EncodedResponse, ReceivedRequest
from headrace.server.response_writer import ResponseParts

log = logging.getLogger(__name__)

Handler = Callable[[RequestContext, Any], Any]

_WITH_RECORDS = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})  # their responses hold file ranges, which are not copied
_SIZE = Struct(">i")
_PREFIX = Struct(">ii")  # frame size, correlation id
_PREFIX_FLEXIBLE = Struct(">iib")  # … and an empty tag section


class Service(msgspec.Struct, frozen=True):
    """One row of the API table: supported versions, handler and required permission.

    `refuse` builds the response for a client without that permission. It is needed only if the response has no top-level
    error code.
    """

    key: ApiKey
    versions: tuple[int, int]
    handler: Handler
    need: Need
    refuse: Refusal | None = None
    metric_name: str | None = None  # label of its requests in /metrics; None: the name of the API
    is_listed: Callable[[], bool] | None = None  # whether ApiVersions lists it; None: always
    keeps_frame: bool = False  # the handler is passed a ReceivedRequest, with the frame to forward


class RequestMetrics:
    """Request counter and latency histograms of one API and version, shared by all its handlers."""

    __slots__ = ("deferred", "deferred_local", "deferred_remote", "requests", "times")

    def __init__(self, metrics: Metrics, request: str, version: int) -> None:
        self.requests = metrics.counter(
            "kafka_network_requestmetrics_requests_total",
            "Requests by API and version.",
            request=request,
            version=str(version),
        )
        self.times = metrics.histogram(
            IMMEDIATE_REQUEST_SECONDS,
            "Time of a request whose response is ready in the call that received it.",
            request=request,
        )
        self.deferred = metrics.histogram(
            DEFERRED_REQUEST_SECONDS,
            "Time of a request whose response is deferred, from its last byte on.",
            request=request,
        )
        self.deferred_local = metrics.histogram(
            DEFERRED_REQUEST_LOCAL_SECONDS, "Time of such a request until it waits.", request=request
        )
        self.deferred_remote = metrics.histogram(
            DEFERRED_REQUEST_REMOTE_SECONDS, "Time of such a request from then on.", request=request
        )
        metrics.hide(DEFERRED_REQUEST_LOCAL_SECONDS)
        metrics.hide(DEFERRED_REQUEST_REMOTE_SECONDS)


class HoldFrame:
    """Returned by a handler that needs its frame until `awaitable` is done; no other frame is parsed before that."""

    __slots__ = ("awaitable",)

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


class _Route:
    """Handler, codecs and metrics of one (API, version), resolved and compiled on first use."""

    __slots__ = (
        "counted", "decode", "encode", "encode_parts", "flexible", "handler", "name", "need", "refuse", "requests", "response",
        "times", "version",
    )  # fmt: skip

    def __init__(self, service: Service, version: int, metrics: Metrics) -> None:
        api = APIS[service.key]
        decode = codec(api.request, version).decode_from
        self.decode: Callable[[memoryview, int], tuple[Any, int]] = (
            _keep_frame(decode) if service.keeps_frame else decode
        )
        self.response = api.response
        self.encode = codec(api.response, version).encode
        self.encode_parts = codec(api.response, version).encode_parts if service.key in _WITH_RECORDS else None
        self.flexible = has_flexible_response_header(api.key, version)
        self.handler = service.handler
        self.need = need_of_whole(service.need)
        self.refuse = service.refuse or (None if self.need is None else refusal_for(api.response))
        self.version = version
        self.name = "".join(word.title() for word in service.key.name.split("_"))
        self.counted = counted = RequestMetrics(metrics, service.metric_name or self.name, version)
        self.requests = counted.requests
        self.times = counted.times

    def frame(self, correlation_id: int, response: Any) -> ResponseParts:
        if self.encode_parts is None:
            body = self.encode(response)
            if self.flexible:
                return [_PREFIX_FLEXIBLE.pack(len(body) + 5, correlation_id, 0) + body]
            return [_PREFIX.pack(len(body) + 4, correlation_id) + body]
        parts = self.encode_parts(response)
        size = sum(map(len, parts))
        if self.flexible:
            parts.insert(0, _PREFIX_FLEXIBLE.pack(size + 5, correlation_id, 0))
        else:
            parts.insert(0, _PREFIX.pack(size + 4, correlation_id))
        return parts


def _keep_frame(
    decode: Callable[[memoryview, int], tuple[Any, int]],
) -> Callable[[memoryview, int], tuple[ReceivedRequest[Any], int]]:
    def decode_and_keep(frame: memoryview, position: int) -> tuple[ReceivedRequest[Any], int]:
        message, position = decode(frame, position)
        return ReceivedRequest(message, bytes(frame)), position

    return decode_and_keep


class Dispatcher:
    """Finds the handler for a frame's API and version, decodes the request and encodes the response.

    `unsupported_version` encodes the response to an ApiVersions request of an unknown version, the only such error that
    clients can read. `produce_shortcut` may respond to a Produce request from the undecoded frame, or return None.
    """

    def __init__(
        self,
        services: Mapping[ApiKey, Service],
        unsupported_version: Callable[[int], Any],
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        produce_shortcut: Callable[[Peer, memoryview], ResponseParts | Deferred | None] | None = None,
    ) -> None:
        self._services = services
        self._unsupported_version = unsupported_version
        self._metrics = metrics
        self._loop = loop
        self.produce_shortcut = produce_shortcut
        self._routes: dict[int, _Route] = {}

    def warm(self, keys: Mapping[ApiKey, int]) -> None:
        """Compile the codecs of the requests that every client sends first, before the first client connects."""
        for key, version in keys.items():
            self._route(key, version)

    def handle(self, peer: Peer, frame: memoryview) -> ResponseParts | Deferred | None:
        # Produce is API 0, and the only API with tens of thousands of requests per second.
        if self.produce_shortcut is not None and not frame[1] and not frame[0]:
            response = self.produce_shortcut(peer, frame)
            if response is not None:
                return response
        began = self._loop.time()
        try:
            api_key, version, correlation_id, client_id, position = read_request_header(frame)
            route = self._routes.get(api_key << 16 | version) or self._route(api_key, version)
            if route is None:
                return self._refuse_version(api_key, version, correlation_id)
            request, _ = route.decode(frame, position)
        except DecodeError as error:
            raise CloseConnection(str(error)) from None
        route.requests.value += 1
        context = RequestContext(peer, api_key, version, client_id)
        if route.need is None or context.may(route.need.operation, route.need.resource):
            result = route.handler(context, request)
        else:
            return self._refuse(route, correlation_id, request)
        if type(result) is route.response:  # the common case first: checking for an Awaitable is expensive
            response = route.frame(correlation_id, result)
            route.times.observe(self._loop.time() - began)
            return response
        if result is None:
            return None
        if isinstance(result, HoldFrame):
            return self._later(route, correlation_id, began, result.awaitable, holds_frame=True)
        return self._later(route, correlation_id, began, result, holds_frame=False)

    async def send(self, peer: Peer, message: Any, version: int, client_id: str) -> Any:
        """Return the response to a request that this node sends to itself, without encoding either as a frame."""
        began, api_key = self._loop.time(), message.facts.api_key
        route = self._routes.get(api_key << 16 | version) or self._route(api_key, version)
        assert route is not None, f"{type(message).__name__} {version} is not supported here"
        route.requests.value += 1
        context = RequestContext(peer, api_key, version, client_id)
        need = route.need
        assert need is None or context.may(need.operation, need.resource), f"{route.name} is not for this node to send"
        response = route.handler(context, message)
        if type(response) is not route.response:
            response = await response
        route.times.observe(self._loop.time() - began)
        return response

    def _route(self, api_key: int, version: int) -> _Route | None:
        try:
            service = self._services[ApiKey(api_key)]
        except (KeyError, ValueError):
            return None
        if not service.versions[0] <= version <= service.versions[1]:
            return None
        route = _Route(service, version, self._metrics)
        self._routes[api_key << 16 | version] = route
        return route

    @staticmethod
    def _refuse(route: _Route, correlation_id: int, request: Any) -> ResponseParts:
        assert route.refuse is not None
        try:
            return route.frame(correlation_id, route.refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, REFUSED))
        except EncodeError:
            raise CloseConnection(
                f"{route.name} {route.version} is not permitted, and its response has no error code"
            ) from None

    def _refuse_version(self, api_key: int, version: int, correlation_id: int) -> ResponseParts:
        if api_key == ApiKey.API_VERSIONS:
            body = self._unsupported_version(version)
            return [_PREFIX.pack(len(body) + 4, correlation_id) + body]
        raise CloseConnection(f"API {api_key} in version {version} is not supported here; ApiVersions lists what is")

    def _later(
        self, route: _Route, correlation_id: int, began: float, awaitable: Awaitable[Any], *, holds_frame: bool
    ) -> Deferred:
        waits_since = self._loop.time()
        later: Awaited[Any] = (
            awaitable if isinstance(awaitable, Promise) else asyncio.ensure_future(awaitable, loop=self._loop)
        )
        deferred = Deferred(later.cancel, holds_frame)

        def done(later: Awaited[Any]) -> None:
            response: ResponseParts | None = None
            if not later.cancelled():
                error = later.exception()
                if error is None:
                    result = later.result()
                    if result is None:
                        response = []
                    elif type(result) is EncodedResponse:
                        response = [_SIZE.pack(len(result.frame)) + result.frame]
                    else:
                        response = route.frame(correlation_id, result)
                else:
                    level = logging.WARNING if isinstance(error, HeadraceError) else logging.ERROR
                    log.log(level, "%s failed: %s", route.name, error, exc_info=error)
            now = self._loop.time()
            route.counted.deferred.observe(now - began)
            route.counted.deferred_local.observe(waits_since - began)
            route.counted.deferred_remote.observe(now - waits_since)
            deferred.resolve(response)

        later.add_done_callback(done)
        return deferred
