"""`score` against slow loops in double precision, and against itself bit for bit; models before the failed-run rule."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import interpolate

import slotnorm as sn
import tiny
from slotnorm.config import ImageModel
from slotnorm.data import Builder, Scenes
from slotnorm.data.batches import to_images
from slotnorm.errors import NonFinite, UserError
from slotnorm.evaluation import decomposer
from slotnorm.evaluation.failed_runs import judge
from slotnorm.evaluation.rows import MISSING, Rows
from slotnorm.evaluation.scoring import Evaluation
from slotnorm.metrics import all_metrics, average_precision
from slotnorm.models import ImageAutoencoder, SlotModel, build
from slotnorm.models.parts import Decomposition
from slotnorm.models.set_predictor import property_targets
from slotnorm.runtime import randomness

DISTANCES = {name: metric.distance for name, metric in all_metrics().items() if metric.of == "set"}
STRIDED = ImageModel(size=8, channels=8, dim=8, hidden=16, kernel=3, strides=(2,), decoder_strides=(2,))
MODELS = {"images": tiny.IMAGES, "strided": STRIDED, "features": tiny.FEATURES, "properties": tiny.PROPERTIES}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """Forty scenes, one of them empty and one with a single object."""
    made = tiny.build_scenes(tmp_path_factory.mktemp("made"), 40)
    arrays = {name: np.asarray(made.read(name, np.arange(40))) for name in made.fields}
    arrays["labels"][3] = 0
    arrays["labels"][5] = (arrays["labels"][5] > 0) * 2
    return built(tmp_path_factory.mktemp("scenes"), **arrays)


def built(folder: Path, **arrays: np.ndarray) -> Scenes:
    """A set of these arrays; without counts, of one object each."""
    (num,) = {len(array) for array in arrays.values()}
    arrays.setdefault("counts", np.ones(num, dtype=np.int64))
    fields: Any = {name: (array.shape[1:], str(array.dtype)) for name, array in arrays.items() if name != "counts"}
    with Builder(folder, fields, num, {"made for": "tests"}) as builder:
        builder.append(**arrays)
        return builder.finish()


def model_of(kind: str, norm: str = "weighted_sum") -> SlotModel:
    return build(tiny.experiment(norm, model=MODELS[kind])).eval()


def best_overlaps(true: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """(objects, slots) IoU."""
    objects = [label for label in np.unique(true) if label]
    segments = [predicted == slot for slot in range(8)]
    return np.array([
        [((true == label) & segment).sum() / ((true == label) | segment).sum() for segment in segments]
        for label in objects
    ])  # fmt: skip


def slow_scores(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Every segmentation score of one image, by loops."""
    seen = true > 0
    scores = {"visible": float(len(np.unique(true[seen]))), "ari": adjusted_rand_score(true.ravel(), predicted.ravel())}
    if not seen.any():
        return {**scores, "f_ari": math.nan, "mbo": math.nan, "miou": math.nan}
    table = best_overlaps(true, predicted)
    matched = table[linear_sum_assignment(table, maximize=True)].sum() / len(table)
    f_ari = adjusted_rand_score(true[seen], predicted[seen])
    return {**scores, "f_ari": f_ari, "mbo": float(table.max(axis=1).mean()), "miou": float(matched)}


def slow_count(masks: np.ndarray) -> int:
    """How many slots of masks (K, h, w) hold an object, by the rule's words."""
    count = 0
    for mask in masks > 0.5:
        border = np.concatenate([mask[0], mask[-1], mask[1:-1, 0], mask[1:-1, -1]])
        count += mask.mean() >= 0.005 and border.mean() < 0.2
    return count


def slow_rows(model: SlotModel, scenes: Scenes, number: int, kind: str) -> dict[tuple[int, str, str], float]:
    """{(image, source, metric): value}, one image at a time, straight from the model."""
    scores: dict[tuple[int, str, str], float] = {}
    for position, image in enumerate(scenes.index.tolist()):
        noise = torch.from_numpy(randomness.slot_noise(0, "evaluation", [(image, number)], number, 8))
        if kind == "features":
            inputs = torch.from_numpy(scenes.read("features", [position])).double()
        else:
            inputs = to_images(torch.from_numpy(scenes.read("images", [position]))).double()
        decomposition = model(inputs, num_slots=number, noise=noise)
        true = scenes.read("labels", [position])[0]
        if kind == "properties":
            maps = {"attention": (decomposition.masks[0], true[::2, ::2])}
        else:
            side = math.isqrt(decomposition.attention.shape[-1])
            sides = (8 if decomposition.masks.dim() == 4 else side, side)
            grids = [
                masks.reshape(1, number, -1, side) for masks, side in zip(decomposition[2:0:-1], sides, strict=True)
            ]
            large = [interpolate(grid, (8, 8), mode="bilinear") for grid in grids]
            maps = {"masks": (large[0][0], true), "attention": (large[1][0], true)}
            scores[image, "masks", "l2"] = float((decomposition.reconstruction - inputs).square().mean())
        for source, (masks, compared) in maps.items():
            for metric, value in slow_scores(compared, masks.argmax(0).numpy()).items():
                scores[image, source, metric] = value
            raw = decomposition.masks if source == "masks" or kind == "properties" else decomposition.attention
            side = math.isqrt(raw.flatten(2).shape[-1])
            counted = slow_count(raw[0].reshape(number, side, side).numpy())
            scores[image, source, "count"] = abs(counted - int(scenes.counts[position]))
    return scores


@pytest.mark.parametrize("kind", MODELS)
def test_rows_are_what_a_slow_loop_over_images_finds(kind: str, scenes: Scenes) -> None:
    model = model_of(kind).double()
    rows = sn.score(model, scenes[:9], slots=[3, 5], dataset="tiny", run="a run")
    for number in (3, 5):
        with torch.no_grad():
            slow = slow_rows(model, scenes[:9], number, kind)
        part = rows.where(slots=number, image=range(9))
        keys = list(zip(part["image"].tolist(), part["source"].tolist(), part["metric"].tolist(), strict=True))
        assert sorted(keys) == sorted(slow)
        assert part["value"] == pytest.approx([slow[key] for key in keys], rel=1e-6, abs=1e-9, nan_ok=True)
    assert rows.unique("dataset") == ["tiny"]
    assert rows.unique("run") == ["a run"]
    assert rows.unique("norm") == ["weighted_sum"]
    assert (rows["train_slots"][0], rows["train_objects"][0], rows["seed"][0]) == (4, MISSING, 1)
    assert rows["iterations"][0] == model.experiment.recipe.evaluation_iterations == 3


def test_images_without_foreground_are_counted_and_not_scored(scenes: Scenes) -> None:
    rows = sn.score(model_of("images"), scenes[:9], slots=[3], source="masks")
    assert rows.where(metric="visible")["value"].tolist()[3] == 0
    assert rows.where(metric="visible")["value"].tolist()[5] == 1
    for metric in ("f_ari", "mbo", "miou"):
        assert np.flatnonzero(np.isnan(rows.where(metric=metric)["value"])).tolist() == [3]
    assert not np.isnan(rows.where(metric=["ari", "l2"])["value"]).any()


@pytest.mark.parametrize("kind", MODELS)
def test_no_bit_depends_on_batch_size_or_on_which_other_slots_scenes_and_sources_are_asked_for(
    kind: str, scenes: Scenes
) -> None:
    model = model_of(kind, "batch_norm")
    whole = sn.score(model, scenes, slots=range(3, 9))
    for batch_size in (1, 7, 1000):
        assert sn.score(model, scenes, slots=range(3, 9), batch_size=batch_size).equals(whole)
    halves = [sn.score(model, scenes, slots=part) for part in (range(3, 5), range(5, 9))]
    assert Rows.concat(halves).equals(whole)
    some = scenes[np.array([31, 4, 9, 3, 20, 5])]
    of_images = whole.where(image=some.index, slots=[4, 7])
    rows = sn.score(model, some, slots=[7, 4])
    for image in some.index.tolist():
        for number in (4, 7):
            part = rows.where(image=image, slots=number)
            assert part.equals(of_images.where(image=image, slots=number))
    if kind != "properties":
        attention = sn.score(model, scenes, slots=[5], source="attention")
        assert attention.equals(whole.where(slots=5, source="attention"))


def test_no_bit_depends_on_the_company_of_a_scene_with_convolutions_and_many_tokens(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    labels = random.integers(0, 6, (24, 32, 32)).astype(np.uint8)
    scenes = built(tmp_path, images=images, labels=labels)
    model = ImageAutoencoder(size=32, channels=16, dim=16, decoder_strides=(2, 2))
    whole = sn.score(model, scenes, slots=[3, 10])
    for part in (scenes[3:5], scenes[np.array([23, 7, 0])], scenes[11:]):
        alone = sn.score(model, part, slots=[10, 3], batch_size=2)
        for image in part.index.tolist():
            for number in (3, 10):
                of_image = whole.where(image=image, slots=number)
                assert alone.where(image=image, slots=number).equals(of_image)
    assert whole.unique("seed") == [MISSING]
    assert whole.unique("norm") == ["weighted_sum"]


def test_scenes_fill_groups_by_their_number_and_each_comes_once(scenes: Scenes) -> None:
    asked = decomposer.Decomposer(model_of("images"), scenes)
    assert asked.at_once == 16
    positions = np.random.default_rng(0).permutation(40)[:23]
    groups = asked.groups(positions)
    for group in groups:
        present = group[group >= 0]
        assert np.array_equal(scenes.index[present] % 16, np.flatnonzero(group >= 0))
    together = np.concatenate(groups)
    assert sorted(together[together >= 0].tolist()) == sorted(positions.tolist())
    assert len(asked.groups(np.arange(32))) == 2  # scenes in a row leave no place blank


def test_the_encoder_runs_once_for_all_numbers_of_slots(scenes: Scenes, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = model_of("images"), []
    monkeypatch.setattr(model, "encode", lambda inputs: calls.append(len(inputs)) or model.encoder(inputs))
    sn.score(model, scenes[:32], slots=range(3, 9))
    assert calls == [16, 16]


def test_nothing_is_decoded_for_attention_alone(scenes: Scenes, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("images")
    monkeypatch.setattr(model, "read", lambda *_: pytest.fail("decoded"))
    rows = sn.score(model, scenes[:4], slots=[3], source="attention")
    assert rows.unique("source") == ["attention"]
    assert "l2" not in rows.unique("metric")


def test_average_precision_is_that_of_the_whole_set_at_five_distances(scenes: Scenes) -> None:
    model = model_of("properties").double()
    rows = sn.score(model, scenes, slots=[4, 6])
    predictions = []
    for position in range(40):
        noise = torch.from_numpy(randomness.slot_noise(0, "evaluation", [(position, 6)], 6, 8))
        with torch.no_grad():
            images = to_images(torch.from_numpy(scenes.read("images", [position]))).double()
            predictions.append(model(images, num_slots=6, noise=noise).predictions.float())
    targets = property_targets({name: torch.from_numpy(v.copy()) for name, v in scenes.properties.items()})
    for name, distance in DISTANCES.items():
        (value,) = rows.where(metric=name, slots=6)["value"]
        assert value == pytest.approx(float(average_precision(torch.cat(predictions), targets, distance)), abs=1e-9)
    whole = rows.where(metric=list(DISTANCES))
    assert len(whole) == 10
    assert whole.unique("image") == whole.unique("objects") == [MISSING]
    backwards = sn.score(model, scenes[::-1], slots=[6])
    assert backwards.where(metric=list(DISTANCES)).equals(whole.where(slots=6))


def test_scores_by_object_count_are_what_a_slow_loop_finds(scenes: Scenes) -> None:
    rows = sn.score(model_of("images"), scenes, slots=[3, 5], source="masks")
    slow: dict[tuple[int, int], list[float]] = {}
    for row in range(len(rows)):
        if rows["metric"][row] == "f_ari" and not math.isnan(rows["value"][row]):
            count = int(scenes.counts[scenes.index.tolist().index(rows["image"][row])])
            slow.setdefault((int(rows["slots"][row]), count), []).append(float(rows["value"][row]))
    groups = {key: part["value"] for key, part in rows.where(metric="f_ari").groups("slots", "objects")}
    assert set(groups) == set(slow)
    assert {count for _, count in groups} == set(scenes.counts.tolist())
    for key, values in groups.items():
        assert np.nanmean(values) == pytest.approx(np.mean(slow[key]), rel=1e-12)
        assert np.isnan(values).sum() == len(values) - len(slow[key])


def test_a_filter_by_objects_gives_the_same_rows(scenes: Scenes) -> None:
    model = model_of("images")
    whole = sn.score(model, scenes, slots=[5])
    filtered = sn.score(model, scenes.filter(2, 3), slots=[5])
    assert filtered.equals(whole.where(objects=[2, 3]))
    assert filtered.unique("objects") != whole.unique("objects")


def test_other_noise_and_iterations_give_other_rows_and_the_header_says_which(scenes: Scenes) -> None:
    model = model_of("images")
    plain, seeded = sn.score(model, scenes[:9], slots=[5]), sn.score(model, scenes[:9], slots=[5], seed=1)
    longer = sn.score(model, scenes[:9], slots=[5], iterations=5)
    assert plain.equals(sn.score(model, scenes[:9], slots=[5]))
    assert not plain.equals(seeded)
    assert not np.array_equal(plain["value"], longer["value"])
    assert longer.unique("iterations") == [5]
    headers = [rows.header for rows in (plain, seeded, longer)]
    assert [header["noise_seed"] for header in headers] == [0, 1, 0]
    assert [header["iterations"] for header in headers] == [3, 3, 5]
    assert len({header["identity"] for header in headers}) == 3
    assert plain.header["scenes"] == scenes.fingerprint
    assert plain.header["protocol"] == "paper"
    assert plain.header["num_scenes"] == 9
    assert set(plain.header["versions"]) == {"slotnorm", "torch", "numpy", "python"}
    assert plain.header["experiment"]["slots"] == 4
    with torch.no_grad():
        model.slot_attention.slots_mu[0] += 1
    assert sn.score(model, scenes[:9], slots=[5]).header["weights"] != plain.header["weights"]


def test_the_model_is_left_as_it_was(scenes: Scenes) -> None:
    model = model_of("images", "batch_norm").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sn.score(model, scenes[:4], slots=[3])
    judge(model, scenes)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_scenes_without_masks_have_reconstruction_alone(scenes: Scenes, tmp_path: Path) -> None:
    plain = built(tmp_path, images=scenes.read("images", [0, 1, 2]), counts=np.zeros(3, dtype=np.int64))
    rows = sn.score(model_of("images"), plain, slots=[3])
    assert rows.unique("metric") == ["l2"]
    assert rows.unique("objects") == [MISSING]
    with pytest.raises(UserError, match="has neither masks nor properties to compare with, and attention is all"):
        sn.score(model_of("images"), plain, slots=[3], source="attention")


def test_what_cannot_be_scored_is_refused_in_one_sentence(scenes: Scenes, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("images")
    for arguments, sentence in (
        ({"slots": []}, r"slots are \[\]; give one whole number or more"),
        ({"slots": [0, 3]}, r"slots are \[0, 3\]; give one whole number or more, each at least 1"),
        ({"slots": [2.5]}, r"slots are \[2.5\]; give one whole number or more"),
        ({"iterations": 0}, "iterations is 0; there must be at least one"),
        ({"source": "mask"}, "there is no source 'mask'; did you mean 'masks'"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ):
        with pytest.raises(UserError, match=sentence):
            sn.score(model, scenes, **arguments)
    with pytest.raises(UserError, match="there are no scenes to score"):
        sn.score(model, scenes[:0])
    with pytest.raises(UserError, match="a model that predicts properties has no masks; ask for attention"):
        sn.score(model_of("properties"), scenes, source="masks")
    with pytest.raises(UserError, match=r"holds images of shape \(8, 8, 3\), but the model takes \(16, 16, 3\)"):
        sn.score(ImageAutoencoder(size=16, channels=8, dim=8), scenes)
    few = Scenes(scenes.directory, scenes.manifest, {"counts": scenes.columns["counts"]}, scenes.index)
    with pytest.raises(UserError, match="has no images, which the model takes; it has counts"):
        sn.score(model, few)
    with pytest.raises(UserError, match=r"a Linear cannot be scored: give a model of slotnorm.models or run.model\(\)"):
        sn.score(torch.nn.Linear(1, 1), scenes)
    with pytest.raises(UserError, match="the model has no experiment that says its number of slots"):
        judge(ImageAutoencoder(size=8, channels=8, dim=8, decoder_strides=(2,)), scenes)
    monkeypatch.setattr(decomposer, "_free_bytes", lambda device: 1 << 20)
    with pytest.raises(UserError, match=r"1000 slots need about [0-9.]+ GiB and 0.000977 GiB are free; .* at most 28"):
        sn.score(model, scenes, slots=[3, 1000])
    assert len(sn.score(model, scenes[:1], slots=28, source="masks")) == 7


class Files:
    """Stands for `Path`: the kernel's files, as given."""

    def __init__(self, contents: dict[str, str]) -> None:
        self.contents = contents

    def __call__(self, name: str) -> "Files":
        return Files({"": self.contents[name]}) if name in self.contents else Files({})

    def read_text(self) -> str:
        if not self.contents:
            raise FileNotFoundError
        return self.contents[""]


PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
AVAILABLE = {"/proc/meminfo": "MemTotal: 99 kB\nMemAvailable:     2000 kB\nBuffers: 7 kB\n"}
USED = {"/sys/fs/cgroup/memory.stat": "anon 400000\nfile 99999999\n"}


@pytest.mark.parametrize(
    ("contents", "free"),
    [
        ({}, PHYSICAL),  # another system: all that is built in
        (AVAILABLE, 2000 * 1024),
        ({**AVAILABLE, **USED, "/sys/fs/cgroup/memory.max": "max\n"}, 2000 * 1024),
        ({**AVAILABLE, **USED, "/sys/fs/cgroup/memory.max": "1000000\n"}, 600_000),  # what files take can be had
        ({**AVAILABLE, **USED, "/sys/fs/cgroup/memory.max": "300000\n"}, 0),
    ],
)
def test_memory_that_is_free_is_the_least_of_what_the_kernel_and_the_container_leave(
    contents: dict[str, str], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decomposer, "Path", Files(contents))
    assert decomposer._free_bytes(torch.device("cpu")) == free


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux tells")
def test_memory_in_use_is_not_free() -> None:
    block = np.ones(1 << 28, np.uint8)  # touched, so really taken
    assert decomposer._free_bytes(torch.device("cpu")) <= PHYSICAL - block.nbytes


def test_a_reconstruction_that_is_not_finite_is_refused(scenes: Scenes) -> None:
    model = model_of("images")
    with torch.no_grad():
        model.decoder.mlp[0].weight.fill_(math.nan)
    with pytest.raises(NonFinite, match=r"the reconstruction of a scene among \[0, 1, 2\] is not finite"):
        sn.score(model, scenes[:3], slots=[3])


class Splitting(ImageAutoencoder):
    """Splits every image into columns whose order the noise chooses; or, bound, by brightness."""

    def __init__(self, bound: bool) -> None:
        super().__init__(size=8, channels=8, dim=8, decoder_strides=(2,))
        self.bound, self.experiment = bound, tiny.experiment()

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean(1).flatten(1)[..., None]

    def decompose(self, tokens: torch.Tensor, num_slots: int | None = None, **arguments: Any) -> Decomposition:
        noise = arguments["noise"]
        columns = noise[:, :, 0].argsort(1)[:, torch.arange(64) % 8 // 2]  # (B, 64)
        bright = tokens[..., 0]
        labels = (bright > -0.99) * (1 + (bright * 50).long() % 3) if self.bound else columns
        masks = torch.nn.functional.one_hot(labels, noise.shape[1]).mT.float()
        return Decomposition(noise, masks, masks.unflatten(2, (8, 8)))


def test_a_model_that_splits_by_a_place_that_the_noise_chooses_is_judged_to_fail(scenes: Scenes) -> None:
    failed = judge(Splitting(bound=False), scenes)
    assert failed.reason == "splits the image by place"
    assert failed.moving == 0
    bound = judge(Splitting(bound=True), scenes)
    assert not bound.failed, bound
    assert dataclasses.astuple(judge(Splitting(bound=True), scenes[::-1])) == dataclasses.astuple(bound)


def test_an_evaluation_knows_its_columns(scenes: Scenes) -> None:
    columns = Evaluation(model_of("images"), scenes).columns
    assert [column for column in columns if column[0] == "masks"] == [
        ("masks", name) for name in ("visible", "f_ari", "ari", "mbo", "miou", "l2", "count")
    ]
