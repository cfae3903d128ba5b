"""A node with TLS, SASL and ACLs, as docs/security.md describes it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from testkit.kafka_peer import available

from tools.prove.registry import NotRun, check, say


@check(
    "secured-node",
    "With the files of docs/security.md, a user with the permissions on that page can use groups, transactions, "
    "the client, Kafka's tools and Spark; a user without them is refused promptly, by name, in every API; and "
    "both listeners refuse all requests without a login",
)
def secured_node() -> str:
    from headrace.client import Admin
    from tools.prove.security import secured_node as acts
    from tools.prove.security.api_samples import TOPIC
    from tools.prove.security.secured_files import SecuredFiles, SecuredNode
    from tools.prove.spark.programs import missing

    for reason in (available(), missing()):
        if reason is not None:
            raise NotRun(reason)
    with tempfile.TemporaryDirectory(prefix="secured-node-") as folder:
        directory = Path(folder)
        files = SecuredFiles(directory)
        acts.properties_of_stranger(files)
        files.run("format")
        with SecuredNode(files) as node:
            files.run("users")
            files.run("spark")
            add_user(files.file("admin.properties"), acts.NOT_PERMITTED)
            permitted = files.properties("alice.properties")
            refused = files.properties(f"{acts.NOT_PERMITTED}.properties")
            say("without a login")
            unauthenticated = asyncio.run(acts.refuse_without_login(files))
            say("our own client")
            read = acts.own_client(permitted)
            refusals = acts.own_client_refused(refused)
            say("every API for a user without rights")
            with Admin(files.properties("admin.properties")) as admin:
                topic = admin.describe_topics([TOPIC])[TOPIC]
            requests, apis = asyncio.run(acts.refuse_every_api(files, topic.id))
            say("Kafka's tools")
            calls = acts.kafkas_tools(files, permitted=True) + acts.kafkas_tools(files, permitted=False)
            say("Spark")
            rows = acts.spark_jobs(files, directory / "spark.log")
            wrong = [line for line in node.log_text().splitlines() if "Traceback" in line or " ERROR " in line]
            assert not wrong, f"the node complains: {wrong[:3]}"
    return (
        f"{read} records in transactions by groups of 2 protocols, {calls} calls of Kafka's tools, {rows} rows by Spark;"
        f" {refusals} refusals of our client, {requests} requests of {apis} APIs refused, {unauthenticated} without a login"
    )


def add_user(admin: Path, name: str) -> None:
    command = [sys.executable, "-m", "headrace", "users", "add", name, "--command-config", str(admin)]
    done = subprocess.run(command, input=f"{name}-secret\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
