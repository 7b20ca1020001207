"""Ray's own local cluster, with a token of its own: a head without CPUs and two nodes with one each."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

MEMORY = 80_000_000  # bytes of each node's object store, which no job of ours uses


class Nodes:
    """A head and its nodes."""

    def __init__(self, environment: dict[str, str]) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
        self.environment, self.cluster = environment, Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self.cluster.address
        self.nodes: list[Any] = []

    def add(self) -> None:
        """One more node with one CPU."""
        self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=MEMORY))

    def remove(self, node: Any) -> None:
        """End a node without a word, as by a power cut."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def node_of(self, process: int) -> Any:
        """The node on which a process runs."""
        daemons = {node.all_processes["raylet"][0].process.pid: node for node in self.nodes}
        while process > 1:
            if process in daemons:
                return daemons[process]
            process = _parent(process)
        raise AssertionError("the process is on no node")


@contextmanager
def running() -> Iterator[Nodes]:
    """A head and two nodes; all of them are ended afterwards."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # whoever has it may run code here
    with mock.patch.dict(os.environ, {**token, "RAY_USAGE_STATS_ENABLED": "0"}):
        nodes = Nodes(dict(os.environ))
        try:
            nodes.add()
            nodes.add()
            yield nodes
        finally:
            nodes.cluster.shutdown()


def _parent(process: int) -> int:
    try:
        return int(re.sub(r".*\) . ", "", Path(f"/proc/{process}/stat").read_text()).split()[0])
    except OSError:
        return 0
