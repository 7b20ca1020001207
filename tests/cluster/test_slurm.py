"""SLURM itself, on this machine: runs that are killed, requeued, left and cancelled end with the bits of local ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_daemons

import clusters
from conftest import SIX
from slotnorm.training.runs import Run

pytestmark = pytest.mark.cluster


def ask(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def job(sweep: clusters.Sweep, run: str) -> str:
    return str(json.loads(sweep.ticket(run))["job"])


def warn(environment: dict[str, str], job: str) -> None:
    """Send a job what SLURM sends before it preempts one or its time is over.

    To its step: of a place in an array, scancel says that it failed, and repeats it, while later places wait.
    """
    ask(environment, "scancel", "--signal=USR2", f"{job}.0")


def test_six_runs_of_which_one_is_killed_and_one_requeued_end_as_local_ones(
    tmp_path: Path, data: Path, local: dict[str, str], slurm: dict[str, str]
) -> None:
    sweep = clusters.Sweep(tmp_path, data, [*SIX, "--on", "slurm", "--hours", "1"], slurm, waiting=True)
    killed, requeued = "toy-layer_norm-1", "toy-weighted_sum-1"  # the first two of the array, on a node each
    sweep.until_saved(killed)
    ask(slurm, "scancel", "--signal=KILL", job(sweep, killed))
    sweep.until_saved(requeued)
    first = job(sweep, requeued)
    warn(slurm, first)
    sweep.until_logged(requeued, "stopped by SIGUSR2 and saved at step")
    sweep.go_on()
    assert sweep.wait() == 0, sweep.said
    assert clusters.weights(sweep.runs) == local
    submitit = (sweep.runs / ".jobs" / f"{first}_0_log.out").read_text()
    assert submitit.count("Starting with JobEnvironment") == 2, "the same job was started again by SLURM"
    assert os.stat(sweep.runs / ".jobs").st_mode & 0o777 == 0o700
    assert not list(sweep.runs.glob("*/job.json"))


def test_a_time_limit_saves_and_requeues_by_itself(
    tmp_path: Path, data: Path, local: dict[str, str], slurm: dict[str, str]
) -> None:
    words = ["--norms", "weighted_sum", "--seeds", "1", "--on", "slurm", "--hours", "0.05", "--retries", "0"]
    sweep = clusters.Sweep(tmp_path, data, words, slurm, waiting=True)
    run = sweep.runs / sweep.until_saved()
    first = job(sweep, run.name)
    assert ask(slurm, "squeue", "--noheader", "--format=%l", "--jobs", first).strip() == "3:00"
    sweep.until_logged(run.name, "stopped by SIGUSR2 and saved at step")  # which nobody sends but SLURM
    sweep.go_on()
    assert sweep.wait() == 0, sweep.said
    assert clusters.weights(sweep.runs).items() <= local.items()
    assert "resuming" in (run / "log.txt").read_text()
    submitit = (sweep.runs / ".jobs" / f"{first}_0_log.out").read_text()
    assert "this job is timed-out" in submitit
    assert submitit.count("Starting with JobEnvironment") > 1, "the same job was started again by SLURM"


def test_a_job_that_is_preempted_goes_on_later(
    tmp_path: Path, data: Path, local: dict[str, str], slurm: dict[str, str]
) -> None:
    words = ["--norms", "weighted_sum", "--seeds", "1", "2", "--on", "slurm", "--partition", "main", "--retries", "0"]
    sweep = clusters.Sweep(tmp_path, data, words, slurm, waiting=True)
    for seed in (1, 2):
        sweep.until_saved(f"toy-weighted_sum-{seed}")
    urgent = ["--partition", slurm_daemons.URGENT, "--output", os.devnull, "--wait", "--wrap", "true"]
    ask(slurm, "sbatch", *urgent)  # there is no free node: it takes one of the two
    sweep.go_on()
    assert sweep.wait() == 0, sweep.said
    assert clusters.weights(sweep.runs).items() <= local.items()
    logs = [(sweep.runs / f"toy-weighted_sum-{seed}" / "log.txt").read_text() for seed in (1, 2)]
    assert sorted("resuming" in log for log in logs) == [False, True], logs
    assert sum("stopped by SIGTERM and saved" in log for log in logs) == 1, logs


def test_ctrl_c_leaves_jobs_running_and_a_second_sweep_waits_for_them(
    tmp_path: Path, data: Path, local: dict[str, str], slurm: dict[str, str]
) -> None:
    words = ["--norms", "layer_norm", "--seeds", "1", "2", "--on", "slurm"]
    first = clusters.Sweep(tmp_path, data, words, slurm, waiting=True)
    first.until_saved("toy-layer_norm-1")
    jobs = [job(first, f"toy-layer_norm-{seed}") for seed in (1, 2)]
    assert first.interrupt() == 130
    status = f"slotnorm status {first.runs}"
    assert f"stopped by SIGINT; its jobs go on: `{status}` shows them, `{status} --cancel` stops them" in first.said
    second = clusters.Sweep(tmp_path, data, words, slurm)
    third = clusters.Sweep(tmp_path, data, words, slurm)
    first.go_on()
    assert (second.wait(), third.wait()) == (0, 0), second.said + third.said
    assert clusters.weights(first.runs).items() <= local.items()
    submitted = sorted(path.name for path in (first.runs / ".jobs").glob("*_submitted.pkl"))
    assert submitted == sorted(f"{number}_submitted.pkl" for number in jobs), "no run was submitted twice"


def test_status_cancels_and_the_same_command_continues(
    tmp_path: Path, data: Path, local: dict[str, str], slurm: dict[str, str]
) -> None:
    words = ["--norms", "weighted_sum", "--seeds", "1", "2", "3", "--on", "slurm"]
    sweep = clusters.Sweep(tmp_path, data, words, slurm, waiting=True)
    for seed in (1, 2):  # on the two nodes; the third waits
        sweep.until_saved(f"toy-weighted_sum-{seed}")
    command = [sys.executable, "-m", "slotnorm", "status", str(sweep.runs), "--cancel"]
    assert "3 jobs of slurm cancelled" in ask(slurm, *command)
    assert sweep.wait() == 1
    assert sweep.said.count("failed, cancelled by `slotnorm status --cancel`") == 3
    assert not ask(slurm, "squeue", "--noheader", "--states=PENDING,RUNNING")
    for seed in (1, 2):
        run = sweep.runs / f"toy-weighted_sum-{seed}"
        assert "stopped by SIGTERM and saved" in (run / "log.txt").read_text()
        assert not Run.open(run).finished
    assert not (sweep.runs / "toy-weighted_sum-3" / "log.txt").exists(), "it was never started"
    sweep.go_on()
    again = clusters.Sweep(tmp_path, data, words, slurm)
    assert again.wait() == 0, again.said
    assert clusters.weights(sweep.runs).items() <= local.items()


@pytest.mark.parametrize("together", [["--nodes", "2"], ["--gpus", "2"]])
def test_two_nodes_or_two_gpus_train_one_run_together(
    tmp_path: Path, data: Path, slurm: dict[str, str], together: list[str]
) -> None:
    words = ["--norms", "weighted_sum", "--seeds", "1", "--on", "slurm", *together]
    sweep = clusters.Sweep(tmp_path, data, words, slurm, steps=40)
    assert sweep.wait() == 0, sweep.said + (sweep.runs / "toy-weighted_sum-1" / "log.txt").read_text()
    record = Run.open(sweep.runs / "toy-weighted_sum-1").record()
    assert (record.step, record.world_size) == (40, 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--partition", "fast"], "SLURM refuses the jobs: invalid partition specified: fast; "),
        (["--gpus", str(slurm_daemons.GPUS + 1)], "Requested node configuration is not available"),
    ],
)
def test_what_the_scheduler_refuses_is_said_once_in_its_own_words(
    tmp_path: Path, data: Path, slurm: dict[str, str], words: list[str], sentence: str
) -> None:
    sweep = clusters.Sweep(
        tmp_path, data, ["--norms", "layer_norm", "--seeds", "1", "2", "--on", "slurm", *words], slurm
    )
    assert sweep.wait() == 2
    assert sweep.said.count(sentence) == 1, sweep.said
    assert "Traceback" not in sweep.said


def test_a_controller_that_is_away_for_a_while_loses_nothing(
    tmp_path: Path, data: Path, local: dict[str, str], slurm: dict[str, str]
) -> None:
    words = ["--norms", "layer_norm", "--seeds", "1", "--on", "slurm"]
    sweep = clusters.Sweep(tmp_path, data, words, slurm, waiting=True)
    sweep.until_saved()
    folder = Path(slurm["SLURM_CONF"]).parent
    slurm_daemons.stop(folder / "slurmctld.pid")
    sweep.until(lambda: "warning: squeue fails: " in sweep.said)
    subprocess.run(["slurmctld", "-f", slurm["SLURM_CONF"]], env=slurm, check=True)
    sweep.go_on()
    assert sweep.wait() == 0, sweep.said
    assert clusters.weights(sweep.runs).items() <= local.items()
    slurm_daemons.wait_for_nodes(slurm)
