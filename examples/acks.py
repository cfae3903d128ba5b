"""What acks=1 and acks=all cost, and what they promise: a million messages with each, to three copies of a partition.

Usage: acks.py [MESSAGES]

Starts its own cluster of three Headrace processes on free ports. With acks=1 the leader responds as soon as it has written the message
itself; if it dies before a follower has fetched it, the message is lost. With acks=all it responds once every in-sync replica has the
message, and it refuses to write while fewer than min.insync.replicas (here 2) are in sync: what was acknowledged survives any one broker.
"""

import sys
import time
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.process_cluster import ClusterProcesses

MESSAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
SINGLE = 500  # messages that are sent one at a time, for the latency
VALUE = b"0123456789" * 10
PROMISES = {"1": "lost if the leader dies too soon", "all": "survives the death of any one broker"}


class Measured(NamedTuple):
    messages_per_s: float
    median_ms: float
    p99_ms: float


def measure(bootstrap: str, acks: str) -> Measured:
    """Write all messages as fast as the producer can, then some of them one at a time."""
    topic = f"acks-{acks}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, 1, 3)]).values():
        created.result()
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 5, "queue.buffering.max.messages": 200_000}
    )
    began = time.perf_counter()
    for _ in range(MESSAGES):
        while True:
            try:
                producer.produce(topic, VALUE, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    seconds = time.perf_counter() - began
    single = Producer({"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 0})
    times_ms = []
    for _ in range(SINGLE):
        sent = time.perf_counter()
        single.produce(topic, VALUE, on_delivery=delivered)
        single.flush()
        times_ms.append(1000 * (time.perf_counter() - sent))
    if failed:
        sys.exit(f"{len(failed)} messages with acks={acks} were not acknowledged: {failed[0]}")
    times_ms.sort()
    return Measured(MESSAGES / seconds, times_ms[SINGLE // 2], times_ms[SINGLE * 99 // 100])


def main() -> None:
    with ClusterProcesses(3, {"min.insync.replicas": "2"}) as cluster:
        print("acks  messages/s  median ms  p99 ms  an acknowledged message …")
        for acks, promise in PROMISES.items():
            found = measure(cluster.bootstrap, acks)
            print(
                f"{acks:4}  {found.messages_per_s:10,.0f}  {found.median_ms:9.2f}  {found.p99_ms:6.2f}  {promise}",
                flush=True,
            )


if __name__ == "__main__":
    main()
