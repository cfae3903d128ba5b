# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a fetch brings, as Arrow's column buffers: batches found, records taken apart; _decode_pure.py is its twin and says the same in Python.

The long loops run without the interpreter's lock. Nobody may change the buffers meanwhile; what they hold is not trusted.
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
    WANT_OFFSETS = 1
    WANT_TIMESTAMPS = 2
    WANT_KEYS = 4
    WANT_VALUES = 8
    WANT_HEADERS = 16
    WANT_TIMESTAMP_TYPES = 32
    BATCH_HEADER_BYTES = 61
    LENGTH_OVERHEAD_BYTES = 12
    MAGIC = 2
    HEADER_BYTES_MIN = 2  # of one header of a record: two lengths
    SPARE_BYTES_MIN = 262144  # smaller memory is cheap to get
    SPARE_BYTES_MAX = 67108864  # kept in all
    IN_LIST_AND_HERE = 2  # references to memory that nobody else has
    NO_ROOM = 100  # a status of a walk: more headers than expected


cdef struct Binary:  # a binary column being filled
    uint8_t* validity  # of all rows from the first null on; before it there is none to write
    int32_t* offsets
    uint8_t* data
    Py_ssize_t rows
    Py_ssize_t rows_max
    Py_ssize_t used
    Py_ssize_t used_max
    Py_ssize_t nulls


cdef struct Target:  # what is not wanted is NULL
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


cdef struct Part:  # one section, and which of its records are wanted
    const uint8_t* data
    Py_ssize_t end
    int32_t count
    int64_t base_offset
    int64_t base_timestamp
    bint append_time
    int64_t start_offset
    int64_t end_offset


cdef inline bint has_room(Binary* column, int32_t length) noexcept nogil:
    return column.rows < column.rows_max and length <= column.used_max - column.used


cdef inline void put(Binary* column, const uint8_t* start, int32_t length) noexcept nogil:
    """There must be room: of keys and values there always is, as they are parts of sections that are no larger."""
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
        if not has_room(&target.header_keys, length):
            return NO_ROOM
        put(&target.header_keys, data + start, length)
        if read_span(data, &position, fields.end, &start, &length) != OK:
            return MALFORMED
        if not has_room(&target.header_values, length):
            return NO_ROOM
        put(&target.header_values, data + start, length)
    target.lists[target.rows + 1] = <int32_t>target.header_keys.rows
    return OK


cdef inline int64_t scaled(int64_t milliseconds) noexcept nogil:
    """In microseconds; the ends of time, which a record may have, stay the ends."""
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
        if status == NO_ROOM:
            return status
        if status != OK:
            raise MalformedSection(number, bad, status)
    return OK


# Large memory is used again as soon as nobody else refers to it. Fetches and the columns made of them come and go by megabytes, and fresh
# pages for them would cost as much as the decoding itself (measured: 55 against 125 ns for a row of 100 bytes).
cdef list spare = []
cdef Py_ssize_t spare_bytes = 0


cdef object take_spare(Py_ssize_t size):
    """None if there is none of the size and no more may be kept."""
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
    """So many bytes of any content, which are given out again when nobody holds them, or a part of them, any more."""
    memory = take_spare(size) if size >= SPARE_BYTES_MIN else None
    return memoryview(PyByteArray_FromStringAndSize(NULL, size) if memory is None else memory)[:size]


@cython.final
cdef class Memory:
    """Room for the most that there can be, to be cut to what was used."""

    cdef object held
    cdef bint is_spare

    def __cinit__(self, Py_ssize_t size):
        self.held = take_spare(size) if size >= SPARE_BYTES_MIN else None
        self.is_spare = self.held is not None
        if not self.is_spare:
            self.held = PyByteArray_FromStringAndSize(NULL, size)

    cdef char* start(self):
        return PyByteArray_AS_STRING(self.held)

    cdef object cut(self, Py_ssize_t size):
        if self.is_spare:
            return memoryview(self.held)[:size]
        PyByteArray_Resize(self.held, size)  # the rest was never touched, so it never was more than addresses
        return self.held


@cython.final
cdef class Room:
    """The memory of a binary column."""

    cdef Memory validity
    cdef Memory offsets
    cdef Memory data

    cdef void lend(self, Binary* column, Py_ssize_t rows_max, Py_ssize_t bytes_max):
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


# Most records have no headers, so little room is made for them; where there are more, all later decodes make more.
cdef Py_ssize_t headers_per_row = 0
cdef Py_ssize_t header_bytes_per_row = 0


@cython.final
cdef class Decoding:
    """One walk through all sections, with as much room as the walks before it needed for headers."""

    cdef Target target
    cdef Memory offsets
    cdef Memory timestamps
    cdef Memory timestamp_types
    cdef Memory lists
    cdef Room keys
    cdef Room values
    cdef Room header_keys
    cdef Room header_values

    def __cinit__(self, int wanted, Py_ssize_t rows_max, Py_ssize_t size, bint microseconds):
        cdef Py_ssize_t entries_max = min(size // HEADER_BYTES_MIN, rows_max * headers_per_row + 16)
        cdef Py_ssize_t bytes_max = min(size, rows_max * header_bytes_per_row + 256)
        memset(&self.target, 0, sizeof(Target))
        self.target.microseconds = microseconds
        self.keys = Room()
        self.values = Room()
        self.header_keys = Room()
        self.header_values = Room()
        if wanted & WANT_OFFSETS:
            self.offsets = Memory(8 * rows_max)
            self.target.offsets = <int64_t*>self.offsets.start()
        if wanted & WANT_TIMESTAMPS:
            self.timestamps = Memory(8 * rows_max)
            self.target.timestamps = <int64_t*>self.timestamps.start()
        if wanted & WANT_TIMESTAMP_TYPES:
            self.timestamp_types = Memory(4 * rows_max)
            self.target.timestamp_types = <int32_t*>self.timestamp_types.start()
        if wanted & WANT_KEYS:
            self.keys.lend(&self.target.keys, rows_max, size)
        if wanted & WANT_VALUES:
            self.values.lend(&self.target.values, rows_max, size)
        if wanted & WANT_HEADERS:
            self.lists = Memory(4 * (rows_max + 1))
            self.target.lists = <int32_t*>self.lists.start()
            self.target.lists[0] = 0
            self.header_keys.lend(&self.target.header_keys, entries_max, bytes_max)
            self.header_values.lend(&self.target.header_values, entries_max, bytes_max)

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


def decode_columns(sections, int wanted, int64_t start_offset, int64_t end_offset, bint microseconds=False):
    """The wanted columns of the records of all sections with offsets from `start_offset` to before `end_offset`, as Arrow's buffers."""
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
        # A record has at least so many bytes, whatever the header says about their number.
        rows_max += min(max(count, 0), length // RECORD_BYTES_MIN)
    if size > SECTION_BYTES_MAX:
        raise ValueError(f"{size} bytes of records are more than the {SECTION_BYTES_MAX} one decode takes")
    while True:
        decoding = Decoding(wanted, rows_max, size, microseconds)
        if walk_sections(sections, start_offset, end_offset, &decoding.target) == OK:
            return decoding.take()
        # With room for as many as the bytes can hold it cannot come to this, so it ends.
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
    """The whole batches (magic 2) at the start of the buffer, and where something else begins: the end, a part of a batch, an old format,
    or what is no batch at all."""
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
