"""One mechanism seals documents, archives and descriptions; what was sealed before stays readable, byte for byte."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import slotnorm
import tiny
from slotnorm.data import Builder, Scenes
from slotnorm.errors import DamagedFile, UserError
from slotnorm.storage import seals
from slotnorm.storage.archives import from_text, read_arrays, write_arrays
from slotnorm.training import checkpoints
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

BEFORE = Path(__file__).parent / "fixtures" / "written_before"
RUN = BEFORE / "toy-weighted_sum-1"
DOCUMENTS = [
    (RUN / "experiment.json", seals.RECORD),
    (RUN / "checkpoints" / "step-4.json", seals.RECORD),
    (BEFORE / "set" / "manifest.json", seals.MANIFEST),
    (BEFORE / "half_built" / "building.json", seals.MANIFEST),
]


@pytest.mark.parametrize(("path", "seal"), DOCUMENTS, ids=lambda value: getattr(value, "name", ""))
def test_documents_of_before_are_read_and_would_be_written_again_byte_for_byte(path: Path, seal: seals.Seal) -> None:
    assert seal.close(seals.read_sealed(path, seal)) == path.read_bytes()


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "1e400", "9" * 400, "9" * 400 + ".0", "NaN", "Infinity", "-Infinity"]
)
def test_a_number_that_no_float_holds_is_not_json(number: str) -> None:
    with pytest.raises(DamagedFile, match="not valid JSON"):
        seals.parse_json(f'{{"x": [1, {number}]}}'.encode(), "document")


def test_half_a_surrogate_pair_is_not_json() -> None:
    assert seals.parse_json(b'"\\ud83c\\udf39 \\\\ud83c"', "document") == "\N{ROSE} \\ud83c"
    for text in (b'"\\ud83c"', b'{"\\udf39": 1}', b'"\xed\xa0\x80"'):
        with pytest.raises(DamagedFile, match="not valid JSON"):
            seals.parse_json(text, "document")


def test_unusual_numbers_are_numbers() -> None:
    content = {"small": 1e-300, "large": 1e300, "whole": 10**300, "text": "1e999", "negative": -(10**299)}
    assert seals.parse_json(json.dumps(content).encode(), "document") == content


def test_archives_of_before_are_read_and_would_be_written_again_byte_for_byte(tmp_path: Path) -> None:
    arrays = read_arrays(BEFORE / "arrays.npz")
    assert np.array_equal(arrays["numbers"], np.arange(12, dtype=np.float32).reshape(3, 4))
    assert from_text(arrays["header"], tmp_path) == {"é": [1, 2.5, None]}
    write_arrays(tmp_path / "arrays.npz", arrays)
    assert (tmp_path / "arrays.npz").read_bytes() == (BEFORE / "arrays.npz").read_bytes()


def test_a_set_of_before_opens_and_a_half_built_one_continues(tmp_path: Path) -> None:
    scenes = Scenes.open(BEFORE / "set")
    assert len(scenes) == 3
    scenes.verify("images")
    folder = Path(shutil.copytree(BEFORE / "half_built", tmp_path / "set"))
    fields = {"images": ((4, 4, 3), "uint8"), "labels": ((4, 4), "uint8"), "x": ((2,), "float32")}
    with Builder(folder, fields, 5, {"made for": "tests"}) as builder:
        assert builder.done == 2
        chunk = {name: np.zeros((3, *shape), dtype) for name, (shape, dtype) in fields.items()}
        builder.append(**chunk, counts=np.zeros(3, np.uint16))
        assert len(builder.finish()) == 5


def test_a_run_of_before_loads_and_resumes(tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(RUN, tmp_path / RUN.name))
    assert run.record().step == 4
    assert slotnorm.load(run.path).experiment == run.experiment
    data = tiny.build_scenes(tmp_path / "data").directory
    recipe = dataclasses.replace(run.experiment.recipe, steps=6, keep_checkpoints=1)
    assert train(dataclasses.replace(run.experiment, recipe=recipe), tmp_path, data=data).step == 6
    assert checkpoints.committed(run.checkpoints) == [6]


@pytest.mark.parametrize("path", [*(path for path, _ in DOCUMENTS), BEFORE / "arrays.npz"], ids=lambda path: path.name)
def test_every_flipped_bit_is_noticed(path: Path, tmp_path: Path) -> None:
    written, chance, copy = path.read_bytes(), random.Random(0), tmp_path / path.name
    for place in chance.sample(range(len(written) * 8), 300):
        damaged = bytearray(written)
        damaged[place // 8] ^= 1 << place % 8
        copy.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=path.name):
            read_arrays(copy) if path.suffix == ".npz" else seals.read_sealed(copy, dict(DOCUMENTS)[path])


def test_a_flipped_bit_in_weights_is_noticed_also_in_the_space_of_their_description(tmp_path: Path) -> None:
    path = Run.open(RUN).export(tmp_path / "model.safetensors")
    written = path.read_bytes()
    place = written.index(b'\\"step\\":4') + 3
    path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
    with pytest.raises(UserError, match="model.safetensors is damaged"):
        slotnorm.load(path)


def test_a_document_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    with pytest.raises(UserError, match="what it would say cannot be read again.*rename that"):
        seals.write_sealed(path, {"source": "/data/\udcff"})
    assert not path.exists()
    seals.write_sealed(path, {"source": "/data/\N{TEST TUBE}", "number": 1e300})
    assert seals.read_sealed(path)["source"] == "/data/\N{TEST TUBE}"
