"""What `make serve` says before it serves: where to connect, and what to try next."""

TEXT = """
Headrace serves on localhost:9092 in a moment; every Kafka client can connect. In another terminal, for example:

    .venv/bin/headrace topics create first --partitions 3
    echo 'hello, stream' | .venv/bin/headrace produce first
    .venv/bin/headrace consume first --exit

    echo 'from kcat' | kcat -b localhost:9092 -t first -P        and        kcat -b localhost:9092 -t first -C -e

Health and metrics: http://localhost:9404/health and http://localhost:9404/metrics. Ctrl-C stops it; the data stay in .work/data.
"""

if __name__ == "__main__":
    print(TEXT)
