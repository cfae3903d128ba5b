"""Three consumers share three partitions; one is killed and the others take over its partition.

Usage: kill_a_consumer.py [HOST:PORT]

Each consumer is a separate process that reports what it is assigned and what it reads. The killed consumer never leaves
the group: the coordinator notices after the session timeout, and the others resume from the last committed offset.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC = GROUP = "kill-a-consumer"
RECORDS, PER_SECOND = 300, 20
SESSION_MS = 6000


def consume(name: str) -> None:
    """Run one group member, printing a line of JSON for each assignment and each record."""

    def say(**what: object) -> None:
        print(json.dumps({"who": name, **what}), flush=True)

    def given(_: Consumer, partitions: list[TopicPartition]) -> None:
        say(event="given", partitions=sorted(one.partition for one in partitions))

    settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "session.timeout.ms": SESSION_MS}
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "client.id": name, "enable.auto.commit": False, **settings})
    consumer.subscribe([TOPIC], on_assign=given)
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            say(event="read", number=int(message.value() or 0), partition=message.partition())
            consumer.commit(message=message)


def main() -> None:
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    for made in admin.create_topics([NewTopic(TOPIC, 3, 1)]).values():
        made.result()
    members = {name: start(name) for name in ("anna", "ben", "carla")}
    owned: dict[str, list[int]] = {}
    read: list[int] = []
    for name, member in members.items():
        threading.Thread(target=listen, args=(name, member, owned, read, tell), daemon=True).start()
    wait_until(lambda: all(len(owned.get(name, ())) == 1 for name in members), "each consumer has one partition")
    producer = Producer({"bootstrap.servers": BOOTSTRAP})
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number).encode(), partition=number % 3)
        producer.poll(1 / PER_SECOND)
        if number == RECORDS // 3:
            victim = members.pop("ben")
            victim.kill()
            tell(
                f"ben is killed; his partition {owned.pop('ben')[0]} waits up to {SESSION_MS / 1000:.0f} s for a new owner"
            )
    producer.flush()
    wait_until(lambda: len(set(read)) == RECORDS, "every record is read")
    twice = len(read) - len(set(read))
    shared = sorted(partition for name in members for partition in owned[name])
    tell(f"anna and carla own partitions {shared}; {RECORDS} records were read, {twice} of them twice")
    for member in members.values():
        member.kill()
    for deleted in admin.delete_topics([TOPIC]).values():
        deleted.result()


def start(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, BOOTSTRAP, name], stdout=subprocess.PIPE, text=True)


def listen(
    name: str,
    member: subprocess.Popen[str],
    owned: dict[str, list[int]],
    read: list[int],
    tell: Callable[[str], None],
) -> None:
    assert member.stdout is not None
    for line in member.stdout:
        what = json.loads(line)
        if what["event"] == "read":
            read.append(what["number"])
        else:
            owned[name] = what["partitions"]
            tell(f"{name} is given partitions {what['partitions']}")


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() > deadline:
            sys.exit(f"within a minute it did not happen that {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    consume(sys.argv[2]) if len(sys.argv) > 2 else main()
