"""Reads all topics and tables at the end, only committed records, and compares them with the expected rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicPartition
from headrace.client import Consumer
from headrace.demo.results.expected import RESULTS, Result, Rows
from headrace.demo.results.summary import Compared, Summary, compare
from headrace.demo.results.tables import left_over, rows_of
from headrace.demo.shop.layout import EVENT_PARTITIONS, Layout
from headrace.demo.shop.requests import partitions_of

if TYPE_CHECKING:
    import pyarrow as pa

POLL_S = 1.0
SILENCE_MAX = 60  # consecutive empty polls before the end of a topic
ROWS_AT_ONCE = 65_536

Report = Callable[[str], None]


def find(bootstrap: str, tables: Path, layout: Layout, events: int, report: Report = lambda text: None) -> Summary:
    """Compare all topics and tables with the expected rows; call `report` with the description of each step."""
    report("reading the topics of clicks and orders")
    wrong_events = list(_wrong_events(bootstrap, layout, events))
    compared: list[Compared] = []
    for result in RESULTS:
        report(f"computing {result.name} and comparing them with their topic and table")
        expected = result.wanted(layout, events)
        compared.append(compare(f"topic {result.topic}", expected, _topic_rows(bootstrap, result)))
        table = tables / result.name
        rows: Rows = Counter(result.row(found) for found in rows_of(table))
        compared.append(compare(f"Parquet {result.name}", expected, rows))
    files_left = sum(left_over(tables / result.name) for result in RESULTS)
    return Summary(events, tuple(wrong_events), tuple(compared), files_left)


def _wrong_events(bootstrap: str, layout: Layout, events: int) -> Iterator[str]:
    """Yield a text for each wrong or missing click or order; records deleted by retention are not checked."""
    ends = layout.ends(events)
    found = dict.fromkeys(EVENT_PARTITIONS, 0)
    for partition, rows in _batches(bootstrap, EVENT_PARTITIONS, ("offset", "value")):
        found[partition] = rows.column("offset")[-1].as_py() + 1
        pairs = zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True)
        for offset, value in pairs:
            expected = layout.record(partition, offset).value
            if value != expected:
                yield f"{partition} offset {offset}: {value!r} instead of {expected!r}"
    for partition, end in ends.items():
        if found[partition] != end:
            yield f"{partition} has {found[partition]} records instead of {end}"


def _topic_rows(bootstrap: str, result: Result) -> Rows:
    rows: Rows = Counter()
    for _, batch in _batches(bootstrap, partitions_of([result.topic]), ("value",)):
        rows.update(result.row(msgspec.json.decode(value)) for value in batch.column("value").to_pylist())
    return rows


def _batches(
    bootstrap: str, partitions: Sequence[TopicPartition], columns: tuple[str, ...]
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield all records from the beginning to the current end; raise HeadraceError if they stop coming before it."""
    options = {
        "bootstrap.servers": bootstrap,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
    }
    with Consumer(options) as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        left = {partition for partition in partitions if ends[partition] > 0}
        silent = 0
        while left:
            batches = consumer.poll_batch(POLL_S, ROWS_AT_ONCE, columns=columns)
            yield from batches
            silent = 0 if batches else silent + 1
            # Positions also move past transaction markers, which are not rows.
            left = {partition for partition in left if consumer.position(partition) < ends[partition]}
            if left and silent > SILENCE_MAX:
                raise HeadraceError(f"{', '.join(map(str, sorted(left)))}: nothing more comes, before the end")
