"""Write records one by one, then a whole Arrow table at once.

Usage: client_produce.py [HOST:PORT [TOPIC]]
"""

from __future__ import annotations

import sys

import pyarrow as pa

from headrace.client import Producer


def main(bootstrap: str = "localhost:9092", topic: str = "measurements") -> None:
    with Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"}) as producer:
        deliveries = [producer.send(topic, f"reading {number}".encode(), b"sensor-1") for number in range(100)]
        last = deliveries[-1].result()  # waits for the brokers and raises if the delivery failed
        print(f"100 records, the last at offset {last.offset} of partition {last.partition}")

        rows = pa.table(
            {
                "key": pa.array([f"sensor-{number % 5}".encode() for number in range(100_000)], pa.binary()),
                "value": pa.array([f"reading {number}".encode() for number in range(100_000)], pa.binary()),
            }
        )
        ranges = producer.send_batch(topic, rows).result()
        print(f"{sum(one.rows for one in ranges)} rows in {len(ranges)} batches")
        print(f"compressed to {producer.metrics()['compression-rate-avg']:.0%}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
