"""A program that runs transactions until SIGTERM.

`python -m tools.prove.transactions.worker NAME TRANSACTIONAL_ID BOOTSTRAP SEED`

It prints a line of JSON before and after every operation, which shows what a killed worker had started. Exit code 1
means that it was fenced.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from random import Random
from typing import Any

from tools.prove.transactions.reading import RECONNECT

TOPICS = ("bank", "shop")
PARTITIONS = 3
SENDS_MAX = 8
ABORT_PROBABILITY = 0.25
FLUSH_PROBABILITY = 0.3  # share of transactions whose records stay in the log for a while before the end is requested
FLUSHED_S_MAX = 0.2
CALL_S_MAX = 10.0
SETTINGS = {
    "acks": "all",
    "linger.ms": 2,
    "transaction.timeout.ms": 4000,
    # Shorter than a node may pause: a request is retried after the timeout, and both may reach the node when it
    # resumes.
    "socket.timeout.ms": 1000,
    "retry.backoff.ms": 20,
    **RECONNECT,
}


def report_event(**fields: Any) -> None:
    """Print an event as a line of JSON."""
    os.write(1, (json.dumps(fields) + "\n").encode())  # unbuffered and in one write


class Worker:
    """A producer that commits and aborts transactions of random size."""

    def __init__(self, name: str, transactional_id: str, bootstrap: str, seed: str) -> None:
        from confluent_kafka import Producer

        self._name = name
        self._random = Random(seed)
        self._sent = 0
        self._is_stopped = False
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **SETTINGS},
        )

    def stop(self, *_: object) -> None:
        self._is_stopped = True

    def run(self) -> None:
        from confluent_kafka import KafkaException

        self._repeat(self._producer.init_transactions)
        number = 0
        while not self._is_stopped:
            number += 1
            name = f"{self._name}/{number}"
            self._producer.begin_transaction()
            try:
                self._send(name)
                if self._random.random() < ABORT_PROBABILITY:
                    self._finish(name, "abort")
                else:
                    self._finish(name, "commit")
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._finish(name, "abort")

    def _send(self, transaction: str) -> None:
        for _ in range(self._random.randint(1, SENDS_MAX)):
            value = f"{self._name}-{self._sent}"
            self._sent += 1
            topic, partition = self._random.choice(TOPICS), self._random.randrange(PARTITIONS)
            report_event(do="send", transaction=transaction, topic=topic, partition=partition, value=value)
            self._producer.produce(topic, value, partition=partition, on_delivery=_delivered)
        if self._random.random() < FLUSH_PROBABILITY:
            self._producer.flush(CALL_S_MAX)
            time.sleep(self._random.uniform(0, FLUSHED_S_MAX))

    def _finish(self, transaction: str, operation: str) -> None:
        report_event(do=operation, transaction=transaction)
        call = self._producer.commit_transaction if operation == "commit" else self._producer.abort_transaction
        try:
            self._repeat(call)
        except Exception as error:
            report_event(did=operation, transaction=transaction, error=str(error))
            raise
        report_event(did=operation, transaction=transaction, error=None)

    def _repeat(self, call: Any) -> None:
        """Repeat the call for as long as the client reports a retriable error."""
        from confluent_kafka import KafkaException

        while True:
            try:
                call(CALL_S_MAX)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def _delivered(error: Any, message: Any) -> None:
    value = message.value().decode()
    offset = message.offset()
    if error is None:
        report_event(did="send", value=value, error=None, offset=offset if offset is not None and offset >= 0 else None)
    else:
        report_event(did="send", value=value, error=str(error))


def main(arguments: list[str]) -> int:
    from confluent_kafka import KafkaException

    worker = Worker(*arguments)
    signal.signal(signal.SIGTERM, worker.stop)
    try:
        worker.run()
    except KafkaException as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
