"""Scaling against PyTorch's own and Pillow's, for the sizes in use and for odd ones."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from slotnorm.data.resize import method_of, nearest_positions, resize

SIZES = [((192, 192), 128), ((256, 256), 224), ((240, 320), 64), ((7, 5), 11), ((5, 9), 3), ((2, 1), 4)]


def picture(shape, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*shape, channels), dtype=np.uint8)


def scaled_by_torch(image, size, mode):
    """Unrounded, in float64."""
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    scaled = interpolate(tensor, size=(size, size), mode=mode, align_corners=False, antialias=False)
    return scaled[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(("shape", "size"), SIZES)
@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_images_are_scaled_as_by_torch(shape, size, method):
    image = picture(shape)
    exact = scaled_by_torch(image, size, method).clip(0, 255)
    ours = resize(image, size, method)
    assert ours.shape == (size, size, 3)
    assert ours.dtype == np.uint8
    # rounded to the nearest integer, up to what single precision leaves open at halves
    assert np.abs(ours - exact).max() < 0.5 + 1e-4


def test_the_papers_bilinear_scaling_is_exact_and_halves_go_to_the_even_number():
    """192 -> 128 has weights of 1/4 and 3/4: every value is a multiple of 1/16, in any precision."""
    image = picture((192, 192))
    exact = scaled_by_torch(image, 128, "bilinear")
    assert (np.abs(exact % 1 - 0.5) < 1e-12).any()
    assert np.array_equal(resize(image, 128, "bilinear"), np.rint(exact))


@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_labels_are_scaled_as_by_torch(shape, size):
    labels = picture(shape, channels=1)[..., 0]
    expected = interpolate(torch.from_numpy(labels)[None, None], size=(size, size), mode="nearest-exact")
    assert np.array_equal(resize(labels, size, "nearest"), expected[0, 0].numpy())
    colours = picture(shape)
    assert np.array_equal(resize(colours, size, "nearest")[..., 1], resize(colours[..., 1], size, "nearest"))


def test_nearest_positions_are_the_pixels_under_the_centres():
    assert nearest_positions(192, 128)[:4].tolist() == [0, 2, 3, 5]
    assert nearest_positions(4, 4).tolist() == [0, 1, 2, 3]
    assert nearest_positions(1, 3).tolist() == [0, 0, 0]


def test_an_image_of_the_right_size_is_left_alone():
    image = picture((8, 8))
    assert resize(image, 8, "bicubic") is image


def test_a_bright_edge_is_clipped_and_does_not_wrap_around():
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 4:] = 255
    scaled = resize(image, 7, "bicubic")
    assert scaled_by_torch(image, 7, "bicubic").max() > 256
    assert scaled[:, 0].max() == 0
    assert scaled[:, -1].min() == 255


@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_photos_are_scaled_as_by_pillow_every_pixel_counting(shape, size):
    image = picture(shape)
    expected = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
    assert np.array_equal(resize(image, size, "antialiased"), expected)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_of_a_large_image_only_the_rows_that_count_are_made_floats(method):
    image = np.zeros((3000, 40, 3), np.uint8)
    image[::7] = picture((len(image[::7]), 40))
    assert np.abs(resize(image, 8, method) - scaled_by_torch(image, 8, method).clip(0, 255)).max() < 0.5 + 1e-4


def test_every_dataset_has_one_way_of_scaling():
    ways = {(name, protocol): method_of(name, protocol) for name in DATASETS for protocol in ("paper", "authors")}
    assert ways == {
        ("clevr", "paper"): "bilinear", ("clevr", "authors"): "nearest",
        ("movi-c", "paper"): "bicubic", ("movi-c", "authors"): "bicubic",
        ("movi-d-features", "paper"): "bicubic", ("movi-d-features", "authors"): "bicubic",
        ("clevr-mini", "paper"): "antialiased", ("clevr-mini", "authors"): "antialiased",
        ("toy", "paper"): "antialiased", ("toy", "authors"): "antialiased",
    }  # fmt: skip


DATASETS = ("clevr", "movi-c", "movi-d-features", "clevr-mini", "toy")
