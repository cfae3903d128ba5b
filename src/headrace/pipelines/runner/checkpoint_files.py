"""Chooses how Spark writes checkpoints in local folders, to avoid a subprocess for every file operation.

By default Spark accesses files through Hadoop's FileContext, which runs `readlink` for each: more than a hundred processes a second for
three queries, and a tenth of a second twice in every batch. The alternative also renames files. It does not detect concurrent writers, but
the lock on the checkpoint (`runs`) ensures that there is only one driver.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.pipelines.runner.runs import local_folder

if TYPE_CHECKING:
    from headrace.pipelines.definitions.definition import Pipeline

OPTION = "spark.sql.streaming.checkpointFileManagerClass"
BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def checkpoint_conf(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """Return the session options that all pipelines share; empty if a checkpoint is not local."""
    if any(local_folder(one.checkpoint) is None for one in pipelines):
        return {}
    return local_checkpoint_conf()


def local_checkpoint_conf() -> dict[str, str]:
    """Return the options for local checkpoints; empty if this Spark version has no class of that name."""
    from pyspark.find_spark_home import _find_spark_home

    with suppress(OSError, zipfile.BadZipFile):
        for jar in Path(_find_spark_home(), "jars").glob("spark-sql_*.jar"):
            with zipfile.ZipFile(jar) as classes:
                if BY_FILE_SYSTEM.replace(".", "/") + ".class" in classes.NameToInfo:
                    return {OPTION: BY_FILE_SYSTEM}
    return {}
