"""A real node in the process of a test, with a separate thread and event loop, on a free loopback port.

Because it runs in another thread, the test itself can use blocking clients (confluent-kafka, kafka-python).
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.base.clock import SystemClock
from headrace.node.configuration.settings import make_settings
from headrace.node.node import Node, Ports
from headrace.storage.disk import DiskFiles

if TYPE_CHECKING:
    from headrace.storage.files import Files

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
LISTENER = "PLAINTEXT"
START_S_MAX = 30.0
STOP_S_MAX = 30.0


class EmbeddedNode:
    """A node that serves from `start` to `stop` or `kill`; `restart` keeps the port and the data."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        data_dir: Path | str | None = None,
        files: Files | None = None,
    ) -> None:
        """Prepare a node with `settings`, which use Kafka's names.

        Without `data_dir`, the data is in a temporary directory that `close` removes. `files` is for tests of a failing disk.
        """
        self._settings = dict(settings or {})
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-") if data_dir is None else None
        # Directory of the node's data.
        self.data_dir = (
            Path(data_dir) if data_dir is not None else Path(self._temporary.name if self._temporary else "")
        )
        self._given_files = files
        self._own_files: DiskFiles | None = None  # closed after `stop` and after `kill`
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting: Future[Node] | None = None  # set between `launch` and `wait_until_serving`
        self._resumed: threading.Event | None = None  # set by `resume`; None while the node is not paused
        self.node: Node | None = None  # the running node; None while it is stopped
        self.port = 0  # port of the listener; 0 before the first start

    def __enter__(self) -> EmbeddedNode:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Return the address for bootstrap.servers, as host:port. The node must have been started."""
        assert self.port, "start comes first"
        return f"{LOOPBACK}:{self.port}"

    @property
    def thread(self) -> threading.Thread | None:
        """Return the thread of the node's event loop while it runs."""
        return self._thread

    @property
    def is_running(self) -> bool:
        """Return whether the node has been started and not stopped since; a paused one runs."""
        return self._loop is not None

    def start(self) -> EmbeddedNode:
        """Start the node and return when it serves clients; propagate the node's exception if it cannot start."""
        self.launch()
        return self.wait_until_serving()

    def launch(self) -> None:
        """Start the node without waiting: the nodes of a cluster need each other to serve."""
        assert self._loop is None, "it is running already"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-node", daemon=True)
        self._thread.start()
        self._starting = asyncio.run_coroutine_threadsafe(self._start_node(self._loop), self._loop)

    def wait_until_serving(self) -> EmbeddedNode:
        """Return when the launched node serves clients; propagate the node's exception if it cannot start."""
        assert self._starting is not None, "launch comes first"
        starting, self._starting = self._starting, None
        try:
            self.node = starting.result(START_S_MAX)
        except BaseException:
            starting.cancel()
            self._end_loop()
            raise
        assert self.node.broker is not None
        ports = self.node.broker.bound_ports
        self.port = ports.get(LISTENER) or next(iter(ports.values()))
        return self

    async def _start_node(self, loop: asyncio.AbstractEventLoop) -> Node:
        given = {
            "listeners": f"{LISTENER}://{LOOPBACK}:{self.port}",
            "log.dirs": str(self.data_dir),
            "headrace.http.listener": "",
            **self._settings,
        }
        files = self._given_files
        if files is None:
            files = self._own_files = DiskFiles()
        ports = Ports(files, SystemClock(), random.Random(), loop)
        return await Node.start(make_settings(given, single_node=True), ports)

    def stop(self) -> None:
        """Stop the node cleanly, as after SIGTERM. The data stays."""
        self._abandon_start()
        if self.node is not None:
            self._end(self.node.stop())

    def kill(self) -> None:
        """Stop the node as if its process had died: write nothing more and drop all connections. The data stays."""
        self._abandon_start()
        if self.node is not None:
            self._end(self.node.kill())

    def pause(self) -> None:
        """Let the node do nothing until `resume`; its connections stay open, as after SIGSTOP."""
        assert self._loop is not None and self._resumed is None, "it must run, and not be paused already"
        self._resumed = threading.Event()
        self._loop.call_soon_threadsafe(self._resumed.wait)

    def resume(self) -> None:
        """End a `pause`, if there is one."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def restart(self) -> EmbeddedNode:
        """Stop the node cleanly if it runs and start it again, on the same port and with its data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop the node, and remove the data if it is in a temporary directory."""
        try:
            self.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    def _abandon_start(self) -> None:
        """End a node that was launched but does not serve yet."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
            self.resume()
            self._end_loop()

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        self.node = None
        self.resume()
        try:
            self._do(ending, STOP_S_MAX)
        finally:
            self._end_loop()

    def _do(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def _end_loop(self) -> None:
        assert self._loop is not None and self._thread is not None
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), loop).result(STOP_S_MAX)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_S_MAX)
        loop.close()
        if self._own_files is not None:
            self._own_files.close()
            self._own_files = None


async def _cancel_the_rest() -> None:
    """Cancel the tasks that a killed node left behind, so that the loop closes without warnings."""
    loop = asyncio.get_running_loop()
    rest = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
