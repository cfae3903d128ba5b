"""Memory that hostile clients leave behind in a node."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

from tests.security.pem_files import needs_openssl
from tools.prove.hostile.memory import GROWTH_MB_MAX, attack

from headrace.base.eager import Rest, begin


@needs_openssl
def test_decompression_bombs_and_aborted_connections_leak_no_memory(tmp_path: Path) -> None:
    before_mb, after_mb = attack(tmp_path, bombs=9, aborts=400)
    assert after_mb - before_mb <= GROWTH_MB_MAX


class _Refused(Exception):
    pass


def test_a_failed_future_is_freed_without_the_garbage_collector() -> None:
    """Check that nothing keeps the traceback of a refused batch, which refers to everything unpacked from it."""

    async def wait_for(futures: list[asyncio.Future[None]]) -> str:
        try:
            await futures.pop()
        except _Refused:
            return "refused"
        return "accepted"

    async def run() -> weakref.ref[Any]:
        future = asyncio.get_running_loop().create_future()
        rest = begin(wait_for([future]))
        assert isinstance(rest, Rest)
        error = _Refused()
        found = weakref.ref(error)
        future.set_exception(error)
        del future, error
        assert await rest == "refused"
        return found

    gc.disable()
    try:
        assert asyncio.run(run())() is None
    finally:
        gc.enable()
