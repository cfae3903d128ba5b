"""The Python that Spark's workers on this machine run: this interpreter, with PySpark from its installation.

Spark puts a zip file of PySpark first on the path, and every process recompiles modules from a zip file: 1.6 s of CPU instead of 0.5 s
(measured with PySpark 4.3.0), in each of the five or more processes that a first query starts. So the workers run a script that removes
the zip file from the path. Other machines may not have the script, so it is used for local masters only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.pipelines.java import mark_of, quoted, write_whole

_SHIM = """\
#!/bin/bash
kept=
IFS=: read -ra folders <<< "$PYTHONPATH"
for folder in "${{folders[@]}}"; do
    case "$folder" in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) kept="$kept${{kept:+:}}$folder" ;;
    esac
done
PYTHONPATH="$kept" exec {python} "$@"
"""


def local_python(cache: Path) -> str:
    """Return the path of the script, or of this interpreter if the script cannot be written."""
    text = _SHIM.format(python=quoted(sys.executable))
    script = cache / f"python-{mark_of(text)}"
    try:
        if not os.access(script, os.X_OK):
            cache.mkdir(parents=True, exist_ok=True)
            write_whole(script, text, 0o755)
    except OSError:
        return sys.executable  # an unwritable or full home directory must not prevent a start
    return str(script)
