"""The cleaner's segment takes the place of those it was made from, so that a crash at any moment leaves the old ones or the new one.

`.cleaned` becomes `.swap`: from here on a start puts it in their place (see `leftovers`). That name must be on disk BEFORE the old
ones are renamed to `.deleted`, and those names BEFORE the new one loses its mark, or a power failure could bring some of them back.
"""

from __future__ import annotations

from headrace.storage.cleaner import Replacement
from headrace.storage.compaction import CleaningPlan
from headrace.storage.names import SWAP_SUFFIX


class Swap:
    """`begin`, `sync`, `replace`, `sync`, `finish`: by the owner of the log, but for `sync`, which blocks."""

    def __init__(self, plan: CleaningPlan, replacement: Replacement) -> None:
        self._plan = plan
        self._replacement = replacement

    @property
    def is_possible(self) -> bool:
        """The log is as it was planned: nothing was cut off, deleted or moved."""
        log, old = self._plan.log, self._replacement.old
        if log.generation != self._plan.generation or log.directory != self._plan.directory:
            return False
        return all(log.segments.floor(one.base_offset) is one for one in old) and old[-1] is not log.segments.active

    def begin(self) -> bool:
        """False: there is no place for it any more."""
        if not self.is_possible:
            return False
        self._replacement.taken = True
        self._plan.log.swapping = self._replacement.new
        self._replacement.new.rename(SWAP_SUFFIX)
        return True

    def sync(self) -> None:
        self._plan.log.files.sync_dir(self._plan.directory)

    def replace(self, now_ms: int) -> bool:
        """False: the log has thrown it away."""
        log, new = self._plan.log, self._replacement.new
        if log.swapping is not new:
            return False
        if not self.is_possible:
            log.discard_swap()
            return False
        log.replace(self._replacement.old, new, now_ms)
        return True

    def finish(self) -> None:
        log, new = self._plan.log, self._replacement.new
        if log.segments.floor(new.base_offset) is new and log.directory == self._plan.directory:
            new.rename("")
