from collections.abc import Sequence

from headrace.records.batch import Buffer
from headrace.records.kernel_types import Columns, ScannedBatch, Section

def decode_columns(
    sections: Sequence[Section], columns: int, start_offset: int, end_offset: int, microseconds: bool = False
) -> Columns: ...
def scan_batches(buffer: Buffer) -> tuple[list[ScannedBatch], int]: ...
def reusable(size: int) -> memoryview: ...
