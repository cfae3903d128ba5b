# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Validation and hashing of records, one batch at a time; _kernel_pure.py is the pure-Python fallback and documents the functions.

Loops over more than a few kilobytes run without the interpreter's lock.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from headrace.records._wire cimport (
    COUNT_MISMATCH,
    MALFORMED,
    MISSING_KEY,
    NO_TIMESTAMP,
    OFFSET_NOT_SEQUENTIAL,
    OK,
    RELEASE_LOCK_BYTES,
    TIMESTAMP_OUT_OF_RANGE,
    TRAILING_BYTES,
    Fields,
    add,
    hash_key,
    read_fields,
)

cdef enum:
    RECORD_ERRORS_MAX = 16
    HEADER_SIZE = 61
    REQUEST_HEAD = 10  # API key, version, correlation id, length of the client id
    PRODUCE_HEAD = 10  # tags, transactional id, acks, timeout, topics, length of the name


cdef inline uint32_t big32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t big64(const uint8_t* at) noexcept nogil:
    return <uint64_t>big32(at) << 32 | big32(at + 4)


cdef struct Validation:
    int status
    Py_ssize_t index
    int64_t max_timestamp
    Py_ssize_t max_timestamp_delta
    int error_count
    int32_t error_index[RECORD_ERRORS_MAX]
    int error_status[RECORD_ERRORS_MAX]


cdef void validate(
    const uint8_t* data, Py_ssize_t end, int32_t count, int64_t base_timestamp, bint require_keys,
    int64_t timestamp_min, int64_t timestamp_max, Validation* out
) noexcept nogil:
    cdef Py_ssize_t position = 0
    cdef int32_t index
    cdef int wrong
    cdef int64_t timestamp
    cdef Fields fields
    out.status = OK
    out.index = -1
    out.max_timestamp = NO_TIMESTAMP
    out.max_timestamp_delta = -1
    out.error_count = 0
    for index in range(count):
        wrong = OK
        if position == end:
            out.status = COUNT_MISMATCH
        elif read_fields(data, position, end, &fields) != OK:
            out.status = MALFORMED
        elif fields.offset_delta != index:
            out.status = OFFSET_NOT_SEQUENTIAL
        else:
            position = fields.end
            if require_keys and fields.key_length < 0:
                wrong = MISSING_KEY
            elif add(base_timestamp, fields.timestamp_delta, &timestamp) != OK:
                wrong = TIMESTAMP_OUT_OF_RANGE
            elif timestamp != NO_TIMESTAMP and (timestamp < timestamp_min or timestamp > timestamp_max):
                wrong = TIMESTAMP_OUT_OF_RANGE
            elif timestamp > out.max_timestamp:
                out.max_timestamp = timestamp
                out.max_timestamp_delta = index
            if wrong == OK:
                continue
            if out.error_count < RECORD_ERRORS_MAX:
                out.error_index[out.error_count] = index
                out.error_status[out.error_count] = wrong
                out.error_count += 1
            continue
        out.index = index
        return
    if position != end:
        out.status = TRAILING_BYTES
        out.index = count


def validate_records(
    records, int32_t count, int64_t base_timestamp, bint require_keys, int64_t timestamp_min, int64_t timestamp_max
):
    """Validate a decompressed record section in one pass; see kernel_types.ValidationResult."""
    cdef Py_buffer view
    cdef Validation found
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    if view.len < RELEASE_LOCK_BYTES:
        validate(
            <const uint8_t*>view.buf, view.len, count, base_timestamp, require_keys, timestamp_min, timestamp_max, &found
        )
    else:
        with nogil:
            validate(
                <const uint8_t*>view.buf, view.len, count, base_timestamp, require_keys, timestamp_min, timestamp_max, &found
            )
    PyBuffer_Release(&view)
    if found.error_count == 0 or found.status != OK:
        return (found.status, found.index, found.max_timestamp, found.max_timestamp_delta, ())
    errors = tuple([(found.error_index[index], found.error_status[index]) for index in range(found.error_count)])
    status = TIMESTAMP_OUT_OF_RANGE if TIMESTAMP_OUT_OF_RANGE in [error[1] for error in errors] else MISSING_KEY
    return (status, errors[0][0], found.max_timestamp, found.max_timestamp_delta, errors)


def inspect_plain_batch(batch, bint require_keys, int64_t timestamp_min, int64_t timestamp_max):
    """Return the header fields and the actual largest timestamp of a valid batch without attributes, else None.

    The batch must be whole. The checksum and the base offset are not checked.
    """
    cdef Py_buffer view
    cdef Validation found
    cdef const uint8_t* at
    cdef int32_t length, last_delta, count
    cdef int64_t base_timestamp, producer_id
    cdef bint good = False
    fields = None
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    at = <const uint8_t*>view.buf
    if view.len > HEADER_SIZE and at[16] == 2 and at[21] == 0 and at[22] == 0:
        length = <int32_t>big32(at + 8)
        last_delta = <int32_t>big32(at + 23)
        base_timestamp = <int64_t>big64(at + 27)
        producer_id = <int64_t>big64(at + 43)
        count = <int32_t>big32(at + 57)
        if length == view.len - 12 and count > 0 and last_delta == count - 1 and (producer_id < 0 or not at[53] & 0x80):
            if view.len < RELEASE_LOCK_BYTES:
                validate(at + HEADER_SIZE, view.len - HEADER_SIZE, count, base_timestamp, require_keys, timestamp_min, timestamp_max, &found)
            else:
                with nogil:
                    validate(at + HEADER_SIZE, view.len - HEADER_SIZE, count, base_timestamp, require_keys, timestamp_min, timestamp_max, &found)
            good = found.error_count == 0 and found.status == OK
        if good:
            fields = (
                (
                    <int64_t>big64(at), length, <int32_t>big32(at + 12), 2, big32(at + 17), 0, last_delta, base_timestamp,
                    <int64_t>big64(at + 35), producer_id, <int16_t>(at[51] << 8 | at[52]), <int32_t>big32(at + 53), count,
                ),
                found.max_timestamp,
            )
    PyBuffer_Release(&view)
    return fields


def split_single_produce(frame):
    """Split a Produce request of version 9 to 13 with one batch for one partition; return None for any other frame.

    The request must have acks 1 or all, no transactional id and no tags. Return version, correlation id, acks, timeout, the bytes that
    name the topic and partition, and the start and end of the batch.
    """
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef Py_ssize_t end, position, name
    cdef int32_t client, acks, timeout_ms
    cdef uint32_t size = 0
    cdef int version, shift = 0
    found = None
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    at = <const uint8_t*>view.buf
    end = view.len
    while True:  # runs once; `break` leaves it as soon as the frame differs
        if end < REQUEST_HEAD or at[0] != 0 or at[1] != 0 or at[2] != 0:
            break
        version = at[3]
        client = <int16_t>(at[8] << 8 | at[9])
        position = REQUEST_HEAD + (client if client > 0 else 0)
        if version < 9 or version > 13 or position + PRODUCE_HEAD > end:
            break
        acks = <int16_t>(at[position + 2] << 8 | at[position + 3])
        # Tags, transactional id (0: null), and an array of one topic.
        if at[position] != 0 or at[position + 1] != 0 or (acks != 1 and acks != -1) or at[position + 8] != 2:
            break
        timeout_ms = <int32_t>big32(at + position + 4)
        position += PRODUCE_HEAD - 1
        name = 16 if version == 13 else at[position]
        if name < 2 or name > 127 or position + name + 6 > end or at[position + name] != 2:
            break
        name += 5  # the array of one partition, and its index
        key = PyBytes_FromStringAndSize(<const char*>at + position, name)
        position += name
        while position < end and shift < 35:
            size |= <uint32_t>(at[position] & 127) << shift
            shift += 7
            position += 1
            if at[position - 1] < 128:
                break
        # After the batch: the empty tags of partition, topic and request.
        if size == 0 or at[position - 1] > 127 or <Py_ssize_t>size - 1 + position + 3 != end:
            break
        if at[end - 3] != 0 or at[end - 2] != 0 or at[end - 1] != 0:
            break
        found = (version, <int32_t>big32(at + 4), acks, timeout_ms, key, position, end - 3)
        break
    PyBuffer_Release(&view)
    return found


def murmur2(key):
    cdef Py_buffer view
    cdef int32_t found
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    found = <int32_t>hash_key(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return found


def partition_for_key(key, int32_t partitions):
    cdef Py_buffer view
    cdef uint32_t found
    if partitions <= 0:
        raise ValueError("a topic has at least one partition")
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    found = hash_key(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return (found & 0x7FFFFFFF) % <uint32_t>partitions


def allocate(Py_ssize_t size):
    """Return an uninitialized bytearray for a decompressor to fill: zeroing megabytes would stall all other threads."""
    if size < 0:
        raise ValueError("negative count")
    return PyByteArray_FromStringAndSize(NULL, size)
