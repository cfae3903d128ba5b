"""`python -m headrace.cli.attached serve …` runs `headrace serve …` and exits when its parent process exits."""

from __future__ import annotations

import sys

from headrace.cli.main import main
from headrace.demo.parent_process import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    sys.argv[0] = "headrace"
    main()
