"""Ray's own local cluster, with a token of its own: a head without CPUs and two nodes with one each."""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import clusters

PATIENT = {"RAY_health_check_timeout_ms": "120000"}  # a busy machine's node is late, and not lost
MEMORY = 80_000_000  # bytes of each node's object store, which no job of ours uses


class Nodes:
    """A head and its nodes."""

    def __init__(self, environment: dict[str, str]) -> None:
        from ray.cluster_utils import Cluster

        self.environment, self.cluster = environment, Cluster()
        self._start(num_cpus=0, include_dashboard=False)
        self.address: str = self.cluster.address
        self.nodes: list[Any] = []

    def add(self, gpus: int = 0) -> Any:
        """One more node with one CPU; its GPUs are counted alone, and no job touches one."""
        self.nodes.append(self._start(num_cpus=1, num_gpus=gpus))
        return self.nodes[-1]

    def _start(self, **resources: Any) -> Any:
        """A node that has joined; add_node itself waits for 30 seconds, twice, which a busy machine does not keep."""
        from ray._private import services

        with mock.patch.object(services, "get_node", _patiently(services.get_node)):
            node = self.cluster.add_node(wait=False, object_store_memory=MEMORY, **resources)
        self.cluster._wait_for_node(node, timeout=clusters.PATIENCE)
        return node

    def remove(self, node: Any, allow_graceful: bool = False) -> None:
        """End a node without a word, as by a power cut, or after it has signed off, so that nobody counts on it."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=allow_graceful)

    def node_of(self, process: int) -> Any:
        """The node on which a process runs."""
        daemons = {node.all_processes["raylet"][0].process.pid: node for node in self.nodes}
        return next(daemons[above] for above in clusters.ancestry(process) if above in daemons)


def _patiently(ask: Callable[..., Any]) -> Callable[..., Any]:
    """The same question, asked until it is answered."""

    def ask_again(*arguments: Any) -> Any:
        deadline = time.monotonic() + clusters.PATIENCE
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:  # the node is not known yet
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    return ask_again


@contextmanager
def running() -> Iterator[Nodes]:
    """A head and two nodes; all of them are ended afterwards."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # whoever has it may run code here
    with mock.patch.dict(os.environ, {**token, **PATIENT, "RAY_USAGE_STATS_ENABLED": "0"}):
        nodes = Nodes(dict(os.environ))
        try:
            nodes.add()
            nodes.add()
            yield nodes
        finally:
            import ray  # which reads the token when it is imported

            ray.shutdown()  # this process may have joined them
            nodes.cluster.shutdown()
