"""Documents with a valid seal and a wrong content: every field of every kind, missing and of every other type."""

import copy
import dataclasses
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tiny
from slotnorm.cli import verbs
from slotnorm.data import Builder, Scenes
from slotnorm.data.check import check, describe
from slotnorm.errors import DamagedFile, UserError
from slotnorm.evaluation.examples import Examples
from slotnorm.evaluation.rows import Rows
from slotnorm.evaluation.scoring import Scores
from slotnorm.models.weights import unpack
from slotnorm.report import reading, writing
from slotnorm.storage import archives, seals
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.storage.seals import read_sealed, seal_description, write_sealed
from slotnorm.studies.jobs import JobNote, read_note
from slotnorm.studies.run_evaluation import read_judgement
from slotnorm.training import checkpoints
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

OTHERS = [
    None, True, 0, -1, 1 << 40, 1 << 70, 1.5, -0.0, 1e300, "", "x", "²", "../../x", "9" * 5000, [], [1], ["x"], [[]],
    {}, {"x": 1}, {"kind": []}, [{"x": None}],
]  # fmt: skip
MOST_MEMORY = 200 << 20  # what reading forged documents of a few kilobytes may take


@dataclasses.dataclass
class Document:
    """A kind of sealed document: its content, how another content is put in its place, and who reads it."""

    content: dict[str, Any]
    put: Callable[[dict[str, Any]], None]
    readers: list[Callable[[], Any]]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of documents are written here, and none must survive a power loss."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained, evaluated and reported run, a set, and a set that is being built."""
    folder = tmp_path_factory.mktemp("forged")
    tiny.build_scenes(folder / "set", num=24)
    run = train(tiny.experiment(steps=4), folder / "runs", data=folder / "set")
    arguments = ["--dataset", "toy", "--data", str(folder / "set"), "--slots", "3:4", "--scenes", "8"]
    verbs.main(["eval", str(run.path), *arguments])
    verbs.main(["report", str(run.path), "--out", str(folder / "report")])
    write_sealed(run.path / "job.json", dataclasses.asdict(JobNote("local", "1", 1, "submitted", "")))
    with Builder(folder / "building", {"images": ((4, 4, 3), "uint8")}, 8) as builder:
        builder.append(images=np.zeros((4, 4, 4, 3), np.uint8), counts=np.ones(4, np.uint16))
    return folder


def documents(folder: Path) -> dict[str, Document]:
    run = next((folder / "runs").iterdir())
    record, rows = run / "checkpoints" / "step-4.json", next((run / "rows").glob("*.npz"))

    def sealed(path: Path, *readers: Callable[[], Any], seal: seals.Seal = seals.RECORD) -> Document:
        return Document(read_sealed(path, seal), lambda content: write_sealed(path, content, seal), list(readers))

    def standing() -> None:
        examined = checkpoints.examine(run / "checkpoints")
        if examined.record is not None:
            checkpoints.load(run / "checkpoints", examined.record.step)

    def weights() -> Document:
        path = folder / "model.safetensors"
        path.write_bytes((run / "checkpoints" / "step-4.safetensors").read_bytes())
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            content = json.loads(file.metadata()["slotnorm"])
        return Document(
            content,
            lambda forged: save_file(tensors, path, metadata=seal_description("slotnorm", forged)),
            [lambda: unpack(path)],
        )

    def header(path: Path, name: str, reader: Callable[[Path], Any]) -> Document:
        arrays = archives.read_arrays(path)
        forged = folder / f"forged-{path.name}"
        return Document(
            archives.from_text(arrays[name]),
            lambda content: archives.write_arrays(forged, {**arrays, name: archives.as_text(content)}),
            [lambda: reader(forged)],
        )

    pixels = np.zeros((2, 4, 4, 3), np.uint8)
    Examples("run", "norm", "toy", np.arange(2), pixels, None, {3: np.zeros((2, 3, 4, 4), np.uint8)}, {}).save(
        folder / "examples.npz"
    )
    images = {"images": ((4, 4, 3), "uint8")}
    return {
        "experiment.json": sealed(run / "experiment.json", lambda: Run.open(run)),
        "step-N.json": sealed(record, standing, lambda: Run.open(run).standing(), lambda: Run.open(run).metrics()),
        "job.json": sealed(run / "job.json", lambda: read_note(run)),
        "binding.json": sealed(
            run / "rows" / "binding.json", lambda: read_judgement(run), lambda: reading._read_binding(run)
        ),
        "report.json": sealed(
            folder / "report" / writing.MANIFEST, lambda: writing.require_folder(folder / "report")
        ),
        "manifest.json": sealed(
            folder / "set" / "manifest.json",
            lambda: describe(Scenes.open(folder / "set")),
            lambda: Scenes.open(folder / "set")[:2].read("images", np.arange(2)),
            seal=seals.MANIFEST,
        ),
        "building.json": sealed(
            folder / "building" / "building.json",
            lambda: Builder(folder / "building", images, 8).close(),
            seal=seals.MANIFEST,
        ),
        "weights": weights(),
        "rows": header(rows, "header", Rows.load),
        "examples": header(folder / "examples.npz", "record", Examples.load),
    }  # fmt: skip


NAMES = [
    "experiment.json", "step-N.json", "job.json", "binding.json", "report.json", "manifest.json", "building.json",
    "weights", "rows", "examples",
]  # fmt: skip


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field, and every entry of a list, at any depth."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in list(entries)[:12]:
        yield (*path, name)
        yield from places(value, (*path, name))


def changed(content: dict[str, Any], place: tuple[Any, ...], value: Any = ..., name: str = "") -> dict[str, Any]:
    """The content with one entry deleted, replaced, or another one beside it."""
    forged = copy.deepcopy(content)
    inner: Any = forged
    for step in place[:-1]:
        inner = inner[step]
    if name:
        if isinstance(inner, dict):
            inner[name] = 1
    elif value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return forged


def require_own_error(document: Document, forged: dict[str, Any]) -> int:
    """Read a forged document: it may pass, or be refused in our words. Returns how often it was read."""
    document.put(forged)
    for reader in document.readers:
        try:
            reader()
        except UserError as refusal:
            assert len(str(refusal)) < 2000, str(refusal)[:200]  # noqa: PT017
    return len(document.readers)


@pytest.mark.parametrize("name", NAMES)
def test_a_sealed_document_with_a_field_missing_or_of_another_type_is_refused_in_our_words(
    folder: Path, name: str, record_property: Callable[..., None]
) -> None:
    document = documents(folder)[name]
    tried = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        for number, place in enumerate(places(document.content)):
            tried += require_own_error(document, changed(document.content, place))
            tried += require_own_error(document, changed(document.content, place, name="another"))
            for value in OTHERS[number % 8 :: 8]:
                tried += require_own_error(document, changed(document.content, place, value))
    finally:
        document.put(document.content)
    for reader in document.readers:
        reader()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown << 10 < MOST_MEMORY
    record_property("fault", (f"a forged {name}, sealed: a field missing, beyond, mistyped", tried, tried))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", NAMES)
def test_a_sealed_document_with_anything_in_a_field_is_refused_in_our_words(folder: Path, name: str) -> None:
    document = documents(folder)[name]
    known = list(places(document.content))

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(known), VALUES)
    def check_one(place: tuple[Any, ...], value: Any) -> None:
        require_own_error(document, changed(document.content, place, value))

    try:
        check_one()
    finally:
        document.put(document.content)


def forge(run: Run, change: Callable[[dict[str, torch.Tensor]], None], optimizer: bool) -> None:
    """Change tensors of the newest checkpoint, and seal it again."""
    name = f"step-{run.step}.{'optimizer.' * optimizer}safetensors"
    path, record = run.checkpoints / name, run.checkpoints / f"step-{run.step}.json"
    tensors = load_file(path)
    change(tensors)
    metadata = None
    if not optimizer:
        with safe_open(path, "pt") as file:
            description = json.loads(file.metadata()["slotnorm"])
        metadata = seal_description("slotnorm", {**description, "sha256_of_tensors": fingerprint(tensors)})
    save_file(tensors, path, metadata=metadata)
    content = read_sealed(record)
    from slotnorm.storage import files

    content["files"][name] = {"sha256": files.sha256(path), "size": path.stat().st_size}
    write_sealed(record, content)


def spoil(tensors: dict[str, torch.Tensor]) -> None:
    tensors[min(tensors)] = torch.full_like(tensors[min(tensors)], float("nan"))


def shrink(tensors: dict[str, torch.Tensor]) -> None:
    name = max(name for name, tensor in tensors.items() if tensor.ndim)
    tensors[name] = torch.tensor(1.0)


@pytest.mark.parametrize("optimizer", [False, True])
@pytest.mark.parametrize(("change", "sentence"), [(spoil, "is not finite"), (shrink, r"is \(\) torch.float32, not \(")])
def test_forged_tensors_are_not_taken(
    tmp_path: Path, folder: Path, optimizer: bool, change: Callable[..., None], sentence: str
) -> None:
    run = train(tiny.experiment(steps=4), tmp_path, data=folder / "set")
    forge(run, change, optimizer)
    with pytest.raises(UserError, match=sentence):
        train(tiny.experiment(steps=6), tmp_path, data=folder / "set")
    if not optimizer:
        with pytest.raises(UserError, match=sentence):
            run.model()


def test_a_small_file_that_asks_for_a_large_model_is_refused_before_it_takes_memory(folder: Path) -> None:
    document = documents(folder)["weights"]
    forged = copy.deepcopy(document.content)
    forged["experiment"]["recipe"]["model"]["decoder_hidden"] = [30000, 30000]
    document.put(forged)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import slotnorm

    with pytest.raises(UserError, match=r"does not fit the model of its experiment: decoder.* is .*, not \(30000"):
        slotnorm.load(folder / "model.safetensors")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
    document.put(document.content)


def test_a_set_with_features_that_are_not_finite_fails_the_check_though_it_is_sealed_again(tmp_path: Path) -> None:
    scenes = tiny.build_scenes(tmp_path / "set", num=8)
    path = scenes.directory / "features.npy"
    rows = np.memmap(path, np.float16, "r+", offset=128)
    rows[16 * 6 * 5] = np.nan
    rows.flush()
    content = read_sealed(scenes.directory / "manifest.json", seals.MANIFEST)
    from slotnorm.data.manifest import checksum, pack
    from slotnorm.storage import files

    content["files"]["features"]["sha256"] = files.sha256(path)
    content["files"]["features"]["checksums"] = pack([checksum(path.read_bytes()[128:])])
    write_sealed(scenes.directory / "manifest.json", content, seals.MANIFEST)
    with pytest.raises(DamagedFile, match=r"features\.npy has features of scene 5 that are not finite"):
        check(scenes.directory)


def test_scores_of_other_shapes_are_refused(tmp_path: Path) -> None:
    whole = {"images": np.arange(3), "slots": np.arange(3), "values": np.zeros((3, 2), np.float32)}
    archives.write_arrays(tmp_path / "part.npz", whole)
    assert len(Scores.load(tmp_path / "part.npz").images) == 3
    for name, array in [
        ("images", np.zeros((3, 3), np.int64)), ("slots", np.zeros(3)), ("values", np.zeros((2, 2), np.float32)),
        ("predictions-x", np.zeros((3, 3, 3), np.float32)), ("predictions-3", np.zeros(3, np.float32)),
    ]:  # fmt: skip
        archives.write_arrays(tmp_path / "part.npz", {**whole, name: array})
        with pytest.raises(DamagedFile, match="is sealed but holds no scores"):
            Scores.load(tmp_path / "part.npz")
    for name in whole:
        archives.write_arrays(tmp_path / "part.npz", {key: whole[key] for key in whole if key != name})
        with pytest.raises(DamagedFile, match="is sealed but holds no scores"):
            Scores.load(tmp_path / "part.npz")
