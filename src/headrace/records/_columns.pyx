# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encoding of Arrow columns as record sections, and the partitions of keys; _columns_pure.py is the pure-Python fallback.

The long loops run without the interpreter's lock. No other thread may change the buffers meanwhile; their contents are not trusted.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t

from headrace.records._wire cimport (
    MALFORMED,
    NO_TIMESTAMP,
    OK,
    add,
    hash_key,
    load32,
    load64,
    span_bytes,
    varint_bytes,
    write_span,
    write_varint,
)


@cython.final
cdef class Source:
    """A binary column to read from; it holds its three buffers until it is deallocated."""

    cdef Py_buffer validity
    cdef Py_buffer offsets
    cdef Py_buffer data
    cdef bint present
    cdef bint has_nulls
    cdef bint has_offsets
    cdef bint has_data
    cdef Py_ssize_t rows

    def __cinit__(self, column):
        self.present = column is not None
        if column is None:
            return
        validity, offsets, data = column[:3]
        PyObject_GetBuffer(offsets, &self.offsets, PyBUF_SIMPLE)
        self.has_offsets = True
        PyObject_GetBuffer(data, &self.data, PyBUF_SIMPLE)
        self.has_data = True
        self.rows = self.offsets.len // 4 - 1
        if validity is not None:
            PyObject_GetBuffer(validity, &self.validity, PyBUF_SIMPLE)
            self.has_nulls = True
            if self.validity.len * 8 < self.rows:
                self.rows = self.validity.len * 8

    def __dealloc__(self):
        if self.has_offsets:
            PyBuffer_Release(&self.offsets)
        if self.has_data:
            PyBuffer_Release(&self.data)
        if self.has_nulls:
            PyBuffer_Release(&self.validity)

    cdef int span(self, Py_ssize_t row, const uint8_t** start, Py_ssize_t* length) noexcept nogil:
        """Find the bytes of a row; length -1 means null. The offsets are checked against the data, `row` against the rows."""
        cdef int32_t begin
        cdef int32_t end
        length[0] = -1
        if not self.present:
            return OK
        if row < 0 or row >= self.rows:
            return MALFORMED
        if self.has_nulls and not (<const uint8_t*>self.validity.buf)[row >> 3] >> (row & 7) & 1:
            return OK
        begin = load32(<const uint8_t*>self.offsets.buf, row)
        end = load32(<const uint8_t*>self.offsets.buf, row + 1)
        if begin < 0 or end < begin or end > self.data.len:
            return MALFORMED
        start[0] = <const uint8_t*>self.data.buf + begin
        length[0] = end - begin
        return OK


@cython.final
cdef class Encoder:
    """Encodes rows of Arrow columns as records. `size` checks and measures a row; `write` needs no further check."""

    cdef Source keys
    cdef Source values
    cdef Source lists
    cdef Source header_keys
    cdef Source header_values
    cdef Py_buffer timestamps
    cdef bint has_timestamps
    cdef int64_t base_timestamp

    def __cinit__(self, timestamps, int64_t base_timestamp, keys, values, headers):
        self.base_timestamp = base_timestamp
        self.keys = Source(keys)
        self.values = Source(values)
        # A list's offsets point into its entries as a binary column's point into its bytes: the same reader, without bytes.
        self.lists = Source(None if headers is None else (headers[0], headers[1], b""))
        self.header_keys = Source(None if headers is None else headers[2])
        self.header_values = Source(None if headers is None else headers[3])
        if timestamps is not None:
            PyObject_GetBuffer(timestamps, &self.timestamps, PyBUF_SIMPLE)
            self.has_timestamps = True

    def __dealloc__(self):
        if self.has_timestamps:
            PyBuffer_Release(&self.timestamps)

    cdef int entries(self, Py_ssize_t row, Py_ssize_t* first, Py_ssize_t* count) noexcept nogil:
        cdef int32_t begin
        cdef int32_t end
        count[0] = 0
        if not self.lists.present:
            return OK
        if row < 0 or row >= self.lists.rows:
            return MALFORMED
        if self.lists.has_nulls and not (<const uint8_t*>self.lists.validity.buf)[row >> 3] >> (row & 7) & 1:
            return OK
        begin = load32(<const uint8_t*>self.lists.offsets.buf, row)
        end = load32(<const uint8_t*>self.lists.offsets.buf, row + 1)
        if begin < 0 or end < begin or end > self.header_keys.rows or end > self.header_values.rows:
            return MALFORMED
        first[0] = begin
        count[0] = end - begin
        return OK

    cdef int timestamp(self, Py_ssize_t row, int64_t* timestamp, int64_t* delta) noexcept nogil:
        timestamp[0] = self.base_timestamp
        if self.has_timestamps:
            if row < 0 or row >= self.timestamps.len // 8:
                return MALFORMED
            timestamp[0] = load64(<const uint8_t*>self.timestamps.buf, row)
        if self.base_timestamp == INT64_MIN:
            return MALFORMED
        return add(timestamp[0], -self.base_timestamp, delta)

    cdef Py_ssize_t size(self, Py_ssize_t row, Py_ssize_t offset_delta, int64_t* timestamp) noexcept nogil:
        """Return the number of bytes of the record after its length; -1 if the row cannot be encoded."""
        cdef const uint8_t* start = NULL
        cdef Py_ssize_t length = 0
        cdef Py_ssize_t first = 0
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t entry
        cdef Py_ssize_t total
        cdef int64_t delta = 0
        if self.timestamp(row, timestamp, &delta) != OK:
            return -1
        total = 1 + varint_bytes(delta) + varint_bytes(offset_delta)
        if self.keys.span(row, &start, &length) != OK:
            return -1
        total += span_bytes(length)
        if self.values.span(row, &start, &length) != OK:
            return -1
        total += span_bytes(length)
        if self.entries(row, &first, &count) != OK:
            return -1
        total += varint_bytes(count)
        for entry in range(first, first + count):
            if self.header_keys.span(entry, &start, &length) != OK or length < 0:
                return -1
            total += span_bytes(length)
            if self.header_values.span(entry, &start, &length) != OK:
                return -1
            total += span_bytes(length)
        return total if total <= INT32_MAX else -1

    cdef uint8_t* write(self, Py_ssize_t row, Py_ssize_t offset_delta, uint8_t* out) noexcept nogil:
        cdef const uint8_t* start = NULL
        cdef Py_ssize_t length = 0
        cdef Py_ssize_t first = 0
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t entry
        cdef int64_t timestamp = 0
        cdef int64_t delta = 0
        out = write_varint(out, self.size(row, offset_delta, &timestamp))
        out[0] = 0
        self.timestamp(row, &timestamp, &delta)
        out = write_varint(write_varint(out + 1, delta), offset_delta)
        self.keys.span(row, &start, &length)
        out = write_span(out, start, length)
        self.values.span(row, &start, &length)
        out = write_span(out, start, length)
        self.entries(row, &first, &count)
        out = write_varint(out, count)
        for entry in range(first, first + count):
            self.header_keys.span(entry, &start, &length)
            out = write_span(out, start, length)
            self.header_values.span(entry, &start, &length)
            out = write_span(out, start, length)
        return out


def encode_columns(
    Py_ssize_t start, int32_t count, timestamps, int64_t base_timestamp, keys, values, headers, Py_ssize_t bytes_max
):
    """Encode rows from `start` on as a record section of at most `bytes_max` bytes, but at least one row.

    Return the section, the number of encoded rows, and their largest timestamp (at least -1). Raise ValueError if a row is invalid.
    """
    cdef Encoder encoder = Encoder(timestamps, base_timestamp, keys, values, headers)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t size = 0
    cdef int64_t timestamp = 0
    cdef int64_t max_timestamp = NO_TIMESTAMP
    cdef int32_t row
    cdef int32_t rows = 0
    cdef uint8_t* out
    with nogil:
        for row in range(count):
            size = encoder.size(start + row, row, &timestamp)
            if size < 0:
                break
            size += varint_bytes(size)
            if rows > 0 and size > bytes_max - total:
                break
            total += size
            rows += 1
            if timestamp > max_timestamp:
                max_timestamp = timestamp
    if size < 0:
        raise ValueError(f"row {start + rows} cannot be a record")
    section = PyByteArray_FromStringAndSize(NULL, total)
    out = <uint8_t*>PyByteArray_AS_STRING(section)
    with nogil:
        for row in range(rows):
            out = encoder.write(start + row, row, out)
    return section, rows, max_timestamp


def partitions_for_keys(keys, Py_ssize_t start, Py_ssize_t count, int32_t partitions):
    """Return the partition of every row's key as int32, -1 for a null key."""
    cdef Source source = Source(keys)
    cdef const uint8_t* key = NULL
    cdef Py_ssize_t length = 0
    cdef Py_ssize_t row
    cdef int32_t* out
    cdef int status = OK
    if partitions <= 0:
        raise ValueError("a topic has at least one partition")
    if start < 0 or count < 0 or start > source.rows - count:
        raise ValueError(f"there are no {count} rows from {start} on")
    found = PyByteArray_FromStringAndSize(NULL, 4 * count)
    out = <int32_t*>PyByteArray_AS_STRING(found)
    with nogil:
        for row in range(count):
            if source.span(start + row, &key, &length) != OK:
                status = MALFORMED
                break
            out[row] = -1 if length < 0 else <int32_t>((hash_key(key, length) & 0x7FFFFFFF) % <uint32_t>partitions)
    if status != OK:
        raise ValueError(f"row {start + row} reaches beyond the data")
    return found
