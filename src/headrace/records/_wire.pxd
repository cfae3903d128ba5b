"""Reading and writing of the fields of records, inlined into the compiled modules.

Every read is checked against the end of its buffer: the input is hostile.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    OK = 0
    MALFORMED = 1
    COUNT_MISMATCH = 2
    TRAILING_BYTES = 3
    OFFSET_NOT_SEQUENTIAL = 4
    MISSING_KEY = 5
    TIMESTAMP_OUT_OF_RANGE = 6
    RELEASE_LOCK_BYTES = 4096  # below this, releasing and reacquiring the lock costs more than the loop
    RECORD_BYTES_MIN = 7
    NO_TIMESTAMP = -1


cdef struct Fields:
    int64_t timestamp_delta
    int32_t offset_delta
    Py_ssize_t key
    int32_t key_length
    Py_ssize_t value
    int32_t value_length
    Py_ssize_t headers
    int32_t header_count
    Py_ssize_t end


cdef inline int read_varint(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int32_t* out) noexcept nogil:
    cdef Py_ssize_t at = position[0]
    cdef uint32_t value = 0
    cdef uint32_t byte
    cdef int shift = 0
    if end - at >= 2:  # nearly all values take one or two bytes
        byte = data[at]
        if byte < 0x80:
            position[0] = at + 1
            out[0] = <int32_t>((byte >> 1) ^ (0 - (byte & 1)))
            return OK
        value = byte & 0x7F | <uint32_t>data[at + 1] << 7
        if data[at + 1] < 0x80:
            position[0] = at + 2
            out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
            return OK
        value = 0
    while True:
        if at >= end:
            return MALFORMED
        byte = data[at]
        at += 1
        if shift == 28 and byte > 0x0F:
            return MALFORMED
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    position[0] = at
    out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
    return OK


cdef inline int read_varlong(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int64_t* out) noexcept nogil:
    cdef Py_ssize_t at = position[0]
    cdef uint64_t value = 0
    cdef uint64_t byte
    cdef int shift = 0
    if end - at >= 2:  # nearly all values take one or two bytes
        byte = data[at]
        if byte < 0x80:
            position[0] = at + 1
            out[0] = <int64_t>((byte >> 1) ^ (0 - (byte & 1)))
            return OK
        value = byte & 0x7F | <uint64_t>data[at + 1] << 7
        if data[at + 1] < 0x80:
            position[0] = at + 2
            out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
            return OK
        value = 0
    while True:
        if at >= end:
            return MALFORMED
        byte = data[at]
        at += 1
        if shift == 63 and byte > 0x01:
            return MALFORMED
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    position[0] = at
    out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
    return OK


cdef inline int read_span(
    const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, Py_ssize_t* start, int32_t* length
) noexcept nogil:
    """Read a length (negative means null) and that many bytes."""
    if read_varint(data, position, end, length) != OK:
        return MALFORMED
    start[0] = position[0]
    if length[0] > 0:
        if length[0] > end - position[0]:
            return MALFORMED
        position[0] += length[0]
    return OK


cdef inline int read_fields(const uint8_t* data, Py_ssize_t position, Py_ssize_t end, Fields* out) noexcept nogil:
    cdef int32_t length = 0
    cdef Py_ssize_t start = 0
    cdef int32_t index
    if read_varint(data, &position, end, &length) != OK:
        return MALFORMED
    if length < RECORD_BYTES_MIN - 1 or length > end - position:
        return MALFORMED
    end = position + length
    position += 1  # the attributes have no meaning yet
    if read_varlong(data, &position, end, &out.timestamp_delta) != OK:
        return MALFORMED
    if read_varint(data, &position, end, &out.offset_delta) != OK:
        return MALFORMED
    if read_span(data, &position, end, &out.key, &out.key_length) != OK:
        return MALFORMED
    if read_span(data, &position, end, &out.value, &out.value_length) != OK:
        return MALFORMED
    if read_varint(data, &position, end, &out.header_count) != OK or out.header_count < 0:
        return MALFORMED
    out.headers = position
    for index in range(out.header_count):  # the end of the bytes bounds it, whatever count is claimed
        if read_span(data, &position, end, &start, &length) != OK or length < 0:
            return MALFORMED
        if read_span(data, &position, end, &start, &length) != OK:
            return MALFORMED
    if position != end:
        return MALFORMED
    out.end = end
    return OK


cdef inline int add(int64_t base, int64_t delta, int64_t* out) noexcept nogil:
    if (delta > 0 and base > INT64_MAX - delta) or (delta < 0 and base < INT64_MIN - delta):
        return MALFORMED
    out[0] = base + delta
    return OK


cdef inline uint32_t hash_key(const uint8_t* data, Py_ssize_t length) noexcept nogil:
    """murmur2 with Kafka's seed, as the bits of a signed 32-bit number."""
    cdef uint32_t mixed
    cdef uint32_t block
    cdef Py_ssize_t position = 0
    mixed = <uint32_t>0x9747B28C ^ <uint32_t>length
    while length - position >= 4:
        block = (
            <uint32_t>data[position]
            | <uint32_t>data[position + 1] << 8
            | <uint32_t>data[position + 2] << 16
            | <uint32_t>data[position + 3] << 24
        )
        block *= <uint32_t>0x5BD1E995
        block ^= block >> 24
        block *= <uint32_t>0x5BD1E995
        mixed = mixed * <uint32_t>0x5BD1E995 ^ block
        position += 4
    if length - position == 3:
        mixed ^= <uint32_t>data[position + 2] << 16
    if length - position >= 2:
        mixed ^= <uint32_t>data[position + 1] << 8
    if length - position >= 1:
        mixed ^= data[position]
        mixed *= <uint32_t>0x5BD1E995
    mixed ^= mixed >> 13
    mixed *= <uint32_t>0x5BD1E995
    return mixed ^ mixed >> 15


cdef inline int32_t load32(const uint8_t* data, Py_ssize_t index) noexcept nogil:
    cdef int32_t value
    memcpy(&value, data + 4 * index, 4)  # Arrow's buffers may be slices: not aligned
    return value


cdef inline int64_t load64(const uint8_t* data, Py_ssize_t index) noexcept nogil:
    cdef int64_t value
    memcpy(&value, data + 8 * index, 8)
    return value


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline Py_ssize_t varint_bytes(int64_t value) noexcept nogil:
    cdef uint64_t rest = zigzag(value)
    cdef Py_ssize_t size = 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t* write_varint(uint8_t* out, int64_t value) noexcept nogil:
    cdef uint64_t rest = zigzag(value)
    while rest > 0x7F:
        out[0] = <uint8_t>(rest & 0x7F | 0x80)
        out += 1
        rest >>= 7
    out[0] = <uint8_t>rest
    return out + 1


cdef inline Py_ssize_t span_bytes(Py_ssize_t length) noexcept nogil:
    return varint_bytes(length) + (length if length > 0 else 0)


cdef inline uint8_t* write_span(uint8_t* out, const uint8_t* start, Py_ssize_t length) noexcept nogil:
    out = write_varint(out, length)
    if length > 0:
        memcpy(out, start, length)
        out += length
    return out
