"""Base class of the offset and time indexes: fixed-size entries in ascending order, one every few kilobytes of log.

The index of the active segment is kept in memory and written to its file in chunks, which avoids a system call per batch.
The index of a sealed segment stays on disk and is searched there; in memory it would take megabytes per gigabyte of log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import ClassVar

from headrace.base.errors import CorruptData
from headrace.storage.files import File, Files
from headrace.storage.indexes.index_file import IndexFile

INDEX_BYTES_MAX = 1 << 30
SEARCH_BLOCK_ENTRIES = 256  # a search on disk reads this many entries at once for its last steps


class CorruptIndex(CorruptData):
    """An index that contradicts itself or its log; it can be rebuilt from the log."""


class SparseIndex(IndexFile, ABC):
    """Two ascending columns: the keys that lookups search, and their values.

    Offsets are relative to the base offset, as on disk.
    """

    ENTRY: ClassVar[Struct]
    KEY_CODE: ClassVar[str]

    __slots__ = (
        "_count",
        "_keys",
        "_sealed",
        "_values",
        "_written",
        "base_offset",
        "entries_max",
    )

    def __init__(self, files: Files, path: str, base_offset: int, index_bytes_max: int) -> None:
        super().__init__(files, path)
        self.base_offset = base_offset
        self.entries_max = index_bytes_max // self.ENTRY.size
        self._keys: array[int] = array(self.KEY_CODE)
        self._values: array[int] = array("i")
        self._written = 0  # number of entries of the columns that are in the file
        self._count = 0  # number of entries in the file; valid only while sealed
        self._sealed = False

    def __len__(self) -> int:
        return self._count if self._sealed else len(self._keys)

    @property
    def sealed(self) -> bool:
        return self._sealed

    def entry(self, number: int) -> tuple[int, int]:
        """Return an entry's key and value as on disk; negative numbers count from the end."""
        if number < 0:
            number += len(self)
        if not self._sealed:
            return self._keys[number], self._values[number]
        return self._block(number, 1)[0]

    def floor(self, key: int) -> tuple[int, int] | None:
        """Return the entry with the greatest key that is at most `key`, or None."""
        slot, entry = self._find(key)
        return entry if slot >= 0 else None

    def _find(self, key: int) -> tuple[int, tuple[int, int]]:
        """Return the number and contents of the entry that `floor` finds; the number is -1 if there is none."""
        if not self._sealed:
            slot = bisect_right(self._keys, key) - 1
            return slot, ((self._keys[slot], self._values[slot]) if slot >= 0 else (0, 0))
        low, high = 0, self._count
        while high - low > SEARCH_BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self._block(middle, 1)[0][0] <= key:
                low = middle
            else:
                high = middle
        entries = self._block(low, high - low)
        slot = bisect_right(entries, key, key=lambda entry: entry[0]) - 1
        return (low + slot, entries[slot]) if slot >= 0 else (-1, (0, 0))

    def load(self) -> None:
        """Load the file into memory for appending.

        Raise FileNotFoundError or CorruptIndex if the index must be rebuilt.
        """
        data = self._read_file()
        # A broker that crashed leaves the file at its preallocated size, padded with zeros.
        entry_bytes = self.ENTRY.size
        used = len(data.rstrip(b"\0"))
        used += -used % entry_bytes
        keys, values = array(self.KEY_CODE), array("i")
        try:
            for key, value in self.ENTRY.iter_unpack(data[:used]):
                keys.append(key)
                values.append(value)
        except OverflowError as error:
            raise CorruptIndex(f"{self.path}: {error}") from error
        self._check(keys, values)
        self._keys, self._values = keys, values
        self._sealed = False
        self._written = len(keys)
        if used != len(data):
            self._open_file().truncate(used)

    def check_sealed(self) -> None:
        """Seal the index without loading it, and check its size and its first and last entries.

        Raise FileNotFoundError or CorruptIndex if the index must be rebuilt.
        """
        file = self._open_file()
        size = file.size()
        if size % self.ENTRY.size or size > INDEX_BYTES_MAX:
            raise CorruptIndex(
                f"{self.path} has {size} bytes, not a multiple of {self.ENTRY.size} up to {INDEX_BYTES_MAX}"
            )
        self._count = size // self.ENTRY.size
        self._sealed = True
        self._keys, self._values = array(self.KEY_CODE), array("i")
        if self._count:
            ends = [self.entry(0)] if self._count == 1 else [self.entry(0), self.entry(-1)]
            self._check(array(self.KEY_CODE, [key for key, _ in ends]), array("i", [value for _, value in ends]))

    @abstractmethod
    def _check(self, keys: array[int], values: array[int]) -> None:
        """Raise CorruptIndex unless the columns ascend as this kind of index requires."""

    def seal(self) -> None:
        """Write the columns to the file and drop them from memory, as the segment is no longer written to."""
        if self._sealed:
            return
        self.write_pending()
        self._count = len(self._keys)
        self._sealed = True
        self._keys, self._values = array(self.KEY_CODE), array("i")

    def write_pending(self) -> None:
        if self._sealed:
            return
        file = self._open_file(create=True)
        first, count = self._written, len(self._keys)
        if first == count:
            return
        pack = self.ENTRY.pack
        file.append(b"".join(pack(self._keys[i], self._values[i]) for i in range(first, count)))
        self._written = count

    def clear(self) -> None:
        self._keys, self._values = array(self.KEY_CODE), array("i")
        self._sealed = False
        self._written = 0
        self._open_file(create=True).truncate(0)

    def file_to_sync(self) -> File:
        return self._open_file(create=True)

    def _append(self, key: int, value: int) -> None:
        self._keys.append(key)
        self._values.append(value)

    def _unseal(self) -> None:
        if self._sealed:
            self.load()

    def _keep(self, count: int) -> None:
        """Drop all entries after the first `count`."""
        del self._keys[count:]
        del self._values[count:]
        if self._written > count:
            self._open_file(create=True).truncate(count * self.ENTRY.size)
            self._written = count

    def _keep_values_below(self, value: int) -> None:
        self._unseal()
        self._keep(bisect_left(self._values, value))

    def _block(self, first: int, count: int) -> list[tuple[int, int]]:
        size = self.ENTRY.size
        data = self._open_file().read(first * size, count * size)
        if len(data) != count * size:
            raise CorruptIndex(f"{self.path} ends before entry {first + count}")
        return list(self.ENTRY.iter_unpack(data))

    def _read_file(self) -> bytes:
        file = self._open_file()
        size = file.size()
        if size % self.ENTRY.size or size > INDEX_BYTES_MAX:
            raise CorruptIndex(
                f"{self.path} has {size} bytes, not a multiple of {self.ENTRY.size} up to {INDEX_BYTES_MAX}"
            )
        return file.read(0, size)
