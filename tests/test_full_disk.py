"""A full disk: at every system call of a save, and as a real file system without room, for every verb that writes."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from slotnorm.errors import UserError
from slotnorm.training import checkpoints
from slotnorm.training.loop import train
from test_faults import assert_same

CALLS = ("open", "pwrite", "fsync", "replace", "mkdir", "ftruncate")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


@contextlib.contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, number: int, reason: int) -> Iterator[list[str]]:
    """Let the `number`-th call of a save that could need room fail; the list tells which calls there were."""
    seen: list[str] = []
    inside = False
    save = checkpoints.save

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def fail_once(*arguments: Any, **named: Any) -> Any:
            reads = name == "open" and not (len(arguments) > 1 and arguments[1] & (os.O_WRONLY | os.O_RDWR))
            if inside and not reads:
                seen.append(name)
                if len(seen) == number:
                    raise OSError(reason, os.strerror(reason), str(arguments[0]))
            return call(*arguments, **named)

        return fail_once

    def watched(*arguments: Any) -> None:
        nonlocal inside
        inside = True
        try:
            save(*arguments)
        finally:
            inside = False

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", watched)
        for name in CALLS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield seen


def fail_inside_saves(folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch, reason: int, numbers: range) -> int:
    """A save fails at each of these calls, until it has no more; how often it did."""
    longer = tiny.experiment(half_life=50, cosine_to=None, steps=16)
    start = train(tiny.experiment(half_life=50, cosine_to=None), folder / "start", data=data)
    unbroken = train(longer, folder / "unbroken", data=data)
    before = {path.name: path.read_bytes() for path in start.checkpoints.iterdir()}
    for tried, number in enumerate(numbers):
        runs = folder / str(number)
        shutil.copytree(start.path, runs / start.name)
        with failing(monkeypatch, number, reason) as seen, contextlib.suppress(UserError):
            train(longer, runs, data=data)
        if len(seen) < number:
            return tried
        now = {path.name: path.read_bytes() for path in (runs / start.name / "checkpoints").iterdir()}
        committed = "step-16.json" in now  # what failed came after the commit
        assert committed or now == before, f"call {number}, {seen[-1]}: {sorted(now)}"
        # where only the removal of old checkpoints failed, the run is finished, and they stay
        assert_same(train(longer, runs, data=data), unbroken, but=("files",) if committed else ())
    raise AssertionError("a save without end")


def test_a_disk_that_is_full_at_some_calls_of_a_save_leaves_the_last_checkpoint_and_no_stray_file(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fail_inside_saves(tmp_path, data, monkeypatch, errno.ENOSPC, range(1, 100, 3)) > 4


@pytest.mark.slow
@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_at_any_call_of_a_save_leaves_the_last_checkpoint_and_no_stray_file(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, reason: int, record_property: Callable[..., None]
) -> None:
    tried = fail_inside_saves(tmp_path, data, monkeypatch, reason, range(1, 100))
    assert tried > 12
    record_property("fault", ("the disk is full, or fails, at any write of a save", tried, tried))


def test_a_save_whose_second_file_finds_no_room_leaves_no_first_one(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slotnorm.storage import files

    original = files.write

    def full(path: Path, content: bytes, make_folder: bool = True) -> str:
        if path.name.endswith("optimizer.safetensors"):
            raise UserError(f"cannot write {path}: No space left on device")
        return original(path, content, make_folder)

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(UserError, match="No space left"):
        train(tiny.experiment(), tmp_path, data=data)
    assert list((tmp_path / tiny.experiment().run_name / "checkpoints").iterdir()) == []


VERBS = [
    "train", "sweep", "eval", "report", "segment", "demo", "reproduce", "data generate", "data folder",
    "data clevr", "data movi", "data features", "data check",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_on_a_full_file_system_is_one_sentence_and_goes_on_when_there_is_room(
    tmp_path: Path, data: Path, verb: str, record_property: Callable[..., None]
) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("this machine gives no user and mount namespace, in which a file system can be made without root")
    run = train(tiny.experiment(), tmp_path / "finished", data=data)
    script = Path(__file__).with_name("full_disk_verbs.py")
    answer = subprocess.run(
        [*namespace, sys.executable, str(script), verb, str(tmp_path), str(data), str(run.path)],
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    tried = int(answer.stdout.split()[-1])
    assert tried > 0, "the disk was never full"
    record_property("fault", ("a file system without room, every verb that writes", tried, tried))
