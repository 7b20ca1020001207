"""Power loss: what a training asks of the file system is recorded, and every state that may be on disk is tried.

A file system keeps what was flushed. Of the rest it may keep anything: writes are lost or kept in part, names appear,
move and vanish in any order. So every prefix of the recorded calls is replayed, each with all that was not flushed
lost, kept, kept as names without content, and kept by chance; from each state the run must resume to the same bits,
and lose nothing that was saved.
"""

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from slotnorm.training import checkpoints
from slotnorm.training.loop import train
from slotnorm.training.runs import Run
from test_faults import assert_same

Call = tuple[Any, ...]
Keep = Callable[[str], bool]
"""Whether a call that was not flushed is on disk: "name" or "content"."""
Tree = dict[str, bytes | None]
"""Files by path with their content; folders have None."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


class Recorder:
    """Notes every call below `root` that changes a file or a name, or flushes one; and when a save has returned.

    All of our writing goes through these functions of `os`: that nothing is missed is proved by replaying the whole
    record, which gives every byte of the run.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = str(root)
        self.calls: list[Call] = []
        self.paths: dict[int, str] = {}
        for name in ("open", "close", "pwrite", "ftruncate", "fsync", "replace", "unlink", "mkdir", "rmdir"):
            patch.setattr(os, name, self.recorded(name, getattr(os, name)))
        save = checkpoints.save

        def saved(folder: Path, weights: Any, *facts: Any) -> None:
            save(folder, weights, *facts)
            self.calls.append(("saved", "", weights.step))

        patch.setattr(checkpoints, "save", saved)

    def recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            was_there = name == "open" and os.path.lexists(arguments[0])
            result = call(*arguments, **named)
            if name == "open":
                self.opened(result, was_there, *arguments)
            elif name == "close":
                self.paths.pop(arguments[0], None)
            else:
                self.note(name, *arguments)
            return result

        return run

    def inside(self, path: Any) -> str | None:
        text = self.paths.get(path, "") if isinstance(path, int) else os.path.abspath(path)
        return os.path.relpath(text, self.root) if text.startswith(self.root) else None

    def opened(self, descriptor: int, was_there: bool, path: Any, flags: int, *_: Any) -> None:
        self.paths[descriptor] = os.path.abspath(path)
        if flags & os.O_CREAT and not was_there:
            self.note("create", path)
        elif flags & os.O_TRUNC:
            self.note("ftruncate", path, 0)

    def note(self, name: str, path: Any, *facts: Any) -> None:
        if (inside := self.inside(path)) is None:
            return
        if name == "replace":
            facts = (self.inside(facts[0]),)
        elif name == "pwrite":
            facts = (bytes(facts[0]), facts[1])
        self.calls.append((name, inside, *facts))


class Disk:
    """What calls have done, split into what was flushed and what was not."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {".": 0}  # as programs see them
        self.flushed_names: dict[str, int] = {".": 0}
        self.pending_names: list[tuple[str, str, int | None]] = []  # folder, path, file; None is removed
        self.contents: dict[int, bytes] = {}  # flushed
        self.pending_contents: dict[int, list[Call]] = {}
        self.folders: set[int] = {0}
        self.saved = 0

    def apply(self, name: str, path: str, *facts: Any) -> None:
        if name == "saved":
            self.saved = facts[0]
        elif name in ("create", "mkdir"):
            number = max([*self.contents, *self.folders]) + 1
            self.contents[number] = b""
            self.pending_contents[number] = []
            if name == "mkdir":
                self.folders.add(number)
            self.name(path, number)
        elif name in ("pwrite", "ftruncate"):
            self.pending_contents[self.names[path]].append((name, *facts))
        elif name == "replace":
            self.name(facts[0], self.names[path])
            self.name(path, None)
        elif name in ("unlink", "rmdir"):
            self.name(path, None)
        elif name == "fsync":
            self.flush(path)

    def name(self, path: str, number: int | None) -> None:
        self.pending_names.append((os.path.dirname(path) or ".", path, number))
        if number is None:
            self.names.pop(path)
        else:
            self.names[path] = number

    def flush(self, path: str) -> None:
        number = self.names.get(path)
        if number is None:
            return
        if number in self.folders:
            for _, entry, file in [pending for pending in self.pending_names if pending[0] == path]:
                _put(self.flushed_names, entry, file)
            self.pending_names = [pending for pending in self.pending_names if pending[0] != path]
        else:
            self.contents[number] = _written(self.contents[number], self.pending_contents[number], lambda _: True)
            self.pending_contents[number] = []

    def tree(self, keep: Keep) -> Tree:
        """What is on disk after the power was lost."""
        names = dict(self.flushed_names)
        for _, path, number in self.pending_names:
            if keep("name"):
                _put(names, path, number)
        tree: Tree = {}
        for path, number in sorted(names.items(), key=lambda entry: entry[0].count("/")):
            if path == "." or (parent := os.path.dirname(path) or ".") == "." or parent in tree:
                content = _written(self.contents.get(number, b""), self.pending_contents.get(number, []), keep)
                tree[path] = None if number in self.folders else content
        tree.pop(".")
        return tree


def _put(names: dict[str, int], path: str, number: int | None) -> None:
    if number is None:
        names.pop(path, None)
    else:
        names[path] = number


def _written(content: bytes, calls: list[Call], keep: Keep) -> bytes:
    for name, *facts in calls:
        if not keep("content"):
            continue
        if name == "ftruncate":
            content = content[: facts[0]].ljust(facts[0], b"\0")
        else:
            part, place = facts
            content = content.ljust(place, b"\0")[:place] + part + content[place + len(part) :]
    return content


def states(calls: list[Call], chances: int) -> Iterator[tuple[int, Tree]]:
    """What may be on disk after each call, each state once: the step that was saved, and the files."""
    seen = set()
    chance = random.Random(0)
    disk = Disk()
    for call in calls:
        disk.apply(*call)
        kept: list[Keep] = [lambda _: True, lambda _: False, lambda what: what == "name", lambda what: what != "name"]
        kept += [lambda _: chance.random() < 0.5] * chances
        for keep in kept:
            tree = disk.tree(keep)
            identity = hashlib.sha256(repr((disk.saved, sorted(tree.items()))).encode()).digest()
            if identity not in seen:
                seen.add(identity)
                yield disk.saved, tree


def write(tree: Tree, root: Path) -> None:
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[list[Call], Run]:
    root = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root, patch)
        run = train(tiny.experiment(), root, data=data)
    return recorder.calls, run


def test_the_record_of_calls_is_complete(tmp_path: Path, recorded: tuple[list[Call], Run]) -> None:
    calls, run = recorded
    disk = Disk()
    for call in calls:
        disk.apply(*call)
    write(disk.tree(lambda _: True), tmp_path / "replayed")
    assert_same(Run.open(tmp_path / "replayed" / run.name), run)
    assert [call[2] for call in calls if call[0] == "saved"] == [4, 8, 12]


def resume_from(some: list[tuple[int, Tree]], folder: Path, data: Path, unbroken: Run) -> None:
    for number, (saved, tree) in enumerate(some):
        root = folder / str(number)
        write(tree, root)
        if saved:
            standing = Run.open(root / unbroken.name).standing()
            assert standing.step >= saved, f"step {saved} was saved, and {standing.step} is on disk: {sorted(tree)}"
        # where the power was lost while old checkpoints were removed, the run is finished, and they stay
        is_finished = f"{unbroken.name}/checkpoints/step-12.json" in tree
        assert_same(train(tiny.experiment(), root, data=data), unbroken, but=("files",) if is_finished else ())


def test_after_a_power_loss_the_run_resumes_to_the_same_bits(
    tmp_path: Path, data: Path, recorded: tuple[list[Call], Run]
) -> None:
    calls, run = recorded
    possible = list(states(calls, chances=1))
    resume_from(random.Random(1).sample(possible, 20), tmp_path, data, run)


@pytest.mark.slow
def test_after_a_power_loss_at_any_call_in_any_order_of_writes_the_run_resumes_to_the_same_bits(
    tmp_path: Path, data: Path, recorded: tuple[list[Call], Run], record_property: Callable[..., None]
) -> None:
    calls, run = recorded
    possible = list(states(calls, chances=3))
    resume_from(possible, tmp_path, data, run)
    record_property(
        "fault", ("power loss at every call, unflushed writes lost or reordered", len(possible), len(possible))
    )
