"""Records that a producer's transaction holds, and the one that ends it: a journal writes both in a form of their own."""

from __future__ import annotations

from typing import final

import msgspec

Producer = tuple[int, int]  # its id and its epoch


class OfProducer(msgspec.Struct, frozen=True, kw_only=True):
    """A record that may belong to a transaction. All of one decision belong to the same, or to none."""

    producer: Producer | None = None


@final
class MarkerRecord(msgspec.Struct, frozen=True):
    """Whatever this producer has written since its last one is committed, or aborted. Alone in its decision."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0  # of the transaction's coordinator; the log does not keep it
