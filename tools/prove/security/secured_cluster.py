"""The cluster of docs/security.md: three processes on localhost with the documented file, of which only hosts, ports and paths differ."""

from __future__ import annotations

from headrace.testing.processes import START_S_MAX, NodeProcess, free_port
from tools.prove.security.secured_files import SecuredFiles, SecuredNode

NODE_IDS = (1, 2, 3)
CLIENTS, CONTROLLER, BROKERS = 9092, 9093, 9094  # ports on the page
NODE_LOGIN = 'user_node="node-secret"'


class SecuredClusterNode(SecuredNode):
    def __init__(self, files: SecuredFiles, node_id: int, port: int) -> None:
        super().__init__(files, f"cluster-{node_id}.properties")
        self._directory = files.directory / f"node-{node_id}"
        self.log_file = self._directory / "node.log"
        self.port = port


class SecuredCluster:
    """The files of the page with one cluster.properties for each node. `more_logins` adds users to the listeners of nodes."""

    def __init__(self, files: SecuredFiles, more_logins: str = "") -> None:
        self.files = files
        self.ports = {node_id: {port: free_port() for port in (CLIENTS, CONTROLLER, BROKERS)} for node_id in NODE_IDS}
        self.ports[1][CLIENTS] = files.port  # as in the clients' files
        self.nodes: dict[int, NodeProcess] = {}
        for node_id in NODE_IDS:
            path = files.file(f"cluster-{node_id}.properties")
            path.write_text(self._localize(node_id).replace(NODE_LOGIN, f"{NODE_LOGIN} {more_logins}".strip()))
            files.run("format-cluster", str(path))
            self.nodes[node_id] = SecuredClusterNode(files, node_id, self.ports[node_id][CLIENTS])

    def _localize(self, node_id: int) -> str:
        lines = self.files.page_file("cluster.properties").splitlines()
        own = [line.replace("host1", f"host{node_id}") if line.startswith("listeners=") else line for line in lines]
        text = "\n".join(own).replace("node.id=1", f"node.id={node_id}")
        for other, ports in self.ports.items():
            for documented, port in ports.items():
                text = text.replace(f"host{other}:{documented}", f"localhost:{port}")
        return text.replace("/data", f"/data-{node_id}")

    @property
    def bootstrap(self) -> str:
        return ",".join(f"localhost:{ports[CLIENTS]}" for ports in self.ports.values())

    def client(self, name: str) -> dict[str, str]:
        """Return the options of a user's file, with all brokers."""
        return {**self.files.properties(f"{name}.properties"), "bootstrap.servers": self.bootstrap}

    def __enter__(self) -> SecuredCluster:
        try:
            for node in self.nodes.values():
                node.launch()
            for node in self.nodes.values():
                node.wait_until_serving(START_S_MAX)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.nodes.values():
            node.close()
