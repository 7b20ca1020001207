"""One run of two, with one of its files damaged in every way: each verb names it, does the other, and loses nothing."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import processes
import tiny
from slotnorm.cli import verbs
from slotnorm.storage.files import sha256
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.storage.seals import read_sealed, seal_description, write_sealed
from slotnorm.training import checkpoints
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

FILES = [
    "experiment.json", "metrics.jsonl", "checkpoints", "checkpoints/step-12.json", "checkpoints/step-12.safetensors",
    "checkpoints/step-12.optimizer.safetensors", "checkpoints/step-8.json", "checkpoints/step-8.safetensors", "rows",
    "rows/mine.npz", "rows/binding.json", "rows/.lock", "pictures", ".lock",
]  # fmt: skip


Damage = Callable[[Path], None]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def file(path: Path) -> None:
    remove(path)
    path.write_bytes(b"not what was here\n")


def link_to_nothing(path: Path) -> None:
    remove(path)
    path.symlink_to("/nowhere/at/all")


def link_to_itself(path: Path) -> None:
    remove(path)
    path.symlink_to(path)


def link_to_zeros(path: Path) -> None:
    remove(path)
    path.symlink_to("/dev/zero")


def link_to_copy(path: Path) -> None:
    victim = path.with_name(f"{path.name}.victim")
    if path.exists():
        path.rename(victim)
    path.symlink_to(victim)


OF_FILES = [cut, flip, empty]
OF_ANYTHING = [remove, folder, pipe, file, link_to_nothing, link_to_itself, link_to_zeros, link_to_copy]


def damages_of(name: str) -> list[Damage]:
    """All that make sense; nobody holds a lock that a link could lead to."""
    whole = [damage for damage in OF_ANYTHING if damage is not link_to_copy or "lock" not in name]
    return whole + OF_FILES * ("." in name and "lock" not in name)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


def evaluation(runs: Path, data: Path) -> list[str]:
    return ["eval", str(runs), "--dataset", "mine", "--data", str(data), "--slots", "3:4", "--scenes", "8"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """Two runs, trained and evaluated."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    for seed in (1, 2):
        train(tiny.experiment(seed=seed), runs, data=data, observers=["pictures"])
    verbs.main(evaluation(runs, data))
    return runs


def call(words: Sequence[str]) -> tuple[int, str]:
    """`slotnorm WORDS` here, within a minute: its exit code, and all that it says."""
    said = io.StringIO()
    signal.alarm(60)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            verbs.main(list(words))
        return 0, said.getvalue()
    except SystemExit as ended:
        return int(str(ended.code)), said.getvalue()
    finally:
        signal.alarm(0)


def do_as_told(run: Path, said: str) -> None:
    """What a refusal asks for."""
    if told := re.search(r"(\S+/checkpoints) is a link, and links are not written through; put what it leads", said):
        target = Path(told[1]).resolve()
        Path(told[1]).unlink()
        target.rename(told[1])
    elif told := re.search(r"cannot write (?:to )?(\S+): .*move it away", said):
        remove(Path(told[1]) / ".lock" if told[1] == str(run) else Path(told[1]))
    else:
        assert re.search("experiment.json, but .* move it away|experiment.json is .*without one, delete it", said), said
        remove(run / "experiment.json")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("experiment.json", cut), ("checkpoints", link_to_nothing), ("checkpoints/step-12.json", pipe),
        ("checkpoints/step-12.json", remove), ("checkpoints/step-12.safetensors", flip), ("rows/binding.json", folder),
    ],
)  # fmt: skip
def test_what_happens_to_a_file_of_a_run_is_named_and_nothing_is_lost(
    tmp_path: Path, data: Path, whole: Path, name: str, damage: Damage
) -> None:
    suffer(tmp_path, data, whole, name, damage)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_whatever_happens_to_any_file_of_a_run_is_named_and_nothing_is_lost(
    tmp_path: Path, data: Path, whole: Path, name: str, record_property: Callable[..., None]
) -> None:
    damages = damages_of(name)
    for damage in damages:
        suffer(tmp_path / damage.__name__, data, whole, name, damage)
    fault = "a file or folder of one of two runs damaged, removed or replaced, for every verb"
    record_property("fault", (fault, len(damages), len(damages)))


@pytest.mark.parametrize(
    "name", [".", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rows", "checkpoints"))]
)
def test_a_folder_that_nobody_may_look_into_is_named_and_the_other_run_is_done(
    tmp_path: Path, data: Path, whole: Path, name: str
) -> None:
    runs = shutil.copytree(whole, tmp_path / "runs")
    bad, good = runs / "toy-weighted_sum-1", runs / "toy-weighted_sum-2"
    shutil.rmtree(good / "rows")
    sweep = shlex.split(Run.open(bad).command)
    sweep = ["sweep", *sweep[2:], "--norms", "weighted_sum", "--seeds", "1", "2"]
    commands = [evaluation(runs, data), ["report", str(runs), "--out", str(tmp_path / "report"), "--no-models"], sweep]
    (bad / name).chmod(0)
    try:
        for words in commands if name == "." else commands[:2]:  # a sweep's jobs are new processes, which may again
            command = processes.Command(words, tmp_path / f"{words[0]}.txt", None, processes.obey_permissions)
            assert command.wait() == 1, command.said
            assert bad.name in command.said
            assert "Permission denied" in command.said
            assert "[Errno" not in command.said
    finally:
        (bad / name).chmod(0o755)
    assert (good / "rows" / "mine.npz").is_file()
    assert good.name in (tmp_path / "report" / "index.html").read_text()


def test_whole_rows_beside_closed_checkpoints_are_reported_and_the_run_is_marked(
    tmp_path: Path, data: Path, whole: Path
) -> None:
    runs, page = shutil.copytree(whole, tmp_path / "runs"), tmp_path / "report" / "index.html"
    bad = runs / "toy-weighted_sum-1"
    (bad / "checkpoints").chmod(0)
    words = ["report", str(runs), "--out", str(page.parent), "--data", str(data)]
    try:
        command = processes.Command(words, tmp_path / "said.txt", None, processes.obey_permissions)
        assert command.wait() == 1, command.said
    finally:
        (bad / "checkpoints").chmod(0o755)
    assert "2 runs in 1 section" in command.said
    assert f"warning: {bad} is damaged (cannot use {bad / 'checkpoints'}: Permission denied)" in command.said
    assert f"1 run is damaged, and what is whole of it was used: {bad.name}" in command.said
    assert "Permission denied" in page.read_text()


def spoil_and_seal_again(run: Run) -> Path:
    """Weights of the last step that are not finite, with a record that says so of them."""
    path, record = run.checkpoints / "step-12.safetensors", run.checkpoints / "step-12.json"
    tensors = load_file(path)
    name = min(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    with safe_open(path, "pt") as file:
        described = json.loads(file.metadata()["slotnorm"])
    described["sha256_of_tensors"] = fingerprint(tensors)
    save_file(tensors, path, metadata=seal_description("slotnorm", described))
    content = read_sealed(record)
    content["files"][path.name] = {"sha256": sha256(path), "size": path.stat().st_size}
    write_sealed(record, content)
    return path


def test_a_record_that_is_sealed_over_weights_that_no_training_saves_is_damage_for_every_verb(
    tmp_path: Path, data: Path, whole: Path
) -> None:
    runs, page = shutil.copytree(whole, tmp_path / "runs"), tmp_path / "report" / "index.html"
    run = Run.open(runs / "toy-weighted_sum-1")
    path, rows = spoil_and_seal_again(run), (run.path / "rows" / "mine.npz").read_bytes()
    assert not run.finished
    _, said = call(["status", str(run.path)])
    assert f"damaged ({path} is not what a training saves: " in said
    assert " repairs it" in said
    code, said = call(["report", str(runs), "--out", str(page.parent), "--no-models"])
    assert code == 1, said
    assert "2 runs in 1 section" in said
    assert f"warning: {run.path} is damaged ({path} is not what a training saves: " in said
    code, said = call(evaluation(run.path, data))
    assert code == 2
    assert " repairs it" in said
    assert "get it again" not in said
    assert (run.path / "rows" / "mine.npz").read_bytes() == rows
    code, said = call(["judge", str(run.path), "--data", str(data)])
    assert code == 0, said
    assert "going on from step 8" in said
    code, said = call(shlex.split(run.command)[1:])
    assert code == 0, said
    ours, theirs = (checkpoints.load(folder / "checkpoints", 12)[0] for folder in (run.path, whole / run.name))
    assert fingerprint(ours.tensors) == fingerprint(theirs.tensors)


def suffer(folder: Path, data: Path, whole: Path, name: str, damage: Damage) -> None:
    """Damage a file of one of two runs; each verb names it and does the other, and what is asked for brings it back."""
    runs = shutil.copytree(whole, folder / "runs")
    bad, good, page = runs / "toy-weighted_sum-1", runs / "toy-weighted_sum-2", folder / "report" / "index.html"
    train_it = shlex.split(Run.open(bad).command)[1:]
    rows = (bad / "rows" / "mine.npz").read_bytes()
    shutil.rmtree(good / "rows")
    damage(bad / name)
    is_needed = name in ("experiment.json", "checkpoints") or name.startswith("checkpoints/step-12")
    is_lost = is_needed and damage is not link_to_copy
    victims = {path: path.read_bytes() for path in bad.rglob("*.victim/**/*") if path.is_file()}
    victims |= {path: path.read_bytes() for path in bad.rglob("*.victim") if path.is_file()}

    code, status = call(["status", str(runs)])
    assert code == 0
    assert re.search(f"{good} +finished +12/12", status)
    assert is_lost == (re.search(f"{bad} +finished", status) is None)
    code, said = call(evaluation(runs, data))
    assert (good / "rows" / "mine.npz").is_file(), said
    assert not is_lost or f"{bad}" in said
    assert code == (1 if "could not be used" in said else 0)
    assert code or not is_lost or "is still training, at step" in said
    code, said = call(["report", str(runs), "--out", str(page.parent), "--no-models"])
    assert good.name in page.read_text(), said
    is_published = name == "checkpoints" and damage is remove  # without checkpoints its rows stand alone
    if is_lost and not is_published:
        assert code == 1
        assert f"warning: {bad} is " in said
        assert f"{bad.name} is " in page.read_text()
    code, said = call([*evaluation(runs, data), "--unfinished"])
    assert code in (0, 1), said
    assert name.startswith("rows") or (bad / "rows" / "mine.npz").read_bytes() == rows, said

    code, said = call(train_it)
    if " repairs it" in status and "cannot write" not in status:
        assert code == 0, said
    while code == 2:
        do_as_told(bad, said)
        code, said = call(train_it)
    if code == 4:
        assert "every checkpoint in" in said
        assert "and no checkpoint can be used; restore one of them" in status or name == "experiment.json"
    else:
        for ours, theirs in zip(
            *(checkpoints.load(run / "checkpoints", 12) for run in (bad, whole / bad.name)), strict=True
        ):
            assert fingerprint(getattr(ours, "tensors", ours)) == fingerprint(getattr(theirs, "tensors", theirs))
    assert {path: path.read_bytes() for path in victims} == victims or code == 0
