"""Watches a run and closes the shop, in a separate thread, so that only this thread waits while a broker is down."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import TopicPartition
from headrace.client.admin.topics import PartitionInfo
from headrace.demo.folders import Folders, WrongFolders, check_cluster, check_node
from headrace.demo.results.checkpoints import position
from headrace.demo.results.comparison import find
from headrace.demo.results.newest import Newest
from headrace.demo.results.summary import Summary
from headrace.demo.shop.layout import EVENT_PARTITIONS, Layout
from headrace.demo.shop.requests import Misplaced, Shop, partitions_of
from headrace.demo.shop.topics import RESULTS
from headrace.demo.stages import QUERIES, SHOP, TABLES, Facts, Stage, goal, stage
from headrace.pipelines.runner.control import NoResponse as DriverSilent
from headrace.pipelines.runner.control import ask_status
from headrace.pipelines.runner.runs import Runs
from headrace.pipelines.runner.status import QueryStatus

TURN_S = 0.5
AGAIN_S = 0.5
RATES_S = 5.0
_FINAL = (Misplaced, CorruptData, WrongFolders)


@dataclass(frozen=True)
class Seen:
    facts: Facts
    stage: Stage | None = None  # None in an unbounded run
    goal: int | None = None
    rates: Mapping[str, float] = field(default_factory=dict)  # records per second, by topic
    statuses: Mapping[str, QueryStatus] = field(default_factory=dict)  # statuses by title; empty while no driver runs
    minutes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)  # rows of the results, by topic
    replicas: Sequence[PartitionInfo] = ()  # the partitions of the shop, in a cluster


class Director:
    """Publishes its state in attributes, which are replaced as a whole, so that other threads may read them."""

    def __init__(self, bootstrap: str, folders: Folders, events: int | None) -> None:
        self.seen: Seen | None = None
        self.trouble = ""  # the error that it waits to pass
        self.failure: HeadraceError | None = None  # the error that ended it
        self.doing = ""  # the current step of the summary
        self.summary: Summary | None = None
        self._bootstrap = bootstrap
        self._folders = folders
        self._events = events
        self._summary_requested = threading.Event()
        self._stopped = threading.Event()
        self._history: deque[tuple[float, dict[TopicPartition, int]]] = deque()
        self._thread = threading.Thread(target=self._run, name="director", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def summarize(self) -> None:
        """Request a summary; it is later set as `summary`."""
        self._summary_requested.set()

    def _run(self) -> None:
        with Shop(self._bootstrap) as shop, Newest(self._bootstrap) as newest:
            while not self._stopped.is_set():
                try:
                    self._direct(shop, newest)
                    return
                except _FINAL as error:
                    self.failure = error
                    return
                except (HeadraceError, TimeoutError) as error:
                    self.trouble = str(error) or "the node does not respond"
                except Exception as error:  # a bug, which would otherwise go unnoticed in this thread
                    self.failure = HeadraceError("".join(traceback.format_exception(error)))
                    return
                self._stopped.wait(AGAIN_S)

    def _direct(self, shop: Shop, newest: Newest) -> None:
        check_node(self._folders, shop)
        shop.prepare()
        check_cluster(self._folders, shop)
        layout = shop.layout()
        while not self._stopped.is_set():
            if self._summary_requested.is_set():
                self.summary = self._summarize(layout)
                return
            facts = self._facts(shop, layout)
            newest.read()
            replicas = shop.replicas() if self._folders.brokers > 1 else ()
            if self._events is None:
                self.seen = self._seen(facts, newest, replicas)
            else:
                at = stage(self._events, facts)
                target = goal(self._events, facts)
                self.seen = self._seen(facts, newest, replicas, at, target)
                if at is Stage.CLOSING:
                    layout = shop.close_day(target)
                    continue
            self.trouble = ""
            self._stopped.wait(TURN_S)

    def _facts(self, shop: Shop, layout: Layout) -> Facts:
        # Read the positions first, so that the log ends they are compared with are never older.
        positions = {
            query.name: position(self._folders.checkpoints / query.pipeline / query.result.name) for query in QUERIES
        }
        results = partitions_of(RESULTS)
        ends = shop.ends(EVENT_PARTITIONS) | shop.ends(results, committed=True)
        written = shop.ends(results)
        return Facts(layout, ends, positions, frozenset(one for one in results if written[one] != ends[one]))

    def _seen(
        self,
        facts: Facts,
        newest: Newest,
        replicas: Sequence[PartitionInfo],
        at: Stage | None = None,
        target: int | None = None,
    ) -> Seen:
        now = time.monotonic()
        self._history.append((now, dict(facts.ends)))
        while now - self._history[0][0] > RATES_S:
            self._history.popleft()
        rates = _rates(self._history)
        return Seen(facts, at, target, rates, self._statuses(), newest.minutes(), dict(newest.rows), replicas)

    def _statuses(self) -> dict[str, QueryStatus]:
        runs = Runs(self._folders.runtime)
        found: dict[str, QueryStatus] = {}
        for name in (SHOP, TABLES):
            run = runs.find(name)
            if run is not None and run.is_alive and run.port:
                with suppress(DriverSilent):
                    found |= {one.title: one for one in ask_status(run)}
        return found

    def _summarize(self, layout: Layout) -> Summary:
        assert self.seen is not None and self.seen.goal is not None

        def report(text: str) -> None:
            self.doing = text

        return find(self._bootstrap, self._folders.tables, layout, self.seen.goal, report)


def _rates(history: deque[tuple[float, dict[TopicPartition, int]]]) -> dict[str, float]:
    (then, before), (now, after) = history[0], history[-1]
    rates: dict[str, float] = {}
    for partition, end in after.items():
        rates[partition.topic] = rates.get(partition.topic, 0.0) + max(0, end - before.get(partition, end))
    return {topic: records / max(now - then, TURN_S) for topic, records in rates.items()}
