"""Sets of generated scenes: built by several processes, interrupted, cached, refused, from the command line."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from slotnorm.cli import verbs
from slotnorm.config import SceneSpec
from slotnorm.data import Builder, Scenes, generator
from slotnorm.data.generator import STYLES, build, cached, identify, provenance, render
from slotnorm.errors import UserError

FLAT = SceneSpec((3, 8), 64, seed=5, style="flat", materials=("solid", "outlined"))


def test_processes_and_chunks_give_the_same_set(tmp_path):
    spec = SceneSpec((1, 4), 32, seed=21)
    alone, together = build(spec, 70, tmp_path / "alone", jobs=1), build(spec, 70, tmp_path / "together", jobs=2)
    assert alone.fingerprint == together.fingerprint
    for name, expected in render(spec, range(70)).items():
        np.testing.assert_array_equal(alone.read(name, np.arange(70)), expected)


def test_a_set_says_what_it_is(tmp_path):
    scenes = build(FLAT, 5, tmp_path / "set")
    assert scenes.manifest["properties"]["shape"] == ["disc", "square", "triangle"]
    assert scenes.manifest["provenance"]["radius"] == [0.13095800853708797, 0.18708286933869708]
    assert scenes.manifest["provenance"]["generator"] == generator.VERSION
    assert scenes.properties.keys() == {"shape", "size", "material", "color", "x", "y", "z", "rotation"}


def test_an_interrupted_build_continues_to_the_same_set(tmp_path, monkeypatch):
    spec, calls = SceneSpec((1, 3), 16, style="flat"), []

    def interrupted(spec, indices):
        calls.append(indices)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return render(spec, indices)

    monkeypatch.setattr(generator, "render", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(spec, 100, tmp_path / "set", jobs=1)
    with pytest.raises(UserError, match="half-built"):
        Scenes.open(tmp_path / "set")
    calls[:] = [None] * 4  # no further interrupt
    scenes = build(spec, 100, tmp_path / "set", jobs=1)
    assert [indices.start for indices in calls[5:]] == [64, 96]
    monkeypatch.undo()
    assert scenes.fingerprint == build(spec, 100, tmp_path / "other", jobs=1).fingerprint


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    return tmp_path


TINY = SceneSpec((1, 2), 16, seed=4, style="flat")


def test_cached_scenes_are_made_once_and_serve_smaller_requests(cache, monkeypatch):
    scenes = cached(TINY, 40)
    assert scenes.directory == cache / "data" / "generated" / identify(TINY) / "40"
    monkeypatch.setattr(generator, "render", None)  # nothing is drawn any more
    fewer = cached(TINY, 12)
    assert len(fewer) == 12
    np.testing.assert_array_equal(fewer.images[:], scenes.images[:12])
    assert len(cached(TINY, 40)) == 40


def test_a_larger_request_continues_from_the_smaller_set_and_leaves_it(cache, monkeypatch):
    small = cached(TINY, 20)
    drawn = []
    monkeypatch.setattr(generator, "render", lambda spec, indices: drawn.extend(indices) or render(spec, indices))
    large = cached(TINY, 50)
    assert drawn == [0, *range(20, 50)]  # the one is the trial before anything is written
    np.testing.assert_array_equal(large.images[:20], small.images[:])
    np.testing.assert_array_equal(large.labels[:], render(TINY, range(50))["labels"])
    assert cached(TINY, 20).directory == small.directory


def test_a_set_that_another_process_makes_is_waited_for(cache, caplog):
    folder = cache / "data" / "generated" / identify(TINY) / "8"
    builder = Builder(folder, generator.fields(TINY), 8, provenance(TINY), properties=_names(TINY))
    sets = []
    waiting = threading.Thread(target=lambda: sets.append(cached(TINY, 8)))
    waiting.start()
    while "waiting" not in caplog.text and waiting.is_alive():
        time.sleep(0.02)
    builder.append(**render(TINY, range(8)))
    builder.finish()
    waiting.join(timeout=30)
    assert len(sets[0]) == 8


def _names(spec: SceneSpec) -> dict[str, tuple[str, ...]]:
    style = STYLES[spec.style]
    return {"shape": style.shapes, "size": style.sizes, "material": style.materials, "color": style.colors}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (SceneSpec((200, 200), 32, radius=(0.35, 0.7)), "200 objects of radius 0.35 to 0.7 found no place"),
        (SceneSpec((1, 200), 32), "objects of radius 0.0783 fill at most 2 pixels at size 32 and must show 4"),
        (SceneSpec((2, 30), 32, style="flat", radius=(0.3, 0.3)), "30 objects of radius 0.3 to 0.3 found no place"),
        (SceneSpec((25, 25), 32, min_visible=11), "ask for fewer or smaller objects, a larger size"),
    ],
)
def test_an_impossible_request_is_refused_before_anything_is_written(spec, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        build(spec, 1000, tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_the_command_makes_a_set_and_says_where(tmp_path, capsys):
    out = tmp_path / "a set"
    words = ["data", "generate", "--objects", "2:4", "--size", "16", "--num", "40", "--seed", "7", "--style", "flat"]
    words += ["--shapes", "disc", "--radius", "0.14", "0.2", "--min-visible", "6", "--out", str(out)]
    verbs.main(words)
    verbs.main(words)  # finished already: says so again
    assert capsys.readouterr().out == f"40 scenes in {out}\n" * 2
    spec = SceneSpec((2, 4), 16, 7, "flat", shapes=("disc",), radius=(0.14, 0.2), min_visible=6)
    np.testing.assert_array_equal(Scenes.open(out).images[:], render(spec, range(40))["images"])


@pytest.mark.parametrize("objects", ["3-6", "", "3:", "a:b", "-1:3", "1:2:3"])
def test_a_range_that_is_none_is_refused(objects, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        verbs.main(["data", "generate", f"--objects={objects}", "--num", "2", "--out", str(tmp_path / "set")])
    assert ended.value.code == 2
    assert "which is not a range: write FEWEST:MOST (both included), as 3:6, or one number" in capsys.readouterr().err
