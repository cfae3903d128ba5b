"""`python -m bench.profile produce-small|produce-64k|fetch`: where the time of one of our requests goes.

The node runs in this process, the load in another. A first run without the profiler tells what a request costs; a second one with
cProfile tells the shares, which are scaled to that cost: the profiler's own burden falls on calls, so small functions look too dear.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.fetch import Fetch
from bench.line import Options
from bench.lines import all_lines
from bench.load import Load, Span, run_load
from bench.native import WORK
from bench.produce import Produce
from bench.wire import Wire, create_topic, wait_until_served
from headrace.base.clock import SystemClock
from headrace.node.node import Node, Ports
from headrace.node.settings import make_settings
from headrace.storage.disk import DiskFiles
from headrace.testing.processes import LOOPBACK, free_port

PATHS = {"produce-small": "message-50", "produce-64k": "produce-64k", "fetch": "fetch-1"}
TOPIC = "profile"
IDLE = "select.epoll"  # waiting is no work
ROWS = 30


class _Server:
    """What a line wants of a contestant, for a node in this very process."""

    def __init__(self, port: int) -> None:
        self.port = port

    def open_topic(self, partitions: int) -> None:
        with Wire(self.port) as wire:
            create_topic(wire, TOPIC, partitions)
            wait_until_served(wire, TOPIC, partitions)


def prepare(name: str, port: int) -> Load:
    """The load of the line that shows this path best; the topic is there, with records if they are to be fetched."""
    line = all_lines()[PATHS[name]]
    with Wire(port) as wire:
        partitions = line.partitions if isinstance(line, Produce) else 1
        create_topic(wire, TOPIC, partitions)
        wait_until_served(wire, TOPIC, partitions)
    if isinstance(line, Produce):
        return line.plain_load(TOPIC)
    assert isinstance(line, Fetch)
    return line.prepare(port, 0, TOPIC)
