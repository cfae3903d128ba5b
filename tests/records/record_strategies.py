"""Hypothesis strategies for records, record sections and damage to them."""

from __future__ import annotations

from hypothesis import strategies as st

from headrace.records.builder import BatchBuilder
from headrace.records.record import Record

timestamps = st.integers(min_value=-1, max_value=2**42)
gil_release_sized = st.integers(4000, 4200).map(bytes)  # around the size at which the kernel releases the GIL
contents = st.none() | st.binary(max_size=80) | gil_release_sized
small = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), small), max_size=4).map(tuple)
records = st.builds(Record, st.just(0), timestamps, small, contents, headers)
record_lists = st.lists(records, min_size=1, max_size=6)


def numbered(found: list[Record], base_offset: int = 0) -> list[Record]:
    return [record._replace(offset=base_offset + index) for index, record in enumerate(found)]


def section_from(found: list[Record]) -> tuple[bytes, int]:
    """Return an encoded record section and its base timestamp."""
    builder = BatchBuilder()
    for record in found:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    assert builder.base_timestamp is not None
    return bytes(builder.section), builder.base_timestamp


@st.composite
def damaged_sections(draw: st.DrawFn) -> tuple[bytes, int, int]:
    """Draw a valid section with a few bytes changed, cut off or added, its record count and its base timestamp."""
    found = draw(record_lists)
    section, base_timestamp = section_from(found)
    damaged = bytearray(section)
    for _ in range(draw(st.integers(0, 3))):
        if damaged:
            damaged[draw(st.integers(0, min(len(damaged), 400) - 1))] = draw(st.integers(0, 255))
    tail = draw(st.sampled_from(["keep", "cut", "add"]))
    if tail == "cut":
        del damaged[draw(st.integers(0, len(damaged))) :]
    elif tail == "add":
        damaged += draw(st.binary(min_size=1, max_size=8))
    count = len(found) + draw(st.sampled_from([0, 0, 0, 1, -1, 1000, -(2**31), 2**31 - 1 - len(found)]))
    return bytes(damaged), count, base_timestamp


sections = damaged_sections() | st.tuples(st.binary(max_size=64), st.integers(-2, 6), st.integers(-(2**63), 2**63 - 1))
