"""Builds sources and steps as DataFrames. Errors of Spark or of a user's function become DefinitionErrors with a location."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.pipelines.definitions.definition import (
    BadRecords,
    DefinitionError,
    Pipeline,
    Place,
    Problem,
    Sink,
    Source,
    SourceKind,
    Step,
    StepKind,
    Watermark,
)
from headrace.pipelines.definitions.python.files import raised_in
from headrace.pipelines.definitions.python.modules import run_file
from headrace.pipelines.definitions.spark_errors import location_in_query, spark_message
from headrace.pipelines.definitions.topic_options import FLAT_PREFIX, has_fields, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "headrace"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# State is kept on disk instead of on the heap, and times mean the same on every machine.
CONF_DEFAULTS = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB, "spark.sql.session.timeZone": "UTC"}

_SESSION = threading.RLock()  # view names and settings belong to the whole session


@contextmanager
def settings_of(pipeline: Pipeline, spark: SparkSession) -> Iterator[None]:
    """Apply the parts of the pipeline's conf that can change at run time; queries started inside keep them."""
    with _SESSION:
        make_active(spark)
        before: dict[str, str | None] = {}
        try:
            for name, text in run_time_conf(pipeline, spark).items():
                before[name] = spark.conf.get(name, None)
                spark.conf.set(name, text)
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)


def make_active(spark: SparkSession) -> None:
    """Make the session active in this thread: Spark looks up Python sources of a write there, and new threads have none."""
    session: Any = spark
    session._jvm.org.apache.spark.sql.SparkSession.setActiveSession(session._jsparkSession)


def run_time_conf(pipeline: Pipeline, spark: SparkSession) -> dict[str, str]:
    conf = {**CONF_DEFAULTS, **pipeline.spark.conf}
    return {name: text for name, text in conf.items() if spark.conf.isModifiable(name)}


class Frames:
    """DataFrames by name; each is built on first use, together with everything upstream."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, put_aside_elsewhere: Collection[str] = ()) -> None:
        """Create frames that skip bad records of sources in `put_aside_elsewhere`, which another query handles."""
        self._pipeline = pipeline
        self._put_aside_elsewhere = put_aside_elsewhere
        self._spark = spark
        self._made: dict[str, DataFrame] = {}
        self._modules: dict[Path, ModuleType] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._made:
            source = self._pipeline.sources.get(name)
            self._made[name] = self._source(source) if source is not None else self._step(self._pipeline.steps[name])
        return self._made[name]

    def _source(self, source: Source) -> DataFrame:
        with errors_located_at(source.where, f"source {source.name}"):
            reader = self._spark.readStream if source.is_stream else self._spark.read
            if source.kind is SourceKind.TOPIC:
                bad_records = BadRecords("skip") if source.name in self._put_aside_elsewhere else None
                options = source_options(self._pipeline, source, bad_records)
                frame = reader.format(FORMAT).options(**options).load()
                frame = _with_fields(frame, source)
            elif source.kind is SourceKind.TABLE and source.format is None:
                frame = reader.options(**source.options).table(source.target)
            else:
                schema = source.schema if source.schema_file is None else Path(source.schema_file).read_text()
                reader = reader.format(str(source.format)).options(**source.options)
                reader = reader if schema is None else reader.schema(schema)
                frame = reader.load(source.target) if source.target else reader.load()
            return _with_watermark(frame, source.watermark)

    def _step(self, step: Step) -> DataFrame:
        inputs = [self[name] for name in step.inputs]
        if step.kind is StepKind.SQL:
            frame = self._sql(step, inputs)
        elif step.kind is StepKind.PYTHON:
            frame = self._python(step, inputs)
        else:
            with errors_located_at(step.where, f"step {step.name}"):
                keys = list(step.keys)
                (frame,) = inputs
                # Only streams have watermarks; a table is already complete.
                frame = frame.dropDuplicatesWithinWatermark(keys) if frame.isStreaming else frame.dropDuplicates(keys)
        with errors_located_at(step.where, f"step {step.name}"):
            return _with_watermark(frame, step.watermark)

    def _sql(self, step: Step, inputs: list[DataFrame]) -> DataFrame:
        assert step.sql_where is not None
        with errors_located_at(step.sql_where, f"step {step.name}", in_query=True):
            try:
                for name, frame in zip(step.inputs, inputs, strict=True):
                    frame.createOrReplaceTempView(name)
                return self._spark.sql(step.sql)  # analysed eagerly: the views are not needed afterwards
            finally:
                for name in step.inputs:
                    self._spark.catalog.dropTempView(name)

    def _python(self, step: Step, inputs: list[DataFrame]) -> DataFrame:
        from pyspark.sql import DataFrame

        function = step.function or self._function(step)
        file = step.python_file or step.where.file
        try:
            found = function(*inputs)
        except Exception as error:
            location, text = raised_in(file, error)
            text = spark_message(error) if _is_sparks(error) else text
            raise DefinitionError([Problem(location, f"step {step.name}: {text}")]) from error
        if not isinstance(found, DataFrame):
            what = f"{step.python_name} gave back {type(found).__name__}, not a DataFrame"
            raise DefinitionError([Problem(step.where, f"step {step.name}: {what}")])
        return found

    def _function(self, step: Step) -> Callable[..., Any]:
        assert step.python_file is not None
        if step.python_file not in self._modules:
            try:
                self._modules[step.python_file] = run_file(step.python_file)
            except (Exception, SystemExit) as error:
                location, text = raised_in(step.python_file, error)
                raise DefinitionError([Problem(location, text)]) from error
        function = getattr(self._modules[step.python_file], step.python_name, None)
        if not callable(function):
            text = f"step {step.name}: {step.python_file} has no function {step.python_name}"
            raise DefinitionError([Problem(step.where, text)])
        return function  # type: ignore[no-any-return]


class SinkFrames:
    """DataFrames by sink. Sinks that skip the bad records of the same sources, usually of none, share sources and steps."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._made: dict[frozenset[str], Frames] = {}

    def __getitem__(self, sink: Sink) -> DataFrame:
        elsewhere = self._pipeline.put_aside_elsewhere(sink)
        if elsewhere not in self._made:
            self._made[elsewhere] = Frames(self._pipeline, self._spark, elsewhere)
        return self._made[elsewhere][sink.source]


def _with_fields(frame: DataFrame, source: Source) -> DataFrame:
    """Return the fields of the value under their own names, followed by the columns of the record."""
    from pyspark.sql.functions import col

    if not has_fields(source):
        return frame
    fields = [name for name in frame.columns if name.startswith(FLAT_PREFIX)]
    others = [name for name in frame.columns if not name.startswith(FLAT_PREFIX)]
    taken = {name.lower() for name in others}
    for name in fields:
        if name.removeprefix(FLAT_PREFIX).lower() in taken:
            what = f"metadata: {name.removeprefix(FLAT_PREFIX)} is a field of the value, too"
            raise DefinitionError([Problem(source.where, f"source {source.name}: {what}")])
    renamed = [col(_quoted(name)).alias(name.removeprefix(FLAT_PREFIX)) for name in fields]
    return frame.select(*renamed, *(col(_quoted(name)) for name in others))


def _with_watermark(frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None or not frame.isStreaming:
        return frame
    return frame.withWatermark(watermark.column, watermark.delay)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _is_sparks(error: Exception) -> bool:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError)


@contextmanager
def errors_located_at(where: Place, what: str, *, in_query: bool = False) -> Iterator[None]:
    """Raise errors of Spark and the file system inside as problems of this location."""
    try:
        yield
    except DefinitionError:
        raise
    except Exception as error:
        if not _is_sparks(error) and not isinstance(error, OSError):
            raise
        location = location_in_query(error, where) if in_query else where
        raise DefinitionError([Problem(location, f"{what}: {spark_message(error)}")]) from error
