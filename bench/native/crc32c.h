/* CRC-32C: with SSE4.2 three interleaved lanes, otherwise a lookup table. */
#ifndef BENCH_CRC32C_H
#define BENCH_CRC32C_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32c_table[256];

static uint32_t crc32c_plain(uint32_t state, const unsigned char *data, size_t size) {
    while (size--) state = crc32c_table[(state ^ *data++) & 0xff] ^ (state >> 8);
    return state;
}

static uint32_t (*crc32c_update)(uint32_t, const unsigned char *, size_t) = crc32c_plain;

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC32C_LANE 2048 /* bytes; the instruction has a latency of three cycles, so three lanes keep the unit busy */

static uint32_t crc32c_skip[4][256]; /* effect of CRC32C_LANE zero bytes on a state, for each of its four bytes */

__attribute__((target("sse4.2"))) static uint32_t crc32c_one_lane(uint32_t state, const unsigned char *data, size_t size) {
    uint64_t wide = state, word;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    state = (uint32_t)wide;
    while (size--) state = _mm_crc32_u8(state, *data++);
    return state;
}

static uint32_t crc32c_skip_lane(uint32_t state) {
    return crc32c_skip[0][state & 0xff] ^ crc32c_skip[1][state >> 8 & 0xff] ^ crc32c_skip[2][state >> 16 & 0xff] ^
           crc32c_skip[3][state >> 24];
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_lanes(uint32_t state, const unsigned char *data, size_t size) {
    for (; size >= 3 * CRC32C_LANE; size -= 3 * CRC32C_LANE, data += 3 * CRC32C_LANE) {
        uint64_t a = state, b = 0, c = 0, x, y, z;
        for (size_t at = 0; at < CRC32C_LANE; at += 8) {
            memcpy(&x, data + at, 8);
            memcpy(&y, data + at + CRC32C_LANE, 8);
            memcpy(&z, data + at + 2 * CRC32C_LANE, 8);
            a = _mm_crc32_u64(a, x);
            b = _mm_crc32_u64(b, y);
            c = _mm_crc32_u64(c, z);
        }
        state = crc32c_skip_lane(crc32c_skip_lane((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
    }
    return crc32c_one_lane(state, data, size);
}
#endif

/* Must be called before the first crc32c. */
static void crc32c_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (state & 1 ? 0x82f63b78u : 0);
        crc32c_table[byte] = state;
    }
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("sse4.2")) return;
    static const unsigned char zeros[CRC32C_LANE];
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++)
            crc32c_skip[byte][value] = crc32c_one_lane(value << 8 * byte, zeros, CRC32C_LANE);
    crc32c_update = crc32c_lanes;
#endif
}

static uint32_t crc32c(const unsigned char *data, size_t size) { return ~crc32c_update(~0u, data, size); }
#endif
