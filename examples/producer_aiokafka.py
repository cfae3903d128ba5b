"""Write a hundred records with aiokafka, all in flight at once."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaProducer


async def main(bootstrap: str = "localhost:9092", topic: str = "greetings", *, count: int = 100) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=5) as producer:
        sent = [
            await producer.send(
                topic, key=b"k%d" % (number % 7), value=b"greeting %d" % number, headers=[("from", b"aiokafka")]
            )
            for number in range(count)
        ]
        done = await asyncio.gather(*sent, return_exceptions=True)
    acknowledged = [one for one in done if not isinstance(one, BaseException)]
    print(f"{len(acknowledged)} of {count} acknowledged")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
