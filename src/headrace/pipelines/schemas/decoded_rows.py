"""Decodes the rows of a task, from the client's columns to Spark's, and handles bad records."""

from __future__ import annotations

import logging
from types import TracebackType

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.options.table import Value
from headrace.pipelines.failures import SourceError
from headrace.pipelines.schemas.columns import ValueDecoder
from headrace.pipelines.schemas.dead_letters import BadRow, DeadLetters
from headrace.pipelines.schemas.decoding import Decoding, SideDecoding
from headrace.pipelines.schemas.options import ERROR_COLUMN, OnBadRecord
from headrace.pipelines.schemas.spark_types import arrow_type
from headrace.pipelines.source.reading import TaskRange
from headrace.pipelines.source.rows import client_columns, row_maker

_LOG = logging.getLogger("headrace.spark")
# `runner.failures` matches the first words: a retry would fail on the same record.
WHAT_ELSE = (
    "set onBadRecord to handle such records otherwise (in a pipeline file: `bad_records:` of the source, skip, null or"
    " {dead_letter: TOPIC})"
)
_OF_DEAD_LETTERS = ("offset", "timestamp", "key", "value", "headers")


class DecodedRows:
    """Decodes batches. `columns` are the ones to read. Use it as a context manager: dead letters take a connection."""

    def __init__(self, decoding: Decoding, schema: StructType, task: TaskRange, client: dict[str, Value]) -> None:
        self._task = task
        self._on_bad = decoding.on_bad
        self._arrow = pa.schema([pa.field(field.name, arrow_type(field.dataType), field.nullable) for field in schema])
        self._sides: list[tuple[SideDecoding, ValueDecoder]] = []
        made: dict[str, str] = {}  # the side that each column comes from
        wants_errors = ERROR_COLUMN in schema.names
        for side in decoding.sides:
            decoder = side.decoder()
            kind = decoder.spark_type
            fields = kind.fields if side.flat and isinstance(kind, StructType) else None
            names = [side.side] if fields is None else [side.prefix + field.name for field in fields]
            if wants_errors or not set(names).isdisjoint(schema.names):
                self._sides.append((side, decoder))
            made.update(dict.fromkeys(names, side.side))
        base = StructType([field for field in schema if field.name not in made and field.name != ERROR_COLUMN])
        self._base_columns = client_columns(base)
        self._base = row_maker(base)
        self._base_names = base.names
        needed = list(self._base_columns)
        if self._sides:
            needed += ["offset", *(side.side for side, _ in self._sides)]
        self._letters: DeadLetters | None = None
        if self._sides and self._on_bad is OnBadRecord.DEAD_LETTER:
            assert decoding.dead_letter_topic is not None
            needed += _OF_DEAD_LETTERS
            self._letters = DeadLetters(client, decoding.dead_letter_topic, task.topic, task.partition)
        self.columns = tuple(dict.fromkeys(needed))

    def __enter__(self) -> DecodedRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._letters is not None:
            self._letters.close()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        bad: dict[int, str] = {}
        for side, decoder in self._sides:
            decoded = decoder.decode(batch.column(side.side))
            for row, why in decoded.bad.items():
                bad[row] = f"{bad[row]}; {side.side}: {why}" if row in bad else f"{side.side}: {why}"
            if side.flat:
                names = [side.prefix + field.name for field in decoded.column.type]
                columns.update(zip(names, decoded.column.flatten(), strict=True))
            else:
                columns[side.side] = decoded.column
        if bad:
            self._deal_with(batch, bad)
        base = self._base(batch.select(list(self._base_columns)))
        columns.update(zip(self._base_names, base.columns, strict=True))
        if self._on_bad is OnBadRecord.NULL:
            columns[ERROR_COLUMN] = pa.array([bad.get(row) for row in range(batch.num_rows)], pa.utf8())
        arrays = [_convert(columns[field.name], field.type) for field in self._arrow]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
        if bad and self._on_bad is not OnBadRecord.NULL:
            return rows.filter(pa.array([row not in bad for row in range(batch.num_rows)], pa.bool_()))
        return rows

    def _deal_with(self, batch: pa.RecordBatch, bad: dict[int, str]) -> None:
        task, offsets = self._task, batch.column("offset")
        first = min(bad)
        where = f"{task.topic}-{task.partition}, offset {offsets[first].as_py()}"
        if self._on_bad is OnBadRecord.FAIL:
            more = f" ({len(bad)} such records among {batch.num_rows})" if len(bad) > 1 else ""
            raise SourceError(f"{where}: {bad[first]}{more}; {WHAT_ELSE}")
        _LOG.warning("%s: %s; %d of %d records cannot be decoded", where, bad[first], len(bad), batch.num_rows)
        if self._letters is not None:
            rows = sorted(bad)
            found = batch.select(list(_OF_DEAD_LETTERS)).take(pa.array(rows, pa.int64()))
            times = found.column("timestamp").cast(pa.int64()).to_pylist()
            self._letters.send(
                [
                    BadRow(
                        offset=one["offset"],
                        timestamp_ms=time // 1000,
                        key=one["key"],
                        value=one["value"],
                        headers=tuple((header["key"], header["value"]) for header in one["headers"] or ()),
                        why=bad[row],
                    )
                    for row, time, one in zip(rows, times, found.drop_columns(["timestamp"]).to_pylist(), strict=True)
                ]
            )


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column as `kind`, without fields of structs that a user's schema leaves out."""
    if column.type.equals(kind):
        return column
    if pa.types.is_struct(kind):
        children = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        arrays = [_convert(children[field.name], field.type) for field in kind]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=column.is_null())
    return column.cast(kind)
