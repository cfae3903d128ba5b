"""A pipeline whose checkpoint is on a disk that becomes full: a small tmpfs in a private mount namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.demo.results.tables import rows_of
from tools.prove.spark import topics
from tools.prove.spark.sessions import POLL_S, Session
from tools.prove.transactions.reading import COMMITTED, read_all

DISK = "16m"
PARTITIONS = 2
FEED = 50  # numbers per feed
FEED_EVERY_S = 0.2
FIRST_RESULTS_S_MAX, ERROR_S_MAX, RECOVERY_S_MAX = 180.0, 120.0, 180.0
FULL = "the disk is full"
SHOWN_CHARACTERS = 3000
MOUNT = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'
PRIVATE_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh", DISK]
PIPELINE = """
name: numbers
settings: {{kafka.bootstrap.servers: "{bootstrap}"}}
checkpoint: {disk}/checkpoint
trigger: 200 milliseconds
sources:
  numbers: {{topic: numbers, value: json, schema: "n bigint, at timestamp", watermark: {{column: at, delay: 1 hour}}}}
steps:
  once: {{deduplicate: numbers, keys: [n]}}
sinks:
  copies: {{from: once, topic: copies}}
  table: {{from: once, parquet: {folder}/table}}
"""


def mount_error() -> str | None:
    """Return why a private disk cannot be mounted here, or None."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [*PRIVATE_DISK, folder, "true"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"cannot mount a private disk: {error}"
    return None if done.returncode == 0 else f"cannot mount a private disk: {done.stderr.strip()}"


class NumbersPipeline:
    """A pipeline that copies numbers to a topic and a table, and its continuous input."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._folder, self._bootstrap = folder, bootstrap
        self._disk = folder / "disk"
        self._disk.mkdir()
        self._log = folder / "driver.log"
        topics.create(bootstrap, {"numbers": PARTITIONS, "copies": PARTITIONS})
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self.fed = 0
        self._fed_at = 0.0
        file = folder / "numbers.yaml"
        file.write_text(PIPELINE.format(bootstrap=bootstrap, disk=self._disk, folder=folder))
        command = [*PRIVATE_DISK, str(self._disk), sys.executable, "-m", "headrace", "pipelines", "run", str(file)]
        with self._log.open("ab") as log:
            self._session = Session([*command, "--runtime", str(folder / "runtime")], log, {})

    def wait_until(self, done: Callable[[], bool], seconds_max: float, what: str, *, feeding: bool = True) -> None:
        """Feed the pipeline until the condition is met. Raise AssertionError if it exits or the time is over."""
        deadline = time.monotonic() + seconds_max
        while not done():
            assert self._session.ended is None, f"the driver has exited: {self.log_end()}"
            assert time.monotonic() < deadline, f"not within {seconds_max:.0f} s: {what}: {self.log_end()}"
            if feeding and time.monotonic() - self._fed_at > FEED_EVERY_S:
                self.feed()
            time.sleep(POLL_S)

    def feed(self) -> None:
        """Write each number twice, so that deduplication has to remember it."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        for number in range(self.fed, self.fed + FEED):
            for _ in range(2):
                self._producer.produce("numbers", json.dumps({"n": number, "at": at}), str(number))
        assert self._producer.flush(60.0) == 0, "numbers could not be written"
        self.fed += FEED
        self._fed_at = time.monotonic()

    def fill_disk(self) -> int:
        """Fill the driver's disk completely and return the number of bytes written."""
        written = 0
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                written += file.write(bytes(4096))
        return written

    def free_disk(self) -> None:
        self._ballast.unlink()

    @property
    def _ballast(self) -> Path:
        inside = Path(f"/proc/{self._session.process.pid}/root")
        return inside / self._disk.relative_to("/") / "ballast"

    def in_topic(self) -> Counter[int]:
        places = [("copies", partition) for partition in range(PARTITIONS)]
        read = read_all(self._bootstrap, places, COMMITTED)
        return Counter(json.loads(value)["n"] for records in read.values() for _, value in records)

    def in_table(self) -> Counter[int]:
        return Counter(row["n"] for row in rows_of(self._folder / "table"))

    def check_complete(self, where: str, read: Callable[[], Counter[int]]) -> None:
        """Wait for all numbers and check that each is there once."""
        self.wait_until(
            lambda: read().total() >= self.fed, RECOVERY_S_MAX, f"all numbers in the {where}", feeding=False
        )
        wanted, found = Counter(range(self.fed)), read()
        wrong = (found - wanted) + (wanted - found)
        assert not wrong, f"{where}: {wrong.total()} are lost or duplicated: {sorted(wrong)[:5]}"

    def errors(self) -> dict[str, str]:
        """Return the errors by sink, as `headrace pipelines status` reports them."""
        command = [sys.executable, "-m", "headrace", "pipelines", "status", "--json"]
        completed = subprocess.run(
            [*command, "--runtime", str(self._folder / "runtime")], capture_output=True, text=True, check=False
        )
        found: list[dict[str, Any]] = json.loads(completed.stdout or "[]")
        return {one["name"]: one["error"] for one in found if one["error"]}

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-SHOWN_CHARACTERS:]

    def close(self) -> None:
        self._session.close()


def pipeline_on_a_full_disk(bootstrap: str, print_progress: Callable[[str], None]) -> str:
    """Fill the disk under a running pipeline, free it, check the results and return a summary."""
    with tempfile.TemporaryDirectory(prefix="full-disk-") as name:
        pipeline = NumbersPipeline(Path(os.path.realpath(name)), bootstrap)
        try:
            pipeline.wait_until(lambda: pipeline.in_topic().total() > FEED, FIRST_RESULTS_S_MAX, "the first results")
            size = pipeline.fill_disk()
            print_progress(f"{pipeline.fed} numbers so far; filled the disk of the checkpoint with {size} bytes")
            disk_errors: dict[str, str] = {}

            def both_report_it() -> bool:
                disk_errors.update({sink: text for sink, text in pipeline.errors().items() if FULL in text})
                return len(disk_errors) == 2

            pipeline.wait_until(both_report_it, ERROR_S_MAX, f"both queries report that {FULL}")
            print_progress(disk_errors["copies"])
            pipeline.feed()
            pipeline.free_disk()
            pipeline.check_complete("topic", pipeline.in_topic)
            pipeline.check_complete("table", pipeline.in_table)
        finally:
            pipeline.close()
    return (
        f"{pipeline.fed} numbers written twice, once in topic and table; both queries reported that {FULL} and resumed"
    )
