"""`python -m headrace` is `headrace`."""

from __future__ import annotations

from headrace.cli.main import main

if __name__ == "__main__":
    main()
