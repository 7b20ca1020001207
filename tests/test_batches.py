"""Batches: only the seed decides them, whatever the number of workers and ranks and wherever a run starts."""

import threading

import numpy as np
import pytest
import torch

from slotnorm.data import Scenes
from slotnorm.data.batches import Batch, batches, to_images
from slotnorm.errors import DamagedFile, UserError
from slotnorm.runtime import randomness
from small_sets import build, random_arrays

FIELDS = ("images", "labels")


@pytest.fixture(scope="module")
def arrays():
    return random_arrays(num=50)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory, arrays) -> Scenes:
    return build(tmp_path_factory.mktemp("batches") / "set", arrays)


def assert_same(batch: Batch, other: Batch) -> None:
    assert batch.step == other.step
    for name in ("scene", "sample", "counts", *FIELDS):
        assert torch.equal(getattr(batch, name), getattr(other, name)), name


def test_a_batch_holds_the_scenes_it_names(scenes, arrays):
    for step, batch in enumerate(batches(scenes, seed=3, batch_size=8, stop=20, fields=(*FIELDS, "properties"))):
        scene = batch.scene.numpy()
        assert batch.step == step
        assert len(batch) == 8
        assert batch.sample.tolist() == list(range(8 * step, 8 * step + 8))
        assert np.array_equal(batch.images, arrays["images"][scene])
        assert np.array_equal(batch.labels, arrays["labels"][scene])
        assert np.array_equal(batch.counts, arrays["counts"][scene])
        assert batch.features is None
        assert all(np.array_equal(batch.properties[name], arrays[name][scene]) for name in ("shape", "x"))


def test_a_filtered_set_names_scenes_by_their_number_in_the_container(scenes, arrays):
    part = scenes.filter(max_objects=3)
    seen = torch.cat([batch.scene for batch in batches(part, seed=0, batch_size=5, stop=30)])
    assert set(seen.tolist()) == set(np.flatnonzero(arrays["counts"] <= 3).tolist())


@pytest.mark.parametrize("batch_size", [1, 8, 50, 64, 120])
def test_every_epoch_has_every_scene_once_in_an_order_of_its_own(scenes, batch_size):
    steps = -(-4 * 50 // batch_size)
    seen = torch.cat([batch.scene for batch in batches(scenes, seed=1, batch_size=batch_size, stop=steps)])
    epochs = [seen[50 * epoch : 50 * epoch + 50].tolist() for epoch in range(4)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_order_does_not_depend_on_the_batch_size(scenes):
    small = torch.cat([batch.scene for batch in batches(scenes, seed=1, batch_size=4, stop=30)])
    large = torch.cat([batch.scene for batch in batches(scenes, seed=1, batch_size=40, stop=3)])
    assert torch.equal(small, large)
    other = torch.cat([batch.scene for batch in batches(scenes, seed=2, batch_size=40, stop=3)])
    assert not torch.equal(small, other)


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_gives_the_same_bits(scenes, workers):
    options = {"seed": 5, "batch_size": 12, "flip": True, "fields": FIELDS, "stop": 23}
    alone, helped = list(batches(scenes, **options)), list(batches(scenes, **options, workers=workers))
    assert len(alone) == len(helped) == 23
    for computed, other in zip(alone, helped, strict=True):
        assert_same(computed, other)


@pytest.mark.parametrize("world_size", [2, 3, 12])
def test_the_ranks_shares_make_up_the_same_batch(scenes, world_size):
    options = {"seed": 5, "batch_size": 12, "flip": True, "fields": FIELDS, "stop": 9}
    shares = [list(batches(scenes, **options, rank=rank, world_size=world_size)) for rank in range(world_size)]
    for step, whole in enumerate(batches(scenes, **options)):
        for name in ("scene", "sample", "counts", *FIELDS):
            joined = torch.cat([getattr(share[step], name) for share in shares])
            assert torch.equal(joined, getattr(whole, name)), name


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_starts_later_continues_exactly(scenes, workers):
    options = {"seed": 5, "batch_size": 12, "flip": True, "fields": FIELDS, "workers": workers}
    whole = list(batches(scenes, **options, stop=17))
    for start in (0, 1, 4, 5, 16):
        for resumed, other in zip(whole[start:], batches(scenes, **options, start=start, stop=17), strict=True):
            assert_same(resumed, other)


def test_a_flip_mirrors_image_and_labels_together(scenes, arrays):
    flips = []
    for batch in batches(scenes, seed=5, batch_size=16, stop=40, flip=True, fields=FIELDS):
        for row, scene in enumerate(batch.scene.tolist()):
            image, labels = arrays["images"][scene], arrays["labels"][scene]
            flipped = not np.array_equal(batch.images[row], image)
            assert np.array_equal(batch.images[row], image[:, ::-1] if flipped else image)
            assert np.array_equal(batch.labels[row], labels[:, ::-1] if flipped else labels)
            key = (batch.step, int(batch.sample[row]))
            assert flipped == randomness.coins(5, "flip", [key])[0]
            flips.append(flipped)
    assert 0.42 < np.mean(flips) < 0.58  # 640 fair coins: 4 standard deviations


def test_coins_depend_on_their_own_key_alone():
    keys = [(step, sample) for step in range(20) for sample in range(50)]
    coins = randomness.coins(7, "flip", keys)
    assert np.array_equal(coins[::-1], randomness.coins(7, "flip", keys[::-1]))
    for seed, purpose in ((8, "flip"), (7, "other")):
        assert 0.4 < np.mean(coins == randomness.coins(seed, purpose, keys)) < 0.6


def test_a_set_of_features_gives_features(tmp_path):
    features = np.random.default_rng(0).normal(size=(9, 4, 3)).astype(np.float16)
    scenes = build(tmp_path / "set", {"features": features, "counts": np.arange(9)})
    batch = next(batches(scenes, seed=0, batch_size=4))
    assert batch.images is None
    assert batch.features.dtype == torch.float16
    assert np.array_equal(batch.features, features[batch.scene])
    with pytest.raises(UserError, match="features cannot be flipped"):
        batches(scenes, seed=0, batch_size=4, flip=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 10, "world_size": 4}, "a batch of 10 cannot be shared by 4 ranks; choose a multiple of 4"),
        ({"batch_size": 0}, "the size must be at least 1"),
        ({"start": -1}, "start -1"),
        ({"workers": -1}, "workers -1"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"fields": ("image",)}, r"no field 'image'; did you mean 'images'\?"),
        ({"fields": ("features",)}, "has no features; it has images, labels"),
        ({"fields": ("images", "properties"), "flip": True}, "properties cannot be flipped with the image"),
    ],
)
def test_impossible_requests_are_refused_at_once(scenes, options, sentence):
    with pytest.raises(UserError, match=sentence):
        batches(scenes, **{"seed": 0, "batch_size": 8, **options})


def test_an_empty_part_is_refused(scenes):
    with pytest.raises(UserError, match="no scenes to take batches from"):
        batches(scenes[:0], seed=0, batch_size=8)


@pytest.mark.parametrize("workers", [0, 3])
def test_damage_is_the_same_sentence_from_a_worker(tmp_path, workers):
    directory = build(tmp_path / "set").directory
    content = bytearray((directory / "images.npy").read_bytes())
    content[-1] ^= 1
    (directory / "images.npy").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"images.npy is damaged in block 0 \(scenes 0 to 39\)"):
        list(batches(Scenes.open(directory), seed=0, batch_size=8, stop=9, workers=workers))


def test_workers_end_when_no_more_batches_are_taken(scenes):
    before = threading.active_count()
    iterator = batches(scenes, seed=0, batch_size=8, workers=3)  # endless
    assert [next(iterator).step for _ in range(5)] == [0, 1, 2, 3, 4]
    assert threading.active_count() > before
    iterator.close()
    assert threading.active_count() == before


def test_images_are_scaled_to_minus_one_to_one():
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 8, 32, 1).repeat(2, 1, 1, 3)
    images[1, ..., 2] = 7
    scaled = to_images(images)
    assert scaled.shape == (2, 3, 8, 32)
    assert scaled.dtype == torch.float32
    assert scaled.is_contiguous()
    expected = images.numpy().astype(np.float64).transpose(0, 3, 1, 2) / 127.5 - 1
    assert np.abs(scaled.numpy() - expected).max() < 2e-7
    assert (scaled.min(), scaled.max()) == (-1, 1)
