"""The steps of the check secured-node: a node from the files of docs/security.md, users with and without permissions.

The first user's requests succeed; the second one's are refused in time, with the error that names the reason.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from testkit.kafka_peer import tool

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC_ID
from headrace.client import Admin, Consumer, Producer
from headrace.client.wire.connection import Connection, Disconnected, NoResponse
from headrace.client.wire.options import CLIENT_OPTIONS
from headrace.client.wire.security import ClientSecurity, make_security
from headrace.protocol.apis import ApiKey
from tools.prove.security.api_samples import OPEN, SAMPLES, TOPIC, check_refusal, of
from tools.prove.security.secured_files import SecuredFiles
from tools.prove.spark.programs import Program

GROUP, TRANSACTION, TARGET = "billing", "billing", "bills"
HOST = "localhost"
WAIT_S = 30.0
REFUSED_S_MAX = 15.0  # maximum wait for a refusal
TOOL_S_MAX = 90.0
SPARK_S_MAX = 400.0
NOT_PERMITTED = "mallory"
TOPIC_REFUSED, GROUP_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
TRANSACTION_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def write_refused_client(files: SecuredFiles) -> Path:
    """Write the client file of a user who can log in but has no permissions."""
    path = files.file(f"{NOT_PERMITTED}.properties")
    path.write_text(files.file("alice.properties").read_text().replace("alice", NOT_PERMITTED))
    return path


# --- Headrace's client


def use_client(options: Mapping[str, str]) -> int:
    """Use groups of both protocols with transactions that read and write; return the number of records read."""
    read = 0
    with Producer(dict(options)) as producer:
        for delivery in [producer.send(TOPIC, b"%d" % number) for number in range(10)]:
            delivery.result(WAIT_S)
    given = {**options, "group.id": GROUP, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    for protocol in ("classic", "consumer"):
        with (
            Consumer({**given, "group.protocol": protocol, "enable.auto.commit": "false"}) as consumer,
            Producer({**options, "transactional.id": TRANSACTION}) as producer,
        ):
            consumer.subscribe([TOPIC])
            records = consumer.poll(WAIT_S)
            assert records, f"the group of protocol {protocol} got no records"
            producer.transaction.init()
            producer.transaction.begin()
            for record in records:
                producer.send(TOPIC, record.value).result(WAIT_S)
            producer.transaction.send_offsets(consumer.positions(), consumer.group_metadata())
            producer.transaction.commit()
            read += len(records)
    with Admin(dict(options)) as admin:
        committed = sum(one.offset for one in admin.committed_offsets(GROUP).values())
        assert committed > 0, "no offset was committed"
    return read


def check_client_refused(options: Mapping[str, str]) -> int:
    """Check that each attempt is refused with the right error and return their number."""

    def produce() -> None:
        with Producer(dict(options)) as producer:
            producer.send(TOPIC, b"x").result(WAIT_S)

    def consume(protocol: str) -> None:
        with Consumer({**options, "group.id": GROUP, "group.protocol": protocol}) as consumer:
            consumer.subscribe([TOPIC])
            consumer.poll(WAIT_S)

    def begin() -> None:
        with Producer({**options, "transactional.id": TRANSACTION}) as producer:
            producer.transaction.init()

    def administer() -> None:
        with Admin(dict(options)) as admin:
            admin.describe_acls()

    attempts: list[tuple[Callable[[], None], set[ErrorCode]]] = [
        (produce, {TOPIC_REFUSED}),
        (lambda: consume("classic"), {GROUP_REFUSED, TOPIC_REFUSED}),
        (lambda: consume("consumer"), {GROUP_REFUSED, TOPIC_REFUSED}),
        (begin, {TRANSACTION_REFUSED}),
        (administer, {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}),
    ]
    for attempt, codes in attempts:
        started = time.monotonic()
        try:
            attempt()
        except KafkaError as error:
            assert error.code in codes, f"refused with {error.code.name}, expected one of {sorted(codes)}"
        else:
            raise AssertionError(f"a request was not refused; expected one of {sorted(codes)}")
        assert time.monotonic() - started < REFUSED_S_MAX, f"the refusal took {time.monotonic() - started:.0f} s"
    return len(attempts)


# --- Kafka's tools

_PERF = "--num-records 20 --record-size 10 --throughput -1"
# Tool and arguments, standard input, output for the permitted user, error for the other one.
CALLS = (
    (f"console-producer --topic {TOPIC}", "one\ntwo\n", "", "TopicAuthorizationException"),
    (f"console-consumer --topic {TOPIC} --group {GROUP} --from-beginning --max-messages 1 --timeout-ms 30000",
     "", "Processed a total of 1 messages", "AuthorizationException"),
    (f"consumer-groups --describe --group {GROUP} --offsets", "", TOPIC, "GroupAuthorizationException"),
    (f"producer-perf-test --topic {TOPIC} {_PERF} --transactional-id {TRANSACTION} --transaction-duration-ms 50",
     "", "20 records sent", "TransactionalIdAuthorizationException"),
    (f"transactions describe --transactional-id {TRANSACTION}", "", "CompleteCommit", "failed due to authorization failure"),
    (f"get-offsets --topic {TOPIC}", "", f"{TOPIC}:0:", "Could not match any topic-partitions"),
)  # fmt: skip


def use_kafka_tools(files: SecuredFiles, *, permitted: bool) -> int:
    """Check that every call succeeds or is refused; return the number of calls."""
    config = files.file("alice.properties") if permitted else files.file(f"{NOT_PERMITTED}.properties")
    where = ["--bootstrap-server", f"{HOST}:{files.port}", "--command-config", str(config)]
    for text, given, printed, error in CALLS:
        name, *arguments = text.split()
        call = [*where, *arguments] if name == "transactions" else [*arguments, *where]
        done = tool(name, *call, input=given.encode(), timeout_s=TOOL_S_MAX)
        output = (done.stdout + done.stderr).decode(errors="replace")
        expected = printed if permitted else error
        assert expected in output, (
            f"kafka-{text} ({'' if permitted else 'not '}permitted) did not print {expected!r}: {output}"
        )
        assert not permitted or (done.returncode == 0 and "Exception" not in output), f"kafka-{text}: {output}"
    return len(CALLS)


# --- Spark


def run_spark_jobs(files: SecuredFiles, log: Path) -> int:
    """Run Spark's jobs and return the number of rows that the permitted user's stream copied."""

    def options(name: str) -> dict[str, str]:
        return {f"kafka.{key}": value for key, value in files.properties(name).items()}

    job = {
        "permitted": options("alice.properties"),
        "refused": options(f"{NOT_PERMITTED}.properties"),
        "source": TOPIC,
        "target": TARGET,
    }
    program = Program("tools.prove.spark.secured", json.dumps(job), log=log)
    try:
        program.wait_for_event("done", SPARK_S_MAX)
    finally:
        program.close()
    steps: dict[str, Any] = {event["name"]: event for event in program.events}
    for name in ("copied", "counted"):
        assert steps[name]["error"] is None, f"Spark job {name}: {steps[name]['error']}"
    for name in ("refused-stream", "refused-read", "refused-write"):
        error = steps[name]["error"]
        assert error is not None and "AUTHORIZATION_FAILED" in error, f"Spark job {name}: {error}"
    rows = int(steps["counted"]["result"])
    assert rows > 0, "Spark copied nothing"
    return rows


# --- every API


def _security(options: Mapping[str, str], **more: str) -> ClientSecurity:
    values = {name: option.default for name, option in CLIENT_OPTIONS.items()}
    given = {name: value for name, value in options.items() if name in values}
    return make_security({**values, **given, **more}, Random(3))


async def _served_apis(port: int, security: ClientSecurity) -> dict[ApiKey, tuple[int, int]]:
    """Return the APIs that the listener serves, from ApiVersions."""
    connection = await Connection.connect(HOST, port, security=security)
    response = await connection.request(of(18, client_software_name="headrace", client_software_version="1"), version=4)
    await connection.close()
    return {ApiKey(one.api_key): (one.min_version, one.max_version) for one in response.api_keys}


async def check_every_api_refused(files: SecuredFiles, topic_id: Any) -> tuple[int, int]:
    """Check that both listeners refuse a user without permissions; return the number of requests and APIs."""
    security = _security(files.properties(f"{NOT_PERMITTED}.properties"))
    requests, apis = 0, 0
    for port, controller in ((files.port, False), (files.controller_port, True)):
        for key, (low, high) in (await _served_apis(port, security)).items():
            if key in OPEN:
                continue
            apis += 1
            low = max(low, 3) if key is ApiKey.PRODUCE else low  # listed for librdkafka, but not served
            for version in sorted({low, high}):
                connection = await Connection.connect(HOST, port, security=security)
                requested_id = METADATA_TOPIC_ID if controller else topic_id
                await check_refusal(connection, key, version, requested_id, controller=controller)
                await connection.close()
                requests += 1
    return requests, apis


async def check_refused_without_login(files: SecuredFiles) -> int:
    """Check that without a login, every API but those of the login closes the connection; return their number."""
    admin = _security(files.properties("admin.properties"))
    without_login = _security({**files.properties("admin.properties"), "security.protocol": "SSL"})
    tried = 0
    for port in (files.port, files.controller_port):
        for key, (_, version) in (await _served_apis(port, admin)).items():
            if key in OPEN:
                continue
            connection = await Connection.connect(HOST, port, security=without_login)
            try:
                request = SAMPLES[key](version, METADATA_TOPIC_ID) if key in SAMPLES else of(key)
                await asyncio.wait_for(connection.request(request, version=version), REFUSED_S_MAX)
            except (Disconnected, NoResponse):
                tried += 1
            else:
                raise AssertionError(f"{key.name} got a response on port {port} without a login")
            finally:
                await connection.close()
        try:
            await Connection.connect(HOST, port, timeout_s=REFUSED_S_MAX)
        except (Disconnected, NoResponse):
            continue
        raise AssertionError(f"port {port} accepts connections without TLS")
    return tried
