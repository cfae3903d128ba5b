"""The entry point of `headrace …`; a failure prints one line to standard error and exits with code 1."""

from __future__ import annotations

import errno
import os
import sys

from headrace.base.errors import HeadraceError


def main() -> None:
    from headrace.cli.app import app

    try:
        app()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader has closed the pipe; flushing what is left in the buffer must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"headrace: {_text_of(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _text_of(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    advice = "; free some space there and try again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{error.filename}: {error.strerror}{advice}"
