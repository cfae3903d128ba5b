"""Every example runs on a node as its page describes and prints what it should."""

import re

import pytest
from tools.prove import examples
from tools.prove.examples import EXAMPLES, run

pytestmark = pytest.mark.clients
SAYS = {
    "admin": r"(?s)retention\.ms=86400000.*\n3 partitions, the first one holds offsets 4 to 9\nadministered(-too)? is gone",
    "partitioner": r"north: partition \d\nsouth: partition \d\nwest: partition \d",
    "producer": "100 of 100 acknowledged",
}


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
@pytest.mark.parametrize("kind", SAYS)
def test_an_example_does_what_it_says(headrace_node, kind, client):
    assert re.search(SAYS[kind], run(f"{kind}_{client}.py", headrace_node.bootstrap))


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_the_consumers_read_what_both_producers_wrote(headrace_node, client):
    for producer in ("confluent", "aiokafka"):
        run(f"producer_{producer}.py", headrace_node.bootstrap, f"read-by-{client}")
    said = run(f"consumer_{client}.py", headrace_node.bootstrap, f"read-by-{client}")
    assert said.count("b'greeting 99'") == 2 and said.endswith("200 records\n")


def test_work_before_the_commit_is_done_twice_after_a_crash(headrace_node):
    assert examples.at_least_once(headrace_node.bootstrap) == examples.Work(lost=[], twice=[12])


def test_a_commit_before_the_work_loses_it_in_a_crash(headrace_node):
    assert examples.at_most_once(headrace_node.bootstrap) == examples.Work(lost=[12], twice=[])


def test_a_transaction_neither_loses_nor_doubles_in_a_crash(headrace_node):
    bills = examples.exactly_once(headrace_node.bootstrap)
    assert bills.committed == 100 < bills.written


def test_a_killed_consumer_is_replaced(headrace_node):
    takeover = examples.kill_a_consumer(headrace_node.bootstrap)
    assert takeover.orphan in takeover.owned["anna"] | takeover.owned["carla"] and takeover.read == examples.RECORDS


def test_the_examples_of_our_own_client(headrace_node):
    said = run("client_produce.py", headrace_node.bootstrap)
    assert re.search(
        r"100 records, the last at offset 99 of partition \d\n100000 rows in \d+ batches\ncompressed to \d+%", said
    )
    said = run("client_consume.py", headrace_node.bootstrap)
    assert "sensor-1: 20100\n" in said and said.endswith("100100 records\n")
    assert run("client_consume.py", headrace_node.bootstrap).endswith("\n0 records\n")
    assert run("client_copy.py", headrace_node.bootstrap) == "100100 records copied\n"
    assert run("client_consume.py", headrace_node.bootstrap, "copied").endswith("100100 records\n")
    assert run("client_copy.py", headrace_node.bootstrap) == "0 records copied\n"


def test_every_example_is_in_the_table():
    page = (EXAMPLES / "README.md").read_text()
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(re.findall(r"`(\w+\.py)`", page))
