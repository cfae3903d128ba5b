"""The directories of a run.

The node's data may be older than the shop, since `make serve` uses it too; everything else belongs to that data.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from headrace.base.errors import ConfigError, HeadraceError
from headrace.demo.shop.requests import Shop, partitions_of
from headrace.demo.shop.topics import RESULTS

PIPELINES = ("shop.yaml", "tables.yaml")  # started in this order
_CLUSTER_ID = "cluster.id="


class WrongFolders(ConfigError):
    """The directories do not belong together."""


class NotOurs(HeadraceError):
    """The broker that responds is not the node of this run."""


class Folders(NamedTuple):
    work: Path
    runtime: Path  # runtime directory of the pipelines' driver
    brokers: int = 1  # number of nodes; several have separate directories in `data`

    @property
    def data(self) -> Path:
        return self.work / "data"

    def data_of(self, node_id: int) -> Path:
        """Return the data directory of a node."""
        return self.data if self.brokers == 1 else self.data / f"node-{node_id}"

    @property
    def shop(self) -> Path:
        return self.work / "shop"

    @property
    def pipelines(self) -> Path:
        return self.shop / "pipelines"

    @property
    def checkpoints(self) -> Path:
        return self.shop / "checkpoints"

    @property
    def tables(self) -> Path:
        return self.shop / "tables"

    def log(self, name: str) -> Path:
        return self.shop / "logs" / f"{name.replace(' ', '-')}.log"

    def make(self) -> None:
        """Create the directories and copy the pipelines, whose paths are relative to their files."""
        self.pipelines.mkdir(parents=True, exist_ok=True)
        for name in PIPELINES:
            (self.pipelines / name).write_text((files("headrace.demo") / "pipeline" / name).read_text())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directories; raise ConfigError if another run has them. The lock always ends with the process."""
        with (self.shop / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise ConfigError(f"the shop in {self.work} is running already, as process {file.read()}") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def stored_cluster_id(data: Path) -> str | None:
    """Return the id in the meta.properties of a data directory, or None if it is not formatted."""
    try:
        lines = (data / "meta.properties").read_text().splitlines()
    except OSError:
        return None
    return next((line.removeprefix(_CLUSTER_ID) for line in lines if line.startswith(_CLUSTER_ID)), None)


def check_node(folders: Folders, shop: Shop) -> None:
    """Raise NotOurs unless the broker that responds has this data: another one may have taken the port first."""
    if shop.cluster_id() != stored_cluster_id(folders.data_of(1)):
        raise NotOurs("another broker responds on this port; is the port in use?")


def check_cluster(folders: Folders, shop: Shop) -> None:
    """Raise WrongFolders if the checkpoints belong to another cluster's topics: records would be lost or duplicated."""
    cluster_id, note = shop.cluster_id(), folders.shop / "cluster-id"
    anew = f"to start over, remove {folders.data} and {folders.shop}"
    if note.exists():
        if note.read_text() != cluster_id:
            raise WrongFolders(f"{folders.shop} belongs to another cluster than the one in {folders.data}: {anew}")
        return
    if any(shop.ends(partitions_of(RESULTS)).values()):
        raise WrongFolders(f"the topics in {folders.data} have results, but {folders.shop} is gone: {anew}")
    note.write_text(cluster_id)
