from collections.abc import Sequence

from headrace.records.batch import Buffer
from headrace.records.kernel_types import BinaryColumn, Columns, HeaderColumn, Section

def decode_columns(sections: Sequence[Section], with_headers: bool, start_offset: int, end_offset: int) -> Columns: ...
def encode_columns(
    start: int,
    count: int,
    timestamps: Buffer | None,
    base_timestamp: int,
    keys: BinaryColumn | None,
    values: BinaryColumn | None,
    headers: HeaderColumn | None,
    bytes_max: int,
) -> tuple[bytearray, int, int]: ...
def partitions_for_keys(keys: BinaryColumn, start: int, count: int, partitions: int) -> bytearray: ...
