"""The text that `headrace serve --examples` prints once the node serves: commands to try in another terminal."""

from __future__ import annotations

from typing import NamedTuple

LOCAL = "localhost:9092"  # the broker that commands connect to without -b


class Serving(NamedTuple):
    """The addresses of a running node, and its data directories."""

    command: str  # path or name under which the user started headrace
    bootstrap: str
    http: str | None  # host:port of /health and /metrics
    log_dirs: str


def examples(serving: Serving) -> str:
    command, at = serving.command, "" if serving.bootstrap == LOCAL else f" -b {serving.bootstrap}"
    http = (
        f"Health and metrics: http://{serving.http}/health and http://{serving.http}/metrics. " if serving.http else ""
    )
    return f"""
Any Kafka client can connect to {serving.bootstrap}. Try this in another terminal:

    {command} topics create first --partitions 3{at}
    echo 'hello, stream' | {command} produce first{at}
    {command} consume first --exit{at}

    echo 'from kcat' | kcat -b {serving.bootstrap} -t first -P        and        kcat -b {serving.bootstrap} -t first -C -e

{http}Press Ctrl-C to stop the node; its data stays in {serving.log_dirs}.
"""
