"""Run the suites against both servers and print or publish how they compare.

`python -m tools.compat [SUITE …] [--publish]`
"""

from __future__ import annotations

import argparse
import sys

from tools.compat.comparison import SUITES, compare, last
from tools.compat.report import publish, text
from tools.compat.suite import NotHere


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.compat", description=__doc__)
    parser.add_argument("suite", nargs="*", choices=[*SUITES, []], help="all of them unless named")
    parser.add_argument("--publish", action="store_true", help="write docs/compatibility.md")
    parser.add_argument(
        "--last",
        action="store_true",
        help="show the last comparison made here, also by make prove, instead of a new one",
    )
    options = parser.parse_args()
    verdicts = []
    for name in options.suite or SUITES:
        try:
            verdicts.append((last if options.last else compare)(SUITES[name]))
        except NotHere as reason:
            print(f"{name} was skipped: {reason}")
    print(text(verdicts))
    if options.publish:
        publish(verdicts)
    return 1 if any(verdict.lost for verdict in verdicts) else 0


sys.exit(main())
