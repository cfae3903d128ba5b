"""Worker processes whose events are recorded in one history. Only processes started here are ever paused or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from testkit.history import History
from testkit.history_transactions import ABORT, COMMIT

from tools.prove.registry import ROOT

READ_BYTES = 1 << 16
ENDED_S_MAX = 30.0


class WorkerProcess:
    """A process that runs `worker`, and the operations that it has reported."""

    def __init__(self, name: str, transactional_id: str, bootstrap: str, seed: int, history: History) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.committed = self.aborted = 0
        self._history = history
        self._calls: dict[str, int] = {}  # by value, or by transaction and operation
        self._left = b""
        module = "tools.prove.transactions.worker"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, name, transactional_id, bootstrap, str(seed)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._stream = self._process.stdout
        os.set_blocking(self._stream.fileno(), False)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def read_events(self) -> None:
        """Record everything that the worker has printed by now in the history."""
        while True:
            try:
                more = os.read(self._stream.fileno(), READ_BYTES)
            except BlockingIOError:
                return
            if not more:
                return
            *lines, self._left = (self._left + more).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if "do" in event:
                    self._record_start(event)
                else:
                    self._record_end(event)

    def _record_start(self, event: dict[str, Any]) -> None:
        operation, transaction = event["do"], event["transaction"]
        if operation == "send":
            topic, partition, value = event["topic"], event["partition"], event["value"]
            self._calls[value] = self._history.invoke(
                f"{self.name}/{partition}",
                operation,
                transaction=transaction,
                topic=topic,
                partition=partition,
                values=[value],
                once=True,
            )
        else:
            self._calls[f"{operation} {transaction}"] = self._history.invoke(
                self.name, operation, transaction=transaction
            )

    def _record_end(self, event: dict[str, Any]) -> None:
        operation = event["did"]
        call = self._calls.pop(event["value"] if operation == "send" else f"{operation} {event['transaction']}")
        if event["error"] is not None:
            self._history.info(call, error=event["error"])
        elif operation == "send":
            self._history.ok(call, offset=event["offset"])
        else:
            self._history.ok(call)
            self.committed += operation == COMMIT
            self.aborted += operation == ABORT

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Send SIGTERM; the worker ends its transaction and exits."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(ENDED_S_MAX)
        self.read_events()

    def close(self) -> None:
        self.kill()
        self._stream.close()
