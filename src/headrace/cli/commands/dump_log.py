"""`headrace dump-log`: prints the files of a data directory in the format of Kafka's tool, and checks them."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError, CorruptData
from headrace.cli.dump.batches import Line, dump_batches
from headrace.cli.dump.indexes import dump_index, dump_snapshot
from headrace.cli.dump.values import DECODERS, WITHOUT_COLON, Decoder, as_metadata, as_text
from headrace.cli.options import single_command
from headrace.cli.output import Progress, progress
from headrace.storage.names import parse_partition_dir

LOGS = (".log", ".checkpoint")
INDEXES = (".index", ".timeindex", ".txnindex")
SNAPSHOTS = (".snapshot",)
KNOWN = (*LOGS, *INDEXES, *SNAPSHOTS)

app = single_command()


@app.command()
def dump_log(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Files, or directories of partitions.")
    ] = None,
    more_files: Annotated[
        str | None, typer.Option("--files", metavar="A,B", help="Same as FILE, separated by commas.")
    ] = None,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", "--deep", help="Print the records as well as the batches.")
    ] = False,
    print_data: Annotated[
        bool,
        typer.Option("--print-data-log", help="Print keys and values as well; records of internal topics are decoded."),
    ] = False,
    cluster_metadata: Annotated[
        bool, typer.Option("--cluster-metadata-decoder", help="Decode values as metadata records.")
    ] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets-decoder", help="Decode records as those of __consumer_offsets.")
    ] = False,
    transactions: Annotated[
        bool, typer.Option("--transaction-log-decoder", help="Decode records as those of __transaction_state.")
    ] = False,
    share_state: Annotated[
        bool, typer.Option("--share-group-state-decoder", help="Decode records as those of __share_group_state.")
    ] = False,
    skip_record_metadata: Annotated[
        bool, typer.Option("--skip-record-metadata", help="Print only the keys and values of records.")
    ] = False,
    verify_only: Annotated[
        bool,
        typer.Option("--verify-index-only", "--index-sanity-check", "--verify-only", help="Print only problems."),
    ] = False,
    max_bytes: Annotated[int | None, typer.Option(help="Read at most this many bytes of each log.", min=1)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print and check the files of a data directory. Exit with code 1 if there is a problem."""
    chosen = {
        "__cluster_metadata": cluster_metadata,
        "__consumer_offsets": offsets,
        "__transaction_state": transactions,
        "__share_group_state": share_state,
    }
    decoder = next((DECODERS[name] for name, requested in chosen.items() if requested), None)
    paths = _expand([*(files or []), *(Path(text) for text in (more_files or "").split(",") if text)])
    printer = _Printer(json, quiet=verify_only, bare=skip_record_metadata)
    logs = [path for path in paths if path.suffix in LOGS and path.exists()]
    with progress("bytes", sum(path.stat().st_size for path in logs)) as done:
        for path in paths:
            data = print_data or decoder is not None
            decode = (decoder or _decoder_of(path)) if data else None
            printer.file(path, _lines(path, data or deep_iteration, decode, max_bytes, done))
    if printer.wrong:
        sys.exit(1)


def _expand(paths: list[Path]) -> list[Path]:
    if not paths:
        raise ConfigError("name the files to dump, or the directory of a partition")
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such file or directory")
        found += _files_of(path) if path.is_dir() else [path]
    return found


def _files_of(directory: Path) -> list[Path]:
    files = sorted(one for one in directory.iterdir() if one.suffix in KNOWN)
    if not files:
        partitions = sorted(one.name for one in directory.iterdir() if parse_partition_dir(one.name) is not None)
        hint = f"; name the directory of a partition, such as {partitions[0]}" if partitions else ""
        raise ConfigError(f"{directory} has no {' '.join(KNOWN)} files{hint}")
    return files


def _decoder_of(path: Path) -> Decoder:
    """Return the decoder for the topic that the directory is named after."""
    if path.suffix == ".checkpoint":
        return as_metadata
    partition = parse_partition_dir(path.resolve().parent.name)
    return DECODERS.get(partition.topic, as_text) if partition is not None else as_text


def _lines(path: Path, deep: bool, decode: Decoder | None, max_bytes: int | None, done: Progress) -> Iterator[Line]:
    try:
        if path.suffix in LOGS:
            yield from dump_batches(path, deep, decode, max_bytes, done)
        elif path.suffix in INDEXES:
            yield from dump_index(path)
        elif path.suffix in SNAPSHOTS:
            yield from dump_snapshot(path)
        else:
            raise CorruptData(f"not a log file: expected {' '.join(KNOWN)}")
    except (CorruptData, OSError) as error:
        yield Line("problem", {"problem": str(error)})


class _Printer:
    def __init__(self, json: bool, *, quiet: bool, bare: bool) -> None:
        self._json = json
        self._quiet = quiet
        self._bare = bare
        self.wrong = 0

    def file(self, path: Path, lines: Iterator[Line]) -> None:
        """Print the lines of a file as they are read, then the verdict."""
        if not self._json:
            print(f"Dumping {path}")
        problems = 0
        summary: dict[str, Any] = {}
        for kind, facts in lines:
            if kind == "summary":
                summary = facts
            elif kind == "problem":
                problems += 1
                self._line(path, kind, facts, f"WRONG {facts['problem']}")
            elif not self._quiet:
                self._line(path, kind, facts, self._text(kind, facts))
        self.wrong += bool(problems)
        verdict = {"ok": not problems, "problems": problems, **summary}
        shown = " ".join(f"{name}: {_value(value)}" for name, value in summary.items() if value is not None)
        self._line(
            path, "verdict", verdict, f"{'OK' if not problems else 'WRONG'} {path}: {problems} problem(s) {shown}"
        )

    def _line(self, path: Path, kind: str, facts: dict[str, Any], text: str) -> None:
        if self._json:
            print(jsonlib.dumps({"file": str(path), "kind": kind, **facts}, ensure_ascii=False))
        else:
            print(text)

    def _text(self, kind: str, facts: dict[str, Any]) -> str:
        if kind == "record" and self._bare:
            facts = {name: facts[name] for name in ("key", "payload") if name in facts}
        text = " ".join(
            f"{name} {_value(value)}" if name in WITHOUT_COLON else f"{name}: {_value(value)}"
            for name, value in facts.items()
        )
        return f"| {text}" if kind == "record" else text


def _value(value: Any) -> str:
    """Format a value as Java prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "OptionalLong.empty"
    if isinstance(value, dict):
        return jsonlib.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"[{','.join(value)}]" if isinstance(value, list) else str(value)
