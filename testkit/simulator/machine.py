"""A simulated machine: a persistent disk, and a node process that is started, killed, stopped and restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId
from headrace.node.configuration.settings import make_settings
from headrace.node.new_cluster.formatting import format_log_dirs
from headrace.node.node import Node, Ports
from headrace.storage.log_dirs import close_log_dirs, open_log_dirs
from testkit.history import POWER_LOSS, History
from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import Process, SimulatedLoop
from testkit.simulator.network import Network

HOST, PORT = "node", 9092
DATA, SECOND_DATA = "/data", "/data-2"
DURABLE_ALL = 2**62  # an offset above all others
EPOCH_MS = 1_700_000_000_000
BOOT_S_MAX = 60.0
STOP_S_MAX = 60.0
DOWN_S_MIN, DOWN_S_MAX = 0.02, 0.4
FAILURES_MAX = 3  # unexcused failures before the node is given up; one is enough for a bad seed


class SimulatedClock:
    def __init__(self, loop: SimulatedLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self._start_ms = EPOCH_MS + skew_ms

    def now_ms(self) -> int:
        return self._start_ms + int(self._loop.now * 1000)


class Machine:
    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        random: Random,
        history: History,
        options: Mapping[str, str],
        trace: Callable[[str], None],
        *,
        two_dirs: bool = False,
        host: str = HOST,
        is_replicated: bool = False,
    ) -> None:
        self._loop = loop
        self._network = network
        self._random = random
        self._history = history
        self.host = host
        self._is_replicated = is_replicated  # other machines have its records: a power loss excuses no lost one
        self._settings = make_settings(
            {
                "listeners": f"PLAINTEXT://{host}:{PORT}",
                "log.dirs": f"{DATA},{SECOND_DATA}" if two_dirs else DATA,
                "headrace.http.listener": "",
                "auto.create.topics.enable": "false",
                **options,
            },
            single_node=True,
        )
        self.files = SimulatedFiles(Random(random.getrandbits(64)), trace)
        self.two_dirs = two_dirs
        for directory in (DATA, SECOND_DATA):
            self.files.make_dirs(directory)
        self.files.sync_dir("/")
        self._process: Process | None = None
        self.node: Node | None = None
        self.boots = 0
        self.failures: list[str] = []  # failures that no fault excuses
        self.excused = False  # the disk is failing: the node may stop, or fail to start
        self._excused_boot = 0  # the last boot that ran while excused; it may notice the fault later
        self.flushed: list[tuple[str, int]] = []  # partitions whose acknowledged records are all on disk
        self._power_lost = False
        self._durable: dict[tuple[str, int], int] = {}  # recovery points of the logs at the power loss
        self._all_synced = False  # the node stopped cleanly and has not run since
        self._changed = asyncio.Event()
        self._may_start = asyncio.Event()
        self._may_start.set()

    def format(self, cluster_id: str) -> None:
        """Format the disk for a node of this cluster; otherwise the first start chooses a new cluster id."""
        settings = self._settings
        node_id = NodeId(settings.node_id)
        log_dirs = open_log_dirs(self.files, settings.log_dirs, node_id=node_id, cluster_id=cluster_id)
        format_log_dirs(log_dirs, settings.metadata_dir, node_id, cluster_id, EPOCH_MS, self._random)
        close_log_dirs(log_dirs)

    # --- lifecycle

    async def supervise(self) -> None:
        """Restart the node whenever it has ended, unless it is held; give up after FAILURES_MAX failures."""
        while len(self.failures) < FAILURES_MAX:
            await self._run_once()
            self._changed.set()
            await asyncio.sleep(DOWN_S_MIN + self._random.random() * DOWN_S_MAX)
            await self._may_start.wait()

    async def _run_once(self) -> None:
        self.boots += 1
        if self.excused:
            self._excused_boot = self.boots
        if self._power_lost:
            # Not noted earlier: clients may still record responses that had arrived before the loss.
            self._power_lost = False
            self._history.note(POWER_LOSS, durable=[[*place, offset] for place, offset in self._durable.items()])
            self._durable.clear()
        self._all_synced = False
        process = self._process = self._loop.new_process(f"run {self.boots}", self.host)
        clock = SimulatedClock(self._loop, self._random.choice((0, 0, -1500, 40_000)))
        self.files.now_ms = clock.now_ms
        ports = Ports(self.files, clock, Random(self._random.getrandbits(64)), self._loop)
        node = await self._within(process, Node.start(self._settings, ports), BOOT_S_MAX, "start")
        if node is None:
            return
        self.node = node
        self._changed.set()
        failed = self._loop.spawn(process, node.failed())
        await asyncio.wait([failed, process.died], return_when=asyncio.FIRST_COMPLETED)
        if process.alive:
            self._note_failure(failed.exception(), "run")
            self._end(silently=False)

    async def _within(self, process: Process, work: Coroutine[Any, Any, Any], seconds: float, what: str) -> Any:
        """Return the result of `work`; return None if the process died, failed or exceeded the time, and end it."""
        task = self._loop.spawn(process, work)
        await asyncio.wait([task, process.died], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and process.alive:
            error = task.exception()
            if error is None:
                return task.result()
            self._note_failure(error, what)
        elif process.alive:
            self.failures.append(f"{what} did not return within {seconds:.0f} s")
        if process.alive:
            self._end(silently=False)
        return None

    def _note_failure(self, error: BaseException | None, what: str) -> None:
        if self._excused_boot == self.boots and isinstance(error, OSError | HeadraceError):
            self._history.note("node gone", what=what, error=str(error))
        else:
            self.failures.append(f"the node failed to {what}: {error!r}")

    def _end(self, *, silently: bool) -> None:
        if self._process is not None and self._process.alive:
            self._loop.end(self._process)
            self._network.process_died(self._process, silently=silently)
            self.files.process_crash()
        self.node = None
        self._changed.set()

    async def until(self, wanted: Callable[[], bool], seconds: float = BOOT_S_MAX) -> bool:
        deadline = self._loop.now + seconds
        while not wanted():
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - self._loop.now)
            except TimeoutError:
                return wanted()
        return True

    async def until_up(self) -> bool:
        return await self.until(lambda: self.node is not None)

    async def inside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the node's process; return early if the process dies."""
        if self._process is None or not self._process.alive:
            work.close()
            return
        task = self._loop.spawn(self._process, work)
        await asyncio.wait([task, self._process.died], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()

    # --- faults

    def hold(self) -> None:
        """Do not restart the node when it ends, until `release`."""
        self._may_start.clear()

    def release(self) -> None:
        self._may_start.set()

    def excuse(self, excused: bool) -> None:
        self.excused = excused
        if excused:
            self._excused_boot = self.boots

    def kill(self) -> None:
        """Kill the process as by `kill -9`, at any moment, even during a start."""
        self._history.note("kill", host=self.host, boot=self.boots)
        self._end(silently=False)

    def pause(self) -> None:
        """Pause the process as by SIGSTOP."""
        self._history.note("pause", host=self.host, boot=self.boots)
        if self._process is not None:
            self._loop.pause(self._process)

    def resume(self) -> None:
        if self._process is not None and self._process.paused:
            self._history.note("resume", host=self.host, boot=self.boots)
            self._loop.resume(self._process)

    async def kill_softly(self) -> None:
        """Call `Node.kill`, as the fixtures of other tests do, and then kill the process."""
        node, process = self.node, self._process
        if node is None or process is None:
            return
        await self._within(process, node.kill(), STOP_S_MAX, "kill")
        self.kill()

    def lose_power(self) -> None:
        durable = self._recovery_points()
        self._end(silently=True)
        self._durable.update(durable)
        self._durable.update(dict.fromkeys(self.flushed, DURABLE_ALL))
        self.files.power_loss()
        self._power_lost = not self._is_replicated and (self._power_lost or not self._all_synced)
        self._history.note("power off", host=self.host, boot=self.boots)

    async def stop(self) -> None:
        """Stop the node cleanly; it sends what is pending before its connections close."""
        node, process = self.node, self._process
        if node is None or process is None:
            return
        self._history.note("stop", host=self.host, boot=self.boots)
        self.node = None
        offline = self.offline_of(node)
        await self._within(process, node.stop(), STOP_S_MAX, "stop")
        if process.alive:
            self._all_synced = not offline
            self._end(silently=False)

    # --- inspection

    def _recovery_points(self) -> dict[tuple[str, int], int]:
        if self.node is None or self.node.broker is None:
            return {}
        return {
            (partition.name.topic, partition.name.partition): partition.log.recovery_point
            for partition in self.node.broker.replicas.all()
            if partition.offline is None
        }

    def check(self) -> None:
        """Assert the invariants of every open log."""
        if self.node is None or self.node.broker is None:
            return
        for partition in self.node.broker.replicas.all():
            if partition.offline is None:
                partition.log.check()
                low, stable = partition.log.log_start, partition.last_stable_offset
                high, end = partition.high_watermark, partition.log.log_end
                assert low <= stable <= high <= end, f"{partition.name}: {low} {stable} {high} {end}"

    def offline(self) -> list[str]:
        return [] if self.node is None else self.offline_of(self.node)

    @staticmethod
    def offline_of(node: Node) -> list[str]:
        return [] if node.broker is None else [str(name) for name in node.broker.replicas.offline()]
