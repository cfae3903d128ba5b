"""ACLs that are committed in quick succession, on a node with a real metadata log."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.protocol.messages.create_acls import CreateAclsRequest
from headrace.security.acls import Permission
from headrace.security.principals import USER, Principal
from headrace.security.resources import Operation, Resource
from headrace.testing.cluster import EmbeddedNode

COUNT = 10
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


def _creation(topic: str) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=Resource.TOPIC,
                resource_name=topic,
                resource_pattern_type=3,
                principal="User:alice",
                host="*",
                operation=Operation.READ,
                permission_type=Permission.ALLOW,
            )
        ]
    )


def test_the_controllers_authorizer_applies_every_committed_acl() -> None:
    """Report each commit while the next record is already applied but not yet committed."""

    async def create_all(runtime: Any) -> None:
        created = [asyncio.get_running_loop().create_future() for _ in range(COUNT)]
        for number, future in enumerate(created):
            runtime.submit(
                _creation(f"topic-{number}"), 0, lambda response, error, future=future: future.set_result(error)
            )
            await asyncio.sleep(0)
        assert await asyncio.gather(*created) == [None] * COUNT

    with EmbeddedNode(SETTINGS) as node:
        assert node.node is not None
        controller = node.node.controller
        node._do(create_all(controller.runtime), 30.0)
        authorizer = controller._authorizer
        assert authorizer is not None
        alice = Principal(USER, "alice")
        for number in range(COUNT):
            decision = authorizer.decide(alice, "127.0.0.1", Operation.READ, Resource.TOPIC, f"topic-{number}")
            assert decision.allowed, f"topic-{number}"
