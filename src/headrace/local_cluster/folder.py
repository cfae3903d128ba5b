"""The folder of a local cluster: its layout in cluster.json, and for each node a folder with settings, data and log."""

from __future__ import annotations

import fcntl
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId
from headrace.local_cluster.layout import Layout, NodePlan
from headrace.node.new_cluster.formatting import format_log_dirs
from headrace.storage.disk import DiskFiles
from headrace.storage.log_dirs import close_log_dirs, open_log_dirs

LAYOUT_FILE, LOCK_FILE = "cluster.json", "lock"
LAYOUT_BYTES_MAX = 1 << 20


class NodeFolder:
    """The files of one node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.log = path / "node.log"  # output of all starts
        self.properties = path / "server.properties"
        self.process = path / "process.json"  # the last started process


class ClusterFolder:
    """The files of a cluster. Commands that change something hold its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._layout = self.path / LAYOUT_FILE

    def node(self, node_id: int) -> NodeFolder:
        return NodeFolder(self.path / f"node-{node_id}")

    @property
    def is_cluster(self) -> bool:
        return self._layout.is_file()

    def check_usable(self) -> None:
        """Raise ConfigError unless a cluster is here or can be made here."""
        if "," in str(self.path):
            raise ConfigError(f"--folder {self.path}: a path with a comma cannot be one of log.dirs")
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--folder {self.path} is not a folder")
        # A start that was killed early leaves only a lock.
        others = [one.name for one in self.path.iterdir() if one.name != LOCK_FILE] if self.path.exists() else []
        if others and not self.is_cluster:
            raise ConfigError(
                f"--folder {self.path} has files of another program, such as {min(others)}; choose an empty folder"
            )

    def load(self) -> Layout:
        """Return the layout; raise ConfigError if there is no cluster here or its file is damaged."""
        if not self.is_cluster:
            raise ConfigError(f"no cluster in {self.path}; `headrace cluster start` makes one, --folder names another")
        with self._layout.open("rb") as file:
            data = file.read(LAYOUT_BYTES_MAX)
        try:
            layout = msgspec.json.decode(data, type=Layout)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self._layout} is not the layout of a cluster: {error}") from error
        if not layout.nodes or any(not node.roles for node in layout.nodes):
            raise ConfigError(f"{self._layout} is not the layout of a cluster: a node without a role, or no nodes")
        return layout

    def save(self, layout: Layout) -> None:
        """Write the layout atomically."""
        fresh = self._layout.with_suffix(".new")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(layout), indent=2))
        fresh.replace(self._layout)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this folder, which must exist; raise ConfigError if another command holds it."""
        with (self.path / LOCK_FILE).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"another `headrace cluster` command is working in {self.path}") from None
            yield

    def prepare(self, layout: Layout, node: NodePlan) -> None:
        """Write the settings of a node, and format its data directory on the first start."""
        folder = self.node(node.id)
        folder.path.mkdir(exist_ok=True)
        folder.properties.write_text(to_properties({**layout.settings_of(node), "log.dirs": str(folder.data)}))
        format_data(folder.data, node.id, layout.cluster_id)

    def remove(self, layout: Layout) -> None:
        """Remove the cluster with its data, and the folder if nothing else is in it."""
        for node in layout.nodes:
            shutil.rmtree(self.node(node.id).path, ignore_errors=True)
        self._layout.unlink()
        (self.path / LOCK_FILE).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()


def format_data(path: Path, node_id: int, cluster_id: str) -> None:
    """Format a data directory as that of a member of this cluster, unless it is formatted already."""
    path.mkdir(parents=True, exist_ok=True)
    log_dirs = open_log_dirs(DiskFiles(), [str(path)], node_id=NodeId(node_id), cluster_id=cluster_id)
    try:
        format_log_dirs(log_dirs, str(path), NodeId(node_id), cluster_id, SystemClock().now_ms(), random.SystemRandom())
    finally:
        close_log_dirs(log_dirs)


def to_properties(settings: Mapping[str, str]) -> str:
    """Return the text of a properties file."""
    lines = (f"{_escaped(name)}={_escaped(value)}" for name, value in settings.items())
    return "\n".join(["# Written by `headrace cluster start`, which replaces it at each start.", *lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
