from headrace.records.batch import Buffer
from headrace.records.kernel_types import SiftedRun

class OffsetMap:
    slots: int
    entries_max: int
    entries: int
    latest: int
    def __init__(self, slots: int, entries_max: int, secret: bytes) -> None: ...
    def put(self, key: Buffer, offset: int) -> bool: ...
    def get(self, key: Buffer) -> int: ...
    def note_records(self, records: Buffer, count: int, base_offset: int, last_delta: int, start: int) -> int: ...
    def note_plain(self, buffer: Buffer, position: int, start: int) -> tuple[int, int, int]: ...
    def sift_records(
        self,
        records: Buffer,
        count: int,
        base_offset: int,
        last_delta: int,
        base_timestamp: int,
        new_base_timestamp: int,
        drop_tombstones: bool,
        keep_all: bool,
    ) -> tuple[int, int, int, int, bytearray | None]: ...
    def sift_plain(
        self, buffer: Buffer, position: int, run_bytes: int, keep_end: int
    ) -> tuple[int, int, list[SiftedRun], bytearray, int]: ...
