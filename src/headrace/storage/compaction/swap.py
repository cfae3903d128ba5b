"""Swapping in the cleaner's segment so that a crash at any moment leaves either the old segments or the new one.

First `.cleaned` becomes `.swap`: from then on a restart completes the swap (see `leftovers`). The `.swap` names must be on disk
BEFORE the old segments are renamed to `.deleted`, and the `.deleted` names BEFORE the new segment loses its suffix. Otherwise
a power failure could bring some of the old segments back.
"""

from __future__ import annotations

from headrace.storage.compaction.cleaner import Replacement
from headrace.storage.compaction.decisions import CleaningPlan
from headrace.storage.names import SWAP_SUFFIX


class Swap:
    """One swap: `begin`, `sync`, `replace`, `sync`, `finish`.

    The owner of the log makes these calls, except `sync`, which blocks and runs in a thread.
    """

    def __init__(self, plan: CleaningPlan, replacement: Replacement) -> None:
        self._plan = plan
        self._replacement = replacement

    @property
    def is_possible(self) -> bool:
        """Return whether the log still matches the plan: nothing was truncated, deleted or moved."""
        log, old = self._plan.log, self._replacement.old
        if log.generation != self._plan.generation or log.directory != self._plan.directory:
            return False
        return all(log.segments.floor(one.base_offset) is one for one in old) and old[-1] is not log.segments.active

    def begin(self) -> bool:
        """Rename the new segment to `.swap`; return False if the log has changed and the swap is no longer possible."""
        if not self.is_possible:
            return False
        self._replacement.taken = True
        self._plan.log.swapping = self._replacement.new
        self._replacement.new.rename(SWAP_SUFFIX)
        return True

    def sync(self) -> None:
        self._plan.log.files.sync_dir(self._plan.directory)

    def replace(self, now_ms: int) -> bool:
        """Replace the old segments in the log; return False if the new segment was discarded."""
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
