"""A node with TLS, SASL and ACLs, as docs/security.md describes it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from testkit.kafka_peer import available

from tools.prove.registry import check, print_progress, require


@check(
    "secured-node",
    "With the files of docs/security.md, a user with the permissions on that page can use groups, transactions, "
    "the client, Kafka's tools and Spark; a user without them is refused promptly, by name, in every API; and "
    "both listeners refuse all requests without a login",
)
def secured_node() -> str:
    from headrace.client import Admin
    from tools.prove.security import secured_node as node_checks
    from tools.prove.security.api_samples import TOPIC
    from tools.prove.security.secured_files import SecuredFiles, SecuredNode
    from tools.prove.spark.programs import missing

    require(available(), missing())
    with tempfile.TemporaryDirectory(prefix="secured-node-") as folder:
        directory = Path(folder)
        files = SecuredFiles(directory)
        node_checks.write_refused_client(files)
        files.run("format")
        with SecuredNode(files) as node:
            files.run("users")
            files.run("spark")
            add_user(files.file("admin.properties"), node_checks.NOT_PERMITTED)
            permitted = files.properties("alice.properties")
            refused = files.properties(f"{node_checks.NOT_PERMITTED}.properties")
            print_progress("without a login")
            unauthenticated = asyncio.run(node_checks.check_refused_without_login(files))
            print_progress("Headrace's client")
            read = node_checks.use_client(permitted)
            refusals = node_checks.check_client_refused(refused)
            print_progress("every API, by a user without permissions")
            with Admin(files.properties("admin.properties")) as admin:
                topic = admin.describe_topics([TOPIC])[TOPIC]
            requests, apis = asyncio.run(node_checks.check_every_api_refused(files, topic.id))
            print_progress("Kafka's tools")
            calls = node_checks.use_kafka_tools(files, permitted=True) + node_checks.use_kafka_tools(
                files, permitted=False
            )
            print_progress("Spark")
            rows = node_checks.run_spark_jobs(files, directory / "spark.log")
            wrong = [line for line in node.log_text().splitlines() if "Traceback" in line or " ERROR " in line]
            assert not wrong, f"the node logged errors: {wrong[:3]}"
    return (
        f"{read} records in transactions by groups of 2 protocols, {calls} calls of Kafka's tools, {rows} rows by Spark;"
        f" {refusals} refusals of the client, {requests} requests of {apis} APIs refused, {unauthenticated} without a login"
    )


def add_user(admin: Path, name: str) -> None:
    command = [sys.executable, "-m", "headrace", "users", "add", name, "--command-config", str(admin)]
    done = subprocess.run(command, input=f"{name}-secret\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
