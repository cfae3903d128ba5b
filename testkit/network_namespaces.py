"""Hosts on this machine, as network namespaces around a switch, whose links can be cut. Needs root and Debian's iproute2.

The network is closed: the switch is a bridge in a namespace of its own, and nothing connects it to this machine's network. No packet can
leave, whatever address a test uses, so the programs that talk to the hosts must run on one of them too (`prefix`). A link is cut silently,
as by a failed switch: packets between the two hosts are sent to a hardware address that nobody has.
"""

from __future__ import annotations

import os
import shutil
import subprocess

NETWORK = "198.18.0"  # reserved for tests of networks (RFC 2544); exists only inside the namespaces
SWITCH, DEVICE = "switch", "eth0"
NOWHERE = "02:00:00:00:00:fe"  # a hardware address that no interface has
COMMAND_S_MAX = 20.0


def missing() -> str | None:
    """Return why namespaces cannot be used here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    return None if shutil.which("ip") else "ip is not on the path (Debian's iproute2)"


class NamespaceHosts:
    """Hosts numbered from 1; they exist from `__enter__` to `__exit__`.

    A program on one of them, which is given their `name`, can cut links too.
    """

    def __init__(self, count: int, name: str | None = None) -> None:
        self._numbers = range(1, count + 1)
        self.name = f"hr{os.getpid()}" if name is None else name
        self._switch = f"{self.name}-{SWITCH}"
        self._cut: set[tuple[int, int]] = set()

    def __enter__(self) -> NamespaceHosts:
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", SWITCH, "type", "bridge")
            _ip("-n", self._switch, "link", "set", SWITCH, "up")
            for number in self._numbers:
                self._add_host(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add_host(self, number: int) -> None:
        namespace, port = self._namespace(number), f"port{number}"
        _ip("netns", "add", namespace)
        # Both ends are created inside namespaces: neither is ever visible to this machine's own network.
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", namespace)
        _ip("-n", self._switch, "link", "set", port, "master", SWITCH, "up")
        _ip("-n", namespace, "addr", "add", f"{self.address(number)}/24", "dev", DEVICE)
        for device in ("lo", DEVICE):
            _ip("-n", namespace, "link", "set", device, "up")

    def __exit__(self, *exc: object) -> None:
        for namespace in (*map(self._namespace, self._numbers), self._switch):
            _ip("netns", "del", namespace, may_fail=True)

    def _namespace(self, number: int) -> str:
        return f"{self.name}-{number}"

    def address(self, number: int) -> str:
        """Return the address of a host, which only the hosts reach."""
        return f"{NETWORK}.{number}"

    def prefix(self, number: int) -> list[str]:
        """Return the words before a command that run it on this host."""
        return ["ip", "netns", "exec", self._namespace(number)]

    def cut(self, one: int, other: int) -> None:
        """Let nothing pass between two hosts until `heal`."""
        for source, target in ((one, other), (other, one)):
            self._neighbour("replace", source, target, "lladdr", NOWHERE, "nud", "permanent")
            self._cut.add((source, target))

    def heal(self) -> None:
        """Restore all links."""
        for source, target in sorted(self._cut):
            self._neighbour("del", source, target)
        self._cut.clear()

    def _neighbour(self, action: str, source: int, target: int, *more: str) -> None:
        _ip("-n", self._namespace(source), "neigh", action, self.address(target), "dev", DEVICE, *more)


def _ip(*arguments: str, may_fail: bool = False) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=COMMAND_S_MAX)
    if done.returncode != 0 and not may_fail:
        raise RuntimeError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")
