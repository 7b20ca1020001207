"""Generated scenes: what each of them satisfies, and that its bits depend on the spec and its number alone."""

import dataclasses
import functools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from slotnorm.config import SceneSpec
from slotnorm.data import flat, generator, lighting, solids
from slotnorm.data.generator import STYLES, identify, render, request
from slotnorm.errors import UserError

SPECS = {
    "small": SceneSpec((1, 3), 32, seed=3),
    "usual": SceneSpec((3, 6), 64, seed=1),
    "empty ones too": SceneSpec((0, 2), 32),
    "crowded": SceneSpec((20, 25), 64, seed=2),
    "crowded and small": SceneSpec((10, 15), 32, seed=2),
    "discs": SceneSpec(
        (2, 4), 16, style="flat", shapes=("disc",), materials=("solid",), radius=(0.14, 0.2), min_visible=6
    ),
    "flat": SceneSpec((3, 8), 64, seed=5, style="flat", materials=("solid", "outlined")),
    "flat and crowded": SceneSpec((20, 25), 64, style="flat"),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


@functools.cache
def scenes_of(spec: SceneSpec, num: int = 24) -> dict[str, np.ndarray]:
    return render(spec, range(num))


def objects_of(chunk: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    return [(scene, j) for scene, count in enumerate(chunk["counts"]) for j in range(count)]


@every_spec
def test_every_object_is_visible_and_labels_match_the_counts(spec):
    chunk, least = scenes_of(spec), request(spec).min_visible
    for labels, count in zip(chunk["labels"], chunk["counts"], strict=True):
        visible = np.bincount(labels.ravel(), minlength=count + 1)
        assert len(visible) == count + 1
        assert (visible[1:] >= least).all()
    assert spec.objects[0] <= chunk["counts"].min() <= chunk["counts"].max() <= spec.objects[1]


@every_spec
def test_properties_belong_to_real_objects_and_the_rest_is_zero(spec):
    chunk, style = scenes_of(spec), STYLES[spec.style]
    real = np.arange(spec.objects[1]) < chunk["counts"][:, None]
    names = {"shape": style.shapes, "size": style.sizes, "material": style.materials, "color": style.colors}
    for field, values in names.items():
        assert chunk[field].dtype == np.uint8
        np.testing.assert_array_equal(chunk[field] > 0, real)
        assert chunk[field].max() <= len(values)
    for field in ("x", "y", "z", "rotation"):
        assert chunk[field].dtype == np.float32
        assert not chunk[field][~real].any()
    assert np.abs(np.stack([chunk["x"], chunk["y"]])).max() <= 3
    assert 0 <= chunk["rotation"].min() <= chunk["rotation"].max() <= 360


@every_spec
def test_objects_keep_their_distance(spec):
    chunk, asked = scenes_of(spec), request(spec)
    for scene, count in enumerate(chunk["counts"]):
        x, y = chunk["x"][scene, :count].astype(float), chunk["y"][scene, :count].astype(float)
        if spec.style == "clevr":
            radius = np.array([0, asked.radius[1], asked.radius[0]])[chunk["size"][scene, :count]]
            reach = radius * np.where(chunk["shape"][scene, :count] == 1, math.sqrt(2), 1)
        else:
            reach = np.full(count, 6 * asked.radius[0])
        least = (1 + asked.margin) * (reach[:, None] + reach)
        apart = np.hypot(x[:, None] - x, y[:, None] - y)
        assert (apart + 1e-5 >= least)[~np.eye(count, dtype=bool)].all()


def test_the_number_of_objects_is_uniform_over_the_range():
    counts = render(SceneSpec((2, 6), 16, style="flat", shapes=("disc",), radius=(0.12, 0.13)), range(500))["counts"]
    histogram = np.bincount(counts, minlength=7)[2:]
    assert stats.chisquare(histogram).pvalue > 1e-3


def test_property_values_are_equally_likely():
    chunk = render(SceneSpec((4, 6), 32, seed=9), range(120))
    for field, values in (("shape", 3), ("size", 2), ("material", 2), ("color", 8)):
        histogram = np.bincount(chunk[field][chunk[field] > 0], minlength=values + 1)[1:]
        assert stats.chisquare(histogram).pvalue > 1e-3, field


def test_more_than_ten_objects_are_smaller():
    usual, crowded = (request(SceneSpec((3, most), 64)).radius for most in (10, 25))
    assert usual == (0.35, 0.7)
    assert crowded[1] < usual[1] * 0.7
    np.testing.assert_allclose(render(SPECS["crowded"], [0])["z"].max(), crowded[1])


@pytest.mark.parametrize(("style", "radius"), [("clevr", 0.5), ("flat", 0.12)])
def test_objects_of_one_radius_are_of_one_size(style, radius):
    chunk = render(SceneSpec((3, 5), 32, style=style, radius=(radius, radius)), range(8))
    assert set(chunk["size"][chunk["size"] > 0].tolist()) == {1}


def test_the_size_of_solids_is_their_radius():
    chunk = scenes_of(SPECS["usual"])
    radius = np.array([0, 0.7, 0.35], np.float32)[chunk["size"]]
    np.testing.assert_array_equal(chunk["z"], radius)


def chromaticity(colors: np.ndarray) -> np.ndarray:
    colors = np.asarray(colors, float) ** 2.2 + 1e-6
    return colors / colors.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("material", ["rubber", "metal"])
def test_pixels_of_an_object_have_its_colour(material):
    chunk = render(SceneSpec((3, 6), 64, seed=4, materials=(material,)), range(25))
    palette = chromaticity(np.array(list(solids.COLORS.values())))
    right = []
    for scene, j in objects_of(chunk):
        pixels = chunk["images"][scene][chunk["labels"][scene] == j + 1]
        away = np.abs(chromaticity(np.median(pixels, axis=0)) - palette).sum(axis=1)
        right.append(away.argmin() + 1 == chunk["color"][scene, j])
    assert np.mean(right) > 0.9  # chance is 0.125


def test_flat_shapes_are_of_one_saturated_colour_and_no_two_are_alike():
    chunk, palette = scenes_of(SPECS["discs"]), list(flat.COLORS.values())
    for scene, j in objects_of(chunk):
        pixels = chunk["images"][scene][chunk["labels"][scene] == j + 1]
        color = palette[chunk["color"][scene, j] - 1]
        assert max(color) - min(color) > 150
        assert (pixels == color).all(axis=1).sum() >= 3  # the rest are edges
    for colors, count in zip(chunk["color"], chunk["counts"], strict=True):
        assert len(set(colors[:count].tolist())) == count


def test_flat_places_are_where_the_shapes_are():
    spec = SceneSpec((1, 5), 64, seed=8, style="flat")
    chunk = scenes_of(spec)
    for scene, count in enumerate(chunk["counts"]):  # the last object lies on top
        column, row = (chunk["x"][scene, count - 1] + 3) / 6 * 64, (3 - chunk["y"][scene, count - 1]) / 6 * 64
        assert chunk["labels"][scene, int(row), int(column)] == count


def test_solid_places_are_where_the_solids_are():
    chunk = render(SceneSpec((1, 1), 64, seed=8), range(40))
    rows, columns = np.mgrid[:64, :64]
    middle = [(columns[mask].mean(), rows[mask].mean()) for mask in chunk["labels"] == 1]
    assert stats.pearsonr([column for column, _ in middle], chunk["x"][:, 0]).statistic > 0.95
    assert stats.pearsonr([-row for _, row in middle], chunk["y"][:, 0]).statistic > 0.95


def test_flat_edges_show_how_much_of_a_pixel_is_covered():
    spec = SceneSpec((1, 1), 32, style="flat", shapes=("disc",), radius=(0.3, 0.3))
    chunk = render(spec, range(8))
    fine = (np.arange(32 * 20) + 0.5) / (32 * 20) * 6 - 3
    ours, jagged = [], []
    for image, labels, x, y, color in zip(*(chunk[n] for n in ("images", "labels", "x", "y", "color")), strict=True):
        covered = (fine[None] - x[0]) ** 2 + (-fine[:, None] - y[0]) ** 2 < (6 * 0.3) ** 2
        covered = covered.reshape(32, 20, 32, 20).mean(axis=(1, 3))
        ink, ground = np.array(list(flat.COLORS.values())[color[0] - 1], float), np.array(flat.BACKGROUND, float)
        share = (image - ground) @ (ink - ground) / ((ink - ground) @ (ink - ground))
        edge = (covered > 0.02) & (covered < 0.98)
        ours.append(np.abs(share - covered)[edge].mean())
        jagged.append(np.abs(labels - covered)[edge].mean())
    assert np.mean(ours) < 0.08
    assert np.mean(ours) < np.mean(jagged) / 3


def test_a_small_picture_is_the_mean_of_a_large_one_not_every_fourth_pixel_of_it():
    spec = SceneSpec((3, 5), 64, seed=11, min_visible=16)
    small = render(spec, range(6))
    large = render(dataclasses.replace(spec, size=256, min_visible=256), range(6))
    np.testing.assert_array_equal(small["x"], large["x"])
    linear = (large["images"] / 255.0) ** 2.2
    mean = 255 * linear.reshape(6, 64, 4, 64, 4, 3).mean(axis=(2, 4)) ** (1 / 2.2)
    blocks = large["labels"].reshape(6, 64, 4, 64, 4)
    edge = blocks.max(axis=(2, 4)) != blocks.min(axis=(2, 4))
    ours = np.abs(small["images"] - mean)
    picked = np.abs(large["images"][:, 2::4, 2::4] - mean)
    assert ours[edge].mean() < picked[edge].mean() / 2
    assert ours[~edge].mean() < 1


def test_masks_of_a_small_picture_agree_with_a_large_one():
    spec = SceneSpec((3, 5), 64, seed=11, min_visible=16)
    small = render(spec, range(4))["labels"]
    large = render(dataclasses.replace(spec, size=192, min_visible=144), range(4))["labels"]
    np.testing.assert_array_equal(small, large[:, 1::3, 1::3])  # both have samples there


SPHERES = SceneSpec((2, 4), 64, seed=6, shapes=("sphere",), colors=("blue", "red", "green"))


def test_metal_has_bright_highlights():
    metal, rubber = (render(dataclasses.replace(SPHERES, materials=(name,)), range(8)) for name in ("metal", "rubber"))
    np.testing.assert_array_equal(metal["labels"], rubber["labels"])
    inside = metal["labels"] > 0
    whitest = [int(chunk["images"][inside].min(axis=1).max()) for chunk in (metal, rubber)]
    assert whitest[0] > whitest[1] + 60


@pytest.mark.parametrize(("material", "share"), [("metal", 0.4), ("rubber", 0.0)])
def test_metal_mirrors_the_ground_and_rubber_does_not(material, share, monkeypatch):
    spec = dataclasses.replace(SPHERES, objects=(1, 1), materials=(material,))
    before = render(spec, range(8))
    monkeypatch.setattr(lighting, "GROUND", 2 * lighting.GROUND)
    after = render(spec, range(8))["images"]
    inside = before["labels"] == 1
    inside[:, 1:-1, 1:-1] &= inside[:, 2:, 1:-1] & inside[:, :-2, 1:-1] & inside[:, 1:-1, 2:] & inside[:, 1:-1, :-2]
    changed = (before["images"] != after).any(axis=-1)
    assert changed[before["labels"] == 0].all()
    assert share <= changed[inside].mean() <= 2 * share


def test_objects_cast_shadows_on_the_ground():
    spec = SceneSpec((4, 6), 64, seed=3)
    chunk = render(spec, range(8))
    for image, labels in zip(chunk["images"], chunk["labels"], strict=True):
        grey = image.mean(axis=2)[labels == 0]
        rows = np.nonzero(labels == 0)[0]
        usual = np.array([np.percentile(grey[rows == row], 80) if (rows == row).any() else 0 for row in range(64)])
        assert (grey < 0.75 * usual[rows]).sum() > 40


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@every_spec
def test_a_scene_does_not_depend_on_those_made_with_it(spec):
    chunk = scenes_of(spec)
    assert_same(render(spec, [5]), {name: array[5:6] for name, array in chunk.items()})
    assert_same(render(spec, [7, 2, 7]), {name: array[[7, 2, 7]] for name, array in chunk.items()})


def test_seeds_and_numbers_give_different_scenes():
    first = render(SPECS["usual"], [0, 1])["images"]
    other = render(dataclasses.replace(SPECS["usual"], seed=77), [0])["images"]
    assert (first[0] != first[1]).any()
    assert (first[0] != other[0]).any()


def test_pictures_do_not_change_unless_the_version_does():
    """When this fails on purpose, raise generator.VERSION and run tests/save_generated_scenes.py."""
    with np.load(Path(__file__).parent / "fixtures" / "generated_scenes.npz") as saved:
        assert saved["version"] == generator.VERSION
        for name in ("usual", "discs"):
            chunk = render(SPECS[name], range(3))
            np.testing.assert_array_equal(chunk["labels"], saved[f"{name}_labels"])
            away = chunk["images"].astype(int) - saved[f"{name}_images"]
            assert np.abs(away).max() <= 1  # another machine's sine may round differently


def test_the_hash_names_the_scenes_and_not_how_they_are_written_down():
    plain = SceneSpec((3, 6), 64, seed=1)
    explicit = dataclasses.replace(plain, radius=(0.35, 0.7), shapes=("sphere", "cube", "cylinder"))
    assert identify(plain) == identify(explicit)
    changes = [
        {"objects": (3, 7)}, {"size": 48}, {"seed": 2}, {"style": "flat"}, {"shapes": ("cube",)},
        {"radius": (0.3, 0.6)}, {"materials": ("metal",)}, {"colors": ("red",)}, {"margin": 0.3}, {"min_visible": 3},
    ]  # fmt: skip
    others = [dataclasses.replace(plain, **change) for change in changes]
    assert len({identify(spec) for spec in (plain, *others)}) == 1 + len(changes)
    command = "from slotnorm.data.generator import SceneSpec, identify; print(identify(SceneSpec((3, 6), 64, seed=1)))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == identify(plain)


def test_the_hash_changes_with_the_version(monkeypatch):
    before = identify(SPECS["small"])
    monkeypatch.setattr(generator, "VERSION", generator.VERSION + 1)
    assert identify(SPECS["small"]) != before


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"style": "clever"}, "no style 'clever'; did you mean 'clevr'"),
        ({"objects": (5, 3)}, "cannot have 5 to 3 objects"),
        ({"objects": (0, 0)}, "cannot have 0 to 0 objects"),
        ({"objects": (3, 300)}, "MOST from 1 to 255"),
        ({"size": 16}, "clevr scenes have sides of 32 to 256 pixels"),
        ({"size": 1000, "style": "flat"}, "sides of 16 to 256"),
        ({"shapes": ("cone",)}, "'cone' is none of the shapes; known are: cube, sphere, cylinder"),
        ({"colors": ()}, "at least one of"),
        ({"materials": ("metal", "metal")}, "must be different ones"),
        ({"radius": (0.7, 0.35)}, "radius 0.7 to 0.35 is not possible"),
        ({"radius": (0.2, 0.6), "style": "flat"}, "at most 0.5"),
        ({"margin": -0.1}, "clevr takes 0.0 to 10"),
        ({"margin": math.nan}, "margin nan is not possible"),
        ({"min_visible": 0}, "at least 1 pixel"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_in_one_sentence(fields, sentence):
    with pytest.raises(UserError) as caught:
        request(SceneSpec(**fields))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_generator_does_not_import_torch():
    command = "import sys, slotnorm.data.generator; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
