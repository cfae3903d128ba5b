"""Samples of the checks `exactly-once` and `transactions-under-kills`, on real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from tools.prove.transactions.copying import SETTINGS, Copying
from tools.prove.transactions.kills import rounds_of_kills

from headrace.testing.processes import NodeProcess

pytestmark = pytest.mark.clients
ROUNDS = int(os.environ.get("HEADRACE_ROUNDS", "3"))


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("HEADRACE_SEED", time.time_ns() % (1 << 32)))


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    with NodeProcess(SETTINGS) as process:
        yield process


@pytest.mark.timeout(120 + 20 * ROUNDS)
@pytest.mark.parametrize("client", ["confluent-kafka", "aiokafka"])
def test_a_transactional_copy_under_kills_has_every_record_once(node: NodeProcess, client: str, seed: int) -> None:
    summary = Copying(node, client, seed).run(ROUNDS)
    assert summary.startswith(f"{client}: {ROUNDS} kills"), f"seed {seed}"


@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_transactions_under_kills_have_no_anomalies(seed: int) -> None:
    assert "0 anomalies" in rounds_of_kills(ROUNDS, seed)
