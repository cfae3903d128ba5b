"""Codecs: framings that other libraries read and write, damage, and decompression bombs within their limits."""

from __future__ import annotations

import contextlib
import gzip
import struct
import subprocess
import sys
import tracemalloc
import zlib

import cramjam
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records.batch import CorruptBatch
from headrace.records.compression import LEVELS, Codec, TooLarge, compress, decompress

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
SAMPLE = b"".join(b'{"id": %d, "name": "user-%d"}' % (number, number * 7919 % 1000) for number in range(6000))
NOISE = zlib.compress(SAMPLE, 9)
LIMIT = 10_000_000
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def read_xerial(data: bytes) -> bytes:
    assert data.startswith(XERIAL)
    position = 16
    parts: list[bytes] = []
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        block = bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + length]))
        assert len(block) <= 32 * 1024
        parts.append(block)
        position += 4 + length
    return b"".join(parts)


@pytest.mark.parametrize("codec", list(Codec))
@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda part: part * 700))
@settings(deadline=None, max_examples=20)
def test_compressed_data_round_trips(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data
    assert bytes(decompress(codec, memoryview(bytearray(packed)), LIMIT)) == data


@pytest.mark.parametrize("codec", list(LEVELS))
def test_valid_levels_round_trip_and_invalid_levels_are_refused(codec: Codec) -> None:
    lowest, highest = LEVELS[codec]
    for level in {lowest, 1, 2, 3, 6, 9, min(highest, 17), highest}:
        assert bytes(decompress(codec, compress(codec, SAMPLE[:20_000], level), LIMIT)) == SAMPLE[:20_000]
    for level in (lowest - 1, highest + 1):
        with pytest.raises(ValueError, match="levels"):
            compress(codec, SAMPLE, level)


def test_higher_levels_compress_better() -> None:
    for codec in LEVELS:
        assert len(compress(codec, SAMPLE, 12 if codec is Codec.LZ4 else 9)) < len(compress(codec, SAMPLE, 1))


@pytest.mark.parametrize("data", [b"", b"x", SAMPLE, NOISE], ids=["empty", "one", "text", "noise"])
def test_other_libraries_decompress_our_output(data: bytes) -> None:
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    assert read_xerial(compress(Codec.SNAPPY, data)) == data
    for codec in (Codec.LZ4, Codec.ZSTD):
        packed = compress(codec, data)
        with pa.input_stream(pa.py_buffer(packed), compression=codec.name.lower()) as stream:
            assert stream.read() == data


@pytest.mark.parametrize("data", [b"", b"x", SAMPLE, NOISE], ids=["empty", "one", "text", "noise"])
def test_output_of_other_libraries_is_decompressed(data: bytes) -> None:
    assert bytes(decompress(Codec.GZIP, gzip.compress(data), LIMIT)) == data
    zstd = pa.compress(data, codec="zstd", asbytes=True)
    assert bytes(decompress(Codec.ZSTD, zstd, LIMIT)) == data
    assert bytes(decompress(Codec.SNAPPY, pa.compress(data, codec="snappy", asbytes=True), LIMIT)) == data
    stream = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    stream.compress(data)
    assert bytes(decompress(Codec.LZ4, bytes(stream.finish()), LIMIT)) == data


def test_lz4_frames_have_kafkas_header_and_block_size() -> None:
    packed = compress(Codec.LZ4, SAMPLE)
    assert packed[:7].hex() == "04224d18604082"
    blocks, position = 0, 7
    while True:
        (length,) = struct.unpack_from("<I", packed, position)
        position += 4 + (length & 0x7FFFFFFF)
        if length == 0:
            break
        blocks += 1
    assert position == len(packed)
    assert blocks == -(-len(SAMPLE) // 65536)


def test_lz4_frames_that_kafka_cannot_read_are_refused() -> None:
    with pytest.raises(CorruptBatch, match="linked"):
        decompress(Codec.LZ4, bytes(cramjam.lz4.compress(SAMPLE)), LIMIT)
    with pytest.raises(CorruptBatch, match="follow"):
        decompress(Codec.LZ4, compress(Codec.LZ4, b"one") + compress(Codec.LZ4, b"two"), LIMIT)


def test_concatenated_streams_are_decompressed() -> None:
    for codec in (Codec.GZIP, Codec.ZSTD, Codec.SNAPPY):
        packed = compress(codec, SAMPLE) + compress(codec, b"more")
        assert bytes(decompress(codec, packed, LIMIT)) == SAMPLE + b"more"


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_input_raises_corrupt_batch(codec: Codec) -> None:
    packed = compress(codec, SAMPLE[:40_000])
    for length in (0, 1, 3, 7, 15, 17, 19, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:length], LIMIT)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(st.binary(max_size=100), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4))
@settings(deadline=None, max_examples=60)
def test_garbage_is_decompressed_or_raises_corrupt_batch(
    codec: Codec, garbage: bytes, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(compress(codec, SAMPLE[:2000]))
    for position, byte in changes:
        damaged[position % len(damaged)] = byte
    for data in (garbage, bytes(damaged), bytes(damaged[:16]) + garbage):
        with contextlib.suppress(CorruptBatch):
            assert len(decompress(codec, data, 5000)) <= 5000


def test_an_unknown_codec_raises_corrupt_batch() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(CorruptBatch):
            decompress(codec, b"", LIMIT)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_decompression_limit_is_exact(codec: Codec) -> None:
    packed = compress(codec, SAMPLE)
    assert len(decompress(codec, packed, len(SAMPLE))) == len(SAMPLE)
    for limit in (0, 1, 5000, len(SAMPLE) - 1):
        with pytest.raises(TooLarge):
            decompress(codec, packed, limit)


def bomb(codec: Codec, size: int) -> bytes:
    if codec is Codec.SNAPPY:
        return compress(codec, bytes(size))
    part = compress(codec, bytes(size))
    assert len(part) < size // 100
    return part


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_decompression_bomb_allocates_little_more_than_the_limit(codec: Codec) -> None:
    packed = bomb(codec, 64 * 1024 * 1024)
    limit = 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decompress(codec, packed, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Views of snappy's 2,048 blocks account for most of the overhead.
    assert peak < limit + 1024 * 1024


def test_decompression_bombs_barely_raise_the_peak_memory_of_a_process() -> None:
    """Measure the peak resident size of a separate process: only the kernel sees what the libraries allocate themselves."""
    code = """
import resource, sys
from headrace.records.compression import Codec, TooLarge, compress, decompress
packed = {codec: sys.stdin.buffer.read(int(sys.stdin.buffer.readline())) for codec in list(Codec)[1:]}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, data in packed.items():
    try:
        decompress(codec, data, 1024 * 1024)
        sys.exit(f"{codec} went through")
    except TooLarge:
        pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    bombs = [bomb(codec, 128 * 1024 * 1024) for codec in COMPRESSED]
    stdin_bytes = b"".join(b"%d\n" % len(data) + data for data in bombs)
    done = subprocess.run([sys.executable, "-c", code], input=stdin_bytes, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) < 16 * 1024  # KiB


def test_snappy_blocks_with_a_false_length_raise_corrupt_batch() -> None:
    oversized_block = bytes.fromhex("ffffff7f") + b"x" * 20
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, oversized_block, LIMIT * 100)
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, XERIAL + struct.pack(">i", len(oversized_block)) + oversized_block, LIMIT * 100)
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, XERIAL + struct.pack(">I", 0xFFFFFFF0) + b"abc", LIMIT)
