"""Records that each client writes and all clients read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.prove.clients.samples import Client, Sample, Seen, WriteOptions, differences


@dataclass
class Exchange:
    """Records written to partition 0 of one topic, and what readers found there."""

    bootstrap: str
    topic: str
    written: list[Sample] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reads: int = 0
    _first_view: tuple[str, list[Seen]] | None = None

    def write(self, client: Client, options: WriteOptions, samples: Sequence[Sample] | None = None) -> None:
        chosen = list(client.samples() if samples is None else samples)
        client.write(self.bootstrap, self.topic, chosen, options)
        self.written += chosen

    def read(self, client: Client, start: int = 0) -> None:
        """Read from `start` on, which may be in the middle of a batch, and note differences.

        Timestamps set by the writing client must look the same to all readers.
        """
        seen = client.read(self.bootstrap, self.topic, start, len(self.written) - start)
        self.reads += 1
        self.wrong += differences(self.written[start:], seen, client.name)
        if [record.offset for record in seen] != list(range(start, start + len(seen))):
            self.wrong.append(f"{client.name} got offsets {[record.offset for record in seen]} from {start} on")
        if start == 0 and self._first_view is None:
            self._first_view = (client.name, seen)
        elif self._first_view is not None and self._first_view[1][start:] != seen:
            self.wrong.append(f"{client.name} and {self._first_view[0]} see different records")

    def check(self) -> None:
        assert not self.wrong, f"topic {self.topic}: " + "; ".join(self.wrong[:10])


def able(clients: Sequence[Client], codec: str) -> list[Client]:
    """Return the clients that can be used with this codec."""
    return [client for client in clients if client.missing(codec) is None]
