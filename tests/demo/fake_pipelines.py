"""The visible effects of Spark without Spark: results in topics and tables, and checkpoints with their progress.

python fake_pipelines.py FOLDER BOOTSTRAP [FAULT]: runs until SIGTERM. The fault `doubled` writes a session twice, `lost` omits one.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from headrace.base.ids import TopicPartition
from headrace.client import Producer
from headrace.demo.folders import Folders
from headrace.demo.results.expected import PATIENCE_MS, RESULTS
from headrace.demo.shop.events import bell
from headrace.demo.shop.layout import Layout
from headrace.demo.shop.requests import Shop, partitions_of
from headrace.demo.stages import QUERIES, SHOP, topic_of
from headrace.pipelines.source.offsets import StreamOffset

POLL_INTERVAL_S = 0.05
COLUMNS = {
    "page_views": ("minute", "page", "clicks"),
    "sessions": ("visitor", "first_click", "last_click", "clicks"),
    "enriched_orders": ("id", "customer", "name", "city", "product", "cents", "at"),
}


def main(folder: str, bootstrap: str, fault: str = "") -> None:
    folders = Folders(Path(folder), Path(folder))
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    batch = 0
    with Shop(bootstrap) as shop:
        while not stopped.wait(POLL_INTERVAL_S):
            layout, ends = shop.layout(), shop.ends()
            is_closed = bool(layout.closings) and not layout.missing_bells(ends)
            if is_closed and not any(shop.ends(partitions_of([one.topic for one in RESULTS])).values()):
                write(folders, bootstrap, layout, layout.closings[-1], fault)
            watermark_ms = bell(len(layout.closings) - 1, layout.closings).at_ms - PATIENCE_MS if is_closed else 0
            results = shop.ends(partitions_of([one.topic for one in RESULTS]), committed=True)
            for query in QUERIES:
                there = ends if query.pipeline == SHOP else results
                offsets = {partition: end for partition, end in there.items() if partition.topic == topic_of(query)}
                write_checkpoint(folders.checkpoints / query.pipeline / query.result.name, batch, watermark_ms, offsets)
            batch += 1


def write_checkpoint(checkpoint: Path, batch: int, watermark_ms: int, offsets: Mapping[TopicPartition, int]) -> None:
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    lines = ["v1", json.dumps({"batchWatermarkMs": watermark_ms}), json.dumps(StreamOffset(dict(offsets)).to_json())]
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))
    (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def write(folders: Folders, bootstrap: str, layout: Layout, events: int, fault: str) -> None:
    for result in RESULTS:
        rows = list(result.wanted(layout, events))
        if result.name == "sessions" and fault:
            rows = rows[1:] if fault == "lost" else [*rows, rows[0]]
        named: list[dict[str, Any]] = [dict(zip(COLUMNS[result.name], row, strict=True)) for row in rows]
        for row in named:
            for name in row.keys() & {"minute", "first_click", "last_click", "at"}:
                row[name] = datetime.fromtimestamp(row[name] / 1000, UTC)
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            for row in named:
                producer.send(result.topic, json.dumps(row, default=datetime.isoformat).encode())
        table = folders.tables / result.name
        (table / "_spark_metadata").mkdir(parents=True)
        parquet.write_table(pa.Table.from_pylist(named), table / "part-0.parquet")
        entry = json.dumps({"path": f"file://{table}/part-0.parquet", "action": "add"})
        (table / "_spark_metadata" / "0").write_text(f"v1\n{entry}")


if __name__ == "__main__":
    main(*sys.argv[1:])
