"""The check for leaks knows the sockets that py4j keeps, and which others are none of its."""

from __future__ import annotations

import socket
import threading

from pyspark.sql import SparkSession
from tests.leaks import Resources, resources, sockets_of_spark


def sockets() -> set[str]:
    return {target for _, target in resources().descriptors if target.startswith("socket:")}


def test_sockets_to_the_jvm_are_told_from_others(spark: SparkSession) -> None:
    before, used = sockets(), threading.Event()
    jvm, done = spark._jvm, threading.Event()

    def use_the_jvm() -> None:
        jvm.java.lang.System.nanoTime()
        used.set()
        done.wait(20)

    thread = threading.Thread(target=use_the_jvm)
    thread.start()
    try:
        assert used.wait(20)
        opened = sockets() - before
        assert opened and opened <= sockets_of_spark()
    finally:
        done.set()
        thread.join()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        others = resources().descriptors
        others = frozenset(one for one in others if one[1].startswith("socket:") and one[1] not in before | opened)
        assert len(others) == 2 and not {target for _, target in others} & sockets_of_spark()
        named = Resources(frozenset(), others, frozenset()).names()
        assert all(str(server.getsockname()[1]) in line for line in named)
