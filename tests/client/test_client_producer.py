"""The producer on a Headrace node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from tests.client.producer_checks import CHECKS, KILL_CHECKS, WAIT_S_MAX, make_topic, producing, unique

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.admin.admin import AsyncAdmin
from headrace.testing.cluster import EmbeddedNode

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_producer_checks_pass_on_headrace(headrace_session_node: EmbeddedNode, check: Callable[..., Any]) -> None:
    asyncio.run(check(headrace_session_node.bootstrap))


@pytest.mark.parametrize("check", KILL_CHECKS, ids=lambda check: check.__name__)
def test_killing_the_node_neither_loses_nor_duplicates_records(check: Callable[..., Any]) -> None:
    with EmbeddedNode({"log.retention.ms": "-1"}) as node:
        asyncio.run(check(node, kills=3))


async def until_aborted(bootstrap: str, transactional_id: str) -> None:
    async with asyncio.timeout(WAIT_S_MAX), AsyncAdmin({"bootstrap.servers": bootstrap}) as admin:
        while (await admin.describe_transaction(transactional_id)).state != "CompleteAbort":
            await asyncio.sleep(0.05)


def test_committing_a_timed_out_transaction_raises() -> None:
    async def work(bootstrap: str) -> None:
        topic = make_topic(bootstrap)
        async with producing(bootstrap, transactional_id=unique("x"), transaction_timeout_ms=200) as producer:
            await producer.transaction.init()
            await producer.transaction.begin()
            await (await producer.send(topic, b"late"))
            await until_aborted(bootstrap, producer.transaction.transactional_id)
            with pytest.raises(KafkaError):
                await producer.transaction.commit()

    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with EmbeddedNode({"log.retention.ms": "-1", **settings}) as node:
        asyncio.run(work(node.bootstrap))


def test_two_phase_commit_raises_unsupported_version_on_headrace(headrace_session_node: EmbeddedNode) -> None:
    async def work() -> None:
        options = {"transactional_id": unique("x"), "transaction_two_phase_commit_enable": True}
        async with producing(headrace_session_node.bootstrap, **options) as producer:
            with pytest.raises(KafkaError, match=r"two\.phase\.commit") as caught:
                await producer.transaction.init()
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION

    asyncio.run(work())
