"""Seeds of a simulated cluster: the product passes, mutations are found, and a seed is the same run everywhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from testkit.simulator.__main__ import main
from testkit.simulator.cluster.simulation import ClusterSimulation
from testkit.simulator.simulation import run_seed


@pytest.mark.parametrize("seed", range(6))
def test_a_cluster_seed_finds_no_anomaly(seed: int) -> None:
    outcome = run_seed(seed, None, ClusterSimulation)
    assert (outcome.failures, outcome.anomalies) == ([], []), (
        f"python -m testkit.simulator --cluster --seed {seed} --trace"
    )
    assert outcome.acknowledged > 0 and outcome.read > 0


@pytest.mark.parametrize("mutation", ["commit-without-followers", "follow-without-truncation"])
def test_a_mutation_of_replication_is_found(mutation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0-60", "--mutation", mutation]) == 1
    assert f"{mutation} was found" in capsys.readouterr().out


def test_a_cluster_seed_is_the_same_run_with_another_hash_seed() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "testkit.simulator", "--cluster", "--seed", "3"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1, outputs
