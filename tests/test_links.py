"""Nothing is written outside of the folder that was named: every path that is written is put to the test as a link."""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import processes
import tiny
from slotnorm.cli import verbs
from slotnorm.data import Builder, image_files
from slotnorm.errors import DamagedFile, UserError
from slotnorm.storage import files
from slotnorm.storage.archives import read_arrays
from slotnorm.studies.relays import Relay
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

PRECIOUS = b"precious\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A run's folder after 12 of 16 steps, with everything in it that training and evaluation write."""
    run = train(tiny.experiment(steps=12), tmp_path_factory.mktemp("runs"), data=data, observers=["pictures", "csv"])
    evaluate(run.path, data)
    return run.path


def evaluate(path: Path, data: Path) -> None:
    arguments = ["eval", str(path), "--dataset", "toy", "--data", str(data), "--slots", "3:4", "--scenes", "8"]
    try:
        verbs.main(arguments)
    except SystemExit as ended:
        assert ended.code in (1, 2, 4)  # noqa: PT017


def outside(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def written_paths() -> list[str]:
    """Of a run: what train, sweep and eval write, files and folders; those that are replaced by a rename among them."""
    return [
        ".lock", "experiment.json", "metrics.jsonl", "metrics.csv", "checkpoints", "pictures", "rows", "rows/.lock",
        "rows/SET.npz", "rows/binding.json", "rows/.unfinished", "checkpoints/step-16.safetensors",
        "checkpoints/step-16.optimizer.safetensors", "checkpoints/step-16.json", "pictures/step-16.png",
    ]  # fmt: skip


def test_everything_that_is_written_in_a_run_is_put_to_the_test(unfinished: Path) -> None:
    (rows,) = (unfinished / "rows").glob("*.npz")
    names = {str(path.relative_to(unfinished)).replace(rows.name, "SET.npz") for path in unfinished.rglob("*")}
    assert {re.sub(r"step-\d+", "step-16", name) for name in names} <= set(written_paths())


@pytest.mark.parametrize("leads_to", ["something", "nothing"])
@pytest.mark.parametrize("name", written_paths())
def test_no_verb_writes_through_a_link_in_a_run(
    tmp_path: Path, data: Path, unfinished: Path, name: str, leads_to: str, record_property: Callable[..., None]
) -> None:
    record_property("fault", ("a link in the place of a file or folder that is written", 1, 1))
    path = shutil.copytree(unfinished, tmp_path / "runs" / unfinished.name)
    name = name.replace("SET.npz", next((unfinished / "rows").glob("*.npz")).name)
    place, victims = path / name, tmp_path / "victims"
    victims.mkdir()
    victim = victims / "victim"
    if place.is_dir():
        if leads_to == "something":
            shutil.move(place, victim)
        else:
            shutil.rmtree(place)
    elif place.exists():
        place.unlink()
    if leads_to == "something" and not victim.exists():
        victim.mkdir() if name == "rows/.unfinished" else victim.write_bytes(PRECIOUS)
    place.symlink_to(victim)
    before = outside(victims)
    try:
        train(tiny.experiment(steps=16), path.parent, data=data, observers=["pictures", "csv"])
    except UserError as refused:
        assert "is a link, and links are not written through" in str(refused) or "experiment" in str(refused)  # noqa: PT017
    evaluate(path, data)
    assert outside(victims) == before
    assert leads_to == "something" or not victim.exists()


def test_linked_checkpoints_are_refused_before_a_step_is_taken(tmp_path: Path, data: Path, unfinished: Path) -> None:
    """They may be read: a finished run whose checkpoints lie on another disk is evaluated."""
    path, elsewhere = shutil.copytree(unfinished, tmp_path / "runs" / unfinished.name), tmp_path / "elsewhere"
    shutil.move(path / "checkpoints", elsewhere)
    (path / "checkpoints").symlink_to(elsewhere)
    before = outside(tmp_path)
    with pytest.raises(UserError, match="checkpoints is a link, and links are not written through; put what it leads"):
        train(tiny.experiment(steps=16), path.parent, data=data)
    assert outside(tmp_path) == before
    assert train(tiny.experiment(steps=12), path.parent, data=data).finished
    evaluate(path, data)


def test_what_a_save_cannot_replace_is_refused_before_a_step_is_taken(
    tmp_path: Path, data: Path, unfinished: Path
) -> None:
    path = shutil.copytree(unfinished, tmp_path / "runs" / unfinished.name)
    (path / "checkpoints" / "step-16.optimizer.safetensors").mkdir()
    before = outside(path)
    with pytest.raises(UserError, match="step-16.optimizer.safetensors: it is a folder; name a file, or move it away"):
        train(tiny.experiment(steps=16), path.parent, data=data)
    assert {name: before[name] for name in before if "experiment" not in name}.items() <= outside(path).items()


def test_a_log_of_a_sweep_is_not_appended_through_a_link(tmp_path: Path, data: Path) -> None:
    experiment = tiny.experiment()
    victim, folder = tmp_path / "victim", tmp_path / "runs" / experiment.run_name
    victim.write_bytes(PRECIOUS)
    folder.mkdir(parents=True)
    (folder / "log.txt").symlink_to(victim)
    arguments = ["sweep", "toy", "--norms", "weighted_sum", "--seeds", "1", "--into", str(tmp_path / "runs")]
    command = processes.Command([*arguments, "--data", str(data), "--recipe.steps", "2"], tmp_path / "said.txt")
    assert command.wait() == 1, command.said
    assert "log.txt is a link, and links are not written through" in command.said
    assert victim.read_bytes() == PRECIOUS


@pytest.mark.parametrize("name", ["images.npy", "counts.npy", ".lock", "building.json"])
def test_a_set_is_not_built_through_a_link(tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "set"
    victim.write_bytes(PRECIOUS)
    fields = {"images": ((4, 4, 3), "uint8")}
    Builder(folder, fields, 8).close()
    assert (folder / name).exists() or name == ".lock"
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with pytest.raises(UserError):
        Builder(folder, fields, 8)
    assert victim.read_bytes() == PRECIOUS


def test_a_temporary_file_that_is_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "folder" / "file"
    victim.write_bytes(PRECIOUS)
    path.parent.mkdir()
    (path.parent / f".file.{os.getpid()}.tmp").symlink_to(victim)
    files.write(path, b"content")
    assert path.read_bytes() == b"content"
    assert victim.read_bytes() == PRECIOUS
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("folder", ["figures", "tables"])
def test_a_report_is_not_written_through_a_link(tmp_path: Path, unfinished: Path, folder: str) -> None:
    out, victim = tmp_path / "report", tmp_path / "victim"
    verbs.main(["report", str(unfinished), "--out", str(out)])
    shutil.move(out / folder, victim)
    (out / folder).symlink_to(victim)
    for path in victim.iterdir():
        path.write_bytes(PRECIOUS)
    before = outside(victim)
    with pytest.raises(SystemExit) as ended:
        verbs.main(["report", str(unfinished), "--out", str(out)])
    assert ended.value.code == 2
    assert outside(victim) == before


def test_a_file_with_two_names_is_not_written_in_place(tmp_path: Path, data: Path, unfinished: Path) -> None:
    """As `cp -al` makes them: the copy's training must not cut the original's metrics."""
    copy = tmp_path / "runs" / unfinished.name
    shutil.copytree(unfinished, copy, copy_function=os.link)
    before = outside(unfinished)
    with pytest.raises(UserError, match=r"metrics\.jsonl: the file has 2 names \(hard links\), and all of them would"):
        train(tiny.experiment(steps=16), copy.parent, data=data)
    assert outside(unfinished) == before


def test_a_file_with_two_names_is_not_emptied_before_it_is_refused(tmp_path: Path) -> None:
    victim, part = tmp_path / "victim", tmp_path / "file.part"
    victim.write_bytes(PRECIOUS)
    part.hardlink_to(victim)
    with pytest.raises(UserError, match="has 2 names"):
        files.open_in_place(part, os.O_WRONLY | os.O_TRUNC)
    assert victim.read_bytes() == PRECIOUS
    part.unlink()
    part.write_bytes(PRECIOUS)
    os.close(files.open_in_place(part, os.O_WRONLY | os.O_TRUNC))
    assert part.read_bytes() == b""


def test_a_job_of_an_engine_does_not_write_its_log_through_a_link(tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "log.txt"
    victim.write_bytes(PRECIOUS)
    log.symlink_to(victim)
    with pytest.raises(UserError, match="log.txt is a link, and links are not written through"):
        Relay(("echo", "words"), str(log), str(tmp_path / "receipt.json")).start()
    assert victim.read_bytes() == PRECIOUS


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_not_written_in_place(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    for flags in (os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(UserError, match="metrics.jsonl: it is not a file; move it away"):
            files.open_in_place(path, flags)


def test_what_is_no_file_is_not_read_and_nobody_waits_for_it(tmp_path: Path, unfinished: Path) -> None:
    """A pipe that nobody writes to, and a device without an end."""
    pipe, endless = tmp_path / "pipe", tmp_path / "endless.png"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless, tmp_path):
        with pytest.raises(IsADirectoryError, match="it is not a file|Is a directory"):
            files.open_to_read(path)
    with pytest.raises(UserError, match="cannot read .*endless.png: it is not a file"):
        image_files.read_image(endless)
    run = shutil.copytree(unfinished, tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    assert Run.open(run).logged_step == 0
    (rows,) = (run / "rows").glob("*.npz")
    rows.unlink()
    os.mkfifo(rows)
    with pytest.raises(UserError, match="npz: it is not a file"):
        read_arrays(rows)


def test_a_file_of_rows_that_is_not_ours_is_not_read_whatever_its_size(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedFile, match="its seal does not match"):
        read_arrays(path)


@pytest.mark.parametrize("kind", ["pipe", "socket", "link to a pipe", "link to a stream"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write /dev would lose /dev/null, or /dev/stdout, which is a link."""
    path = tmp_path / "rows.csv"
    with contextlib.ExitStack() as stack:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            monkeypatch.chdir(tmp_path)  # a socket's name has 107 letters at most
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(path.name)
        elif kind == "link to a pipe":
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to(tmp_path / "pipe")
        else:
            path.symlink_to("/proc/self/fd/1")
        before = os.lstat(path)
        with pytest.raises(UserError, match=r"rows.csv: it is not a file, and would be replaced by one; name a file"):
            files.write(path, b"rows")
        assert os.path.samestat(before, os.lstat(path))
    assert len(list(tmp_path.iterdir())) == 1 + (kind == "link to a pipe")


def test_a_run_that_is_a_link_itself_is_the_users_own_choice(tmp_path: Path, data: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "large disk")
    assert train(tiny.experiment(), tmp_path / "runs", data=data).finished
    assert Run.open(tmp_path / "large disk" / tiny.experiment().run_name).finished
