"""`python -m tools.prove.garbage_clients PORT COUNT`: so many connections that talk rubbish until SIGTERM.

Whoever is thrown out comes again after a second with the next kind of rubbish, as Kafka's clients come again. Says `ready` when all of them
have been connected once, and at the end how often that happened: one line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import struct
import sys
from dataclasses import dataclass

from headrace.testing.processes import LOOPBACK

COME_AGAIN_S = 1.0  # reconnect.backoff.max.ms of Kafka's clients
CONNECTS_AT_ONCE = 16
CONNECT_PAUSE_S = 0.005  # a listen queue that overflows would hold back the good client too
READ_BYTES = 4096
SEED = 7
_HEADER = struct.Struct(">ihhi")  # size, API key, version, correlation id
_PRODUCE, _UNKNOWN_API = 0, 9999


def kinds(chance: random.Random) -> list[bytes]:
    """What comes to a port that is open to the world, and what knows a little of the protocol."""
    rubbish = chance.randbytes(500)
    return [
        rubbish,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rubbish,  # the beginning of a TLS handshake
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff" + rubbish,
        _HEADER.pack(len(rubbish) + 8, _UNKNOWN_API, 0, 1) + rubbish,
        _HEADER.pack(len(rubbish) + 8, _PRODUCE, 9, 1) + rubbish,
        _HEADER.pack(len(rubbish) + 8, _PRODUCE, 300, 1) + rubbish,
        _HEADER.pack(100_000_000, _PRODUCE, 9, 1)[:7],  # an announcement, and silence
    ]


@dataclass
class Tally:
    connected: int = 0
    thrown_out: int = 0
    refused: int = 0


async def _pester(port: int, said: list[bytes], number: int, tally: Tally) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            tally.refused += 1
        else:
            tally.connected += 1
            with contextlib.suppress(OSError):
                writer.write(said[number % len(said)])
                while await reader.read(READ_BYTES):
                    pass
            tally.thrown_out += 1
            writer.close()
            number += 1
        await asyncio.sleep(COME_AGAIN_S)


async def main(port: int, count: int) -> None:
    tally = Tally()
    said = kinds(random.Random(SEED))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(_pester(port, said, number, tally)))
        if number % CONNECTS_AT_ONCE == 0:
            await asyncio.sleep(CONNECT_PAUSE_S)
    print("ready", flush=True)
    await ended.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(vars(tally)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
