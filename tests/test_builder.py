"""Building: interrupted at any moment it continues to the same bytes, and nothing half-built is ever accepted."""

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from slotnorm.data import Builder, Scenes
from slotnorm.data import builder as builder_module
from slotnorm.errors import DamagedFile, Locked, UserError
from slotnorm.storage import seals
from slotnorm.storage.locks import Lock
from small_sets import append, build, fields_of, open_builder, random_arrays


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return random_arrays()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, arrays) -> dict[str, bytes]:
    """The bytes of the set when nothing interrupts its building."""
    return contents(build(tmp_path_factory.mktemp("whole") / "set", arrays).directory)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_half_built_set_is_not_accepted_and_continues_to_the_same_bytes(tmp_path, arrays, whole):
    directory = tmp_path / "set"
    for stop in (3, 3, 20, 40):
        with open_builder(directory, arrays) as builder:
            append(builder, arrays, stop)
        with pytest.raises(UserError, match="half-built: run the command that builds it again"):
            Scenes.open(directory)
    with open_builder(directory, arrays) as builder:
        assert builder.done == 40
        builder.finish()
    assert contents(directory) == whole


def test_a_finished_set_is_only_opened_again(tmp_path, arrays, whole):
    directory = build(tmp_path / "set", arrays).directory
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    builder = open_builder(directory, arrays)
    assert (builder.finished, builder.done) == (True, 40)
    assert len(builder.finish()) == 40
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before
    with pytest.raises(ValueError, match="is finished: nothing can be appended"):
        builder.append(**arrays)


def test_the_number_of_scenes_may_be_known_only_at_the_end(tmp_path, arrays):
    with open_builder(tmp_path / "set", arrays, num=None) as builder:
        append(builder, arrays, 23)
        assert len(builder.finish()) == 23
    assert open_builder(tmp_path / "set", arrays, num=None).done == 23


def test_too_few_scenes_are_not_finished(tmp_path, arrays):
    with open_builder(tmp_path / "set", arrays) as builder:
        append(builder, arrays, 39)
        with pytest.raises(UserError, match="39 of 40 scenes: it is not finished"):
            builder.finish()
    with (
        open_builder(tmp_path / "none", arrays, num=None) as builder,
        pytest.raises(UserError, match="0 of at least 1 scenes"),
    ):
        builder.finish()
    with pytest.raises(UserError, match="at least one scene, not 0"):
        open_builder(tmp_path / "empty", arrays, num=0)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num": 41}, "with num 40, not 41"),
        (
            {"provenance": {"seed": 2}},
            r'with provenance {"made": "at random", "seed": null}, not {"made": null, "seed": 2}',
        ),
        ({"protocol": "authors"}, 'with protocol "paper", not "authors"'),
        ({"properties": {"shape": ["cube"]}}, r'with properties {"shape": null}, not {"shape": \["cube"\]}'),
    ],
)
def test_a_folder_with_another_set_is_refused(tmp_path, arrays, change, sentence, finished):
    with open_builder(tmp_path / "set", arrays) as builder:
        append(builder, arrays, 40 if finished else 9)
        if finished:
            builder.finish()
    with pytest.raises(UserError, match=sentence):
        open_builder(tmp_path / "set", arrays, **change)
    with pytest.raises(UserError, match="with fields"):
        Builder(
            tmp_path / "set", {**fields_of(arrays), "y": ((6,), "float32")}, num=40, provenance={"made": "at random"}
        )
    assert open_builder(tmp_path / "set", arrays).done == (40 if finished else 9)


def test_a_folder_with_other_files_is_refused(tmp_path, arrays):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"not empty \(it holds thesis.tex\)"):
        open_builder(tmp_path, arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UserError, match="cannot write to"):
        open_builder(tmp_path / "thesis.tex" / "set", arrays)
    with pytest.raises(UserError, match=r"thesis.tex is a file, and a set of scenes is a folder; name another"):
        open_builder(tmp_path / "thesis.tex", arrays)


def test_a_second_builder_is_refused_and_told_who_builds(tmp_path, arrays):
    first = open_builder(tmp_path / "set", arrays)
    with pytest.raises(Locked, match=rf"is being written by process {os.getpid()} on"):
        open_builder(tmp_path / "set", arrays)
    append(first, arrays, 40)
    first.finish()
    assert open_builder(tmp_path / "set", arrays).finished


def test_a_lock_left_by_a_dead_process_is_taken_over(tmp_path, arrays, whole):
    process = multiprocessing.get_context("spawn").Process(target=_die_holding_the_lock, args=(tmp_path / "set",))
    process.start()
    process.join()
    assert (tmp_path / "set" / ".lock").exists()
    build(tmp_path / "set", arrays)
    assert contents(tmp_path / "set") == whole


def _die_holding_the_lock(directory: Path) -> None:
    arrays = random_arrays()
    builder = open_builder(directory, arrays)
    append(builder, arrays, 14)
    os._exit(1)


@pytest.mark.parametrize(
    ("chunk", "sentence"),
    [
        ({"images": np.zeros((2, 8, 8, 3))}, r"images of a chunk \(float64\) do not fit into uint8"),
        ({"images": np.full((2, 8, 8, 3), 256)}, r"images of a chunk \(int64\) do not fit into uint8"),
        ({"images": np.full((2, 8, 8, 3), -1)}, "do not fit into uint8"),
        ({"images": np.zeros((2, 8, 9, 3), dtype=np.uint8)}, r"have shape \(2, 8, 9, 3\), not"),
        ({"images": np.zeros((3, 8, 8, 3), dtype=np.uint8)}, r"lengths \[2, 3\] does not fit"),
        ({"counts": 3}, r"counts of a chunk have shape \(\)"),
        ({"rotation": np.zeros((2, 6))}, "all fields of the set and no others; see rotation"),
    ],
)
def test_a_chunk_that_does_not_fit_is_refused_and_nothing_of_it_is_kept(tmp_path, arrays, chunk, sentence):
    with open_builder(tmp_path / "set", arrays) as builder:
        with pytest.raises(ValueError, match=sentence):
            builder.append(**{**{name: array[:2] for name, array in arrays.items()}, **chunk})
        assert builder.done == 0
        append(builder, arrays, 39)
        with pytest.raises(ValueError, match="does not fit after 39 of 40 scenes"):
            builder.append(**{name: array[:2] for name, array in arrays.items()})


def test_labels_and_images_of_a_scene_have_one_size(tmp_path):
    with pytest.raises(UserError, match=r"labels \(8, 9\) and images \(8, 8, 3\) of a scene differ in size"):
        Builder(tmp_path / "set", {"images": ((8, 8, 3), "uint8"), "labels": ((8, 9), "uint8")}, num=3)
    assert not (tmp_path / "set").exists()


# ---------------------------------------------------------------------------------------------------- a full disk


def test_a_full_disk_is_one_sentence_and_the_build_continues_later(tmp_path, arrays, whole, monkeypatch):
    directory = tmp_path / "set"
    pwrite, calls = os.pwrite, iter(range(1000))

    def filling(descriptor, content, offset):
        if next(calls) > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, content[: len(content) // 2 + 1], offset)  # short writes are continued

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", filling)
        with (
            pytest.raises(UserError, match="No space left on device; run the same command again"),
            open_builder(directory, arrays) as builder,
        ):
            append(builder, arrays, 40)
    with pytest.raises(UserError, match="half-built"):
        Scenes.open(directory)
    build(directory, arrays)
    assert contents(directory) == whole


def test_a_disk_that_fills_up_for_real_leaves_nothing_accepted(tmp_path):
    """The kernel's limit on a file's size stands in for a full disk."""
    code = textwrap.dedent("""
        import resource, signal, sys
        sys.path.insert(0, sys.argv[1])
        from pathlib import Path
        from small_sets import build, random_arrays
        from slotnorm.errors import UserError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            build(Path(sys.argv[2]), random_arrays(num=2000))
        except UserError as error:
            print(error)
    """)
    directory = tmp_path / "set"
    here = str(Path(__file__).parent)
    result = subprocess.run(
        [sys.executable, "-c", code, here, str(directory)], capture_output=True, text=True, check=True
    )
    assert "cannot write to" in result.stdout
    assert "File too large" in result.stdout
    with pytest.raises(UserError, match="half-built"):
        Scenes.open(directory)


def test_a_set_larger_than_the_disk_is_refused_before_the_work(tmp_path):
    with pytest.raises(UserError, match=r"scenes need \d+.\d GB; .* GB free"):
        Builder(tmp_path / "set", {"images": ((1024, 1024, 3), "uint8")}, num=10**9)
    assert not list((tmp_path / "set").iterdir())


# ---------------------------------------------------------------------------------------------------- sudden death

CRASHES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from small_sets import append, open_builder, random_arrays
from slotnorm.data import builder as builder_module
builder_module._SECONDS_BETWEEN_FLUSHES = 0.0
arrays, root = random_arrays(), Path(sys.argv[2])
arrays = {name: arrays[name] for name in ("images", "counts")}

def build(directory):
    with open_builder(directory, arrays) as builder:
        append(builder, arrays, 40, chunk=20)
        builder.finish()

def die_after(calls):
    left = [calls]
    def dying(function):
        def call(*arguments, **options):
            result = function(*arguments, **options)
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return result
        return call
    for name in ("open", "pwrite", "fsync", "replace", "unlink", "ftruncate", "close", "write"):
        setattr(os, name, dying(getattr(os, name)))

calls, survived = 0, False
while not survived:
    calls += 1
    child = os.fork()
    if child == 0:
        die_after(calls)
        build(root / str(calls))
        os._exit(0)
    survived = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(calls)
"""


def test_after_death_at_any_system_call_the_same_command_reaches_the_same_bytes(tmp_path, arrays):
    here = str(Path(__file__).parent)
    arrays = {name: arrays[name] for name in ("images", "counts")}
    whole = contents(build(tmp_path / "whole", arrays).directory)
    result = subprocess.run(
        [sys.executable, "-c", CRASHES, here, str(tmp_path)], capture_output=True, text=True, check=True
    )
    deaths = int(result.stdout) - 1
    assert deaths > 50
    accepted = 0
    for calls in range(1, deaths + 1):
        directory = tmp_path / str(calls)
        if (directory / "manifest.json").exists():
            accepted += 1
            assert np.array_equal(Scenes.open(directory).images, arrays["images"])
        else:
            with pytest.raises(UserError, match="holds no finished set"):
                Scenes.open(directory)
        build(directory, arrays)
        assert contents(directory) == whole
    assert 0 < accepted < deaths / 2


@pytest.mark.slow
def test_a_builder_that_is_killed_at_random_moments_continues(tmp_path):
    random_moments = np.random.default_rng(0)
    arrays = random_arrays(num=4000, size=16)
    expected = build(tmp_path / "whole", arrays).fingerprint
    reached, directory = [0], tmp_path / "set"
    while not (directory / "manifest.json").exists():
        process = multiprocessing.get_context("spawn").Process(target=_build_slowly, args=(directory,))
        process.start()
        process.join(timeout=0.5 + random_moments.random() / 2)
        process.kill()
        process.join()
        if (directory / "building.json").exists():
            reached.append(json.loads((directory / "building.json").read_text())["done"])
    assert len(set(reached)) > 4
    assert reached == sorted(reached)
    assert Scenes.open(directory).fingerprint == expected
    build(directory, arrays)
    assert not [path for path in directory.iterdir() if path.suffix != ".npy" and path.name != "manifest.json"]


def _build_slowly(directory: Path) -> None:
    builder_module._SECONDS_BETWEEN_FLUSHES = 0.0
    build(directory, random_arrays(num=4000, size=16), chunk=3)


# ------------------------------------------------------------------------------------------- damage while building


def half_built(directory: Path, arrays: dict[str, np.ndarray]) -> Path:
    with open_builder(directory, arrays) as builder:
        append(builder, arrays, 20)
    return directory


def test_a_shortened_file_is_found_when_the_build_continues(tmp_path, arrays):
    path = half_built(tmp_path / "set", arrays) / "labels.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match=r"labels.npy is shorter than building.json says"):
        open_builder(tmp_path / "set", arrays)


def test_a_changed_file_is_found_before_the_set_is_accepted(tmp_path, arrays):
    path = half_built(tmp_path / "set", arrays) / "labels.npy"
    content = bytearray(path.read_bytes())
    content[500] ^= 4
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"block 0 of .*labels.npy does not read back as it was written"):
        build(tmp_path / "set", arrays)
    with pytest.raises(UserError, match="holds no finished set"):
        Scenes.open(tmp_path / "set")


@pytest.mark.parametrize(
    "change",
    [
        {"done": -1}, {"done": "x"}, {"done": 10**9}, {"done": None}, {"full": {}}, {"full": []},
        {"full": {"images": 3}}, {"started": None}, {"started": {}}, {"request": {}}, {"request": 7}, None,
        "[" * 5000, "[]",
    ],
    ids=str,
)  # fmt: skip
def test_a_forged_or_damaged_record_of_the_build_is_one_sentence(tmp_path, arrays, change):
    path = half_built(tmp_path / "set", arrays) / "building.json"
    content = json.loads(path.read_text())
    if isinstance(change, dict):
        del content["checksum"]
        path.write_bytes(seals.MANIFEST.close({**content, **change}))
    else:
        path.write_text(change if change else path.read_text().replace("20", "19"))
    with pytest.raises(DamagedFile, match=r"building.json"):
        open_builder(tmp_path / "set", arrays)
    with pytest.raises(DamagedFile):  # and the lock was given back
        open_builder(tmp_path / "set", arrays)


def test_files_left_by_a_killed_write_are_removed(tmp_path, arrays, whole):
    directory = half_built(tmp_path / "set", arrays)
    (directory / ".building.json.123.tmp").write_text("half")
    build(directory, arrays)
    assert contents(directory) == whole


def test_a_lock_is_released_once(tmp_path):
    lock = Lock(tmp_path)
    lock.release()
    lock.release()
    Lock(tmp_path).release()
    assert not list(tmp_path.iterdir())
