"""`make soak`: long runs of the simulator and of coverage-guided fuzzing.

    python -m tools.soak [--minutes 10] [--first-seed 10000]

Simulates seeds of producers, groups and transactions beyond those of `make prove`, and fuzzes everything that parses.
Each part gets its share of the time. A finding prints how to reproduce it; the exit code is 1 if there was one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

SEEDS_AT_ONCE = 25
KINDS: dict[str, list[str]] = {
    "producers and readers": [],
    "groups": ["--groups"],
    "transactions": ["--transactions"],
}  # arguments of the simulator
WORK = Path(".work/soak")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--first-seed", type=int, default=10_000)
    options = parser.parse_args()
    share_s = options.minutes * 60 / 2
    found = simulate(options.first_seed, share_s)
    found += fuzz(share_s)
    sys.exit(1 if found else 0)


def simulate(first: int, seconds: float) -> int:
    """Simulate all kinds in turn, each until its first finding, and return the number of findings."""
    deadline, seed, left = time.monotonic() + seconds, first, dict(KINDS)
    while left and time.monotonic() < deadline:
        last = seed + SEEDS_AT_ONCE - 1
        for kind, arguments in list(left.items()):
            if time.monotonic() >= deadline:
                break
            print(f"soak: simulated seeds {seed}-{last} of {kind}", flush=True)
            command = [sys.executable, "-m", "testkit.simulator", "--seeds", f"{seed}-{last}", *arguments]
            if subprocess.run(command).returncode:
                del left[kind]
        seed = last + 1
    return len(KINDS) - len(left)


def fuzz(seconds: float) -> int:
    """Fuzz all targets and return the number of findings.

    atheris is in no extra because it has wheels for few systems: it is installed here, or reported as missing.
    """
    if subprocess.run([sys.executable, "-c", "import atheris"], capture_output=True).returncode:
        install = [sys.executable, "-m", "pip", "install", "-q", "atheris"]
        if subprocess.run(install, capture_output=True).returncode:
            print("soak: fuzzing SKIPPED: atheris is not installed and cannot be installed")
            return 0
    from tools.fuzz_targets import TARGETS

    found = 0
    for target in TARGETS:
        corpus = WORK / target
        corpus.mkdir(parents=True, exist_ok=True)
        print(f"soak: fuzzing {target}", flush=True)
        command = [sys.executable, "-m", "tools.fuzz", target, f"-max_total_time={int(seconds / len(TARGETS))}"]
        command += ["-max_len=4096", "-rss_limit_mb=2048", f"-artifact_prefix={corpus}/", str(corpus)]
        if subprocess.run(command).returncode:
            print(f"soak: {target} failed; reproduce with: python -m tools.fuzz {target} {corpus}/crash-…")
            found += 1
    return found


if __name__ == "__main__":
    main()
