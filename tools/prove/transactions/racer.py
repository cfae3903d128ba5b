"""A program whose producers commit, begin, send and abort in a loop without a pause.

`python -m tools.prove.transactions.racer BOOTSTRAP TOPIC PRODUCERS ROUNDS`

The abort follows the commit immediately, before the markers of the commit are written. A producer that fails, for
example because it was fenced, prints its name and the error as a line; then the exit code is 1. `Racer.java` does the
same with Java's client.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

CALL_S_MAX = 60.0
FLUSHED_EVERY = 4  # in the other rounds, aborted records may never have left the client


def loop(name: str, bootstrap: str, topic: str, rounds: int) -> None:
    """Run the rounds of one producer."""
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}
    producer = Producer({**settings, "log_level": 0})
    producer.init_transactions(CALL_S_MAX)
    partitions = list(producer.list_topics(topic, CALL_S_MAX).topics[topic].partitions)
    for number in range(rounds):
        producer.begin_transaction()
        for partition in partitions:
            producer.produce(topic, f"{name} keeps {number}", partition=partition)
        producer.commit_transaction(CALL_S_MAX)
        producer.begin_transaction()
        producer.produce(topic, f"{name} drops {number}")
        if number % FLUSHED_EVERY == FLUSHED_EVERY - 1:
            producer.flush(CALL_S_MAX)
        producer.abort_transaction(CALL_S_MAX)


def main(arguments: list[str]) -> int:
    bootstrap, topic, producers, rounds = arguments
    failures: list[str] = []

    def run(name: str) -> None:
        try:
            loop(name, bootstrap, topic, int(rounds))
        except Exception as error:
            failures.append(f"{name}: {error}")

    threads = [threading.Thread(target=run, args=(f"confluent-{number}",)) for number in range(int(producers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
