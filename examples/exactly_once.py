"""Read, process and write in one transaction: nothing is lost and nothing is processed twice.

Usage: exactly_once.py [HOST:PORT]

A copier reads orders from one topic and writes bills to another. The bills and the offsets of their orders are
committed together or not at all. Three copiers are killed in the middle of a transaction; each time the next one
resumes from the last commit.
"""

import subprocess
import sys
import time
import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
ORDERS, A_TRANSACTION = 100, 10
KILLS = (2, 3, 1)  # for each copier, the number of the transaction in which it is killed


def copy(orders: str, bills: str) -> None:
    """Copy until the last order is billed or the process is killed."""
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": bills})
    # Fences the previous owner of this transactional id and aborts its open transaction. Only after that may the
    # committed offsets be read.
    producer.init_transactions()
    settings = {"group.id": orders, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    # A static member replaces the dead copier at once; otherwise the group would wait for the old session to expire.
    names = {"group.instance.id": "copier", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, **settings, **names})
    consumer.subscribe([orders])
    number = 0
    while number < ORDERS - 1:
        messages = [message for message in consumer.consume(A_TRANSACTION, 1.0) if message.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            number = int(message.value() or 0)
            producer.produce(bills, f"bill of order {number}".encode(), partition=0)
        producer.flush()
        print(f"open {number}", flush=True)
        time.sleep(0.2)  # slow work, so that the kill lands in the middle of a transaction
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()
        print(f"committed {number}", flush=True)
    consumer.close()


def run(orders: str, bills: str, dies_in: int) -> None:
    """Run one copier and kill it in its transaction number `dies_in`, if it gets that far."""
    arguments = [sys.executable, __file__, BOOTSTRAP, orders, bills]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as copier:
        transactions, committed = 0, "nothing"
        assert copier.stdout is not None
        for line in copier.stdout:
            what, number = line.split()
            if what == "committed":
                committed = f"orders up to {number}"
                continue
            transactions += 1
            if transactions == dies_in:
                copier.kill()
                print(f"a copier has committed {committed} and is killed with bills up to {number} in the log")
                return
        print(f"a copier has committed {committed} and is done")


def read(topic: str, isolation: str) -> list[int]:
    settings = {"group.id": "reader", "isolation.level": isolation, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    numbers = []
    while (message := consumer.poll(30)) is not None and message.error() is None:  # the end is reported as an error
        numbers.append(int((message.value() or b"").split()[-1]))
    consumer.close()
    return numbers


def main() -> None:
    name = uuid.uuid4()
    orders, bills = f"orders-{name}", f"bills-{name}"
    producer = Producer({"bootstrap.servers": BOOTSTRAP})
    for number in range(ORDERS):
        producer.produce(orders, str(number).encode(), partition=0)
    producer.flush()
    for dies_in in (*KILLS, ORDERS):
        run(orders, bills, dies_in)
    everything, done = read(bills, "read_uncommitted"), read(bills, "read_committed")
    print(f"{len(everything)} bills were written, {len(done)} of them were committed")
    twice = sorted({order for order in done if done.count(order) > 1})
    print(f"lost: {sorted(set(range(ORDERS)) - set(done))}, done twice: {twice}")


if __name__ == "__main__":
    copy(*sys.argv[2:]) if len(sys.argv) > 2 else main()
