"""Passes requests to the coordinator of a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.base.errors import KafkaError
from headrace.base.promise import Promise
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.shard import GroupShard
from headrace.protocol.declare import Struct
from headrace.server.context import RequestContext

Response = TypeVar("Response", bound=Struct)


def coordinator_request(context: RequestContext, request: Struct) -> CoordinatorRequest:
    return CoordinatorRequest(request, context.api_version, context.client_id or "", f"/{context.peer.address}")


def request_decision(
    groups: Coordination[GroupShard],
    group_id: str,
    request: CoordinatorRequest,
    refuse: Callable[[KafkaError], Response],
) -> Response | Awaitable[Response]:
    """Return the response, or a promise of it if it is not decided and committed yet.

    A task for each request would cost as much as deciding it.
    """
    try:
        promise: Promise[Response] = groups.decide(group_id, request)
        if promise.done():
            return promise.result()
    except KafkaError as error:
        return refuse(error)
    return promise.catch(KafkaError, refuse)
