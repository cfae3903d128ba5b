"""Runner of the suites against both servers; it prints or publishes the comparison.

`python -m tools.compat [SUITE …] [--publish]`
"""

from __future__ import annotations

import argparse
import sys

from tools.compat.comparison import SUITES, compare, last
from tools.compat.report import publish, text
from tools.compat.suite import SuiteUnavailable


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.compat", description=__doc__)
    parser.add_argument("suite", nargs="*", choices=[*SUITES, []], help="suites to run; all by default")
    parser.add_argument("--publish", action="store_true", help="write docs/compatibility.md")
    parser.add_argument(
        "--last",
        action="store_true",
        help="show the last comparison of this checkout, which make prove also writes, instead of a new one",
    )
    options = parser.parse_args()
    verdicts = []
    for name in options.suite or SUITES:
        try:
            verdicts.append((last if options.last else compare)(SUITES[name]))
        except SuiteUnavailable as reason:
            print(f"{name} was skipped: {reason}")
    print(text(verdicts))
    if options.publish:
        publish(verdicts)
    return 1 if any(verdict.lost for verdict in verdicts) else 0


sys.exit(main())
