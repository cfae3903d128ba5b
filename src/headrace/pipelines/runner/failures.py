"""Explains Spark's errors to users: a line or two without Java's stack trace, and whether a restart can help.

Spark wraps errors in errors and passes them on as text, so the text is analysed: Headrace's errors by the names of their classes, those
of Python code by their traceback, Spark's own by their SQLSTATE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.errors import RETRIABLE, ErrorCode
from headrace.pipelines.runner.supervision import Permanence

TEXT_CHARACTERS_MAX = 600
LINES_MAX = 2  # except for definitions, which have a line per problem


@dataclass(frozen=True)
class Cause:
    """One error of a chain, outermost first."""

    kind: str  # name of its class
    text: str


@dataclass(frozen=True)
class Explained:
    text: str
    permanence: Permanence


FULL_DISK = ("No space left on device", "Disk quota exceeded")
DEFINITION_ERROR = "DefinitionError"

# Headrace's errors. Those not listed may or may not be caused by the query.
_BY_CLASS = {
    "DataLoss": Permanence.FINAL,
    "TornBatch": Permanence.FINAL,
    "TakenOver": Permanence.FINAL,
    "OlderBatch": Permanence.FINAL,
    "ConfigError": Permanence.FINAL,
    "BadRecord": Permanence.FINAL,
    "RegistryError": Permanence.TRANSIENT,
    "Disconnected": Permanence.TRANSIENT,
    "NoResponse": Permanence.TRANSIENT,
}
_OTHERS = frozenset({"SourceError", "SinkError", "KafkaError", DEFINITION_ERROR})
_BY_TEXT = (
    (re.compile(r"there is no (?:topic \S|\S+-\d+\b)"), Permanence.TRANSIENT),
    (re.compile(r"kafka\.bootstrap\.servers: "), Permanence.TRANSIENT),
    (re.compile(r".*set onBadRecord"), Permanence.FINAL),
)
# Problems of a valid definition whose inputs are not available yet.
_TRANSIENT_PROBLEM = re.compile(
    r"\bthere is no topic |\bkafka\.bootstrap\.servers: cannot connect|\bschema registry gave no response"
)
_TRANSIENT_CODES = frozenset(code.name for code in RETRIABLE)
_CODE = re.compile(r"([A-Z][A-Z0-9_]+)(?::|\Z)")

# First two characters of SQLSTATE: an error in the data or the query recurs with the same batch.
_FINAL_STATES = frozenset({"0A", "21", "22", "42"})
_FINAL_KINDS = frozenset(
    {"AnalysisException", "ParseException", "IllegalArgumentException", "UnsupportedOperationException"}
)
_OTHER_QUERY = (
    "the checkpoint is another query's: sources and grouping cannot change under it; use a new checkpoint to start over"
)
_FINAL_TEXTS = (
    (re.compile(r"sources in the checkpoint offsets and now there are"), _OTHER_QUERY),
    (re.compile(r"STREAMING_STATEFUL_OPERATOR_NOT_MATCH"), _OTHER_QUERY),
    (re.compile(r"STATE_STORE_\w*(?:SCHEMA|FORMAT)"), _OTHER_QUERY),
    (re.compile(r"CONCURRENT_STREAM_LOG_UPDATE"), "another driver runs on the same checkpoint"),
    (re.compile(r"ParentNotDirectoryException|FileAlreadyExistsException|AccessDeniedException|Permission denied"), ""),
)
_MORE_MEMORY = "spark.driver.memory, or spark.executor.memory in a cluster, sets the limit"

_OURS = re.compile(r"\bheadrace(?:\.\w+)+\.([A-Z]\w+): ")
_STATE = re.compile(r"\s*SQLSTATE: ([0-9A-Z]{5})")
_WRAPPERS = re.compile(
    r"\[STREAM_FAILED\] Query \[id = [^\]]*\] terminated with exception: "
    r"|An error occurred while calling \S+\.\s*:\s*"
    r"|(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): (?=\[|Job aborted|(?:[a-z]\w*\.)+[A-Z])"
    r"|Job aborted due to stage failure: Task .*?most recent failure: Lost task [^:]*\): "
)
_PREFIX = re.compile(r"(?:[a-z]\w*\.)+(?=[A-Z])(?:AssertionError: assertion failed: |\w+: requirement failed: )?")
_CREATION = re.compile(r"Failed to (?:create Python data source instance|initialize Python data source writer)")
_END = re.compile(r"\n\s*(?:SQLSTATE: |at [\w.$/]+\(|=== Streaming Query ===|Driver stacktrace:|JVM stacktrace:)")
_SQL = re.compile(r"== SQL[^\n]*==\n(.*?)(?:\n\^|\n-+\^|\Z)", re.DOTALL)
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "([^"]+)", line (\d+), in (\S+)')
_NOT_THE_USERS = re.compile(r"[/\\](?:site-packages|pyspark|lib[/\\]python3[^/\\]*)[/\\]|<frozen ")


def explain(causes: Sequence[Cause], checkpoint: str = "") -> Explained:
    """Explain a chain of errors; `checkpoint` is the query's, to be named if the disk is full."""
    everything = "\n".join(cause.text for cause in causes)
    full = next((words for words in FULL_DISK if words in everything), None)
    if full is not None:
        where = f" under the checkpoint {checkpoint} or Spark's own files" if checkpoint else ""
        return Explained(f"the disk is full{where} ({full})", Permanence.TRANSIENT)
    for cause in causes:
        found = _ours(cause) or _of_python(cause.text)
        if found is not None:
            return found
    return _of_spark(causes, everything)


def _ours(cause: Cause) -> Explained | None:
    matches = list(_OURS.finditer(cause.text))
    if matches:
        kind, text = matches[-1][1], _until_end(cause.text[matches[-1].end() :])
    elif cause.kind in _BY_CLASS or cause.kind in _OTHERS:
        kind, text = cause.kind, cause.text
    else:
        return None
    if kind == DEFINITION_ERROR:
        passes = all(_TRANSIENT_PROBLEM.search(line) for line in text.strip().splitlines())
        return Explained(text.strip(), Permanence.TRANSIENT if passes else Permanence.FINAL)
    permanence = _BY_CLASS.get(kind)
    if permanence is None:
        permanence = next((one for pattern, one in _BY_TEXT if pattern.match(text)), None)
    if permanence is None and _CREATION.search(cause.text):
        permanence = Permanence.FINAL  # wrong options, which a restart does not change
    code = _CODE.match(text)
    if permanence is None and code is not None and code[1] in ErrorCode.__members__:
        permanence = Permanence.TRANSIENT if code[1] in _TRANSIENT_CODES else Permanence.UNCLEAR
    return Explained(_short(text), permanence or Permanence.UNCLEAR)


def _of_python(text: str) -> Explained | None:
    """Return where in the user's own files the error occurred, and its message."""
    _, found, rest = text.rpartition(_TRACEBACK)
    if not found:
        return None
    lines = _until_end(rest).splitlines()
    message = next((line for line in reversed(lines) if line and not line.startswith((" ", "\t"))), "")
    frames = [frame for line in lines if (frame := _FRAME.match(line)) is not None]
    own = [frame for frame in frames if not _NOT_THE_USERS.search(frame[1])] or frames
    where = f"{own[-1][1]}:{own[-1][2]}, in {own[-1][3]}: " if own else ""
    return Explained(_short(where + message), Permanence.UNCLEAR)


def _of_spark(causes: Sequence[Cause], everything: str) -> Explained:
    states = [state for state in _STATE.findall(everything) if not state.startswith("XX")]
    hint = next((hint for pattern, hint in _FINAL_TEXTS if pattern.search(everything)), None)
    is_final = (
        hint is not None
        or any(state[:2] in _FINAL_STATES for state in states)
        or any(cause.kind in _FINAL_KINDS for cause in causes)
    )
    if "OutOfMemoryError" in everything:
        hint = _MORE_MEMORY
    message = [text for cause in causes if (text := _plain(cause.text))]  # the innermost message is the most specific
    text = message[-1] if message else "it ended with an error without a message"
    return Explained(f"{text}\n{hint}" if hint else text, Permanence.FINAL if is_final else Permanence.UNCLEAR)


def _plain(text: str) -> str:
    """Return only the message and the SQL that it refers to."""
    text = text.strip()
    while (wrapper := _WRAPPERS.match(text)) is not None:
        text = text[wrapper.end() :].lstrip()
    sql = _SQL.search(text)
    lines = [line for line in _STATE.sub("", _until_end(text)).splitlines() if line.strip()]
    first = _PREFIX.sub("", lines[0].strip().rstrip(";")) if lines else ""
    if sql is None or not first:
        return _short(first)
    return _short(f"{first}\nin: {' '.join(sql[1].split())}")


def _until_end(text: str) -> str:
    end = _END.search(text)
    return text[: end.start()] if end is not None else text


def _short(text: str) -> str:
    lines = [line.strip() for line in _STATE.sub("", text).splitlines() if line.strip()]
    text = "\n".join(lines[:LINES_MAX])
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"
