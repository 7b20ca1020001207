"""What results/ holds of a run: the same rows, packed tightly, and weights in half precision that say so."""

import importlib.util
import shutil
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import slotnorm as sn
import tiny
from slotnorm.errors import DamagedFile, UserError
from slotnorm.evaluation.diagnosis import with_ratios
from slotnorm.evaluation.examples import Examples
from slotnorm.evaluation.rows import Rows
from slotnorm.models import weights
from slotnorm.report.model_views import Inspector
from slotnorm.report.reading import read
from slotnorm.storage import archives, seals
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.studies.run_evaluation import plan_evaluations
from slotnorm.training.loop import train
from slotnorm.training.runs import Run


def script(name: str) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


publishing, counts = script("publish"), script("publish_counts")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data"), 24, crowded=True).directory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, crowd: Path) -> Run:
    trained = train(tiny.experiment("batch_norm", steps=4), tmp_path_factory.mktemp("runs"), data=crowd)
    (evaluation,) = plan_evaluations([trained.path], "toy7", slots=[3, 4], scenes=12, data=crowd)
    evaluation.evaluate()
    return trained


def shown(rows: Rows, table_slots: list[int]) -> Rows:
    """The rows that a figure or a table shows: mBO and mIoU by the masks, with the numbers of slots of tables."""
    of_tables = np.isin(rows["metric"], ("mbo", "miou"))
    in_tables = np.isin(rows["slots"], table_slots) & (rows["source"] == "masks")
    assert (of_tables & ~in_tables).any()
    return rows.take(~of_tables | in_tables)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_published_run_has_its_rows_and_rounded_weights_and_no_checkpoints(
    run: Run, crowd: Path, tmp_path: Path
) -> None:
    (published,) = publishing.publish([run.path.parent], tmp_path)
    names = {"experiment.json", "metrics.jsonl", "rows/binding.json", "rows/toy7.npz"}
    assert set(files_of(published)) == names | {f"{run.name}.safetensors", f"{run.name}.md"}
    rows = Rows.load(published / "rows" / "toy7.npz")
    before = shown(Rows.load(run.path / "rows" / "toy7.npz"), table_slots=[4])
    assert rows.equals(before.with_columns(value=rows["value"]))
    np.testing.assert_allclose(rows["value"], before["value"], rtol=2.0**-14, atol=0)
    exact = np.isin(rows["metric"], ("visible", "count"))
    assert exact.any()
    assert rows.take(exact).equals(before.take(exact)), "whole numbers are not rounded"
    stored = weights.unpack(published / f"{run.name}.safetensors")
    for tensor in stored.tensors.values():
        assert tensor.dtype == (torch.float16 if tensor.dim() > 1 else torch.float32)
    model = sn.load(published)
    assert model.rounded_from == fingerprint(run.model().state_dict()) == rows.header["weights"]
    for name, tensor in run.model().state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-3, atol=1e-6)
    card = (published / f"{run.name}.md").read_text()
    assert "Matrices are in half precision. Rows and scores were made with the weights before" in card
    illustration, notes = Inspector(data=crowd).illustrate(read([tmp_path]).sections[0])
    assert notes == []
    assert illustration is not None


def test_pictures_are_kept_of_the_runs_that_the_page_shows(run: Run, crowd: Path, tmp_path: Path) -> None:
    second = Path(shutil.copytree(run.path, tmp_path / "runs" / run.name))
    Inspector(data=crowd).illustrate(read([second]).sections[0])
    (pictures,) = (second / "examples").glob("*.npz")
    extra = pictures.with_name("another-set.npz")
    shutil.copy(pictures, extra)
    (published,) = publishing.publish([second], tmp_path / "results")
    assert [path.name for path in (published / "examples").iterdir()] == [pictures.name]


def test_publishing_again_or_shrinking_changes_nothing(run: Run, tmp_path: Path) -> None:
    (published,) = publishing.publish([run.path], tmp_path)
    before = files_of(published)
    publishing.shrink(tmp_path)
    assert files_of(published) == before
    stored = weights.unpack(published / f"{run.name}.safetensors")
    publishing.publish([run.path], tmp_path)
    again, after = weights.unpack(published / f"{run.name}.safetensors"), files_of(published)
    assert (again.experiment, again.step, again.facts) == (stored.experiment, stored.step, stored.facts)
    torch.testing.assert_close(again.tensors, stored.tensors, rtol=0, atol=0)
    for name in (f"{run.name}.safetensors", f"{run.name}.md"):  # entries of their header come in any order
        assert len(after.pop(name)) == len(before.pop(name))
    assert after == before


def test_whole_weights_that_were_published_before_are_rounded(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").stat().st_size
    publishing.shrink(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < 0.8 * before
    assert sn.load(tmp_path / "model.safetensors").rounded_from == fingerprint(run.model().state_dict())
    card = (tmp_path / "model.md").read_text()
    assert card.count("SHA-256 of") == card.count("half precision") == 1


def test_what_is_not_finished_or_has_no_rows_is_not_published(run: Run, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(run.path, tmp_path / "bare"))
    shutil.rmtree(bare / "rows")
    with pytest.raises(UserError, match="bare has no rows; make them with `slotnorm eval"):
        publishing.publish([bare], tmp_path / "results")
    shutil.rmtree(bare / "checkpoints")
    with pytest.raises(UserError, match="bare is still training, at step 0 of 4; only finished runs are published"):
        publishing.publish([bare], tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_matrix_beyond_half_precision_stays_whole() -> None:
    tensors = {"small": torch.ones(2, 2), "large": torch.full((2, 2), 1e5), "vector": torch.ones(3)}
    halved = weights.halve(weights.Weights(tensors, tiny.experiment(), 1, {}))
    assert [tensor.dtype for tensor in halved.tensors.values()] == [torch.float16, torch.float32, torch.float32]
    assert weights.halve(halved) is halved


def test_a_tightly_packed_file_holds_the_same_and_numpy_opens_it(tmp_path: Path) -> None:
    arrays = {"dense": np.random.default_rng(0).random(4000, np.float32).round(2), "constant": np.zeros(4000, np.int64)}
    path = tmp_path / "x.npz"
    archives.write_arrays(path, arrays)
    before = path.stat().st_size
    archives.pack_tightly(path)
    assert path.stat().st_size < before
    with zipfile.ZipFile(path) as archive:
        assert [member.compress_type for member in archive.infolist()] == [zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED]
    for opened in (archives.read_arrays(path), np.load(path)):
        assert all(np.array_equal(opened[name], array) for name, array in arrays.items())
    whole = path.read_bytes()
    start = whole.index(b"dense.npy") + 40
    spoiled = whole[:start] + b"\xff" * 20 + whole[start + 20 : -len(seals.open_tail())]
    path.write_bytes(seals.close_tail(spoiled + seals.open_tail()))
    with pytest.raises(DamagedFile, match="is sealed but holds no arrays"):
        archives.read_arrays(path)
    path.write_bytes(whole[:-200] + b"x" + whole[-199:])
    with pytest.raises(DamagedFile, match="its seal does not match"):
        archives.read_arrays(path)


def test_objects_are_counted_with_published_weights_where_rows_lack_it_and_the_rows_stay(
    run: Run, crowd: Path, tmp_path: Path
) -> None:
    (published,) = publishing.publish([run.path.parent], tmp_path)
    path = published / "rows" / "toy7.npz"
    assert counts.count_published(published, data=crowd) == [], "rows that have the metric are passed over"
    rows = Rows.load(path)
    rows.where(metric=[name for name in rows.unique("metric") if name != "count"]).save(path, rows.header)
    before = path.read_bytes()
    assert counts.count_published(published, data=crowd) == [published / "rows" / "toy7-count.npz"]
    assert counts.count_published(published, [4], crowd) == [], "nor is it done twice"
    assert path.read_bytes() == before
    filled = Rows.load(published / "rows" / "toy7-count.npz")
    assert filled.header["half_precision"] is True
    assert filled.header["weights"] == rows.header["weights"]
    whole = rows.where(metric="count", slots=4, source="masks")
    assert filled["image"].tolist() == whole["image"].tolist()
    assert np.abs(filled["value"] - whole["value"]).mean() < 0.5  # of rounded weights
    (read_again,) = read([published]).runs
    assert read_again.slots("toy7", "count") == [4]
    assert read_again.slots("toy7", "f_ari") == [3, 4]


def test_objects_of_a_set_that_was_not_evaluated_at_the_training_slots_are_counted_where_it_was(
    run: Run, crowd: Path, tmp_path: Path
) -> None:
    (published,) = publishing.publish([run.path.parent], tmp_path)
    path = published / "rows" / "toy7.npz"
    rows = Rows.load(path)
    rows.where(metric="f_ari", slots=3).save(path, rows.header)
    (counted,) = counts.count_published(published, data=crowd)
    assert Rows.load(counted).unique("slots") == [3]


def test_objects_are_not_counted_on_other_scenes_than_those_of_the_rows(run: Run, crowd: Path, tmp_path: Path) -> None:
    (published,) = publishing.publish([run.path.parent], tmp_path / "published")
    path = published / "rows" / "toy7.npz"
    rows = Rows.load(path)
    rows.where(metric="f_ari").save(path, rows.header)
    other = tiny.build_scenes(tmp_path / "other", 20, crowded=True).directory
    with pytest.raises(UserError, match="scenes of toy7 is .* but its rows have"):
        counts.count_published(published, [4], other)


def shares(examples: Examples, slots: int) -> np.ndarray:
    return examples.masks[slots].astype(np.int64)


def test_published_pictures_are_coarser_where_nobody_looks_at_a_slot_alone() -> None:
    random = np.random.default_rng(0)
    masks = {k: random.dirichlet(np.full(k, 0.3), (2, 8, 8)).transpose(0, 3, 1, 2) for k in (3, 4, 24)}
    masks[24][:] = 1 / 24  # shared by all slots: no share by itself would be a step
    exact = {k: np.rint(part * 51).astype(np.uint8) * 5 for k, part in masks.items()}
    pixels = {k: random.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8) for k in masks}
    examples = Examples("r", "weighted_sum", "d", np.arange(2), None, None, exact, pixels)
    coarse = publishing.coarsen(examples, [4])
    assert coarse.slots == [3, 4, 24]
    assert np.array_equal(coarse.masks[4], exact[4])
    for k in (3, 24):
        assert (shares(coarse, k).sum(axis=1) == 255).all()
        assert (shares(coarse, k) % 17 == 0).all()
        assert abs(shares(coarse, k) / 255 - masks[k]).max() < 0.08
    assert list(coarse.reconstructions) == [4]
    assert abs(coarse.reconstructions[4].astype(int) - pixels[4]).max() <= 2
    again = publishing.coarsen(coarse, [4])
    assert all(np.array_equal(again.masks[k], coarse.masks[k]) for k in coarse.slots)
    assert np.array_equal(again.reconstructions[4], coarse.reconstructions[4])


def test_published_pictures_of_many_pixels_are_of_fewer_numbers_of_slots() -> None:
    masks = {k: np.zeros((1, k, 48, 48), np.uint8) for k in range(3, 25)}
    for part in masks.values():
        part[:, 0] = 255
    coarse = publishing.coarsen(Examples("r", "weighted_sum", "d", np.arange(1), None, None, masks, {}), [7, 11, 21])
    assert {3, 7, 11, 21, 24} < set(coarse.slots)
    assert len(coarse.slots) <= 11
    assert publishing.coarsen(coarse, [7, 11, 21]).slots == coarse.slots


def test_a_published_diagnosis_reads_as_it_was_made(run: Run, crowd: Path, tmp_path: Path) -> None:
    """What other rows tell is left out of the file, and made from them to the last bit."""
    Inspector(data=crowd).diagnose(read([run.path]).sections[0])
    (path,) = (run.path / "diagnosis").glob("*.npz")
    rows = Rows.load(path)
    (published,) = publishing.publish([run.path], tmp_path)
    small = Rows.load(published / "diagnosis" / path.name)
    assert set(rows.unique("metric")) - set(small.unique("metric")) == {"update_norm_ratio", "occupancy"}
    again = with_ratios(small)
    for metric in rows.unique("metric"):
        assert again.where(metric=metric).equals(rows.where(metric=metric)), metric
    assert again.header == rows.header
    shutil.rmtree(run.path / "diagnosis")
