"""Problems that Kafka's own dump-log finds in the files of a data directory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from testkit import kafka_peer as peers

METADATA_LOG = "__cluster_metadata-0"
DUMP_S_MAX = 300.0
# What dump-log (and the classes it uses) prints about invalid files.
PROBLEM = re.compile(
    r"isvalid: false|mismatch|is followed by|out of order|could not|invalid bytes|corrupt|exception|\berror\b|failed|"
    r"not found|unknown|unable|ignoring",
    re.IGNORECASE,
)
# dump-log assumes -1 as the offset before each file, and so reports a gap before every segment but the first, also in
# Kafka's own files.
BEFORE_THE_FILE = re.compile(r"^\s*-1 is followed by \d+$")
_BATCH = re.compile(r"^baseOffset: ", re.MULTILINE)
_RECORD = re.compile(r"^\| offset: ", re.MULTILINE)
_PRODUCER = re.compile(r"^producerId: ", re.MULTILINE)


@dataclass
class Dump:
    """Counts of what dump-log printed, and the lines that report a problem."""

    files: int = 0
    batches: int = 0
    records: int = 0
    producers: int = 0
    epochs: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def add(self, output: str) -> None:
        """Count the batches and records in the output and collect the problems."""
        self.batches += len(_BATCH.findall(output))
        self.records += len(_RECORD.findall(output))
        self.producers += len(_PRODUCER.findall(output))
        self.epochs |= {int(epoch) for epoch in re.findall(r"partitionLeaderEpoch: (\d+)", output)}
        for line in output.splitlines():
            # File names and record contents are not reports of dump-log.
            reported = line.partition(" payload: ")[0] if line.startswith("|") else line
            if PROBLEM.search(reported) and not reported.startswith("Dumping ") and not BEFORE_THE_FILE.match(reported):
                self.problems.append(line[:300])


def dump_everything(directory: Path) -> Dump:
    """Dump each kind of file in each way that dump-log supports. Raise AssertionError if dump-log itself fails."""
    dump = Dump()
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    data = [path for path in files if path.parent.name != METADATA_LOG and path.parent != directory]
    metadata = [path for path in files if path.parent.name == METADATA_LOG]
    _run(dump, _ending(data, ".log"), "--deep-iteration")
    _run(
        dump,
        _ending(metadata, ".log", ".checkpoint") + _ending(directory.glob("*"), ".checkpoint"),
        "--cluster-metadata-decoder",
    )
    indexes = _ending([*data, *metadata], ".index", ".timeindex")
    sane = _run(dump, indexes, "--index-sanity-check")
    passed = sane.count("passed sanity check") + sane.count(" is empty.")
    if passed != len(indexes):
        dump.problems.append(f"{passed} of {len(indexes)} indexes passed the sanity check")
    _run(dump, indexes, "--verify-index-only", count=False)
    _run(dump, _ending([*data, *metadata], ".snapshot", ".txnindex"))
    return dump


def _ending(files: Iterable[Path], *endings: str) -> list[Path]:
    return sorted(path for path in files if path.name.endswith(endings))


def _run(dump: Dump, files: list[Path], *options: str, count: bool = True) -> str:
    if not files:
        return ""
    done = peers.tool("dump-log", *options, "--files", ",".join(map(str, files)), timeout_s=DUMP_S_MAX)
    output = done.stdout.decode(errors="replace")
    errors = done.stderr.decode(errors="replace")
    assert done.returncode == 0, f"dump-log {' '.join(options)} failed: {errors[-1000:]}"
    dumped = len(re.findall(r"^Dumping ", output, re.MULTILINE))
    if dumped != len(files):
        dump.problems.append(f"dump-log {' '.join(options)} dumped {dumped} of {len(files)} files")
    dump.files += len(files) if count else 0
    dump.add(output)
    dump.add(errors)
    return output
