"""The Python that Spark's workers on this machine run: this one, with PySpark from where it is installed.

Spark puts a zip file of PySpark before everything else, and what comes out of a zip file is compiled anew by every process: 1.6 s of CPU
instead of 0.5 (measured with PySpark 4.3.0), for each of the five or more that a first query starts. So the workers' python is a script
that leaves the zip file out. Other machines may not have it: it is for local masters only.
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
    """Its path; this interpreter's where no script can be put."""
    text = _SHIM.format(python=quoted(sys.executable))
    script = cache / f"python-{mark_of(text)}"
    try:
        if not os.access(script, os.X_OK):
            cache.mkdir(parents=True, exist_ok=True)
            write_whole(script, text, 0o755)
    except OSError:
        return sys.executable  # a home without room or rights is no reason not to start
    return str(script)
