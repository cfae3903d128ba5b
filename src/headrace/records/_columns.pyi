from headrace.records.batch import Buffer
from headrace.records.kernel_types import BinaryColumn, HeaderColumn

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
