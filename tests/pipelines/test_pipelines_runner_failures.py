"""Explaining Spark's errors to users, and deciding whether a restart can help."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ConfigError, ErrorCode, HeadraceError, KafkaError
from headrace.pipelines.failures import DataLoss, SourceError
from headrace.pipelines.runner.engine import causes_of
from headrace.pipelines.runner.failures import TEXT_CHARACTERS_MAX, Cause, explain
from headrace.pipelines.runner.supervision import Permanence
from headrace.pipelines.schemas.registry_client import RegistryError
from headrace.pipelines.sink.commands import BatchNotDecided, OlderBatch, TakenOver, TornBatch
from headrace.pipelines.sink.executor import DriverFenced

# As PySpark 4.3 reports them: the query's own error, followed by its causes.
QUERY = "Query [id = cb30f2cd-d449-4afd-8b7c-bf307101e500, runId = 7a4f0a63-91c6-4d79-a085-0773f40652ff]"
REST = """
=== Streaming Query ===
Identifier: [id = cb30f2cd-d449-4afd-8b7c-bf307101e500, runId = 7a4f0a63-91c6-4d79-a085-0773f40652ff]
Current Committed Offsets: {}
Current State: ACTIVE
Logical Plan:
WriteToMicroBatchDataSource noop-table
"""


def failed(kind: str, text: str, java: str = "") -> list[Cause]:
    """Return the causes of a query that failed with this error."""
    outer = f"[STREAM_FAILED] {QUERY} terminated with exception: {text} SQLSTATE: XXKST{REST}"
    return [Cause("StreamingQueryException", outer), Cause(kind, java + text)]


def source(text: str, what: str = "latestOffset") -> list[Cause]:
    error = "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform"
    message = f"{error} {what}: {text}\n SQLSTATE: 38000"
    return failed("UnknownException", message, "org.apache.spark.SparkException: ")


def worker(text: str) -> list[Cause]:
    message = f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {text}\n SQLSTATE: 38000"
    return failed("PythonException", message)


def formatted_by_worker(error: HeadraceError) -> str:
    """Return the error as a Spark worker formats it."""
    return f"{type(error).__module__}.{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("error", "permanence"),
    [
        (SourceError("there is no topic nowhere"), Permanence.TRANSIENT),
        (SourceError("there is no orders-3"), Permanence.TRANSIENT),
        (SourceError("there is no such thing"), Permanence.UNCLEAR),
        (
            SourceError("kafka.bootstrap.servers: cannot connect to 127.0.0.1:1: [Errno 111] refused"),
            Permanence.TRANSIENT,
        ),
        (SourceError("UNKNOWN_TOPIC_OR_PARTITION: orders-0"), Permanence.TRANSIENT),
        (SourceError("TOPIC_AUTHORIZATION_FAILED: topic orders"), Permanence.UNCLEAR),
        (KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "orders-0"), Permanence.TRANSIENT),
        (KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), Permanence.UNCLEAR),
        (DataLoss("t-0: offset 50 was to be read, but the log now starts at 52"), Permanence.FINAL),
        (
            SourceError("t-0, offset 0: value: JSON is malformed; set onBadRecord to handle such records otherwise"),
            Permanence.FINAL,
        ),
        (RegistryError("the schema registry gave no response for subject t-value"), Permanence.TRANSIENT),
        (ConfigError("column value is bigint; it must be string or binary"), Permanence.FINAL),
        (TornBatch("batch 3 is torn: 1 of 2 transactions are visible"), Permanence.FINAL),
        (TakenOver("another run of this query has taken over"), Permanence.FINAL),
        (OlderBatch("batch 3 comes after batch 7 was written: the checkpoint was set back"), Permanence.FINAL),
        (BatchNotDecided("batch 3: 2 s are left of the 60 s"), Permanence.UNCLEAR),
        (DriverFenced("somebody else writes"), Permanence.UNCLEAR),
        (SourceError("something new"), Permanence.UNCLEAR),
    ],
    ids=lambda value: value.name if isinstance(value, Permanence) else f"{type(value).__name__}-{str(value)[:20]}",
)
def test_headrace_errors_are_reported_verbatim(error: HeadraceError, permanence: Permanence) -> None:
    for causes in (source(formatted_by_worker(error)), worker(formatted_by_worker(error)), causes_of(error)):
        found = explain(causes)
        assert (found.text, found.permanence) == (str(error), permanence)


def test_an_unknown_option_is_a_final_failure() -> None:
    text = "startingoffset is no option of format headrace (did you mean startingOffsets?)"
    wrapped = f"headrace.pipelines.failures.SourceError: {text}\n SQLSTATE: 38000"
    message = f"[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: {wrapped}"
    found = explain([Cause("AnalysisException", message)])
    assert (found.text, found.permanence) == (text, Permanence.FINAL)


@pytest.mark.parametrize(
    ("kind", "text", "message", "permanence"),
    [
        (
            "AnalysisException",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nosuch` cannot be resolved. "
            "Did you mean [`key`]? SQLSTATE: 42703; line 1 pos 0;\n"
            "'Project [unresolvedalias(('nosuch + 1))]\n+- ~StreamingRelationV2 org.apache.spark\n",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nosuch` cannot be resolved. Did you mean [`key`]?; line 1 pos 0",
            Permanence.FINAL,
        ),
        (
            "ParseException",
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nSELEC 1\n^^^\n",
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. (line 1, pos 0)\nin: SELEC 1",
            Permanence.FINAL,
        ),
        (
            "ArithmeticException",
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL (line 1, position 1) ==\noffset / (partition - 1)\n^^^^^^^^\n",
            "[DIVIDE_BY_ZERO] Division by zero.\nin: offset / (partition - 1)",
            Permanence.FINAL,
        ),
        (
            "UnknownException",
            "java.lang.AssertionError: assertion failed: There are [1] sources in the checkpoint offsets and now "
            "there are [2] sources requested by the query. Cannot continue.",
            "There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the query. Cannot continue.\n"
            "the checkpoint is another query's: sources and grouping cannot change under it; use a new checkpoint to start over",
            Permanence.FINAL,
        ),
        (
            "IllegalArgumentException",
            "java.lang.IllegalArgumentException: requirement failed: headrace does not support Update mode.",
            "headrace does not support Update mode.",
            Permanence.FINAL,
        ),
        (
            "UnknownException",
            "org.apache.spark.SparkException: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. SQLSTATE: 40000",
            "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.\nanother driver runs on the same checkpoint",
            Permanence.FINAL,
        ),
        (
            "UnknownException",
            "java.lang.OutOfMemoryError: Java heap space",
            "OutOfMemoryError: Java heap space\nspark.driver.memory, or spark.executor.memory in a cluster, sets the limit",
            Permanence.UNCLEAR,
        ),
        (
            "UnknownException",
            "org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 12.0 failed 4 times, most recent failure: "
            "Lost task 3.3 in stage 12.0 (TID 53) (10.0.0.5 executor 2): java.io.IOException: Connection reset by peer\n"
            "\tat java.base/sun.nio.ch.SocketDispatcher.read(SocketDispatcher.java:47)\n\nDriver stacktrace:",
            "IOException: Connection reset by peer",
            Permanence.UNCLEAR,
        ),
        (
            "Py4JJavaError",
            "An error occurred while calling o893.start.\n: org.apache.hadoop.fs.ParentNotDirectoryException: "
            "Parent path is not a directory: file:/x\n\tat org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:892)\n",
            "ParentNotDirectoryException: Parent path is not a directory: file:/x",
            Permanence.FINAL,
        ),
    ],
    ids=["column", "syntax", "data", "sources", "mode", "concurrent", "memory", "task", "folder"],
)
def test_spark_errors_are_shown_without_stack_traces_and_plans(
    kind: str, text: str, message: str, permanence: Permanence
) -> None:
    found = explain([Cause(kind, text)])
    assert (found.text, found.permanence) == (message, permanence)
    assert explain(failed(kind, text)) == found, "also when a query ended with it"


def test_errors_in_user_python_code_name_file_and_line() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/home/ann/.venv/lib/python3.12/site-packages/pyspark/worker.py", line 2041, in process\n'
        "    serializer.dump_stream(out_iter, outfile)\n"
        '  File "/home/ann/shop/steps.py", line 57, in clean\n'
        '    raise ValueError("my own fault")\n'
        '  File "/home/ann/.venv/lib/python3.12/site-packages/pandas/core/frame.py", line 9, in apply\n'
        "    pass\n"
        "ValueError: my own fault"
    )
    found = explain(worker(trace))
    assert found.text == "/home/ann/shop/steps.py:57, in clean: ValueError: my own fault"
    assert found.permanence is Permanence.UNCLEAR, "whoever reads a file or asks a service may have more luck next time"


def test_a_full_disk_is_a_passing_failure() -> None:
    causes = [
        *failed("UnknownException", "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device"),
        Cause("UnknownException", "java.io.IOException: No space left on device"),
    ]
    found = explain(causes, "/data/checkpoints/shop/counts")
    assert found.permanence is Permanence.TRANSIENT
    assert "disk is full" in found.text and "/data/checkpoints/shop/counts" in found.text and "\n" not in found.text


def test_definition_errors_are_final_unless_only_a_topic_or_registry_is_missing() -> None:
    wrong = "shop.yaml:3: source orders: there is no topic orders\nshop.yaml:9: step x: no column y"
    found = explain([Cause("DefinitionError", wrong)])
    assert (found.text, found.permanence) == (wrong, Permanence.FINAL)
    for text in ("there is no topic orders", "the schema registry gave no response for subject orders-value: refused"):
        assert (
            explain([Cause("DefinitionError", f"shop.yaml:3: source orders: {text}")]).permanence
            is Permanence.TRANSIENT
        )


def test_a_chain_of_causes_is_followed_up_to_a_limit() -> None:
    error = RuntimeError("outer")
    error.__cause__ = SourceError("there is no topic t")
    assert [cause.kind for cause in causes_of(error)] == ["RuntimeError", "SourceError"]
    assert explain(causes_of(error)).text == "there is no topic t"
    error.__cause__.__cause__ = error
    assert len(causes_of(error)) < 20


@settings(deadline=None, max_examples=200)
@given(st.lists(st.builds(Cause, st.text(max_size=20), st.text(max_size=2000)), max_size=4))
def test_any_explanation_has_at_most_three_lines(causes: list[Cause]) -> None:
    found = explain(causes)
    assert found.text and found.text.count("\n") <= 2 and len(found.text) <= TEXT_CHARACTERS_MAX + 200
