"""How Spark writes checkpoints that lie in folders of this machine: without a process for every question about a file.

Its first choice looks at files through Hadoop's FileContext, which starts `readlink` for each: more than a hundred processes a second for
three queries, and a tenth of a second twice in every batch. The other one renames files as well. It does not notice two writers at once;
that a checkpoint has one driver is seen to by its lock (`runs`).
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
    """Options of the session that all of them share; none if a checkpoint is elsewhere."""
    if any(local_folder(one.checkpoint) is None for one in pipelines):
        return {}
    return local_checkpoint_conf()


def local_checkpoint_conf() -> dict[str, str]:
    """None if this Spark has no such class, or has it by another name."""
    from pyspark.find_spark_home import _find_spark_home

    with suppress(OSError, zipfile.BadZipFile):
        for jar in Path(_find_spark_home(), "jars").glob("spark-sql_*.jar"):
            with zipfile.ZipFile(jar) as classes:
                if BY_FILE_SYSTEM.replace(".", "/") + ".class" in classes.NameToInfo:
                    return {OPTION: BY_FILE_SYSTEM}
    return {}
