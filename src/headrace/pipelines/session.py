"""Creates SparkSessions with everything that pipelines need: Java, the right Python for the workers, memory, and group commits.

spark = make_session("orders")
spark.readStream.format("headrace").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()
"""

from __future__ import annotations

import atexit
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace.base.errors import ConfigError
from headrace.pipelines.class_archive import ClassArchive
from headrace.pipelines.java import cache_folder, find_java, home_for_spark
from headrace.pipelines.worker_python import local_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

LOOPBACK = "127.0.0.1"
DRIVER_MEMORY_SHARE = 4  # divisor: a quarter of the machine's memory
DRIVER_MEMORY_MB = (1024, 4096)
_LOCAL = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*[0-9]+\s*)?\])?\Z")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def make_session(
    name: str,
    *,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    class_archive: bool = True,
    began: Callable[[int], None] | None = None,
) -> SparkSession:
    """Create a session; `conf` overrides everything that is set here.

    All sessions of a process share one virtual machine, which the first session starts. `began` is called with the id of its process as
    soon as it runs, before Spark starts in it.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"pipelines need PySpark: pip install 'headrace[spark]' ({error})") from error

    given = {key: _text(value) for key, value in (conf or {}).items()}
    archive = None
    if pyspark.SparkContext._gateway is None:
        archive = _prepare_java(given, Path(pyspark.__file__).parent, pyspark.__version__, class_archive)
        is_local = _LOCAL.match(given.get("spark.master", master)) is not None
        _prepare_python(given, local_python(cache_folder()) if is_local else sys.executable)
        if is_local:
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    merged = {"spark.app.name": name, **session_conf(given.get("spark.master", master)), **given}
    pyspark.SparkContext._ensure_initialized(conf=pyspark.SparkConf().setAll(list(merged.items())))
    if archive is not None:
        archive.written_by(java_process_id())
    if began is not None:
        began(java_process_id())
    builder = SparkSession.builder
    for key, value in merged.items():
        builder = builder.config(key, value)  # type: ignore[attr-defined]
    spark: SparkSession = builder.getOrCreate()  # type: ignore[attr-defined]
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register `format("headrace")` with a session that `make_session` did not create.

    Spark looks for formats with the Python that PYSPARK_PYTHON or spark.pyspark.python names, else with the first python3 on PATH.
    If Headrace is not installed in that Python, the format is unknown. If neither is set and all workers run on this machine,
    they use this interpreter; on a cluster, set spark.pyspark.python to a Python that has Headrace on every machine.
    """
    from headrace.pipelines.data_source import HeadraceDataSource

    context: Any = spark.sparkContext
    names_python = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not names_python and _LOCAL.match(context.master):
        context.pythonExec = sys.executable
    _register(spark, HeadraceDataSource)
    _watch(spark)


def java_process_id() -> int:
    """Return the process id of the virtual machine that runs this process's sessions."""
    from pyspark import SparkContext

    java: Any = SparkContext._jvm
    return int(java.java.lang.ProcessHandle.current().pid())


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register the source unless Spark found it: Spark looks only once, and finds none if that Python process is killed."""
    known = spark._jsparkSession.sessionState().dataSourceManager()  # type: ignore[attr-defined]
    if not known.dataSourceExists(source.name()):
        spark.dataSource.register(source)


def session_conf(master: str) -> dict[str, str]:
    """Return the settings used unless the caller overrides them."""
    conf = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    local = _LOCAL.match(master)
    if local is not None:
        cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
        conf |= {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.host": LOOPBACK,
            "spark.driver.memory": f"{_driver_memory_mb()}m",
            "spark.sql.shuffle.partitions": str(cores),
        }
    return conf


def _prepare_java(
    given: dict[str, str], spark_home: Path, spark_version: str, class_archive: bool
) -> ClassArchive | None:
    cache = cache_folder()
    java = find_java()
    os.environ["JAVA_HOME"] = str(home_for_spark(java, cache))
    if not class_archive:
        return None
    archive = ClassArchive(cache, java, spark_version, spark_home)
    options = archive.java_options()
    if options:
        given[_JAVA_OPTIONS] = " ".join([*options, given.get(_JAVA_OPTIONS, "")]).strip()
    return archive


def _prepare_python(given: dict[str, str], worker_python: str) -> None:
    """Set the Python and the module path of the workers, which would otherwise run the first python3 on PATH.

    Workers of a source that Spark finds itself, such as this one, run PYSPARK_DRIVER_PYTHON. The driver, already running, is unaffected.
    """
    os.environ.setdefault("PYSPARK_PYTHON", worker_python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", worker_python)
    root = str(Path(headrace.__file__).resolve().parents[1])
    if root in {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_paths()["purelib"]}:
        return
    before = os.environ.get("PYTHONPATH", "")
    if root not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([root, before]) if before else root
    given.setdefault("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])


def _driver_memory_mb() -> int:
    low, high = DRIVER_MEMORY_MB
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (AttributeError, ValueError, OSError):
        return low
    return max(low, min(high, total // DRIVER_MEMORY_SHARE))


def _watch(spark: SparkSession) -> None:
    from headrace.pipelines.group_commits import commit_groups

    commits = commit_groups(spark)

    def end() -> None:
        # Progress of the last batches may not have reached the listener yet: stopping Spark delivers it.
        with suppress(Exception):
            spark.stop()
        commits.flush()

    if not commits.is_ended_at_exit:
        commits.is_ended_at_exit = True
        atexit.register(end)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
