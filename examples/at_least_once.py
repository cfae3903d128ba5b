"""Process first, commit afterwards: an order processed just before a crash is processed again.

Usage: at_least_once.py [HOST:PORT]

A worker reads orders and dies after processing one but before committing its offset. The next worker starts with that
same order.
"""

import os
import subprocess
import sys
import uuid

from confluent_kafka import Consumer, Producer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
ORDERS, DEADLY = 20, 12


def work(topic: str, dies: bool) -> None:
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "session.timeout.ms": 6000, **settings})
    consumer.subscribe([topic])
    for _ in range(ORDERS):
        order = consumer.poll(30)
        if order is None or order.error():
            break
        number = int(order.value() or 0)
        print(number, flush=True)  # the work
        if dies and number == DEADLY:
            os._exit(1)  # between the work and the commit
        consumer.commit(message=order, asynchronous=False)
        if number == ORDERS - 1:
            break
    consumer.close()


def main() -> None:
    topic = f"at-least-once-{uuid.uuid4()}"
    producer = Producer({"bootstrap.servers": BOOTSTRAP})
    for number in range(ORDERS):
        producer.produce(topic, str(number).encode(), partition=0)
    producer.flush()
    done = []
    for fate in ("dies", "lives"):
        worker = subprocess.run([sys.executable, __file__, BOOTSTRAP, topic, fate], capture_output=True, text=True)
        orders = [int(line) for line in worker.stdout.split()]
        print(f"the worker that {fate} did orders {orders[0]} to {orders[-1]}")
        done += orders
    twice = sorted({order for order in done if done.count(order) > 1})
    print(f"lost: {sorted(set(range(ORDERS)) - set(done))}, done twice: {twice}")


if __name__ == "__main__":
    work(sys.argv[2], sys.argv[3] == "dies") if len(sys.argv) > 3 else main()
