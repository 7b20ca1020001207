"""Ray itself, on this machine: runs that lose their node, are left or cancelled end with the bits of local ones."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray_nodes

import clusters
from conftest import SIX
from slotnorm.training.runs import Run

pytestmark = pytest.mark.cluster


def test_six_runs_of_which_one_loses_its_node_end_as_local_ones(
    tmp_path: Path, data: Path, local: dict[str, str], ray: ray_nodes.Nodes
) -> None:
    words = [*SIX, "--on", "ray", "--address", ray.address]
    sweep = clusters.Sweep(tmp_path, data, words, ray.environment, waiting=True)
    run = sweep.runs / sweep.until_saved()
    process = re.match(r"process (\d+) on", (run / ".lock").read_text())
    assert process is not None
    ray.remove(ray.node_of(int(process[1])))
    ray.add()
    sweep.go_on()
    assert sweep.wait() == 0, sweep.said
    assert clusters.weights(sweep.runs) == local
    assert "resuming" in (run / "log.txt").read_text(), "it went on elsewhere"
    assert not list(sweep.runs.glob("*/job.json"))


def test_ctrl_c_leaves_jobs_running_and_status_cancels_them(
    tmp_path: Path, data: Path, local: dict[str, str], ray: ray_nodes.Nodes
) -> None:
    words = ["--norms", "layer_norm", "--seeds", "1", "2", "3", "--on", "ray", "--address", ray.address]
    first = clusters.Sweep(tmp_path, data, words, ray.environment, waiting=True)
    run = first.until_saved()
    assert first.interrupt() == 130
    status = f"slotnorm status {first.runs}"
    assert f"stopped by SIGINT; its jobs go on: `{status}` shows them, `{status} --cancel` stops them" in first.said
    command = [sys.executable, "-m", "slotnorm", "status", str(first.runs), "--cancel"]
    own = {**ray.environment, "RAY_ADDRESS": ray.address}
    printed = subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout
    assert "3 jobs of ray cancelled" in printed
    assert "stopped by SIGTERM and saved" in (first.runs / run / "log.txt").read_text()
    first.go_on()
    again = clusters.Sweep(tmp_path, data, words, ray.environment)
    assert again.wait() == 0, again.said
    assert clusters.weights(first.runs).items() <= local.items()


def test_two_gpus_of_a_node_train_one_run_together(tmp_path: Path, data: Path, ray: ray_nodes.Nodes) -> None:
    node = ray.add(gpus=2)
    try:
        words = ["--norms", "weighted_sum", "--seeds", "1", "--on", "ray", "--address", ray.address, "--gpus", "2"]
        sweep = clusters.Sweep(tmp_path, data, words, ray.environment, steps=40)
        assert sweep.wait() == 0, sweep.said + (sweep.runs / "toy-weighted_sum-1" / "log.txt").read_text()
    finally:
        ray.remove(node, allow_graceful=True)
    record = Run.open(sweep.runs / "toy-weighted_sum-1").record()
    assert (record.step, record.world_size) == (40, 2)


def test_more_gpus_than_a_node_has_are_refused(tmp_path: Path, data: Path, ray: ray_nodes.Nodes) -> None:
    words = ["--norms", "layer_norm", "--seeds", "1", "--on", "ray", "--address", ray.address, "--gpus", "2"]
    sweep = clusters.Sweep(tmp_path, data, words, ray.environment)
    assert sweep.wait() == 2
    assert "slotnorm: --gpus is 2, but no node of the Ray cluster has more than 0\n" in sweep.said
    assert not sweep.runs.exists()


def test_without_an_address_ray_listens_on_loopback_alone(tmp_path: Path, data: Path, local: dict[str, str]) -> None:
    sweep = _sweep_on_a_ray_of_its_own(tmp_path, data)
    sweep.until_saved()
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [
        line for line in listening if any(_is_of(sweep, int(process)) for process in re.findall(r"pid=(\d+)", line))
    ]
    for server in ("gcs_server", "raylet"):
        assert any(server in line for line in ours), listening
    assert all(re.match(r"127\.0\.0\.1:|\[::ffff:127\.0\.0\.1\]:", line.split()[3]) for line in ours), ours
    assert not any("dashboard" in line.lower() for line in ours), ours
    (server,) = {process for line in ours for process in re.findall(r'"gcs_server",pid=(\d+)', line)}
    environment = Path(f"/proc/{server}/environ").read_text().split("\0")
    assert "RAY_USAGE_STATS_ENABLED=0" in environment
    sweep.go_on()
    assert sweep.wait() == 0, sweep.said
    assert clusters.weights(sweep.runs).items() <= local.items()


def _sweep_on_a_ray_of_its_own(folder: Path, data: Path) -> clusters.Sweep:
    """One whose Ray has started: Ray waits for its daemons for 30 seconds, which a busy machine does not keep."""
    words = ["--norms", "layer_norm", "--seeds", "1", "--on", "ray"]
    for _ in range(10):
        sweep = clusters.Sweep(folder, data, words, waiting=True)
        while sweep.process.poll() is None:
            if any(sweep.runs.glob("*/job.json")):
                return sweep
            time.sleep(0.1)
        assert "Ray cannot start here: The current node timed out" in sweep.said, sweep.said
    raise AssertionError(sweep.said)


def _is_of(sweep: clusters.Sweep, process: int) -> bool:
    return sweep.process.pid in clusters.ancestry(process)


def test_an_address_without_a_cluster_is_one_sentence(tmp_path: Path, data: Path) -> None:
    words = ["--norms", "layer_norm", "--seeds", "1", "--on", "ray", "--address", "127.0.0.1:9"]
    sweep = clusters.Sweep(tmp_path, data, words)
    assert sweep.wait() == 2
    assert "slotnorm: there is no Ray cluster at --address 127.0.0.1:9: " in sweep.said
    assert "Traceback" not in sweep.said
