"""Examples kept beside runs, slot colours that follow what slots cover, and the sheets made of them."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from slotnorm.errors import DamagedFile
from slotnorm.evaluation.decomposer import Decomposer, evaluating
from slotnorm.evaluation.examples import LARGEST_SIDE, Examples, make_examples
from slotnorm.metrics.segmentation import as_maps
from slotnorm.models import build
from slotnorm.report.coloring import APART, match_colors, oklab, scene_palettes
from slotnorm.report.pictures import Illustration, illustrate, scene_strip, slots_table, visual_table
from slotnorm.training.pictures import palette, soft_segmentation

SIDE = 12


def true_labels() -> np.ndarray:
    """(2, 12, 12): a background and three objects, at other places in the second scene."""
    labels = np.zeros((2, SIDE, SIDE), np.uint8)
    for number, (row, column) in enumerate([(1, 1), (1, 7), (7, 2)], start=1):
        labels[0, row : row + 4, column : column + 4] = number
        labels[1, column : column + 4, row : row + 4] = number
    return labels


def perfect_masks(labels: np.ndarray, slots: int, order: np.ndarray) -> np.ndarray:
    """A slot for every segment, the others empty, in any order: (n, K, h, w) in 255ths."""
    masks = np.zeros((len(labels), slots, SIDE, SIDE), np.uint8)
    for segment in range(4):
        masks[:, order[segment]] = 255 * (labels == segment)
    return masks


def examples(norm: str, seed: int, labels: np.ndarray | None = None, with_labels: bool = True) -> Examples:
    labels = true_labels() if labels is None else labels
    random = np.random.default_rng(seed)
    masks = {k: perfect_masks(labels, k, random.permutation(k)) for k in (4, 6, 9)}
    images = np.repeat(80 * labels[..., None], 3, axis=3)
    told = {9: images + 1}
    return Examples(
        f"toy-{norm}-{seed}", norm, "toy7", np.arange(2), images, labels if with_labels else None, masks, told
    )


def test_slots_have_the_colour_of_what_they_cover_whatever_their_number_k_or_variant() -> None:
    pictures = []
    for norm, seed in (("weighted_mean", 1), ("batch_norm", 2)):
        example = examples(norm, seed)
        colors = match_colors(example)
        pictures += [soft_segmentation(example.masks[k] / 255, palette(colors[k])) for k in example.slots]
    truth = np.rint(palette(true_labels()) * 255).astype(np.uint8)
    for picture in pictures:
        np.testing.assert_array_equal(picture, truth)


def test_without_true_masks_the_first_run_at_its_training_number_of_slots_is_the_reference() -> None:
    illustration = illustrate(
        [examples("batch_norm", 2, with_labels=False), examples("weighted_mean", 1, with_labels=False)], 6
    )
    assert list(illustration.examples) == ["weighted_mean", "batch_norm"]
    first = illustration.segmentation("weighted_mean", 6)
    assert len(np.unique(first[0].reshape(-1, 3), axis=0)) == 4
    for norm in illustration.examples:
        for k in illustration.slots:
            np.testing.assert_array_equal(illustration.segmentation(norm, k), first)
    assert illustration.truth() is None


def test_slots_left_over_keep_their_colours_from_one_k_to_the_next() -> None:
    labels = np.zeros((1, SIDE, SIDE), np.uint8)
    masks = {k: np.zeros((1, k, SIDE, SIDE), np.uint8) for k in (4, 5)}
    for strip, (at_four, at_five) in enumerate([(0, 4), (1, 2), (2, 0), (3, 1)]):
        place = (slice(None), slice(None), slice(3 * strip, 3 * strip + 3))
        masks[4][:, at_four][place] = masks[5][:, at_five][place] = 255
    example = Examples("r", "batch_norm", "d", np.arange(1), None, labels, masks, {})
    colors = match_colors(example)
    assert sorted(colors[4][0].tolist()) == [0, 1, 2, 3]
    pairs = [(0, 4), (1, 2), (2, 0), (3, 1)]
    assert [colors[4][0][a] for a, _ in pairs] == [colors[5][0][b] for _, b in pairs]
    assert len(set(colors[5][0].tolist())) == 5


def test_shared_pixels_mix_the_colours_of_their_slots() -> None:
    masks = np.full((1, 2, 1, 1), 0.5)
    colors = palette(np.array([[1, 2]]))
    mixed = soft_segmentation(masks, colors)[0, 0, 0]
    np.testing.assert_array_equal(mixed, np.rint(255 * colors[0].mean(axis=0)).astype(np.uint8))


def test_colour_numbers_have_colours_of_their_own() -> None:
    colors = palette(np.arange(40))
    distances = np.abs(colors[:, None] - colors[None]).sum(axis=2) + np.eye(40)
    assert distances.min() > 0.01
    assert np.ptp(colors[0]) < 0.05  # the background is grey
    assert ((colors >= 0) & (colors <= 1)).all()


def test_no_slot_has_the_colour_of_an_object_in_its_scene() -> None:
    from slotnorm.data.generator import SceneSpec, render

    drawn = render(SceneSpec((5, 7), 32, seed=3, style="flat"), range(40))
    shown = Examples("r", "batch_norm", "d", np.arange(40), drawn["images"], drawn["labels"], {}, {})
    for avoided, least in ((shown, APART), (dataclasses.replace(shown, labels=None), APART / 2)):
        palettes = scene_palettes(avoided, 25)
        assert palettes.shape == (40, 25, 3)
        for scene, colors in enumerate(palettes):
            image, labels = drawn["images"][scene], drawn["labels"][scene]
            for label in np.unique(labels[labels > 0]):
                seen = np.median(image[labels == label], axis=0) / 255
                assert np.linalg.norm(oklab(colors) - oklab(seen), axis=1).min() >= least
            assert len(np.unique(colors.round(3), axis=0)) == 25, "and each has its own"
    assert np.ptp(scene_palettes(dataclasses.replace(shown, images=None), 3)[0, 0]) < 0.05, "the background is grey"
    assert scene_palettes(shown, 400).shape == (40, 400, 3), "more slots than colours"


def test_over_frames_the_truth_has_the_colours_of_the_segments() -> None:
    bare = [dataclasses.replace(examples(norm, 1), reconstructions={}) for norm in ("weighted_mean", "batch_norm")]
    coloured = np.random.default_rng(0).integers(0, 255, (2, SIDE, SIDE, 3), dtype=np.uint8)
    over = illustrate([dataclasses.replace(example, images=coloured) for example in bare], 4)
    for norm in over.examples:
        np.testing.assert_array_equal(over.segmentation(norm, 9), over.truth())


@pytest.fixture(scope="module")
def illustration() -> Illustration:
    return illustrate(
        [examples(norm, seed) for seed, norm in enumerate(("weighted_mean", "weighted_sum", "batch_norm"))], 4
    )


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


def test_the_visual_table_has_input_and_truth_then_reconstruction_and_segmentation_of_each_variant(
    illustration: Illustration,
) -> None:
    sheet = pixels(visual_table(illustration, 9, [0, 1]))
    assert sheet.shape == (26 + 4 * 136 + 3 * 4 + 4, 96 + 4 * 136 + 12, 3)
    # the middle of the first object (rows and columns 1 to 4 of 12) in the first scene
    y, x = 26 + 3 * 132 // 12, 96 + 3 * 132 // 12
    assert sheet[y, x].tolist() == [80] * 3  # the input
    assert sheet[y, x + 136 + 8].tolist() == [81] * 3  # the first variant's reconstruction
    truth = np.rint(255 * illustration.palettes[0, 1]).astype(int).tolist()
    for column in range(4):
        assert sheet[y + 136, x + column * 136 + 8 * (column > 0)].tolist() == truth


def test_without_reconstructions_the_segmentation_lies_over_the_frame(illustration: Illustration) -> None:
    bare = {norm: dataclasses.replace(example, reconstructions={}) for norm, example in illustration.examples.items()}
    over = dataclasses.replace(illustration, examples=bare)
    sheet = pixels(visual_table(over, 9, [0, 1]))
    assert sheet.shape[0] == 26 + 2 * 136 + 3 * 4 + 4  # one row per scene
    soft = illustration.segmentation("batch_norm", 9).astype(float)
    frames = illustration.any.images
    assert frames is not None
    np.testing.assert_allclose(over.segmentation("batch_norm", 9), 0.7 * soft + 0.3 * frames, atol=0.51)


def test_the_strip_has_a_row_for_the_input_and_one_for_each_chosen_variant(illustration: Illustration) -> None:
    norm = list(illustration.examples)[-1]
    sheet = pixels(scene_strip(illustration, [norm], 9, [1, 0]))
    assert sheet.shape == (26 + 2 * 136 + 4, 96 + 2 * 136 + 12, 3)
    y, x = 26 + 3 * 132 // 12, 96 + 136 + 3 * 132 // 12  # the first object of the second tile, which is scene 0
    assert sheet[y, x].tolist() == [80] * 3
    assert sheet[y + 136, x].tolist() == np.rint(255 * illustration.palettes[0, 1]).astype(int).tolist()


def test_the_table_over_slots_has_a_row_for_each_variant_and_a_column_for_each_k(illustration: Illustration) -> None:
    sheet = pixels(slots_table(illustration, [4, 6, 9], 1))
    assert sheet.shape == (26 + 3 * 136 + 4, 96 + 4 * 136 + 12, 3)
    assert illustration.slots == [4, 6, 9]
    assert slots_table(illustration, [4, 6, 9], 1) == slots_table(illustration, [4, 6, 9], 1)


def test_examples_are_saved_sealed_and_read_back(tmp_path: Path) -> None:
    example = dataclasses.replace(examples("batch_norm", 1), facts={"weights": "abc"})
    example.save(tmp_path / "toy7.npz")
    again = Examples.load(tmp_path / "toy7.npz")
    assert (again.run, again.norm, again.dataset, again.facts) == (
        example.run,
        example.norm,
        example.dataset,
        {"weights": "abc"},
    )
    for k in example.slots:
        np.testing.assert_array_equal(again.masks[k], example.masks[k])
    np.testing.assert_array_equal(again.reconstructions[9], example.reconstructions[9])
    assert again.labels is not None
    np.testing.assert_array_equal(again.labels, true_labels())


def test_damaged_examples_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy7.npz"
    examples("batch_norm", 1).save(path)
    written = bytearray(path.read_bytes())
    written[len(written) // 2] ^= 1
    path.write_bytes(written)
    with pytest.raises(DamagedFile, match="its seal does not match"):
        Examples.load(path)


@pytest.mark.parametrize("kind", ["images", "features", "properties"])
def test_examples_show_what_was_scored(tmp_path: Path, kind: str) -> None:
    scenes = tiny.build_scenes(tmp_path / "scenes", 6)
    changes = {"images": tiny.IMAGES, "features": tiny.FEATURES, "properties": tiny.PROPERTIES}[kind]
    model = build(tiny.experiment(model=changes))
    kept_examples = make_examples(model, scenes, [3, 5], [5], run="r", norm="weighted_sum", dataset="d", facts={})
    assert kept_examples.slots == [3, 5]
    assert kept_examples.scenes.tolist() == scenes.index.tolist()
    assert sorted(kept_examples.reconstructions) == ([3, 5] if kind == "images" else [])  # small images: at every K
    assert kept_examples.images is not None
    decomposer = Decomposer(model, scenes)
    with evaluating(model):
        for group in decomposer.groups(np.arange(6)):
            _, tokens = decomposer.encode(group)
            decomposition = decomposer.decompose(tokens, decomposer.scene_noise(0, group, 5), reconstruct=True)
            masks = as_maps(decomposition.masks)[torch.from_numpy(group >= 0)].numpy()
            np.testing.assert_allclose(kept_examples.masks[5][group[group >= 0]] / 255, masks, atol=3.01 / 255)
            if kind == "images":
                assert decomposition.reconstruction is not None
                pictures = (
                    decomposition.reconstruction[torch.from_numpy(group >= 0)].permute(0, 2, 3, 1).clamp(-1, 1).numpy()
                )
                np.testing.assert_allclose(
                    kept_examples.reconstructions[5][group[group >= 0]] / 127.5 - 1, pictures, atol=0.005
                )


def test_large_images_are_kept_small(tmp_path: Path) -> None:
    from slotnorm.evaluation.examples import _shrunk, _shrunk_labels

    maps = torch.arange(2 * 192 * 192, dtype=torch.float32).view(1, 2, 192, 192) / (2 * 192 * 192)
    small = _shrunk(maps)
    assert small.shape == (1, 2, LARGEST_SIDE, LARGEST_SIDE)
    torch.testing.assert_close(small[0, 0, 0, 0], maps[0, 0, :2, :2].mean())
    assert _shrunk_labels(np.zeros((1, 192, 96), np.uint8)).shape == (1, 96, 48)
