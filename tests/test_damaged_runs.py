"""One run of two, with one of its files damaged in every way: each verb names it, does the other, and loses nothing."""

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny
from slotnorm.cli import verbs
from slotnorm.training.loop import train
from slotnorm.training.runs import Run
from test_faults import final

FILES = [
    "experiment.json", "metrics.jsonl", "checkpoints", "checkpoints/step-12.json", "checkpoints/step-12.safetensors",
    "checkpoints/step-12.optimizer.safetensors", "checkpoints/step-8.json", "checkpoints/step-8.safetensors", "rows",
    "rows/mine.npz", "rows/binding.json", "rows/.lock", "pictures", ".lock",
]  # fmt: skip


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


QUICK = {
    ("experiment.json", cut), ("checkpoints", link_to_nothing), ("checkpoints/step-12.json", pipe),
    ("checkpoints/step-12.json", remove), ("checkpoints/step-12.safetensors", flip), ("rows/binding.json", folder),
}  # fmt: skip


def cases() -> Iterator[Any]:
    """Each file with each damage; a few of them are tried always."""
    for name in FILES:
        for damage in OF_ANYTHING + OF_FILES * ("." in name and "lock" not in name):
            if damage is not link_to_copy or "lock" not in name:  # nobody holds one
                marks = () if (name, damage) in QUICK else (pytest.mark.slow,)
                yield pytest.param(name, damage, marks=marks, id=f"{name}-{damage.__name__}")


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


@pytest.mark.parametrize(("name", "damage"), list(cases()))
def test_whatever_happens_to_a_file_of_a_run_it_is_named_the_other_is_done_and_nothing_is_lost(
    tmp_path: Path, data: Path, whole: Path, name: str, damage: Callable[[Path], None],
    record_property: Callable[..., None],
) -> None:  # fmt: skip
    record_property("fault", ("a file or folder of one of two runs damaged, removed or replaced", 1, 1))
    runs = shutil.copytree(whole, tmp_path / "runs")
    bad, good, page = runs / "toy-weighted_sum-1", runs / "toy-weighted_sum-2", tmp_path / "report" / "index.html"
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
        ours, theirs = final(Run.open(bad)), final(Run.open(whole / bad.name))
        assert [part for part in theirs if ours[part] != theirs[part] and part not in ("files", "metrics")] == []
    assert {path: path.read_bytes() for path in victims} == victims or code == 0
