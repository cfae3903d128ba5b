"""Count readings by sensor as a member of a group, in Arrow batches.

Usage: client_consume.py [HOST:PORT [TOPIC]]

Reads until nothing new arrives for two seconds. Run it twice: the second run resumes where the first one committed.
"""

from __future__ import annotations

import sys
from collections import Counter

import pyarrow.compute as pc

from headrace.client import Consumer

IDLE_S = 2.0


def main(bootstrap: str = "localhost:9092", topic: str = "measurements") -> None:
    counts: Counter[bytes] = Counter()
    options = {"bootstrap.servers": bootstrap, "group.id": f"counting-{topic}", "auto.offset.reset": "earliest"}
    with Consumer({**options, "enable.auto.commit": False}) as consumer:
        consumer.subscribe([topic], on_assigned=lambda partitions: print(f"reads {len(partitions)} partition(s)"))
        is_idle = False
        while not is_idle:
            batches = consumer.poll_batch(IDLE_S, columns=("key",))  # columns that are not requested cost nothing
            for _, rows in batches:
                for one in pc.value_counts(rows["key"]).to_pylist():
                    counts[one["values"]] += one["counts"]
            consumer.commit()  # commit after the work: nothing is lost if this program is killed
            is_idle = bool(consumer.assignment()) and not batches
    for key, count in sorted(counts.items()):
        print(f"{key.decode()}: {count}")
    print(f"{counts.total()} records")


if __name__ == "__main__":
    main(*sys.argv[1:3])
