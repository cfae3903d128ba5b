"""Comparing transactions ignores only the order of sets, and the ledger of a swap knows what a reader may see."""

from __future__ import annotations

import json

from tools.prove.kafka_tools.transaction_script import sort_partitions
from tools.prove.storage.swapping_transactions import Transaction, Transactions


def record(*topics: tuple[str, list[int]]) -> str:
    partitions = [{"topic": name, "partitionIds": indexes} for name, indexes in topics]
    value = {"version": 1, "data": {"producerId": 1, "transactionPartitions": partitions}}
    return json.dumps({"key": {"type": 0, "data": {"transactionalId": "a"}}, "value": value}, separators=(",", ":"))


def test_partition_order_in_a_record_is_ignored() -> None:
    assert sort_partitions(record(("b", [2, 0]), ("a", [1]))) == record(("a", [1]), ("b", [0, 2]))
    assert sort_partitions(record(("b", [2, 0]))) != sort_partitions(record(("b", [2, 1])))


def test_records_without_partitions_are_unchanged() -> None:
    empty = (
        '{"key":{"type":0,"data":{"transactionalId":"a"}},"value":{"version":1,"data":{"transactionPartitions":null}}}'
    )
    tombstone = '{"key":{"type":0,"data":{"transactionalId":"a"}},"value":null}'
    assert (sort_partitions(empty), sort_partitions(tombstone)) == (empty, tombstone)


def test_partition_order_in_a_table_row_is_ignored() -> None:
    assert sort_partitions("1 id 6 0 Ongoing b-2,a-0,a-1") == "1 id 6 0 Ongoing a-0,a-1,b-2"
    assert sort_partitions("alone") == " alone"


def test_a_reader_sees_committed_records_before_the_first_open_transaction() -> None:
    ledger = Transactions()
    committed, aborted, undecided = Transaction("c", True), Transaction("a", False), Transaction("u")
    log = [(b"1", committed), (b"2", aborted), (b"3", committed), (b"4", undecided), (b"5", committed)]
    assert list(ledger._readable(log)) == [b"1", b"3"]
    undecided.committed = False
    assert list(ledger._readable(log)) == [b"1", b"3", b"5"]
