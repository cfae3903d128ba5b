"""The latest results, for display: the newest minutes of page views, and the number of rows of each result."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec

from headrace.client import Consumer
from headrace.demo.results.expected import PageViews, page_views_row
from headrace.demo.shop.requests import partitions_of
from headrace.demo.shop.topics import PAGE_VIEWS, RESULTS

MINUTES_MAX = 8
ROWS_AT_ONCE = 16_384
POLL_S = 0.05


class Newest:
    """Reads the result topics from the beginning, one part per call of `read`."""

    def __init__(self, bootstrap: str) -> None:
        self.rows: Counter[str] = Counter()
        self._minutes: dict[int, dict[str, int]] = defaultdict(dict)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
            }
        )
        self._is_assigned = False

    def __enter__(self) -> Newest:
        return self

    def __exit__(self, *exc: object) -> None:
        self._consumer.close(0.0)

    def read(self) -> None:
        if not self._is_assigned:
            self._consumer.assign(partitions_of(RESULTS))
            self._is_assigned = True
        for partition, rows in self._consumer.poll_batch(POLL_S, ROWS_AT_ONCE, columns=("value",)):
            self.rows[partition.topic] += rows.num_rows
            if partition.topic == PAGE_VIEWS:
                for value in rows.column("value").to_pylist():
                    row = page_views_row(msgspec.json.decode(value))
                    assert isinstance(row, PageViews)
                    self._minutes[row.minute_ms][row.page] = row.clicks
        for minute in sorted(self._minutes)[:-MINUTES_MAX]:
            del self._minutes[minute]

    def minutes(self) -> Mapping[int, Mapping[str, int]]:
        return {minute: dict(pages) for minute, pages in sorted(self._minutes.items())}
