"""The 64-bit XXH3 hash without a seed, with which Kafka hashes the topics of a group (KIP-1101)."""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_LOW = (1 << 32) - 1
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MIX_1, _MIX_2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_STRIPE, _STRIPES_PER_BLOCK = 64, 16
_LANES = struct.Struct("<8Q")
_PAIR = struct.Struct("<2Q")
_STRIPE_KEYS = [_LANES.unpack_from(_SECRET, 8 * stripe) for stripe in range(_STRIPES_PER_BLOCK)]
_SCRAMBLE_KEY = _LANES.unpack_from(_SECRET, len(_SECRET) - _STRIPE)
_LAST_KEY = _LANES.unpack_from(_SECRET, len(_SECRET) - _STRIPE - 7)


def xxh3_64(data: bytes) -> int:
    """Return the hash as an unsigned integer."""
    size = len(data)
    if size <= 16:
        return _hash_tiny(data, size)
    if size <= 128:
        return _hash_small(data, size)
    if size <= 240:
        return _hash_medium(data, size)
    return _hash_long(data, size)


def _read(data: bytes, offset: int, size: int = 8) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def _fold(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK) ^ (product >> 64)


def _mix(data: bytes, offset: int, key: int) -> int:
    low, high = _PAIR.unpack_from(data, offset)
    key_low, key_high = _PAIR.unpack_from(_SECRET, key)
    return _fold(low ^ key_low, high ^ key_high)


def _avalanche(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 37) * _MIX_1 & _MASK
    return value ^ value >> 32


def _avalanche_64(value: int) -> int:
    value = (value ^ value >> 33) * _PRIME64_2 & _MASK
    value = (value ^ value >> 29) * _PRIME64_3 & _MASK
    return value ^ value >> 32


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _hash_tiny(data: bytes, size: int) -> int:
    if size > 8:
        low = _read(data, 0) ^ _read(_SECRET, 24) ^ _read(_SECRET, 32)
        high = _read(data, size - 8) ^ _read(_SECRET, 40) ^ _read(_SECRET, 48)
        return _avalanche(size + int.from_bytes(low.to_bytes(8, "little"), "big") + high + _fold(low, high))
    if size >= 4:
        value = _read(data, size - 4, 4) + (_read(data, 0, 4) << 32) ^ _read(_SECRET, 8) ^ _read(_SECRET, 16)
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value = value * _MIX_2 & _MASK
        value = (value ^ (value >> 35) + size) * _MIX_2 & _MASK
        return value ^ value >> 28
    if size:
        value = data[0] << 16 | data[size >> 1] << 24 | data[size - 1] | size << 8
        return _avalanche_64(value ^ _read(_SECRET, 0, 4) ^ _read(_SECRET, 4, 4))
    return _avalanche_64(_read(_SECRET, 56) ^ _read(_SECRET, 64))


def _hash_small(data: bytes, size: int) -> int:
    value = size * _PRIME64_1
    for pair in range((size - 1) // 32 + 1):
        value += _mix(data, 16 * pair, 32 * pair) + _mix(data, size - 16 * (pair + 1), 32 * pair + 16)
    return _avalanche(value)


def _hash_medium(data: bytes, size: int) -> int:
    value = size * _PRIME64_1
    for part in range(8):
        value += _mix(data, 16 * part, 16 * part)
    value = _avalanche(value)
    for part in range(8, size // 16):
        value += _mix(data, 16 * part, 16 * (part - 8) + 3)
    return _avalanche(value + _mix(data, size - 16, 136 - 17))


def _hash_long(data: bytes, size: int) -> int:
    lanes = [_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1]
    for stripe in range((size - 1) // _STRIPE):
        topic_partition = stripe % _STRIPES_PER_BLOCK
        _accumulate(lanes, data, stripe * _STRIPE, _STRIPE_KEYS[topic_partition])
        if topic_partition == _STRIPES_PER_BLOCK - 1:
            for lane, key in enumerate(_SCRAMBLE_KEY):
                value = lanes[lane]
                lanes[lane] = (value ^ value >> 47 ^ key) * _PRIME32_1 & _MASK
    _accumulate(lanes, data, size - _STRIPE, _LAST_KEY)
    merged = size * _PRIME64_1
    for pair in range(0, 8, 2):
        low, high = _PAIR.unpack_from(_SECRET, 11 + 8 * pair)
        merged += _fold(lanes[pair] ^ low, lanes[pair + 1] ^ high)
    return _avalanche(merged)


def _accumulate(lanes: list[int], data: bytes, offset: int, keys: tuple[int, ...]) -> None:
    for lane, (value, key) in enumerate(zip(_LANES.unpack_from(data, offset), keys, strict=True)):
        mixed = value ^ key
        lanes[lane ^ 1] = lanes[lane ^ 1] + value & _MASK
        lanes[lane] = lanes[lane] + (mixed & _LOW) * (mixed >> 32) & _MASK
