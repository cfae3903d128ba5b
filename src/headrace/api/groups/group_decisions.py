"""Passes requests to the coordinator of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.base.errors import KafkaError
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
    """Return the response, or an awaitable if it is not decided yet.

    Nearly all are decided immediately, and a task for each would cost as much as deciding it.
    """
    try:
        future = groups.decide(group_id, request)
        if future.done():
            response: Response = future.result()
            return response
    except KafkaError as error:
        return refuse(error)
    return _later(future, refuse)


async def _later(future: asyncio.Future[Response], refuse: Callable[[KafkaError], Response]) -> Response:
    try:
        return await future
    except KafkaError as error:
        return refuse(error)
