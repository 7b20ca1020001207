"""What surrounds SLURM and Ray, without either: receipts, signals, refusals; tests/cluster has both."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

import slotnorm
from slotnorm.cli import verbs
from slotnorm.errors import UserError
from slotnorm.studies import ray, relays, slurm
from slotnorm.studies.launchers import Job, launchers
from slotnorm.studies.ray import Ray, Worker, _require_listener
from slotnorm.studies.relays import Receipt, Relay, make_private, make_relays, read_receipt, require_shared
from slotnorm.studies.slurm import Slurm

RECEIPT = f"/runs/.jobs/{'1' * 32}.json"


def relay(folder: Path, code: str, **more: int) -> Relay:
    (made,) = make_relays([Job((sys.executable, "-c", code), folder)], **more)
    return made


def until(happened: object, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_engines_are_known_and_neither_is_imported() -> None:
    assert set(launchers()) >= {"local", "slurm", "ray"}
    code = "import sys, slotnorm.cli.verbs; assert not {'submitit', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_relay_keeps_what_its_command_said_and_how_it_ended(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    made = relay(work, "import os; print(os.environ['OMP_NUM_THREADS']); raise SystemExit(5)")
    assert read_receipt(Path(made.receipt)) is None
    made.start()
    assert made.wait() == 5
    assert read_receipt(Path(made.receipt)) == Receipt(socket.gethostname(), 5)
    assert (work / "log.txt").read_text() == "1\n"
    assert stat.S_IMODE((tmp_path / ".jobs").stat().st_mode) == 0o700


def test_a_command_finds_the_datasets_of_whoever_submitted_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOTNORM_CACHE", "sets")
    made = relay(work, "import os; print(os.environ['SLOTNORM_CACHE'])")
    monkeypatch.delenv("SLOTNORM_CACHE")  # as on a node of Ray
    made.start()
    assert made.wait() == 0
    assert (work / "log.txt").read_text() == f"{tmp_path / 'sets'}\n"


@pytest.mark.parametrize(
    ("code", "state"), [(None, "running"), (0, 0), (2, 2), (-9, "lost"), (143, "lost"), (140, "lost")]
)
def test_a_command_that_a_signal_ended_is_lost_and_goes_on_elsewhere(code: int | None, state: object) -> None:
    assert Receipt("here", code).state == state


def test_a_relay_passes_a_signal_on_even_while_it_waits(tmp_path: Path) -> None:
    """As submitit does: the handler runs inside of the wait, in the same thread."""
    ending = "import signal, time\nsignal.signal(signal.SIGUSR2, lambda *_: exit(7))\n"
    code = ending + "print('ready', flush=True)\ntime.sleep(60)"
    work = tmp_path / "work"
    work.mkdir()
    made = relay(work, code)
    before = signal.signal(signal.SIGUSR1, lambda *_: made.stop(signal.SIGUSR2))
    try:
        made.start()
        until(lambda: (work / "log.txt").read_text() == "ready\n")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert made.wait() == 7
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_stops_a_command_whose_engine_ignores_it(tmp_path: Path) -> None:
    """As workers of Ray do."""
    ending = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(7))\n"
    work = tmp_path / "work"
    work.mkdir()
    made = relay(
        work, ending + "signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    made.start()
    until(lambda: (work / "log.txt").read_text() == "ready\n")
    made.stop(signal.SIGINT)
    assert made.wait() == 7
    made.stop(signal.SIGINT)  # it has ended, and nothing is said


def test_a_command_whose_relay_dies_is_told_to_save(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    ending = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(print('saved', flush=True)))\n"
    made = relay(work, ending + "print('ready', flush=True)\ntime.sleep(60)")
    words = f"from slotnorm.studies.relays import Relay\nr = Relay({made.command!r}, {made.log!r}, {made.receipt!r})\n"
    parent = subprocess.Popen([sys.executable, "-c", words + "r.start()\nr.wait()"])
    until(lambda: (work / "log.txt").exists() and (work / "log.txt").read_text() == "ready\n")
    parent.kill()
    parent.wait()
    until(lambda: (work / "log.txt").read_text() == "ready\nsaved\n")


def test_several_processes_are_started_by_torchrun_where_the_engine_says(tmp_path: Path) -> None:
    command = ("python", "-m", "slotnorm", "train", "--experiment", "asked.json")
    made = Relay(command, "log", "receipt", processes=8, nodes=2)
    shown = " ".join(made._words(1, "node7", "17_3"))
    assert "-m torch.distributed.run --nproc-per-node 8 --nnodes 2 --node-rank 1 --master-addr node7" in shown
    assert shown.endswith("-m -- slotnorm train --experiment asked.json")
    assert made._words(0, "node7", "17_3") == shown.replace("--node-rank 1", "--node-rank 0").split()
    for neighbour in ("17_4", "13_7", "71_3"):
        assert made._words(1, "node7", neighbour) != shown.split(), "two trainings meet at two ports"
    assert Relay(command, "log", "receipt")._words(0, "node7", "1") == list(command)


def test_trainings_side_by_side_on_one_node_meet_at_ports_that_are_free() -> None:
    shown = " ".join(Relay(("python", "-m", "slotnorm", "train"), "log", "receipt", processes=2)._words(0, "", ""))
    assert shown.endswith("-m torch.distributed.run --nproc-per-node 2 --standalone -m -- slotnorm train")


def test_torchrun_takes_no_option_of_ours_for_its_own() -> None:
    """Abbreviated, `--log` could be its --log-dir: it refused that, wherever it stood."""
    from torch.distributed.run import parse_args

    relay = Relay(("python", "-m", "slotnorm", "train", "--log", "csv"), "log", "receipt", processes=2)
    told = relay._words(0, "", "")
    torchrun = parse_args(told[told.index("torch.distributed.run") + 1 :])
    assert torchrun.module
    assert [torchrun.training_script, *torchrun.training_script_args] == ["slotnorm", "train", "--log", "csv"]


@pytest.mark.parametrize("launcher", [Slurm(gpus=8, nodes=2), Ray(gpus=8.0), Ray(gpus=0.5)])
def test_what_one_process_does_gets_one_gpu_at_most(launcher: Slurm | Ray) -> None:
    alone = launcher.for_one_process()
    assert isinstance(alone, Slurm | Ray)
    assert alone.gpus == min(launcher.gpus, 1)
    assert getattr(alone, "nodes", 1) == 1


def test_an_actor_that_cannot_write_where_it_runs_ends_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[str] = []
    context = types.SimpleNamespace(current_actor="itself")
    fake = types.SimpleNamespace(get_runtime_context=lambda: context, kill=killed.append)
    monkeypatch.setitem(sys.modules, "ray", fake)
    away = tmp_path / "not" / "here"
    Worker({"command": ("true",), "log": str(away / "log.txt"), "receipt": str(away / "receipt.json")})
    until(lambda: killed == ["itself"])


def test_jobs_of_a_ray_that_ends_with_its_command_are_not_anothers_to_cancel() -> None:
    ticket = {"actor": "name", "receipt": RECEIPT, "address": None}
    assert not Ray().goes_on(json.dumps(ticket))
    assert Ray().goes_on(json.dumps({**ticket, "address": "auto"}))
    assert not Ray().goes_on("not a ticket")


def test_receipts_are_kept_beside_runs_and_of_the_jobs_inside_of_one_in_it(tmp_path: Path) -> None:
    runs = [tmp_path / "runs" / name for name in ("one", "two")]
    for run in runs:
        run.mkdir(parents=True)
        (run / "experiment.json").write_text("{}")
    assert relays.jobs_folder(runs[:1]) == relays.jobs_folder(runs) == tmp_path / "runs" / ".jobs"
    shards = [run / "rows" / ".unfinished" / "shard-0000-of-0002" for run in runs]
    assert relays.jobs_folder([runs[0] / "rows"]) == relays.jobs_folder(shards[:1]) == runs[0] / ".jobs"
    assert relays.jobs_folder(shards) == tmp_path / "runs" / ".jobs"
    assert relays.jobs_folder([tmp_path / "set.shards" / "shard-0000-of-0002"]) == tmp_path / "set.shards" / ".jobs"


def test_a_jobs_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".jobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link or somebody else's, and what jobs read is in it; remove it"):
        make_private(tmp_path / ".jobs")


def test_a_folder_in_memory_is_refused_where_nodes_are_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    here = socket.gethostname()
    monkeypatch.setattr(relays, "_file_system", lambda folder: "tmpfs")
    require_shared(Path("/dev/shm/runs"), [here, "localhost"])
    with pytest.raises(
        UserError, match=f"/dev/shm/runs is in the memory of {here} .tmpfs., which node1 does not share"
    ):
        require_shared(Path("/dev/shm/runs"), ["node2", "node1", here])
    monkeypatch.undo()
    assert relays._file_system(Path("/proc/self/runs")) == "proc"


def test_a_job_of_another_version_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(relays.SUBMITTED_BY, "0.0.9")
    with pytest.raises(SystemExit) as ended:
        verbs.main(["norms"])
    assert ended.value.code == 2
    sentence = f"this job was submitted by slotnorm 0.0.9, but {socket.gethostname()} has {slotnorm.__version__}; "
    assert capsys.readouterr().err == f"slotnorm: {sentence}install the same version on both\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--on", "slurm", "--gpus", "-1"], "--gpus is -1, but must be at least 0"),
        (["--on", "slurm", "--nodes", "0"], "--nodes is 0, but must be at least 1"),
        (["--on", "slurm", "--hours", "0"], "--hours is 0, but a job needs 3 minutes or more: 0.05"),
        (["--on", "slurm", "--hours", "0.04"], "--hours is 0.04, but a job needs 3 minutes or more: 0.05"),
        (["--on", "slurm", "--partition", "a\nb"], r"--partition is 'a\nb', but must be a name; `sinfo` shows those"),
        (["--on", "slurm", "--sbatch", "mem 3"], "--sbatch mem 3 is not one of sbatch's options; give"),
        (["--on", "slurm", "--sbatch", "mem=3\r4"], "--sbatch mem=3"),
        (["--on", "slurm", "--sbatch", "Exclude=a,b"], "--sbatch Exclude=a,b is not one of sbatch's options; give"),
        (["--on", "ray", "--gpus", "1.5"], "--gpus is 1.5, but must be a part of one GPU, as 0.5, or a whole number"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        verbs.main(["sweep", "toy", "--into", str(tmp_path / "runs"), *words])
    assert ended.value.code == 2
    assert f"slotnorm: {sentence}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("on", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_that_is_not_installed_is_one_sentence(
    on: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        verbs.main(["sweep", "toy", "--into", str(tmp_path / "runs"), "--on", on])
    assert ended.value.code == 2
    sentence = f"slotnorm: --on {on} needs {package}; install it by pip install 'slotnorm[{on}]'\n"
    assert capsys.readouterr().err == sentence
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["runs-%j", "runs\\1", "runs\nrm"])
def test_a_folder_that_slurm_would_read_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="in its name, which SLURM reads as something else; choose another folder"):
        Slurm().check([tmp_path / name / "run"])


def test_a_machine_without_slurm_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_submitit", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match="--on slurm needs SLURM's commands, and sbatch is not on this machine; give the"
    ):
        Slurm().check([tmp_path / "runs" / "toy"])


def test_more_nodes_than_there_are_would_wait_forever_and_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_submitit", lambda: None)
    for program in ("sbatch", "srun", "squeue", "scancel", "sinfo"):
        (tmp_path / program).write_text(
            '#!/bin/sh\ncase "$*" in *partition=gone*) ;; *) echo "n1 localhost"; echo "n1 localhost";; esac\n'
        )  # n1 is in two partitions
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folders = [tmp_path / "runs" / "toy"]
    Slurm(nodes=1).check(folders)
    with pytest.raises(UserError, match=r"^--nodes is 2, but SLURM has only 1; `sinfo` shows them$"):
        Slurm(nodes=2).check(folders)
    with pytest.raises(UserError, match="^--nodes is 3, but partition main has only 1;"):
        Slurm(nodes=3, partition="main").check(folders)
    Slurm(nodes=3, partition="gone").check(folders)  # the scheduler's own words say it, when it is given the jobs


@pytest.mark.parametrize(
    ("address", "what", "way_out"),
    [
        (None, "Ray cannot start here", "the same command tries again"),
        ("10.9:1", "Ray cannot join --address 10.9:1", "give that of a cluster that runs, or leave it out"),
    ],
)
def test_whatever_keeps_ray_from_starting_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, address: str | None, what: str, way_out: str
) -> None:
    """Ray raises a bare Exception when its own daemons take longer than it waits."""

    def init(**_: object) -> None:
        raise Exception("The current node timed\n out during startup.")

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False, init=init))
    for variable in ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(variable, "0")  # they are set for Ray, and put back after this test
    with pytest.raises(UserError) as refused:
        ray._connect(address)
    assert str(refused.value) == f"{what}: The current node timed out during startup; {way_out}"


def test_slurm_is_asked_seldom_and_a_silent_controller_loses_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program, answers = tmp_path / "squeue", tmp_path / "asked"
    program.write_text(f"#!/bin/sh\necho >> {answers}\necho '7_0 RUNNING'\necho '7_1 PENDING'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tickets = [
        json.dumps({"job": f"7_{number}", "receipt": f"{tmp_path}/.jobs/{number:032x}.json"}) for number in range(3)
    ]
    launcher = Slurm()
    for _ in range(5):
        assert launcher.watch([*tickets, "not a ticket"]) == ["running", "waiting", "lost", "lost"]
    assert answers.read_text() == "\n"
    program.write_text("#!/bin/sh\necho 'squeue: error: Unable to contact slurm controller' >&2\nexit 1\n")
    assert Slurm().watch(tickets) == ["waiting"] * 3
    assert "warning: squeue fails: Unable to contact slurm controller; it is asked again" in caplog.text


def test_the_schedulers_words_are_said_once() -> None:
    refusal = "sbatch: error: invalid partition specified: fast\nsbatch: error: invalid partition specified: fast\n\n"
    assert slurm._words_of_slurm(refusal) == "invalid partition specified: fast"


def test_an_address_without_a_ray_cluster_is_one_sentence_at_once() -> None:
    with pytest.raises(UserError, match="there is no Ray cluster at --address 127.0.0.1:9: .*refused"):
        _require_listener("127.0.0.1:9")
    _require_listener("auto")


def test_a_ticket_that_is_not_ours_is_lost_and_not_cancelled() -> None:
    launcher = Ray()
    assert launcher._look(None, set()) == "lost"
    launcher.cancel(["not a ticket", "{}"])


@pytest.mark.parametrize("job", ["--me", "--user=someone", "7 8", "7_[0-99]", "", "7\n8", "²", [], {"x": 1}, None])
def test_a_ticket_cannot_give_scancel_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: object) -> None:
    """A file says which job it is, and anyone can make a file."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(slurm, "_ask", lambda *command: asked.append(command))
    forged = json.dumps({"job": job, "receipt": RECEIPT})
    own = json.dumps({"job": "7_1", "receipt": RECEIPT})
    Slurm().cancel([forged, own, "[" * 100_000])
    assert asked == [("scancel", "--quiet", "7_1")]


@pytest.mark.parametrize(
    "receipt",
    [
        "",
        "x",
        RECEIPT[1:],
        "/runs/.jobs/a\0.json",
        f"/a\0{RECEIPT}",
        f"{RECEIPT}/../../x",
        "/etc/passwd",
        f"{RECEIPT}\n",
        7,
        None,
    ],
)
def test_a_ticket_cannot_name_other_files_than_receipts(receipt: object) -> None:
    own, forged = ({"job": "7_1", "actor": "x", "address": None, "receipt": path} for path in (RECEIPT, receipt))
    assert slurm._read(json.dumps(own)) == ("7_1", Path(RECEIPT))
    assert slurm._read(json.dumps(forged)) == (None, Path())
    assert ray._read(json.dumps(own)) is not None
    assert ray._read(json.dumps(forged)) is None


def test_a_ticket_cannot_connect_to_another_ray_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects to a cluster may be made to run code by it."""
    connected: list[object] = []

    def connect(address: object) -> None:
        connected.append(address)
        raise UserError("no cluster")

    monkeypatch.setattr(ray, "_connect", connect)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ticket = {"actor": "x", "receipt": RECEIPT}

    def cancel(address: object, launcher: Ray | None = None) -> None:
        (launcher or Ray()).cancel([json.dumps({**ticket, "address": address})])

    for address in ("elsewhere.example:6379", "ray://elsewhere.example:10001", "x", "127.0.0.1.example:1", ["x"]):
        with pytest.raises(UserError, match="if that is yours, set RAY_ADDRESS="):
            cancel(address)
    assert connected == []
    for address, launcher in (("auto", Ray()), ("127.0.0.1:6379", Ray()), ("node:6379", Ray(address="node:6379"))):
        with pytest.raises(UserError, match="no cluster"):
            cancel(address, launcher)
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere.example:6379")
    with pytest.raises(UserError, match="no cluster"):
        cancel("elsewhere.example:6379")
    assert len(connected) == 4
