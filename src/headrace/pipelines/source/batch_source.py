"""Batch reads of format("headrace"), and the parts that batch and streaming reads share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headrace.pipelines.background import background
from headrace.pipelines.failures import plain_errors
from headrace.pipelines.source.batch_plan import BatchPlan, plan_batch
from headrace.pipelines.source.brokers import Brokers
from headrace.pipelines.source.options import Mode, SourceOptions, parse_options
from headrace.pipelines.source.planning import Range
from headrace.pipelines.source.pushed_filters import Pushed, push
from headrace.pipelines.source.reading import TaskRange, read_task
from headrace.pipelines.source.rows import TIMESTAMP_UNIT, check_schema, client_columns, row_maker, schema_of
from headrace.pipelines.worker_memory import put_aside

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.pipelines.schemas.decoding import Decoding


class ReadPartition(InputPartition):
    """The offset range that one task reads."""

    def __init__(self, task: TaskRange) -> None:
        super().__init__(task)
        self.task = task


def source_schema(options: Mapping[str, str]) -> StructType:
    with plain_errors():
        parsed = parse_options(options, Mode.ANY)
        if parsed.decoding is None:
            return schema_of(parsed.columns)
        from headrace.pipelines.schemas.decoding import decoded_schema, settle

        return decoded_schema(settle(parsed.decoding), parsed.columns, chosen=parsed.columns_chosen)


def tasks_of(ranges: Iterable[Range], ids: Mapping[str, str]) -> list[InputPartition]:
    return [
        ReadPartition(TaskRange(*one.partition, one.start, one.end, ids.get(one.partition.topic))) for one in ranges
    ]


class RowReader(Struct, frozen=True):
    """Reads the rows of a task. It is pickled and sent to the tasks."""

    options: SourceOptions
    schema: Any  # a StructType; msgspec does not know that type
    decoding: Decoding | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            put_aside()
            if not isinstance(partition, ReadPartition):
                return  # Spark's placeholder when there is nothing to read
            task = partition.task
            if self.decoding is not None:
                from headrace.pipelines.schemas.decoded_rows import DecodedRows

                with DecodedRows(self.decoding, self.schema, task, self.options.client) as decoded:
                    for batch in read_task(task, self.options, decoded.columns, TIMESTAMP_UNIT):
                        yield decoded(batch)
                return
            rows = row_maker(self.schema)
            for batch in read_task(task, self.options, client_columns(self.schema), TIMESTAMP_UNIT):
                yield rows(batch)


def row_reader(options: Mapping[str, str], schema: StructType, mode: Mode) -> RowReader:
    with plain_errors():
        parsed = parse_options(options, mode)
        if parsed.decoding is None:
            check_schema(schema)
            return RowReader(parsed, schema)
        from headrace.pipelines.schemas.decoding import check_decoded, settle

        decoding = settle(parsed.decoding)
        check_decoded(decoding, schema)
        return RowReader(parsed, schema, decoding)


class BatchReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._rows = row_reader(options, schema, Mode.BATCH)
        self._pushed = Pushed()
        # Without spark.sql.python.filterPushdown.enabled, Spark refuses a reader that overrides pushFilters, which it detects by comparing
        # __func__ of the bound method. Spark calls it only if the option is enabled, so it can always be defined.
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def push(self, filters: Sequence[Filter]) -> list[Filter]:
        """Push the filters down; return those that Spark must evaluate itself."""
        left = []
        for one in filters:
            column: tuple[str, ...] = getattr(one, "attribute", ())
            is_met = False
            if len(column) == 1:
                self._pushed, is_met = push(self._pushed, type(one).__name__, column[0], getattr(one, "value", None))
            if not is_met:
                left.append(one)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        with plain_errors():
            plan = background().do(self._plan())
            return tasks_of(plan.ranges, plan.ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    async def _plan(self) -> BatchPlan:
        brokers = await Brokers.open(self._rows.options)
        return await plan_batch(brokers, self._rows.options, self._pushed)


class _PushFilters:
    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters  # set on the instance: as a class attribute it would be bound

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)
