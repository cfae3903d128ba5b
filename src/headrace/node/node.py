"""The composition root, the only place where a node is assembled. A Node is started once and stopped once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from random import Random
from typing import Any

from msgspec import Struct, field

from headrace.base.clock import Clock
from headrace.base.errors import ConfigError
from headrace.base.metrics import Metrics
from headrace.node.broker_role import BrokerRole
from headrace.node.configuration.settings import Settings
from headrace.node.context import NodeContext
from headrace.node.controller_role import ControllerRole
from headrace.node.new_cluster.formatting import FirstMetadata, format_log_dirs, new_cluster_id
from headrace.node.new_cluster.initial_voters import standalone
from headrace.node.security import check_security
from headrace.observe.http import HttpEndpoint
from headrace.replication.directories import Directories
from headrace.replication.disk_space import full_log_dirs
from headrace.storage.files import Files
from headrace.storage.log_dirs import close_log_dirs, open_usable_log_dirs

log = logging.getLogger(__name__)


class Ports(Struct):
    """The external dependencies of a node; the simulator passes simulated ones."""

    files: Files
    clock: Clock
    random: Random
    loop: asyncio.AbstractEventLoop
    metrics: Metrics = field(default_factory=Metrics)


class Node:
    def __init__(self, settings: Settings, ports: Ports, directories: Directories) -> None:
        self.settings = settings
        self._ports = ports
        self._directories = directories
        meta = directories.all()[0].meta
        assert meta is not None
        self.cluster_id = meta.cluster_id
        self._previous_epoch = self._take_clean_shutdown()
        self.controller: ControllerRole | None = None
        self.broker: BrokerRole | None = None
        self._roles: list[ControllerRole | BrokerRole] = []  # the roles constructed so far, in order
        self._http: HttpEndpoint | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, settings: Settings, ports: Ports) -> Node:
        """Start a node and return it when it serves clients. Raise ConfigError or CorruptData if it cannot start."""
        check_security(settings)
        log_dirs, missing = open_usable_log_dirs(
            ports.files, settings.log_dirs, settings.metadata_dir, node_id=settings.node_id
        )
        try:
            known = next((log_dir.meta.cluster_id for log_dir in log_dirs if log_dir.meta is not None), None)
            if known is None and not settings.is_alone:
                raise ConfigError(
                    f"{', '.join(settings.log_dirs)}: not formatted; all nodes of a cluster need the same cluster id,"
                    " so run `headrace format --cluster-id …` on each of them first, with --standalone on the first controller"
                    " and --no-initial-controllers on the others unless controller.quorum.voters names them all"
                )
            cluster_id = known or new_cluster_id(ports.random)
            # Settings with controller.quorum.bootstrap.servers are made for a dynamic quorum.
            voters = standalone(settings, ports.random) if known is None and settings.bootstrap_controllers else None
            format_log_dirs(
                log_dirs,
                settings.metadata_dir,
                settings.node_id,
                cluster_id,
                ports.clock.now_ms(),
                ports.random,
                FirstMetadata(voters=voters),
            )
            cordoned = settings.values["cordoned.log.dirs"]
            assert isinstance(cordoned, list)
            directories = Directories(log_dirs, settings.metadata_dir, missing=missing, cordoned=cordoned)
            for why in directories.missing.values():
                log.error("%s: its partitions are offline; repair it, or take it out of log.dirs, and start again", why)
            node = cls(settings, ports, directories)
        except BaseException:
            close_log_dirs(log_dirs)
            raise
        try:
            await node._start()
        except BaseException:
            await node.kill()
            raise
        return node

    def _take_clean_shutdown(self) -> int:
        """Return the broker epoch of the last run if all directories were shut down cleanly, otherwise -1."""
        epochs: list[int | None] = []
        for log_dir in self._directories.all():
            try:
                epochs.append(log_dir.take_clean_shutdown())
            except OSError as error:
                if (fatal := self._directories.fail(log_dir, error)) is not None:
                    raise fatal from error
                log.error("%s: its partitions are offline; repair it, and start again", log_dir.failure)
        known = [epoch for epoch in epochs if epoch is not None]
        return max(known) if known and len(known) == len(epochs) else -1

    async def _start(self) -> None:
        settings, ports = self.settings, self._ports
        context = NodeContext(settings, self.cluster_id, ports.clock, ports.random, ports.loop, ports.metrics)
        if settings.is_controller:
            self.controller = ControllerRole(context, ports.files, self._directories.metadata_directory_id)
            self._roles.append(self.controller)
            await self.controller.start()
        if settings.is_broker:
            self.broker = BrokerRole(context, self._directories, self.controller)
            self._roles.append(self.broker)
            await self._unless_failed(self.broker.start(self._previous_epoch))
        listener = settings.text("headrace.http.listener")
        if listener:
            self._http = HttpEndpoint(listener, ports.metrics, self.health)
            await self._http.start()

    async def _unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, but raise if the node fails meanwhile: without its controller, `work` would never finish."""
        loop = self._ports.loop
        working, failing = tasks = loop.create_task(work), loop.create_task(self.failed())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await (failing if failing.done() else working)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def health(self) -> dict[str, Any]:
        """Return the body of /health: `ok` for orchestrators, `problems` with the reasons if it is false."""
        problems: list[str] = []
        details: dict[str, Any] = {}
        if self.controller is not None:
            leader = self.controller.leader
            details["quorum_leader"] = leader
            if leader < 0:
                problems.append(
                    "the metadata quorum has no leader: no metadata can be changed until a majority elects one"
                )
        if self.broker is not None:
            details |= self._broker_health(self.broker, problems)
        return {
            "ok": not problems,
            "problems": problems,
            "node": self.settings.node_id,
            "cluster": self.cluster_id,
            **details,
        }

    def _broker_health(self, broker: BrokerRole, problems: list[str]) -> dict[str, Any]:
        offline = [str(name) for name in broker.replicas.offline()]
        online = self._directories.online()
        full = [log_dir.path for log_dir in full_log_dirs(online, broker.replicas.all())]
        if broker.registration.fenced:
            problems.append("the controller has fenced this broker: it serves no clients until it is registered again")
        if offline:
            problems.append(f"{len(offline)} partition(s) are offline because their disk failed")
        if full and len(full) == len(online):
            problems.append(f"the disk is full: producers are refused until there is space in {', '.join(full)}")
        return {
            "fenced": broker.registration.fenced,
            "offline_partitions": offline,
            "full_log_dirs": full,
            "metadata_offset": broker.image.offset,
        }

    @property
    def ports(self) -> dict[str, int]:
        """Return the bound ports by listener name."""
        return {name: port for role in self._roles for name, port in role.bound_ports.items()}

    @property
    def http_port(self) -> int | None:
        return None if self._http is None else self._http.port

    async def failed(self) -> None:
        """Wait until this node can no longer keep its guarantees and must stop, then raise the reason."""
        reasons = []
        if self.controller is not None:
            reasons.append(self.controller.driver.failed)
        if self.broker is not None:
            reasons.append(self.broker.replicas.failed)
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        for reason in reasons:
            if reason.done():
                reason.result()

    async def stop(self) -> None:
        """Shut down cleanly: give up leadership, close and sync the logs, and write the clean-shutdown marker last."""
        if self._http is not None:
            await self._http.stop()
        clean, epoch = self._directories.online(), -1
        if self.broker is not None:
            epoch = self.broker.registration.broker_epoch
            clean = await self.broker.stop()
        if self.controller is not None:
            await self.controller.stop()
        for log_dir in clean:
            try:
                await self._ports.loop.run_in_executor(None, log_dir.mark_clean_shutdown, epoch)
            except OSError as error:
                log.error("%s cannot be marked as closed: %s; the next start will check its logs", log_dir.path, error)
        if len(clean) < len(self._directories.all()):
            # The contents of a failed disk are unknown: the next start has to check them.
            log.warning(
                "some of log.dirs could not be closed and are not marked as clean; the next start will check their logs"
            )
        close_log_dirs(self._directories.all())

    async def kill(self) -> None:
        """Stop as if the process had died, without writing or notifying anything; for tests and failed starts."""
        for role in reversed(self._roles):
            role.kill()
        if self._http is not None:
            await self._http.stop()
        close_log_dirs(self._directories.all())
