"""`headrace …`: one module per noun. Each is imported only when its command runs, so that `serve` starts at once."""

from __future__ import annotations

import sys

from headrace.base.errors import HeadraceError


def main() -> None:
    from headrace.cli.app import app

    try:
        app()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(1)
