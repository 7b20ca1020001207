"""Arrays set aside in a temporary file."""

import gc
import os

import numpy as np
import pytest

from made_up_rows import made_up
from slotnorm.report.scores import summarize
from slotnorm.storage.aside import ArrayAside, Aside


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_an_array_comes_back_as_it_was(dtype):
    aside = Aside()
    random = np.random.default_rng(1)
    arrays = [(10 * random.normal(size=shape)).astype(dtype) for shape in ((3, 5), (0, 4), (7,), (2, 2))]
    places = [aside.put(array) for array in arrays]
    for array, place in reversed(list(zip(arrays, places, strict=True))):
        np.testing.assert_array_equal(place.load(), array, strict=True)
    turned = aside.put(arrays[0].T)
    np.testing.assert_array_equal(turned.load(), arrays[0].T, strict=True)
    np.testing.assert_array_equal(places[0].load(), arrays[0], strict=True)


def test_the_file_is_there_as_long_as_an_array_in_it_is():
    aside = Aside()
    descriptor = aside._file.fileno()
    place = aside.put(np.arange(3))
    del aside
    gc.collect()
    np.testing.assert_array_equal(place.load(), np.arange(3))
    del place
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_equal_columns_are_held_once():
    aside = Aside()
    first = aside.share(np.arange(4))
    assert aside.share(np.arange(4)) is first
    assert aside.share(np.arange(4, dtype=np.int32)) is not first
    assert aside.share(np.arange(5)) is not first


def test_scores_of_scenes_are_the_same_from_a_file():
    runs = summarize(made_up("toy", ["batch_norm", "layer_norm"], [1], (5, 15), images=6))
    aside = Aside()
    for run in runs:
        elsewhere = run.set_aside(aside)
        assert list(elsewhere.scenes) == list(run.scenes) != []
        for key, scores in run.scenes.items():
            kept = elsewhere.scenes[key]
            assert isinstance(kept.values, ArrayAside)
            for k in (5, 15, 99):
                np.testing.assert_array_equal(kept.at(k), scores.at(k))
            np.testing.assert_array_equal(kept.load().values, scores.values, strict=True)
    first, second = (run.set_aside(aside).scenes["toy4", "masks", "f_ari"] for run in runs)
    assert first.images is second.images
