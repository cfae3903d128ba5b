# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Decoding of fetched batches into Arrow's column buffers; _decode_pure.py is the pure-Python fallback.

The long loops run without the interpreter's lock. No other thread may change the buffers meanwhile; their contents are not trusted.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.ref cimport Py_REFCNT
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from headrace.records._wire cimport (
    COUNT_MISMATCH,
    MALFORMED,
    OK,
    RECORD_BYTES_MIN,
    RELEASE_LOCK_BYTES,
    TRAILING_BYTES,
    Fields,
    add,
    read_fields,
    read_span,
)

from headrace.records.kernel_types import (
    SECTION_BYTES_MAX,
    BinaryColumn,
    Columns,
    HeaderColumn,
    MalformedSection,
    ScannedBatch,
)

cdef enum:  # as in kernel_types
    OFFSETS_COLUMN = 1
    TIMESTAMPS_COLUMN = 2
    KEYS_COLUMN = 4
    VALUES_COLUMN = 8
    HEADERS_COLUMN = 16
    TIMESTAMP_TYPES_COLUMN = 32
    BATCH_HEADER_BYTES = 61
    LENGTH_OVERHEAD_BYTES = 12
    MAGIC = 2
    HEADER_BYTES_MIN = 2  # size of a record's smallest header: two lengths
    SPARE_BYTES_MIN = 262144  # smaller buffers are cheap to allocate
    SPARE_BYTES_MAX = 67108864  # total size of all reusable buffers
    IN_LIST_AND_HERE = 2  # references to a buffer that is not in use
    NO_SPACE = 100  # status of a walk that found more headers than expected


cdef struct Binary:  # a binary column being filled
    uint8_t* validity  # written from the first null on, for all rows
    int32_t* offsets
    uint8_t* data
    Py_ssize_t rows
    Py_ssize_t rows_max
    Py_ssize_t used
    Py_ssize_t used_max
    Py_ssize_t nulls


cdef struct Target:  # columns that were not requested are NULL
    int64_t* offsets
    int64_t* timestamps
    int32_t* timestamp_types
    Binary keys
    Binary values
    int32_t* lists
    Binary header_keys
    Binary header_values
    bint microseconds
    Py_ssize_t rows


cdef struct Part:  # one section, and the range of offsets to decode
    const uint8_t* data
    Py_ssize_t end
    int32_t count
    int64_t base_offset
    int64_t base_timestamp
    bint append_time
    int64_t start_offset
    int64_t end_offset


cdef inline bint has_space(Binary* column, int32_t length) noexcept nogil:
    return column.rows < column.rows_max and length <= column.used_max - column.used


cdef inline void put(Binary* column, const uint8_t* start, int32_t length) noexcept nogil:
    """Append a row. There must be space; keys and values always have it, because they are parts of sections that are no larger."""
    cdef Py_ssize_t row = column.rows
    if length >= 0:
        memcpy(column.data + column.used, start, length)
        column.used += length
    elif column.nulls == 0:  # every row before this one has a value
        memset(column.validity, 0xFF, row >> 3)
        column.validity[row >> 3] = <uint8_t>((1 << (row & 7)) - 1)
    if length < 0 or column.nulls:
        if row & 7 == 0:
            column.validity[row >> 3] = 0
        if length < 0:
            column.nulls += 1
        else:
            column.validity[row >> 3] |= <uint8_t>(1 << (row & 7))
    column.rows = row + 1
    column.offsets[row + 1] = <int32_t>column.used


cdef int put_headers(const uint8_t* data, Fields* fields, Target* target) noexcept nogil:
    cdef Py_ssize_t position = fields.headers
    cdef Py_ssize_t start = 0
    cdef int32_t length = 0
    cdef int32_t index
    for index in range(fields.header_count):
        if read_span(data, &position, fields.end, &start, &length) != OK:
            return MALFORMED
        if not has_space(&target.header_keys, length):
            return NO_SPACE
        put(&target.header_keys, data + start, length)
        if read_span(data, &position, fields.end, &start, &length) != OK:
            return MALFORMED
        if not has_space(&target.header_values, length):
            return NO_SPACE
        put(&target.header_values, data + start, length)
    target.lists[target.rows + 1] = <int32_t>target.header_keys.rows
    return OK


cdef inline int64_t scaled(int64_t milliseconds) noexcept nogil:
    """Return microseconds, clamped to 64 bits: a record may have any timestamp."""
    if milliseconds > INT64_MAX // 1000:
        return INT64_MAX
    if milliseconds < -(INT64_MAX // 1000):
        return -INT64_MAX
    return milliseconds * 1000


cdef int walk(Part* part, Target* target, int32_t* bad) noexcept nogil:
    cdef Py_ssize_t position = 0
    cdef int32_t index
    cdef int64_t offset = 0
    cdef int64_t timestamp = part.base_timestamp
    cdef int status
    cdef Fields fields
    for index in range(part.count):
        bad[0] = index
        if position == part.end:
            return COUNT_MISMATCH
        if read_fields(part.data, position, part.end, &fields) != OK:
            return MALFORMED
        position = fields.end
        if add(part.base_offset, fields.offset_delta, &offset) != OK:
            return MALFORMED
        if not part.append_time and add(part.base_timestamp, fields.timestamp_delta, &timestamp) != OK:
            return MALFORMED
        if offset < part.start_offset or offset >= part.end_offset:
            continue
        if target.keys.offsets != NULL:
            put(&target.keys, part.data + fields.key, fields.key_length)
        if target.values.offsets != NULL:
            put(&target.values, part.data + fields.value, fields.value_length)
        if target.lists != NULL:
            status = put_headers(part.data, &fields, target)
            if status != OK:
                return status
        if target.offsets != NULL:
            target.offsets[target.rows] = offset
        if target.timestamps != NULL:
            target.timestamps[target.rows] = scaled(timestamp) if target.microseconds else timestamp
        if target.timestamp_types != NULL:
            target.timestamp_types[target.rows] = part.append_time
        target.rows += 1
    bad[0] = part.count
    return OK if position == part.end else TRAILING_BYTES


cdef int walk_sections(sections, int64_t start_offset, int64_t end_offset, Target* target) except -1:
    cdef Py_buffer view
    cdef Part part
    cdef int status
    cdef int32_t bad = 0
    part.start_offset = start_offset
    part.end_offset = end_offset
    for number, (records, count, base_offset, base_timestamp, append_timestamp) in enumerate(sections):
        part.count = count
        part.base_offset = base_offset
        part.append_time = append_timestamp is not None
        part.base_timestamp = base_timestamp if append_timestamp is None else append_timestamp
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        part.data = <const uint8_t*>view.buf
        part.end = view.len
        if view.len < RELEASE_LOCK_BYTES:
            status = walk(&part, target, &bad)
        else:
            with nogil:
                status = walk(&part, target, &bad)
        PyBuffer_Release(&view)
        if status == NO_SPACE:
            return status
        if status != OK:
            raise MalformedSection(number, bad, status)
    return OK


# Large buffers are reused as soon as nothing else refers to them. Fetches and the columns made of them take megabytes, and fresh pages for
# them would cost as much as the decoding itself (measured: 55 against 125 ns for a row of 100 bytes).
cdef list spare = []
cdef Py_ssize_t spare_bytes = 0


cdef object take_spare(Py_ssize_t size):
    """Return an unused buffer of about the size, allocating it if the total allows, else None."""
    global spare_bytes
    cdef Py_ssize_t index
    cdef Py_ssize_t capacity
    cdef object memory
    for memory in spare:
        capacity = PyByteArray_GET_SIZE(memory)
        if size <= capacity <= 2 * size and Py_REFCNT(memory) == IN_LIST_AND_HERE:
            return memory
    memory = None
    capacity = (size + size // 8) | (SPARE_BYTES_MIN - 1)
    index = 0
    while spare_bytes + capacity > SPARE_BYTES_MAX and index < len(spare):
        if Py_REFCNT(spare[index]) == IN_LIST_AND_HERE:
            spare_bytes -= PyByteArray_GET_SIZE(spare[index])
            del spare[index]
        else:
            index += 1
    if spare_bytes + capacity > SPARE_BYTES_MAX:
        return None
    memory = PyByteArray_FromStringAndSize(NULL, capacity)
    spare.append(memory)
    spare_bytes += capacity
    return memory


def reusable(Py_ssize_t size):
    """Return `size` uninitialized bytes, which are reused once nothing refers to them or a part of them."""
    memory = take_spare(size) if size >= SPARE_BYTES_MIN else None
    return memoryview(PyByteArray_FromStringAndSize(NULL, size) if memory is None else memory)[:size]


@cython.final
cdef class Memory:
    """A buffer of the largest possible size, cut to the used size at the end."""

    cdef object memory
    cdef bint is_spare

    def __cinit__(self, Py_ssize_t size):
        self.memory = take_spare(size) if size >= SPARE_BYTES_MIN else None
        self.is_spare = self.memory is not None
        if not self.is_spare:
            self.memory = PyByteArray_FromStringAndSize(NULL, size)

    cdef char* start(self):
        return PyByteArray_AS_STRING(self.memory)

    cdef object cut(self, Py_ssize_t size):
        if self.is_spare:
            return memoryview(self.memory)[:size]
        PyByteArray_Resize(self.memory, size)  # the rest was never touched, so it never occupied pages
        return self.memory


@cython.final
cdef class ColumnMemory:
    """The memory of a binary column."""

    cdef Memory validity
    cdef Memory offsets
    cdef Memory data

    cdef void assign_to(self, Binary* column, Py_ssize_t rows_max, Py_ssize_t bytes_max):
        self.validity = Memory((rows_max + 7) // 8 + 1)
        self.offsets = Memory(4 * (rows_max + 1))
        self.data = Memory(bytes_max)
        column.validity = <uint8_t*>self.validity.start()
        column.offsets = <int32_t*>self.offsets.start()
        column.data = <uint8_t*>self.data.start()
        column.rows_max = rows_max
        column.used_max = bytes_max
        column.offsets[0] = 0

    cdef object take(self, Binary* column):
        if self.offsets is None:
            return None
        return BinaryColumn(
            self.validity.cut((column.rows + 7) // 8) if column.nulls else None,
            self.offsets.cut(4 * (column.rows + 1)),
            self.data.cut(column.used),
            column.nulls,
        )


# Most records have no headers, so little memory is allocated for them at first; a decode that needs more raises it for all later ones.
cdef Py_ssize_t headers_per_row = 0
cdef Py_ssize_t header_bytes_per_row = 0


@cython.final
cdef class Decoding:
    """One walk through all sections, with as much memory for headers as earlier walks needed."""

    cdef Target target
    cdef Memory offsets
    cdef Memory timestamps
    cdef Memory timestamp_types
    cdef Memory lists
    cdef ColumnMemory keys
    cdef ColumnMemory values
    cdef ColumnMemory header_keys
    cdef ColumnMemory header_values

    def __cinit__(self, int columns, Py_ssize_t rows_max, Py_ssize_t size, bint microseconds):
        cdef Py_ssize_t entries_max = min(size // HEADER_BYTES_MIN, rows_max * headers_per_row + 16)
        cdef Py_ssize_t bytes_max = min(size, rows_max * header_bytes_per_row + 256)
        memset(&self.target, 0, sizeof(Target))
        self.target.microseconds = microseconds
        self.keys = ColumnMemory()
        self.values = ColumnMemory()
        self.header_keys = ColumnMemory()
        self.header_values = ColumnMemory()
        if columns & OFFSETS_COLUMN:
            self.offsets = Memory(8 * rows_max)
            self.target.offsets = <int64_t*>self.offsets.start()
        if columns & TIMESTAMPS_COLUMN:
            self.timestamps = Memory(8 * rows_max)
            self.target.timestamps = <int64_t*>self.timestamps.start()
        if columns & TIMESTAMP_TYPES_COLUMN:
            self.timestamp_types = Memory(4 * rows_max)
            self.target.timestamp_types = <int32_t*>self.timestamp_types.start()
        if columns & KEYS_COLUMN:
            self.keys.assign_to(&self.target.keys, rows_max, size)
        if columns & VALUES_COLUMN:
            self.values.assign_to(&self.target.values, rows_max, size)
        if columns & HEADERS_COLUMN:
            self.lists = Memory(4 * (rows_max + 1))
            self.target.lists = <int32_t*>self.lists.start()
            self.target.lists[0] = 0
            self.header_keys.assign_to(&self.target.header_keys, entries_max, bytes_max)
            self.header_values.assign_to(&self.target.header_values, entries_max, bytes_max)

    cdef object take(self):
        cdef Py_ssize_t rows = self.target.rows
        headers = None
        if self.lists is not None:
            headers = HeaderColumn(
                None,
                self.lists.cut(4 * (rows + 1)),
                self.header_keys.take(&self.target.header_keys),
                self.header_values.take(&self.target.header_values),
            )
        return Columns(
            rows,
            None if self.offsets is None else self.offsets.cut(8 * rows),
            None if self.timestamps is None else self.timestamps.cut(8 * rows),
            self.keys.take(&self.target.keys),
            self.values.take(&self.target.values),
            headers,
            None if self.timestamp_types is None else self.timestamp_types.cut(4 * rows),
        )


def decode_columns(sections, int columns, int64_t start_offset, int64_t end_offset, bint microseconds=False):
    """Decode the requested columns of all records from `start_offset` to before `end_offset` into Arrow's buffers."""
    global headers_per_row, header_bytes_per_row
    cdef Decoding decoding
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t rows_max = 0
    cdef Py_ssize_t length
    cdef Py_ssize_t count
    for section in sections:
        length = memoryview(section[0]).nbytes
        count = section[1]
        size += length
        # A record has at least RECORD_BYTES_MIN bytes, whatever number of records the header claims.
        rows_max += min(max(count, 0), length // RECORD_BYTES_MIN)
    if size > SECTION_BYTES_MAX:
        raise ValueError(f"{size} bytes of records exceed the limit of {SECTION_BYTES_MAX} per call")
    while True:
        decoding = Decoding(columns, rows_max, size, microseconds)
        if walk_sections(sections, start_offset, end_offset, &decoding.target) == OK:
            return decoding.take()
        # This ends: at the latest with space for as many headers as the bytes can contain.
        headers_per_row = min(2 * headers_per_row + 1, SECTION_BYTES_MAX)
        header_bytes_per_row = min(2 * header_bytes_per_row + 32, SECTION_BYTES_MAX)


cdef inline int64_t big64(const uint8_t* data) noexcept nogil:
    cdef uint64_t value = 0
    cdef int index
    for index in range(8):
        value = value << 8 | data[index]
    return <int64_t>value


cdef inline int32_t big32(const uint8_t* data) noexcept nogil:
    return <int32_t>(<uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | data[3])


def scan_batches(buffer):
    """Return the whole batches (magic 2) at the start of the buffer, and the position where they end.

    There follows the end of the buffer, an incomplete batch, an old format, or no batch at all.
    """
    cdef Py_buffer view
    cdef const uint8_t* head
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t size
    cdef int64_t base_offset
    cdef int64_t last_offset = 0
    cdef int32_t last_delta
    cdef int32_t count
    found = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while view.len - position >= BATCH_HEADER_BYTES:
            head = <const uint8_t*>view.buf + position
            size = <Py_ssize_t>big32(head + 8) + LENGTH_OVERHEAD_BYTES
            base_offset = big64(head)
            last_delta = big32(head + 23)
            count = big32(head + 57)
            if head[16] != MAGIC or size < BATCH_HEADER_BYTES or last_delta < 0 or count < 0:
                break
            if size > view.len - position or add(base_offset, last_delta, &last_offset) != OK:
                break
            found.append(
                ScannedBatch(
                    position,
                    size,
                    base_offset,
                    last_offset,
                    big32(head + 12),
                    MAGIC,
                    <uint32_t>big32(head + 17),
                    <int>(<int16_t>(<uint16_t>head[21] << 8 | head[22])),
                    big64(head + 27),
                    big64(head + 35),
                    big64(head + 43),
                    count,
                )
            )
            position += size
    finally:
        PyBuffer_Release(&view)
    return found, position
