"""Commands of the project, run with a timeout."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.prove.registry import ROOT, print_progress

SHOWN_CHARACTERS = 3000


def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    may_fail: bool = False,
    quiet: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run the command. Raise AssertionError with the end of its output if it fails or times out."""
    if not quiet:
        print_progress(" ".join(command))
    try:
        done = subprocess.run(
            list(command),
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        raise AssertionError(
            f"{command[0]} did not exit within {timeout_s:.0f} s; its output ends with: {output[-SHOWN_CHARACTERS:]}"
        ) from None
    if done.returncode != 0 and not may_fail:
        raise AssertionError(f"{' '.join(command)} exited with {done.returncode}: {done.stdout[-SHOWN_CHARACTERS:]}")
    return done
