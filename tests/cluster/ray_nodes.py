"""A Ray cluster on this machine: a head without CPUs and two nodes with one each, on loopback."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = 6399  # outside of those that Ray gives to workers
_RAY = str(Path(sys.executable).with_name("ray"))


class Nodes:
    """What was started, each with its own processes."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment, self.address = environment, f"127.0.0.1:{PORT}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A node that lives as long as its process, which is the leader of a group of its own."""
        command = [_RAY, "start", *words, "--block", "--disable-usage-stats", "--object-store-memory", "80000000"]
        process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.processes.append(process)
        return process

    def add(self) -> subprocess.Popen[bytes]:
        """One more node with one CPU."""
        return self.start("--address", self.address, "--num-cpus", "1")

    def remove(self, node: subprocess.Popen[bytes]) -> None:
        """End a node without a word: its daemons are killed, as by a power cut."""
        for child in _children(node.pid):
            os.kill(child, signal.SIGKILL)
        node.kill()
        node.wait()
        self.processes.remove(node)

    def node_of(self, process: int) -> subprocess.Popen[bytes]:
        """The node on which a process runs."""
        for node in self.processes:
            above = process
            while above > 1:
                if above == node.pid:
                    return node
                above = _parent(above)
        raise AssertionError(f"process {process} is on no node")


@contextmanager
def running(folder: Path) -> Iterator[Nodes]:
    """A head and two nodes; all of them are ended afterwards."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # whoever has it may run code here
    quiet = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **token, **quiet}
    nodes = Nodes(environment)
    try:
        head = ["--head", "--port", str(PORT), "--num-cpus", "0", "--include-dashboard", "false"]
        nodes.start(*head, "--node-ip-address", "127.0.0.1", "--temp-dir", str(folder))
        time.sleep(8)
        nodes.add()
        nodes.add()
        wait_for_nodes(nodes, 2)
        yield nodes
    finally:
        for node in [*nodes.processes[1:], *nodes.processes[:1]]:
            node.terminate()
        for node in nodes.processes:
            node.wait(60)


def wait_for_nodes(nodes: Nodes, number: int, seconds: float = 90) -> None:
    """Until so many nodes with a CPU have joined the head."""
    code = (
        f"import ray; ray.init('{nodes.address}', logging_level='ERROR')\n"
        "print('nodes:', sum(node['Alive'] and node['Resources'].get('CPU', 0) > 0 for node in ray.nodes()))"
    )
    deadline, said = time.monotonic() + seconds, ""
    while time.monotonic() < deadline:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=nodes.environment, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if f"nodes: {number}" in done.stdout:
            return
        time.sleep(1)
    raise AssertionError(f"the nodes do not come up: {said}")


def _parent(process: int) -> int:
    try:
        return int(re.sub(r".*\) . ", "", Path(f"/proc/{process}/stat").read_text()).split()[0])
    except OSError:
        return 0


def _children(process: int) -> list[int]:
    """Every process below one, the nearest first; the commands of jobs are left to notice by themselves."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    direct = [number for number in numbers if _parent(number) == process]
    daemons = [number for number in direct if "slotnorm" not in _command(number)]
    return [*daemons, *(below for number in daemons for below in _children(number))]


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
