"""Records of a producer's transaction, and its marker: journals write them as transactional and control batches."""

from __future__ import annotations

from typing import final

import msgspec

Producer = tuple[int, int]  # producer id and epoch


class OfProducer(msgspec.Struct, frozen=True, kw_only=True):
    """A record that may belong to a transaction. All records of a decision belong to the same one, or to none."""

    producer: Producer | None = None


@final
class MarkerRecord(msgspec.Struct, frozen=True):
    """Commits or aborts everything that a producer wrote since its last marker. Must be alone in its decision."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0  # the transaction coordinator's; not stored in the log
