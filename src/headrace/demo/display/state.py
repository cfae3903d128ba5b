"""Converts what is known of a run to the state that is shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.demo.director import Director, Seen
from headrace.demo.display.view import FIRST_BATCH, RUNNING, Flow, Part, State, Work
from headrace.demo.folders import Folders
from headrace.demo.results.expected import RESULTS
from headrace.demo.shop.topics import CLICKS, ORDERS, PREFIX
from headrace.demo.stages import QUERIES, SHOP, TABLES, Facts, Query, Stage, lag
from headrace.demo.supervisor import GENERATOR, PIPELINES, Supervisor, node_name
from headrace.local_cluster.layout import NodePlan
from headrace.pipelines.runner.status import QueryStatus

USUAL_PORT = 9092  # the default port of the command line


def state_of(
    doing: str,
    elapsed_s: float,
    director: Director,
    supervisor: Supervisor,
    nodes: Sequence[NodePlan],
    folders: Folders,
) -> State:
    seen = director.seen
    parts = [
        *(_part(supervisor, node_name(plan.id, len(nodes)), _node_detail(plan, nodes, director)) for plan in nodes),
        _part(supervisor, GENERATOR, ""),
        _spark(supervisor, seen),
    ]
    hints = hints_of(supervisor, nodes, folders)
    if seen is None:
        return State(elapsed_s, doing, parts, notices=supervisor.notices, hints=hints)
    low, high = seen.facts.layout.frontier(seen.facts.ends)
    return State(
        elapsed_s,
        doing,
        parts,
        [_flow(topic, seen) for topic in (CLICKS, ORDERS)],
        [_work(index, seen) for index in range(len(RESULTS))],
        seen.minutes,
        low,
        min(high, events_read(seen.facts)),
        seen.goal,
        supervisor.notices,
        hints,
    )


def events_read(facts: Facts) -> int:
    """Return the number of events that all queries of their topic have processed."""
    read: dict[str, int] = {CLICKS: 0, ORDERS: 0}
    for topic in read:
        queries = [one for one in QUERIES if one.pipeline == SHOP and one.result.is_windowed == (topic == CLICKS)]
        there = sum(end for partition, end in facts.ends.items() if partition.topic == topic)
        read[topic] = there - max(lag(query, facts) for query in queries)
    return sum(read.values())


def doing(seen: Seen | None) -> str:
    """Return what a bounded run is doing."""
    if seen is None or seen.stage is None:
        return ""
    if seen.stage is Stage.READING and not events_read(seen.facts):
        return "all events are written, none is processed yet"
    return seen.stage.value


def serves(nodes: Sequence[NodePlan], port: int, http_port: int) -> str:
    """Return the line with the addresses of the nodes, and the reason if the first ones are not the requested ones."""
    first = nodes[0]
    taken = [f"port {given}" for given, got in ((port, first.port), (http_port, first.http_port)) if given != got]
    why = f" ({' and '.join(taken)}: in use)" if taken else ""
    who = "the node serves" if len(nodes) == 1 else f"{len(nodes)} brokers serve"
    where = ", ".join(f"localhost:{node.port}" for node in nodes)
    metrics = ", ".join(f"http://localhost:{node.http_port}/metrics" for node in nodes)
    return f"{who} on {where}, metrics on {metrics}{why}"


def hints_of(supervisor: Supervisor, nodes: Sequence[NodePlan], folders: Folders) -> list[str]:
    command = _short(Path(sys.executable).with_name("headrace"))
    first = nodes[0]
    server = "" if first.port == USUAL_PORT else f" -b localhost:{first.port}"
    pid = supervisor[PIPELINES].pid or supervisor[supervisor.nodes[0]].pid
    return [
        f"look  {command} consume shop-sessions{server}",
        f"      {command} pipelines status --watch  ·  {_short(folders.pipelines)}",
        f"      http://localhost:{first.http_port}/metrics  ·  {_short(folders.tables)} (Parquet)",
        f"try   kill -9 {pid}, or any of them; Ctrl-C stops all; the next run resumes",
    ]


def _short(path: Path) -> Path:
    """Return the path relative to the current directory if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _node_detail(plan: NodePlan, nodes: Sequence[NodePlan], director: Director) -> str:
    """Return the address of a node, and in a cluster how many partitions it leads and has in sync."""
    if director.seen is None:
        return director.trouble
    address = f"localhost:{plan.port}"
    if len(nodes) == 1:
        return address
    held = director.seen.replicas
    leads = sum(one.leader == plan.id for one in held)
    in_sync = sum(plan.id in one.isr for one in held)
    return f"{address} · leads {leads} of {len(held)} partitions, {in_sync} in sync"


def _part(supervisor: Supervisor, name: str, detail: str) -> Part:
    child = supervisor[name]
    if child.pid is None:
        return Part(name, "waits", detail)
    if not child.is_running:
        is_done = child.code == 0 and name == GENERATOR
        return Part(name, "is done" if is_done else "ended", detail)
    return Part(name, "runs", detail, child.pid, child.memory_bytes())


def _spark(supervisor: Supervisor, seen: Seen | None) -> Part:
    part = _part(supervisor, PIPELINES, "")
    if part.condition != "runs":
        return part
    if not supervisor.should_run(PIPELINES):
        return Part(part.name, "ends", "Spark finishes its batches", part.pid, part.memory_bytes)
    running = 0 if seen is None else sum(one.state == RUNNING for one in seen.statuses.values())
    if not running:
        return Part(part.name, "starts", "Spark is starting, which takes some ten seconds", part.pid, part.memory_bytes)
    return Part(part.name, "runs", f"{running} of {len(QUERIES)} queries", part.pid, part.memory_bytes)


def _flow(topic: str, seen: Seen) -> Flow:
    records = sum(end for partition, end in seen.facts.ends.items() if partition.topic == topic)
    return Flow(topic.removeprefix(PREFIX), records, seen.rates.get(topic, 0.0))


def _work(index: int, seen: Seen) -> Work:
    result = RESULTS[index]
    query, table = Query(SHOP, result), Query(TABLES, result)
    status = seen.statuses.get(query.name)
    stored = seen.statuses.get(table.name)
    errors = [one.error for one in (status, stored) if one is not None and one.error]
    return Work(
        result.name,
        _condition(status),
        0.0 if status is None else status.rows_per_s,
        lag(query, seen.facts),
        0 if status is None else status.state_rows,
        seen.rows.get(result.topic, 0),
        lag(table, seen.facts),
        errors[0] if errors else "",
    )


def _condition(status: QueryStatus | None) -> str:
    if status is None:
        return "starts"
    return FIRST_BATCH if status.state == RUNNING and not status.batches else status.state
