"""The check of bad clients: they are disconnected while a good one is served, and broken promises are named."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tools.prove.hostile.garbage import Round, Scale, SlowClients, Throughput, judge, measure_throughput
from tools.prove.hostile.garbage_clients import kinds

GOOD = Throughput(
    [Round(100.0, 1.0), Round(300.0, 2.0), Round(90.0, 1.5)], [Round(95.0, 1.1), Round(285.0, 2.1), Round(95.0, 1.6)], 5
)
QUIET = SlowClients(opened=1000, kb_each=3.0, still_open=0, ended_s=12.0)


def test_a_good_client_is_served_while_bad_clients_are_disconnected(tmp_path: Path) -> None:
    found = measure_throughput(tmp_path, Scale(connections=20, rounds=1, seconds=1.2))
    assert len(found.alone) == len(found.among_bad) == 1
    assert min(found.alone + found.among_bad) > (0, 0)
    assert found.disconnected >= 10


def test_throughput_loss_is_the_median_over_pairs_of_rounds() -> None:
    assert GOOD.loss == pytest.approx(0.05)
    message = judge(GOOD, QUIET)
    assert message.startswith(
        "100 MB/s at 1.50 CPU s/GB alone, 95 MB/s at 1.60 CPU s/GB among 1000 bad clients (-5.0% by"
    )


@pytest.mark.parametrize(
    ("throughput", "slow", "message"),
    [
        (Throughput([Round(100.0, 1.0)], [Round(89.0, 1.0)]), QUIET, r"lost 11\.0% of 100 MB/s"),
        (GOOD, SlowClients(1000, 17.0, 0, 5.0), r"1000 slow clients cost 17\.0 KB each"),
        (GOOD, SlowClients(40, 3.0, 0, 5.0), r"40 slow clients cost"),
        (GOOD, SlowClients(1000, 3.0, 7, 60.0), r"7 slow clients are still connected"),
    ],
)
def test_an_exceeded_limit_is_named_in_the_error(throughput: Throughput, slow: SlowClients, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        judge(throughput, slow)


def test_all_kinds_of_garbage_are_distinct() -> None:
    found = kinds(random.Random(1))
    assert len(set(found)) == len(found) > 5
