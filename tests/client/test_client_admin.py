"""The admin client on the embedded node, and its parts that need no node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.client.admin_checks import CHECKS, admin_of, unique
from tests.security.plain_logins import login_options, server_settings

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.client import AsyncAdmin
from headrace.client.admin.calls import Calls
from headrace.client.admin.item_errors import ItemsFailed
from headrace.client.retry import Backoff
from headrace.client.wire.connection import Disconnected
from headrace.security.acls import Acl, Pattern, Permission
from headrace.security.resources import Operation, Resource
from headrace.testing.cluster import EmbeddedNode
from headrace.testing.processes import free_port


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_admin_checks_pass_on_headrace(headrace_session_node: EmbeddedNode, check: Callable[..., Any]) -> None:
    asyncio.run(asyncio.wait_for(check(headrace_session_node.bootstrap), 50))


def test_acls_are_created_described_and_deleted(tmp_path: Path) -> None:
    from headrace.testing.cluster import EmbeddedNode

    acl = Acl(Resource.TOPIC, unique(), Pattern.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)

    async def work(bootstrap: str) -> None:
        from headrace.client.admin.acls import EVERY_ACL

        async with admin_of(bootstrap, **login_options("admin")) as admin:
            await admin.create_acls([acl])
            assert await admin.describe_acls() == [acl]
            with pytest.raises(ItemsFailed, match="INVALID_REQUEST"):
                await admin.create_acls([acl._replace(host="")])
            assert await admin.delete_acls([EVERY_ACL._replace(resource_type=Resource.TOPIC)]) == [acl]
            assert await admin.describe_acls() == []

    with EmbeddedNode(server_settings()) as node:
        asyncio.run(work(node.bootstrap))


def test_opening_with_an_unreachable_broker_raises_disconnected() -> None:
    async def work() -> None:
        async with admin_of(f"127.0.0.1:{free_port()}"):
            pass

    with pytest.raises(Disconnected):
        asyncio.run(work())


def test_a_call_raises_disconnected_after_default_api_timeout_ms() -> None:
    async def work() -> None:
        admin = admin_of(f"127.0.0.1:{free_port()}", **{"default.api.timeout.ms": 250})
        with pytest.raises(Disconnected):
            await admin.describe_cluster()
        await admin.close()

    asyncio.run(work())


def test_invalid_options_are_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match=r"default\.api\.timeout\.ms"):
        AsyncAdmin({"bootstrap.servers": "a:1", "default.api.timeout.ms": "soon"})
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        AsyncAdmin({})


def test_only_items_with_retriable_errors_are_retried() -> None:
    attempts: list[list[str]] = []

    async def attempt(items: Sequence[str]) -> dict[str, KafkaError | None]:
        attempts.append(list(items))
        codes = {"gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "busy": ErrorCode.NOT_CONTROLLER}
        if len(attempts) == 3:
            codes = {}
        return {item: KafkaError(codes[item], item) if item in codes else None for item in items}

    async def work() -> None:
        with pytest.raises(ItemsFailed, match=r"^UNKNOWN_TOPIC_OR_PARTITION: gone$") as refused:
            await Calls(10.0, Backoff(0.001, 0.001)).for_each(["good", "gone", "busy"], attempt, None)
        assert list(refused.value.failures) == ["gone"]

    asyncio.run(work())
    assert attempts == [["good", "gone", "busy"], ["busy"], ["busy"]]


def test_a_hanging_call_raises_request_timed_out() -> None:
    async def work() -> None:
        with pytest.raises(KafkaError, match=r"REQUEST_TIMED_OUT: not done within 0.05 s \(default.api.timeout.ms\)"):
            await Calls(10.0, Backoff(0.001, 0.001)).run(asyncio.Event().wait, 0.05)

    asyncio.run(work())
