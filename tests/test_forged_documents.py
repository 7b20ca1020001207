"""Documents with a valid seal and a wrong content: every field of every kind, missing and of every other type."""

import copy
import dataclasses
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import slotnorm
import tiny
from slotnorm.cli import verbs
from slotnorm.data import Builder, Scenes
from slotnorm.data.check import check, describe
from slotnorm.data.manifest import checksum, pack
from slotnorm.errors import DamagedFile, UserError
from slotnorm.evaluation.examples import Examples
from slotnorm.evaluation.rows import Rows
from slotnorm.evaluation.scoring import Scores
from slotnorm.report import reading, writing
from slotnorm.storage import archives, files, seals
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.storage.seals import read_sealed, seal_description, write_sealed
from slotnorm.studies import sweep
from slotnorm.studies.jobs import JobNote, read_note, write_note
from slotnorm.studies.options import Training
from slotnorm.studies.relays import Receipt, read_receipt
from slotnorm.studies.run_evaluation import read_judgement
from slotnorm.studies.status import read_status
from slotnorm.training import checkpoints
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scenes.png"
OTHERS = [
    None, True, 0, -1, 1 << 40, 1 << 70, 1.5, -0.0, 1e300, "", "x", "²", "../../x", "9" * 5000, [], [1], ["x"], [[]],
    {}, {"x": 1}, {"kind": []}, [{"x": None}], 10**400, "\0", "\ud800", json.loads("[" * 400 + "]" * 400), "0" * 64,
]  # fmt: skip
MOST_MEMORY = 200 << 20  # what reading forged documents of a few kilobytes may take


def seal_anything(path: Path, content: Any, seal: seals.Seal) -> None:
    """Seal a document as whoever wants to can, also one that `write_sealed` would not write."""
    path.write_bytes(seal.close(content))


@dataclasses.dataclass
class Document:
    """A kind of sealed document: its content, how another content is put in its place, and who reads it."""

    content: dict[str, Any]
    put: Callable[[dict[str, Any]], None]
    readers: list[Callable[[], Any]]
    verbs: list[list[str]] = dataclasses.field(default_factory=list)
    """Commands that come across it, and may write to its folder."""


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of documents are written here, and none must survive a power loss."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained, evaluated and reported run, a set, and a set that is being built; beside it a copy, `whole`."""
    folder = tmp_path_factory.mktemp("forged")
    work = folder / "work"
    tiny.build_scenes(work / "set", num=24)
    run = train(tiny.experiment(steps=4), work / "runs", data=work / "set")
    arguments = ["--dataset", "toy", "--data", str(work / "set"), "--slots", "3:4", "--scenes", "8"]
    verbs.main(["eval", str(run.path), *arguments])
    verbs.main(["report", str(run.path), "--out", str(work / "report")])
    write_note(run.path, JobNote("local", "1", 1, "submitted", ""))
    write_sealed(work / "receipt.json", dataclasses.asdict(Receipt("host", 0)))
    with Builder(work / "building", {"images": ((4, 4, 3), "uint8")}, 8) as builder:
        builder.append(images=np.zeros((4, 4, 4, 3), np.uint8), counts=np.ones(4, np.uint16))
    scenes = np.zeros((2, 4, 4, 3), np.uint8)
    Examples("run", "norm", "toy", np.arange(2), scenes, None, {3: np.zeros((2, 3, 4, 4), np.uint8)}, {}).save(
        work / "examples.npz"
    )
    run.export(work / "model.safetensors")
    shutil.copytree(work, folder / "whole")
    return work


def restore(folder: Path) -> None:
    """Undo whatever was done to the folder by those who read it."""
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("whole"), folder)


def any_text(content: Any) -> Any:
    """As `archives.as_text`, also of what that does not write since it cannot be read again."""
    return np.frombuffer(json.dumps(content, sort_keys=True).encode(), dtype=np.uint8)


def documents(folder: Path) -> dict[str, Document]:
    run = next((folder / "runs").iterdir())
    record, rows = run / "checkpoints" / "step-4.json", next((run / "rows").glob("*.npz"))
    data = ["--data", str(folder / "set")]
    steps = ["--recipe.steps", "4", "--into", str(folder / "runs")]
    of_run = [
        ["status", str(run)],
        ["eval", str(run), "--dataset", "toy", *data, "--slots", "3:4", "--scenes", "8"],
        ["judge", str(run), *data],
        ["report", str(run), "--out", str(folder / "report"), "--no-models"],
        ["sweep", "toy", "--norms", "weighted_sum", "--seeds", "1", *data, *steps, "--plan"],
        ["segment", str(PICTURE), "--run", str(run), "--slots", "3", "--out", str(folder / "segments")],
    ]

    def sealed(
        path: Path, *readers: Callable[[], Any], seal: seals.Seal = seals.RECORD, verbs: Sequence[list[str]] = ()
    ) -> Document:
        return Document(
            read_sealed(path, seal), lambda content: seal_anything(path, content, seal), list(readers), list(verbs)
        )

    def resume() -> None:
        train(tiny.experiment(steps=4), folder / "runs", data=folder / "set")

    def standing() -> None:
        examined = checkpoints.examine(run / "checkpoints")
        if examined.record is not None:
            checkpoints.load(run / "checkpoints", examined.record.step)

    def weights(path: Path, readers: list[Callable[[], Any]], verbs: list[list[str]]) -> Document:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            content = json.loads(file.metadata()["slotnorm"])

        def put(forged: dict[str, Any]) -> None:
            save_file(tensors, path, metadata=seal_description("slotnorm", forged))
            if path.parent.name == "checkpoints":
                seal_again(path, record)

        return Document(content, put, readers, verbs)

    def header(path: Path, name: str, readers: list[Callable[[], Any]], verbs: Sequence[list[str]] = ()) -> Document:
        arrays = archives.read_arrays(path)
        return Document(
            archives.from_text(arrays[name], path),
            lambda content: archives.write_arrays(path, {**arrays, name: any_text(content)}),
            readers,
            list(verbs),
        )

    images = {"images": ((4, 4, 3), "uint8")}
    model = folder / "model.safetensors"
    return {
        "experiment.json": sealed(
            run / "experiment.json", lambda: Run.open(run).command, lambda: read_status([run]), resume, verbs=of_run
        ),
        "step-N.json": sealed(
            record, standing, lambda: Run.open(run).standing(), lambda: Run.open(run).metrics(),
            lambda: Run.open(run).summary(), lambda: read_status([run]), resume, verbs=of_run,
        ),
        "job.json": sealed(
            run / "job.json", lambda: read_note(run), lambda: sweep.plan([training(folder)]),
            lambda: read_status([run]), verbs=[["status", str(run)], ["status", str(run), "--cancel"]],
        ),
        "receipt.json": sealed(folder / "receipt.json", lambda: read_receipt(folder / "receipt.json")),
        "binding.json": sealed(
            run / "rows" / "binding.json", lambda: read_judgement(run), lambda: reading.read([run]), verbs=of_run[1:4]
        ),
        "report.json": sealed(
            folder / "report" / writing.MANIFEST, lambda: writing.require_folder(folder / "report"), verbs=of_run[3:4]
        ),
        "manifest.json": sealed(
            folder / "set" / "manifest.json",
            lambda: describe(Scenes.open(folder / "set")),
            lambda: Scenes.open(folder / "set")[:2].read("images", np.arange(2)),
            seal=seals.MANIFEST,
            verbs=[["data", "check", str(folder / "set")], of_run[1]],
        ),
        "building.json": sealed(
            folder / "building" / "building.json",
            lambda: Builder(folder / "building", images, 8).close(),
            seal=seals.MANIFEST,
        ),
        "weights": weights(
            model, [lambda: slotnorm.load(model)],
            [["segment", str(PICTURE), "--run", str(model), "--slots", "3", "--out", str(folder / "segments")]],
        ),
        "weights of a run": weights(
            run / "checkpoints" / "step-4.safetensors", [lambda: Run.open(run).model(), resume], of_run
        ),
        "rows": header(rows, "header", [lambda: Rows.load(rows), lambda: reading.read([run])], of_run[1:4]),
        "examples": header(folder / "examples.npz", "record", [lambda: Examples.load(folder / "examples.npz")]),
    }  # fmt: skip


NAMES = [
    "experiment.json", "step-N.json", "job.json", "receipt.json", "binding.json", "report.json", "manifest.json",
    "building.json", "weights", "weights of a run", "rows", "examples",
]  # fmt: skip


def training(folder: Path) -> Training:
    return Training(tiny.experiment(steps=4), folder / "runs", folder / "set")


def places(content: Any, most: int, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field, and every entry of a list, at any depth; of entries of one object or list not more than `most`."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in list(entries)[:most]:
        yield (*path, name)
        yield from places(value, most, (*path, name))


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


def forgeries(content: dict[str, Any], place: tuple[Any, ...], values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    yield changed(content, place)
    yield changed(content, place, name="another")
    for value in values:
        yield changed(content, place, value)


def require_own_error(document: Document, forged: dict[str, Any]) -> int:
    """Read a forged document: it may pass, or be refused in our words. Returns how often it was read."""
    document.put(forged)
    for reader in document.readers:
        try:
            reader()
        except UserError as refusal:
            assert len(str(refusal)) < 2000, str(refusal)[:200]  # noqa: PT017
    return len(document.readers)


def require_own_ending(words: list[str]) -> None:
    """Give a command that comes across a forged document: it may do its work, or end in our words."""
    try:
        verbs.main(words)
    except SystemExit as ended:
        assert ended.code in (0, 1, 2, 4, 5), f"exit code {ended.code}"  # noqa: PT017


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def forge_every_field(folder: Path, name: str, most: int, stride: int) -> int:
    """Each field missing, beside another one, and with every `stride`-th of the other values; returns how many."""
    document = documents(folder)[name]
    tried, before = 0, peak()
    for number, place in enumerate(places(document.content, most)):
        for forged in forgeries(document.content, place, OTHERS[number % stride :: stride]):
            try:
                tried += require_own_error(document, forged)
            except Exception as error:
                raise AssertionError(f"{name}, {place}: {forged}") from error
        restore(folder)
    for reader in document.readers:
        reader()
    assert peak() - before < MOST_MEMORY
    return tried


@pytest.mark.parametrize("name", NAMES)
def test_a_sealed_document_with_a_field_missing_or_of_another_type_is_refused_in_our_words(
    folder: Path, name: str
) -> None:
    assert forge_every_field(folder, name, most=4, stride=27) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_a_sealed_document_with_every_other_value_is_refused_in_our_words(
    folder: Path, name: str, record_property: Callable[..., None]
) -> None:
    tried = forge_every_field(folder, name, most=1000, stride=1)
    record_property("fault", (f"a forged {name}, sealed: each field missing, beyond, mistyped", tried, tried))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("receipt.json", "building.json", "examples")])
def test_commands_that_come_across_a_forged_document_end_in_our_words(
    folder: Path, name: str, record_property: Callable[..., None]
) -> None:
    document = documents(folder)[name]
    tried, before = 0, peak()
    for number, place in enumerate(places(document.content, 30)):
        for forged in forgeries(document.content, place, OTHERS[number % 13 :: 13]):
            words = document.verbs[tried % len(document.verbs)]
            document.put(forged)
            try:
                require_own_ending(words)
            except Exception as error:
                raise AssertionError(f"{words}, {place}: {forged}") from error
            restore(folder)
            tried += 1
    assert peak() - before < 2 * MOST_MEMORY  # they do their work, too
    record_property("fault", (f"commands that come across a forged {name}", tried, tried))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("examples", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_a_sealed_document_with_anything_in_a_field_is_refused_in_our_words(
    folder: Path, name: str, examples: int, record_property: Callable[..., None]
) -> None:
    document = documents(folder)[name]
    known = list(places(document.content, 1000))
    tried = 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(known), VALUES)
    def check_one(place: tuple[Any, ...], value: Any) -> None:
        nonlocal tried
        tried += require_own_error(document, changed(document.content, place, value))

    try:
        check_one()
    finally:
        restore(folder)
    if examples > 100:
        record_property("fault", ("anything in any field of a sealed document", tried, tried))


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
    seal_again(path, record)


def seal_again(path: Path, record: Path) -> None:
    """Have a checkpoint's record say what its file is now."""
    content = read_sealed(record)
    content["files"][path.name] = {"sha256": files.sha256(path), "size": path.stat().st_size}
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


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("recipe", "model", "size"), 4096, "model.size is 4096, but must be at most 2,048"),
        (("recipe", "evaluation_iterations"), 10**9, "recipe.evaluation-iterations is 1000000000, but must be at most"),
        (("slots",), 10**7, "slots is 10000000, but must be at most 4,096"),
    ],
)
@pytest.mark.parametrize("name", ["weights", "experiment.json"])
def test_what_no_weight_bears_out_is_bounded_wherever_an_experiment_is_read(
    folder: Path, name: str, place: tuple[str, ...], value: int, sentence: str
) -> None:
    document = documents(folder)[name]
    document.put(changed(document.content, ("experiment", *place), value))
    try:
        with pytest.raises(DamagedFile, match=sentence):
            document.readers[0]()
    finally:
        document.put(document.content)


def test_a_small_file_that_asks_for_a_large_model_is_refused_before_it_takes_memory(folder: Path) -> None:
    document = documents(folder)["weights"]
    forged = copy.deepcopy(document.content)
    forged["experiment"]["recipe"]["model"]["decoder_hidden"] = [30000, 30000]
    document.put(forged)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
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


def other_arrays(length: int) -> list[Any]:
    """In the place of a column of this length."""
    kinds = ["f8", "f2", "u8", "c16", "M8[s]", "m8[s]", "V8", "S2", "U2", "?", ">i4", [("a", "f4")]]
    largest = [np.full(length, 1 << 63, np.uint64), np.full(length, -1 << 63), np.full(length, np.inf)]
    shapes: list[Any] = [(), (0,), (length + 1,), (length, 2), (0, 1 << 40)]
    return [np.zeros(length, kind) for kind in kinds] + largest + [np.zeros(shape, np.int64) for shape in shapes]


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["rows", "examples"])
def test_arrays_of_other_kinds_and_shapes_are_refused_in_our_words(folder: Path, name: str, stride: int) -> None:
    document = documents(folder)[name]
    path = folder / "examples.npz" if name == "examples" else next(folder.glob("runs/*/rows/*.npz"))
    whole = archives.read_arrays(path)
    refused = 0
    for number, (column, array) in enumerate(whole.items()):
        for other in [None, *other_arrays(len(array))[number % stride :: stride]]:
            forged = {**whole, column: other} if other is not None else {**whole}
            if other is None:
                del forged[column]
            archives.write_arrays(path, forged)
            for reader in document.readers:
                try:
                    reader()
                except UserError as refusal:
                    refused += 1
                    assert len(str(refusal)) < 1000, str(refusal)[:200]  # noqa: PT017
                    assert path.parent.name in str(refusal)  # noqa: PT017
    restore(folder)
    assert stride * refused > 10 * len(whole)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.int64, torch.bool])
def test_weights_of_other_kinds_of_number_are_taken_or_refused_in_our_words(folder: Path, kind: torch.dtype) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        description = json.loads(file.metadata()["slotnorm"])
    tensors = {name: tensor.to(kind) if tensor.ndim else tensor for name, tensor in tensors.items()}
    content = {**description, "sha256_of_tensors": fingerprint(tensors)}
    try:
        save_file(tensors, path, metadata=seal_description("slotnorm", content))
    except KeyError:
        pytest.skip(f"safetensors {safetensors.__version__} cannot write {kind}")
    try:
        if kind.is_floating_point:
            slotnorm.load(path)
        else:
            with pytest.raises(UserError, match="does not fit the model"):
                slotnorm.load(path)
    finally:
        restore(folder)
