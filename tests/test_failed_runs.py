"""The failed-run rule, on made-up masks: stripes, blocks, noise and sharing fail; objects do not."""

import numpy as np
import pytest
import torch

import made_up_masks as made_up
from slotnorm.errors import UserError
from slotnorm.evaluation.failed_runs import judge_labels, judge_masks

NUM = 32
PLACES = [(16, 5), (28, 11), (64, 7)]


def judge(labels: np.ndarray, slots: int, confidence: float = 0.9, seed: int = 3):
    return judge_masks(made_up.soft(made_up.permuted(labels, slots, seed), slots, confidence))


@pytest.mark.parametrize(("size", "slots"), PLACES)
@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_stripes_fail_however_slots_are_numbered(size, slots, jitter):
    for across in (False, True):
        judgement = judge(made_up.stripes(NUM, size, slots, jitter, across), slots)
        assert judgement.reason == "splits the image by place"
        assert judgement.moving < 0.5
        assert judgement.coherence > 0.5


@pytest.mark.parametrize(("size", "slots"), PLACES)
@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_blocks_fail(size, slots, jitter):
    judgement = judge(made_up.blocks(NUM, size, slots, jitter), slots)
    assert judgement.reason == "splits the image by place"
    assert judgement.moving < 0.6


def test_stripes_that_bend_around_objects_fail():
    assert judge(made_up.bent(made_up.stripes(NUM, 64, 7), 64, 3, 6), 7).reason == "splits the image by place"


def test_one_slot_for_everything_fails():
    assert judge(np.zeros((NUM, 16, 16), dtype=int), 5).reason == "splits the image by place"


@pytest.mark.parametrize(("size", "slots"), PLACES)
def test_noise_fails(size, slots):
    random = np.random.default_rng(0)
    hard = judge(random.integers(0, slots, (NUM, size, size)), slots)
    assert hard.reason == "noise masks"
    assert abs(hard.coherence) < 0.05
    logits = torch.from_numpy(random.normal(size=(NUM, slots, size, size)))
    assert judge_masks((2 * logits).softmax(1)).reason == "noise masks"


@pytest.mark.parametrize(("size", "slots"), PLACES)
def test_masks_that_are_all_alike_fail_even_where_they_follow_objects_a_little(size, slots):
    alike = torch.full((NUM, slots, size, size), 1 / slots)
    assert judge_masks(alike).reason == "shares pixels among all slots"
    assert judge_masks(alike).sharing == pytest.approx(1)
    following = judge(made_up.objects(NUM, size, 2, 3, "flat", parts=2), slots, confidence=0.1)
    assert following.reason == "shares pixels among all slots"
    assert following.moving > 1


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize(
    ("style", "size", "fewest", "most"),
    [("flat", 16, 2, 4), ("flat", 16, 5, 7), ("clevr", 32, 1, 3), ("clevr", 64, 3, 6), ("clevr", 64, 10, 10)],
)
def test_objects_are_followed_with_the_background_in_one_slot_or_in_several(style, size, fewest, most, parts):
    judgement = judge(made_up.objects(NUM, size, fewest, most, style, parts), most + parts)
    assert not judgement.failed, judgement
    assert judgement.moving > 1.3
    assert judgement.coherence > 0.5
    assert judgement.sharing < 0.35


def test_a_run_that_follows_every_other_object_has_not_failed():
    true = made_up.objects(NUM, 64, 3, 6)
    assert not judge(np.where(true % 2, true, 0), 7).failed


def test_a_background_that_all_slots_share_is_no_failure():
    true = torch.from_numpy(made_up.objects(NUM, 32, 3, 6))
    logits = 6.0 * torch.nn.functional.one_hot(true, 7).permute(0, 3, 1, 2) * (true > 0)[:, None]
    noise = 0.1 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    judgement = judge_masks((logits + noise).softmax(1))
    assert not judgement.failed, judgement


def test_the_statistics_are_what_they_say_on_masks_small_enough_to_count():
    # two images of 4 pixels: the left half against the right one recurs, the single pixel of the last slot does not
    labels = torch.tensor([[[0, 1], [0, 1]], [[0, 1], [0, 2]]])
    judgement = judge_labels(labels, torch.ones(2, 2, 2), 3)
    # best IoU: image 0: 1, 1/2; image 1: 1, 1/2, 1/2: none below 1/3
    assert judgement.moving == 0
    assert judgement.sharing == pytest.approx(1 / 3)
    # of 4 pairs of neighbours 2 and 1 agree; of all ordered pairs 1/2 and 3/8 do
    assert judgement.coherence == pytest.approx(((0.5 - 0.5) / 0.5 + (0.25 - 0.375) / 0.625) / 2)
    moved = torch.tensor([[[0, 0, 0, 0, 1]], [[1, 0, 0, 0, 0]]])
    # the single pixel has IoU 1/4 with the other image's large segment; the large ones have 3/5
    assert judge_labels(moved, torch.ones(2, 1, 5), 2).moving == 1


def test_the_rule_needs_two_images_and_maps():
    with pytest.raises(UserError, match="there is 1; give two scenes or more"):
        judge_masks(torch.full((1, 3, 4, 4), 1 / 3))
    with pytest.raises(UserError, match=r"\(n, K, H, W\) is needed"):
        judge_masks(torch.full((2, 3, 16), 1 / 3))
