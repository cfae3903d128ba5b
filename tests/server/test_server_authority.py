"""Authorities: a peer without one may do nothing, the node itself only what brokers do, without an authorizer all may."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.errors import ErrorCode
from headrace.base.metrics import Metrics
from headrace.client.wire.frames import decode_response, encode_request
from headrace.node.security import authority_of
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.security.authorizer import StandardAuthorizer
from headrace.security.resources import ALL_OPERATIONS, OPERATIONS, Need, Operation, Resource
from headrace.server.authority import ALLOW_ALL, OWN_NODE
from headrace.server.context import Peer, RequestContext
from headrace.server.dispatch import Dispatcher, Service

ALL_PERMISSIONS = [(operation, resource) for resource, operations in OPERATIONS.items() for operation in operations]


def context(peer: Peer) -> RequestContext:
    return RequestContext(peer, ApiKey.METADATA, 13, "client")


def allowed(peer: Peer) -> set[tuple[Operation, Resource]]:
    return {
        (operation, resource) for operation, resource in ALL_PERMISSIONS if context(peer).may(operation, resource, "x")
    }


def test_a_peer_without_an_authority_may_do_nothing() -> None:
    peer = Peer("CONTROLLER", "127.0.0.1")
    assert allowed(peer) == set()
    assert context(peer).permitted(Operation.READ, Resource.TOPIC, ["t"]) == set()
    assert not context(peer).may_any(Operation.WRITE, Resource.TOPIC)
    assert not peer.authority.passes_write(peer, "t")
    assert not any(context(peer).operations(resource) for resource in OPERATIONS)
    assert not peer.authority.unrestricted and not peer.authority.is_own_node


def test_the_node_itself_may_perform_only_cluster_action_and_create() -> None:
    peer = Peer("CONTROLLER", "127.0.0.1", authority=OWN_NODE)
    assert allowed(peer) == {(Operation.CLUSTER_ACTION, Resource.CLUSTER), (Operation.CREATE, Resource.CLUSTER)}
    cluster = 1 << Operation.CLUSTER_ACTION | 1 << Operation.CREATE
    assert [context(peer).operations(one) for one in (Resource.CLUSTER, Resource.TOPIC)] == [cluster, 0]
    assert peer.authority.is_own_node and not peer.authority.unrestricted


def test_without_an_authorizer_every_operation_is_allowed() -> None:
    peer = Peer("PLAINTEXT", "10.0.0.1", authority=authority_of(None))
    assert peer.authority is ALLOW_ALL and not peer.authority.is_own_node
    assert allowed(peer) == set(ALL_PERMISSIONS)
    assert {resource: context(peer).operations(resource) for resource in OPERATIONS} == ALL_OPERATIONS


def test_with_an_authorizer_nothing_is_allowed_without_acls() -> None:
    authority = authority_of(StandardAuthorizer(frozenset(), allow_if_no_acl=False))
    assert allowed(Peer("PLAINTEXT", "10.0.0.1", authority=authority)) == set()


@pytest.mark.parametrize(
    ("peer", "code"),
    [
        (Peer("CONTROLLER", "127.0.0.1"), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (Peer("CONTROLLER", "127.0.0.1", authority=OWN_NODE), ErrorCode.NONE),
        (Peer("CONTROLLER", "127.0.0.1", authority=ALLOW_ALL), ErrorCode.NONE),
    ],
)
def test_the_dispatcher_checks_the_required_permission_before_the_handler(peer: Peer, code: ErrorCode) -> None:
    need = Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)
    service = Service(ApiKey.BROKER_HEARTBEAT, (0, 1), lambda context, request: BrokerHeartbeatResponse(), need)
    loop: Any = SimpleNamespace(time=lambda: 0.0)
    dispatcher = Dispatcher({service.key: service}, bytes, Metrics(), loop)
    frame = memoryview(b"".join(encode_request(BrokerHeartbeatRequest(), 1, 7, "x"))[4:])
    response = dispatcher.handle(peer, frame)
    decoded = decode_response(ApiKey.BROKER_HEARTBEAT, 1, 7, memoryview(b"".join(response))[4:])  # type: ignore[arg-type]
    assert decoded.error_code == code


def test_the_node_cannot_send_itself_a_request_it_has_no_permission_for() -> None:
    need = Need(Resource.CLUSTER, Operation.ALTER)
    service = Service(ApiKey.BROKER_HEARTBEAT, (0, 1), lambda context, request: BrokerHeartbeatResponse(), need)
    dispatcher = Dispatcher({service.key: service}, bytes, Metrics(), cast(Any, SimpleNamespace(time=lambda: 0.0)))
    peer = Peer("BROKER", "127.0.0.1", authority=OWN_NODE)
    with pytest.raises(AssertionError, match="not for this node"):
        asyncio.run(dispatcher.send(peer, BrokerHeartbeatRequest(), 1, "broker-1"))
