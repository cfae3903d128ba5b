"""Every example runs on a node as its page describes and prints what it should."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tools.prove import examples
from tools.prove.examples import EXAMPLES, run

from headrace.testing.cluster import EmbeddedNode

pytestmark = pytest.mark.clients
EXPECTED_OUTPUT = {
    "admin": r"(?s)retention\.ms=86400000.*\n3 partitions, the first one holds offsets 4 to 9\nadministered(-too)? is gone",
    "partitioner": r"north: partition \d\nsouth: partition \d\nwest: partition \d",
    "producer": "100 of 100 acknowledged",
}


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
@pytest.mark.parametrize("kind", EXPECTED_OUTPUT)
def test_each_example_prints_the_expected_output(headrace_node: EmbeddedNode, kind: Any, client: Any) -> None:
    assert re.search(EXPECTED_OUTPUT[kind], run(f"{kind}_{client}.py", headrace_node.bootstrap))


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_example_consumers_read_the_records_of_both_producers(headrace_node: EmbeddedNode, client: Any) -> None:
    for producer in ("confluent", "aiokafka"):
        run(f"producer_{producer}.py", headrace_node.bootstrap, f"read-by-{client}")
    output = run(f"consumer_{client}.py", headrace_node.bootstrap, f"read-by-{client}")
    assert output.count("b'greeting 99'") == 2 and output.endswith("200 records\n")


def test_committing_after_processing_repeats_work_after_a_crash(headrace_node: EmbeddedNode) -> None:
    assert examples.at_least_once(headrace_node.bootstrap) == examples.Work(lost=[], twice=[12])


def test_committing_before_processing_loses_work_in_a_crash(headrace_node: EmbeddedNode) -> None:
    assert examples.at_most_once(headrace_node.bootstrap) == examples.Work(lost=[12], twice=[])


def test_transactional_processing_neither_loses_nor_repeats_work_in_a_crash(headrace_node: EmbeddedNode) -> None:
    bills = examples.exactly_once(headrace_node.bootstrap)
    assert bills.committed == 100 < bills.written


def test_the_partition_of_a_killed_consumer_is_taken_over(headrace_node: EmbeddedNode) -> None:
    takeover = examples.kill_a_consumer(headrace_node.bootstrap)
    assert takeover.orphan in takeover.owned["anna"] | takeover.owned["carla"] and takeover.read == examples.RECORDS


def test_the_headrace_client_examples_produce_consume_and_copy(headrace_node: EmbeddedNode) -> None:
    output = run("client_produce.py", headrace_node.bootstrap)
    assert re.search(
        r"100 records, the last at offset 99 of partition \d\n100000 rows in \d+ batches\ncompressed to \d+%", output
    )
    output = run("client_consume.py", headrace_node.bootstrap)
    assert "sensor-1: 20100\n" in output and output.endswith("100100 records\n")
    assert run("client_consume.py", headrace_node.bootstrap).endswith("\n0 records\n")
    assert run("client_copy.py", headrace_node.bootstrap) == "100100 records copied\n"
    assert run("client_consume.py", headrace_node.bootstrap, "copied").endswith("100100 records\n")
    assert run("client_copy.py", headrace_node.bootstrap) == "0 records copied\n"


def test_a_killed_broker_of_three_loses_nothing() -> None:
    output = run("kill_a_broker.py")
    assert " 0 lost, 0 doubled, 0 refused" in output.splitlines()[-1]


def test_acks_are_measured_on_a_cluster() -> None:
    output = run("acks.py", "2000").splitlines()
    assert [line.split()[0] for line in output] == ["acks", "1", "all"]


def test_every_example_is_listed_in_the_readme() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(re.findall(r"`(\w+\.py)`", page))
