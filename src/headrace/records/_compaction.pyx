# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The offset map of compaction: entering keys, and sifting batches by it; _compaction_pure.py is the pure-Python fallback.

All loops over records run without the interpreter's lock.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from headrace.records._wire cimport (
    MALFORMED,
    NO_TIMESTAMP,
    OK,
    Fields,
    add,
    read_fields,
    read_varint,
    read_varlong,
    varint_bytes,
    write_varint,
)

cdef enum:
    FULL = 7
    OTHER = 8
    COPY = 0
    REBUILT = 1
    NOTHING = 2
    RUNS_MAX = 1024
    HEADER_SIZE = 61
    PEEK_BYTES = 17
    LENGTH_OVERHEAD = 12
    MAGIC = 2
    VARLONG_BYTES_MAX = 10
    NOT_PLAIN_TO_NOTE = 0x37  # codec, transactional, control
    NOT_PLAIN_TO_SIFT = 0x77  # and a delete horizon
    APPEND_TIME = 0x08


cdef struct Slot:
    uint64_t low
    uint64_t high
    int64_t offset_plus_one  # 0 if the slot is empty


cdef struct Run:
    int kind
    Py_ssize_t start
    Py_ssize_t end
    Py_ssize_t source
    int64_t first_last_offset
    int64_t last_offset
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t records


cdef struct Head:
    Py_ssize_t size
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t last_delta
    int32_t count
    uint32_t attributes


cdef inline uint32_t big32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t big64(const uint8_t* at) noexcept nogil:
    return <uint64_t>big32(at) << 32 | big32(at + 4)


cdef inline void put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline uint64_t rotate(uint64_t value, int bits) noexcept nogil:
    return value << bits | value >> (64 - bits)


cdef inline void mix(uint64_t* v, int rounds) noexcept nogil:
    cdef int number
    for number in range(rounds):
        v[0] += v[1]
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] += v[3]
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] += v[3]
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] += v[1]
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)


cdef void hash_key(
    const uint8_t* data, Py_ssize_t length, uint64_t first, uint64_t second, uint64_t* low, uint64_t* high
) noexcept nogil:
    """SipHash-2-4 of 128 bits: keyed, so that a client cannot construct two keys with the same hash, of which one would be lost."""
    cdef uint64_t v[4]
    cdef uint64_t block
    cdef Py_ssize_t position = 0
    cdef int index
    v[0] = <uint64_t>0x736F6D6570736575 ^ first
    v[1] = <uint64_t>0x646F72616E646F6D ^ second ^ <uint64_t>0xEE
    v[2] = <uint64_t>0x6C7967656E657261 ^ first
    v[3] = <uint64_t>0x7465646279746573 ^ second
    while length - position >= 8:
        block = 0
        for index in range(8):
            block |= <uint64_t>data[position + index] << (8 * index)
        v[3] ^= block
        mix(v, 2)
        v[0] ^= block
        position += 8
    block = <uint64_t>length << 56
    for index in range(<int>(length - position)):
        block |= <uint64_t>data[position + index] << (8 * index)
    v[3] ^= block
    mix(v, 2)
    v[0] ^= block
    v[2] ^= <uint64_t>0xEE
    mix(v, 4)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= <uint64_t>0xDD
    mix(v, 4)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef int read_head(const uint8_t* data, Py_ssize_t left, uint32_t not_plain, Head* out) noexcept nogil:
    """Return OK for a whole plain batch, OTHER for one to process in Python, FULL for an incomplete one, or MALFORMED."""
    cdef int64_t size
    if left < PEEK_BYTES:
        return FULL
    if data[16] != MAGIC:
        return OTHER
    size = <int64_t><int32_t>big32(data + 8) + LENGTH_OVERHEAD
    if size < HEADER_SIZE:
        return MALFORMED
    if left < size:
        return FULL
    out.size = <Py_ssize_t>size
    out.attributes = <uint32_t>data[21] << 8 | data[22]
    if out.attributes & not_plain:
        return OTHER
    out.base_offset = <int64_t>big64(data)
    out.last_delta = <int32_t>big32(data + 23)
    out.base_timestamp = <int64_t>big64(data + 27)
    out.max_timestamp = <int64_t>big64(data + 35)
    out.producer_id = <int64_t>big64(data + 43)
    out.count = <int32_t>big32(data + 57)
    if out.base_offset < 0 or out.last_delta < 0 or out.count < 0:
        return MALFORMED
    return OK


cdef class OffsetMap:
    """The last offset of every key, by the key's hash: open addressing with linear probing, 24 bytes per slot, of fixed size."""

    cdef Slot* table
    cdef uint64_t first
    cdef uint64_t second
    cdef readonly Py_ssize_t slots
    cdef readonly Py_ssize_t entries_max
    cdef readonly Py_ssize_t entries
    cdef public int64_t latest  # offset up to which the keys of all records are entered

    def __cinit__(self, Py_ssize_t slots, Py_ssize_t entries_max, bytes secret):
        if not 0 < entries_max < slots or len(secret) != 16:
            raise ValueError("an offset map needs an empty slot and a secret of 16 bytes")
        self.table = <Slot*>calloc(slots, sizeof(Slot))
        if self.table == NULL:
            raise MemoryError()
        self.slots, self.entries_max, self.entries, self.latest = slots, entries_max, 0, -1
        self.first = int.from_bytes(secret[:8], "little")
        self.second = int.from_bytes(secret[8:], "little")

    def __dealloc__(self):
        free(self.table)

    cdef inline Slot* find(self, const uint8_t* key, Py_ssize_t length, uint64_t* low, uint64_t* high) noexcept nogil:
        """Return the key's slot, or the empty slot where it belongs."""
        cdef Py_ssize_t index
        cdef Slot* slot
        hash_key(key, length, self.first, self.second, low, high)
        index = <Py_ssize_t>(low[0] % <uint64_t>self.slots)
        while True:
            slot = self.table + index
            if slot.offset_plus_one == 0 or (slot.low == low[0] and slot.high == high[0]):
                return slot
            index += 1
            if index == self.slots:
                index = 0

    cdef inline int note(self, const uint8_t* key, Py_ssize_t length, int64_t offset) noexcept nogil:
        cdef uint64_t low = 0
        cdef uint64_t high = 0
        cdef Slot* slot = self.find(key, length, &low, &high)
        if slot.offset_plus_one == 0:
            if self.entries >= self.entries_max:
                return FULL
            slot.low, slot.high = low, high
            self.entries += 1
        slot.offset_plus_one = offset + 1
        self.latest = offset
        return OK

    cdef inline int64_t last(self, const uint8_t* key, Py_ssize_t length) noexcept nogil:
        cdef uint64_t low = 0
        cdef uint64_t high = 0
        return self.find(key, length, &low, &high).offset_plus_one - 1

    cdef int note_all(
        self, const uint8_t* data, Py_ssize_t end, int32_t count, int64_t base_offset, int32_t last_delta, int64_t start
    ) noexcept nogil:
        cdef Py_ssize_t position = 0
        cdef int32_t previous = -1
        cdef int32_t index
        cdef Fields fields
        for index in range(count):
            if read_fields(data, position, end, &fields) != OK:
                return MALFORMED
            if fields.offset_delta <= previous or fields.offset_delta > last_delta:
                return MALFORMED
            previous = fields.offset_delta
            position = fields.end
            if fields.key_length >= 0 and base_offset + fields.offset_delta >= start:
                if self.note(data + fields.key, fields.key_length, base_offset + fields.offset_delta) != OK:
                    return FULL
        return OK if position == end else MALFORMED

    def put(self, key, int64_t offset):
        """Enter a key; return False if the map is full."""
        cdef Py_buffer view
        cdef int status
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        status = self.note(<const uint8_t*>view.buf, view.len, offset)
        PyBuffer_Release(&view)
        return status == OK

    def get(self, key):
        """Return the last offset of a key, or -1 if the map does not contain it."""
        cdef Py_buffer view
        cdef int64_t found
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        found = self.last(<const uint8_t*>view.buf, view.len)
        PyBuffer_Release(&view)
        return found

    def note_records(self, records, int32_t count, int64_t base_offset, int32_t last_delta, int64_t start):
        """Enter the keys of a decompressed record section from offset `start` on; return OK, MALFORMED or FULL."""
        cdef Py_buffer view
        cdef int status
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        with nogil:
            status = self.note_all(<const uint8_t*>view.buf, view.len, count, base_offset, last_delta, start)
        PyBuffer_Release(&view)
        return status

    def note_plain(self, buffer, Py_ssize_t position, int64_t start):
        """Enter the keys of the whole plain batches from `position` on; return where it stopped, the number of records read, and why.

        The reason is OK at the end or before an incomplete batch, OTHER before one that is compressed, transactional or of an old format,
        MALFORMED or FULL.
        """
        cdef Py_buffer view
        cdef const uint8_t* data
        cdef Head head
        cdef int status = OK
        cdef int64_t records = 0
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        data = <const uint8_t*>view.buf
        with nogil:
            while status == OK:
                status = read_head(data + position, view.len - position, NOT_PLAIN_TO_NOTE, &head)
                if status != OK:
                    if status == FULL:
                        status = OK
                    break
                status = self.note_all(
                    data + position + HEADER_SIZE, head.size - HEADER_SIZE, head.count, head.base_offset, head.last_delta, start
                )
                if status == OK:
                    records += head.count
                    position += head.size
                    if head.base_offset + head.last_delta >= start:
                        self.latest = head.base_offset + head.last_delta
        PyBuffer_Release(&view)
        return position, records, status

    cdef inline bint keeps(self, const uint8_t* data, Fields* fields, int64_t offset, bint drop_tombstones) noexcept nogil:
        if offset > self.latest:
            return True
        if fields.key_length < 0 or offset < self.last(data + fields.key, fields.key_length):
            return False
        return fields.value_length >= 0 or not drop_tombstones

    def sift_records(
        self, records, int32_t count, int64_t base_offset, int32_t last_delta, int64_t base_timestamp, int64_t new_base_timestamp,
        bint drop_tombstones, bint keep_all,
    ):
        """Return the status, the number of records that are kept, how many of them are tombstones, their largest timestamp, and their section.

        The section is relative to the new base timestamp; it is None if it would not change.
        """
        cdef Py_buffer view
        cdef const uint8_t* data
        cdef uint8_t* out = NULL
        cdef uint8_t* at
        cdef Py_ssize_t position = 0, start = 0, rest = 0
        cdef int32_t index, length = 0, previous = -1
        cdef int32_t kept = 0, tombstones = 0
        cdef int64_t timestamp = 0, delta = 0, max_timestamp = NO_TIMESTAMP
        cdef bint moved = new_base_timestamp != base_timestamp
        cdef int status = OK
        cdef Fields fields
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        data = <const uint8_t*>view.buf
        # A record has at least seven bytes, so a wrong number of records costs no more memory than the section.
        out = <uint8_t*>malloc(view.len + (VARLONG_BYTES_MAX * (view.len // 7 + 1) if moved else 1))
        if out == NULL:
            PyBuffer_Release(&view)
            raise MemoryError()
        at = out
        with nogil:
            for index in range(count):
                start = position
                if read_fields(data, position, view.len, &fields) != OK:
                    status = MALFORMED
                    break
                if fields.offset_delta <= previous or fields.offset_delta > last_delta:
                    status = MALFORMED
                    break
                previous = fields.offset_delta
                position = fields.end
                if not keep_all and not self.keeps(data, &fields, base_offset + fields.offset_delta, drop_tombstones):
                    continue
                if add(base_timestamp, fields.timestamp_delta, &timestamp) != OK:
                    status = MALFORMED
                    break
                kept += 1
                if fields.value_length < 0:
                    tombstones += 1
                if timestamp > max_timestamp:
                    max_timestamp = timestamp
                if not moved:
                    memcpy(at, data + start, fields.end - start)
                    at += fields.end - start
                    continue
                if new_base_timestamp < 0 or add(timestamp, -new_base_timestamp, &delta) != OK:
                    status = MALFORMED
                    break
                rest = start
                read_varint(data, &rest, view.len, &length)
                start = rest
                rest += 1
                read_varlong(data, &rest, view.len, &timestamp)
                at = write_varint(at, 1 + varint_bytes(delta) + fields.end - rest)
                at[0] = data[start]
                at = write_varint(at + 1, delta)
                memcpy(at, data + rest, fields.end - rest)
                at += fields.end - rest
            if status == OK and position != view.len:
                status = MALFORMED
        PyBuffer_Release(&view)
        try:
            section = None
            if status == OK and (moved or kept != count):
                section = PyByteArray_FromStringAndSize(<char*>out, at - out)
            return status, kept, tombstones, max_timestamp, section
        finally:
            free(out)

    def sift_plain(self, buffer, Py_ssize_t position, Py_ssize_t run_bytes, int64_t keep_end):
        """Sift the whole plain batches from `position` on.

        Return where it stopped and why (as `note_plain`; OK also after RUNS_MAX runs), the runs, the bytes of rebuilt batches, whose
        checksums are not updated yet, and the number of records read. A run (kernel_types.SiftedRun) is of kind COPY: some batches of the
        buffer, about `run_bytes`; REBUILT: one batch in the second buffer; or NOTHING: a batch of which no record is kept, but which belongs
        to a producer or ends at `keep_end`.
        """
        cdef Py_buffer view
        cdef const uint8_t* data
        cdef uint8_t* out
        cdef Head head
        cdef Run* runs
        cdef int number = 0
        cdef Py_ssize_t used = 0
        cdef int64_t read = 0
        cdef int status = OK
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        data = <const uint8_t*>view.buf
        runs = <Run*>malloc(RUNS_MAX * sizeof(Run))
        if runs == NULL:
            PyBuffer_Release(&view)
            raise MemoryError()
        try:
            rebuilt = PyByteArray_FromStringAndSize(NULL, view.len - position)
            out = <uint8_t*>PyByteArray_AS_STRING(rebuilt)
            with nogil:
                while number < RUNS_MAX:
                    status = read_head(data + position, view.len - position, NOT_PLAIN_TO_SIFT, &head)
                    if status != OK:
                        if status == FULL:
                            status = OK
                        break
                    status = self.sift_batch(data, position, &head, out, &used, runs, &number, run_bytes, keep_end)
                    if status != OK:
                        break
                    read += head.count
                    position += head.size
            found = [
                (
                    runs[index].kind, runs[index].start, runs[index].end, runs[index].source, runs[index].first_last_offset,
                    runs[index].last_offset, runs[index].max_timestamp, runs[index].max_timestamp_offset, runs[index].records,
                )
                for index in range(number)
            ]
        finally:
            free(runs)
            PyBuffer_Release(&view)
        return position, status, found, rebuilt, read

    cdef int sift_batch(
        self, const uint8_t* data, Py_ssize_t at, Head* head, uint8_t* out, Py_ssize_t* used, Run* runs, int* number,
        Py_ssize_t run_bytes, int64_t keep_end,
    ) noexcept nogil:
        """Return OTHER, with nothing recorded, if a tombstone is kept: its batch needs a delete horizon."""
        cdef const uint8_t* section = data + at + HEADER_SIZE
        cdef Py_ssize_t end = head.size - HEADER_SIZE
        cdef Py_ssize_t position = 0, start = 0
        cdef uint8_t* begin = out + used[0]
        cdef uint8_t* into = begin + HEADER_SIZE
        cdef int32_t index, kept = 0, previous = -1
        cdef int64_t timestamp = 0, max_timestamp = NO_TIMESTAMP
        cdef int64_t last_offset = head.base_offset + head.last_delta
        cdef Run* run
        cdef Fields fields
        for index in range(head.count):
            start = position
            if read_fields(section, position, end, &fields) != OK:
                return MALFORMED
            if fields.offset_delta <= previous or fields.offset_delta > head.last_delta:
                return MALFORMED
            previous = fields.offset_delta
            position = fields.end
            if not self.keeps(section, &fields, head.base_offset + fields.offset_delta, False):
                continue
            if fields.value_length < 0:
                return OTHER
            if add(head.base_timestamp, fields.timestamp_delta, &timestamp) != OK:
                return MALFORMED
            if timestamp > max_timestamp:
                max_timestamp = timestamp
            memcpy(into, section + start, position - start)
            into += position - start
            kept += 1
        if position != end:
            return MALFORMED
        if kept == 0 and head.producer_id < 0 and last_offset + 1 != keep_end:
            return OK
        if kept == head.count and kept > 0:
            run = runs + number[0] - 1
            if number[0] > 0 and run.kind == COPY and run.end == at and run.end - run.start < run_bytes:
                run.end += head.size
                run.last_offset = last_offset
                run.records += kept
                if head.max_timestamp > run.max_timestamp:
                    run.max_timestamp, run.max_timestamp_offset = head.max_timestamp, last_offset
                return OK
        run = runs + number[0]
        number[0] += 1
        run.start, run.end, run.source = at, at + head.size, at
        run.first_last_offset = run.last_offset = run.max_timestamp_offset = last_offset
        run.max_timestamp = head.max_timestamp
        run.records = kept
        if kept == 0:
            run.kind = NOTHING
        elif kept == head.count:
            run.kind = COPY
        else:
            run.kind = REBUILT
            if not head.attributes & APPEND_TIME:
                run.max_timestamp = max_timestamp
            end = into - begin
            memcpy(begin, data + at, HEADER_SIZE)
            put32(begin + 8, <uint32_t>(end - LENGTH_OVERHEAD))
            put32(begin + 35, <uint32_t>(<uint64_t>run.max_timestamp >> 32))
            put32(begin + 39, <uint32_t>(<uint64_t>run.max_timestamp))
            put32(begin + 57, <uint32_t>kept)
            run.start = used[0]
            run.end = used[0] = used[0] + end
        return OK
