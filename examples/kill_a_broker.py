"""Three brokers hold three copies of each partition; one is killed under load, and nothing acknowledged is lost.

Usage: kill_a_broker.py

Starts its own cluster of three Headrace processes on free ports. A producer with acks=all and idempotence writes to six partitions;
after a while the broker that leads partition 0 is killed with SIGKILL. The others take over its partitions, writing continues, and
the in-sync replicas (ISR) of every partition shrink to two. When the broker is started again it catches up, and the ISR grow back.
"""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.process_cluster import ClusterProcesses

TOPIC = "kill-a-broker"
PARTITIONS, REPLICAS = 6, 3
LOAD_S = 3.0  # before the kill, while the broker is dead, and after it is back
RECORDS_PER_S = 2000
BURST = 20


class Load:
    """Sends numbered records, and notes when each is acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "topic.metadata.refresh.interval.ms": 5000,
                "log_level": 0,
            }
        )
        self._numbers = itertools.count()
        self._last_s = time.monotonic()
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self.longest_gap_s = 0.0  # time without any acknowledgement

    def run(self, seconds: float) -> None:
        began = time.monotonic()
        sent = 0
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed * RECORDS_PER_S:
                for number in itertools.islice(self._numbers, BURST):
                    self._send(number)
                sent += BURST
            self._producer.poll(0.005)

    def _send(self, number: int) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self.failed.append(f"{number}: {error}")
                return
            now_s = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
            self._last_s = now_s
            self.acknowledged.add(number)

        self._producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS, on_delivery=delivered)

    def finish(self) -> None:
        left = self._producer.flush(60)
        if left:
            self.failed.append(f"{left} records had no response within a minute")


def main() -> None:
    began = time.monotonic()

    def report(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    with ClusterProcesses(3, {"min.insync.replicas": "2"}) as cluster:
        report(f"three brokers serve on {cluster.bootstrap}")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, REPLICAS)]).values():
            created.result()
        wait_until(lambda: sizes_of_isr(admin) == Counter({3: PARTITIONS}), "all replicas are in sync")
        load = Load(cluster.bootstrap)
        load.run(LOAD_S)
        victim = leader_of(admin, 0)
        cluster.node(victim).kill()
        report(f"broker {victim}, which leads partition 0, is killed after {len(load.acknowledged)} records")
        load.run(LOAD_S)
        wait_until(lambda: sizes_of_isr(admin) == Counter({2: PARTITIONS}), "every ISR has shrunk to two")
        report(f"every ISR has two members; broker {leader_of(admin, 0)} leads partition 0")
        cluster.node(victim).start()
        load.run(LOAD_S)
        wait_until(lambda: sizes_of_isr(admin) == Counter({3: PARTITIONS}), "every ISR has grown back to three")
        report(f"broker {victim} is back, and every ISR has three members again")
        load.finish()
        found = read_all(cluster.bootstrap)
    lost = load.acknowledged - found.keys()
    doubled = [number for number, times in found.items() if times > 1]
    report(
        f"{len(load.acknowledged)} records were acknowledged, {len(lost)} lost, {len(doubled)} doubled,"
        f" {len(load.failed)} refused; the longest time without an acknowledgement was {load.longest_gap_s:.1f} s"
    )
    if lost or doubled or load.failed:
        sys.exit(f"lost {sorted(lost)[:5]}, doubled {doubled[:5]}, refused {load.failed[:5]}")


def sizes_of_isr(admin: AdminClient) -> Counter[int]:
    """Return how many partitions have an ISR of each size."""
    return Counter(len(partition.isrs) for partition in admin.list_topics(TOPIC, 10).topics[TOPIC].partitions.values())


def leader_of(admin: AdminClient, partition: int) -> int:
    return int(admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[partition].leader)


def read_all(bootstrap: str) -> Counter[int]:
    """Return how often each number is in the topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": TOPIC, "enable.partition.eof": True, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: Counter[int] = Counter()
    unread = set(range(PARTITIONS))
    while unread:
        for message in consumer.consume(1000, 1.0):
            error = message.error()
            if error is None:
                found[int(message.value() or b"")] += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            else:
                sys.exit(f"the topic could not be read: {error}")
    consumer.close()
    return found


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() > deadline:
            sys.exit(f"within a minute it did not happen that {what}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
