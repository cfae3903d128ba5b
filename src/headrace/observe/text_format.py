"""Pages of metrics in Prometheus' text format, for metrics with too many series to collect in one step.

A page is a generator of pieces; the event loop serves other tasks between two pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LINES_AT_ONCE = 100

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def labels(**values: object) -> str:
    """Return the labels of a sample, escaped and in braces."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()) + "}"


def family(name: str, help: str, kind: str, samples: Iterable[tuple[str, float]]) -> Iterator[bytes]:
    """Yield one metric family; each sample is its labels, as returned by `labels` or empty, and its value."""
    lines = [f"# HELP {name} {help}\n# TYPE {name} {kind}\n"]
    for sample, value in samples:
        lines.append(f"{name}{sample} {value}\n")
        if len(lines) >= LINES_AT_ONCE:
            yield "".join(lines).encode()
            lines.clear()
    yield "".join(lines).encode()
