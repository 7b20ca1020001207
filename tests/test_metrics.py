"""Segmentation, reconstruction and property scores against scikit-learn, golden numbers and slow loops."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from live_memory import peak_bytes
from slotnorm.errors import UserError
from slotnorm.metrics import (
    Comparison,
    Metric,
    adjusted_rand_index,
    all_metrics,
    average_precision,
    description,
    labels_from_masks,
    mean_best_overlap,
    mean_iou,
    metric,
    squared_error,
)
from slotnorm.metrics.counting import count_tables

GOLDEN = Path(__file__).parent / "golden"


def foreground_oracle(true, predicted):
    scores = []
    for truth, other in zip(true.numpy(), predicted.numpy(), strict=True):
        seen = truth != 0
        scores.append(adjusted_rand_score(truth[seen], other[seen]) if seen.any() else math.nan)
    return np.array(scores)


def overall_oracle(true, predicted):
    pairs = zip(true.flatten(1).numpy(), predicted.flatten(1).numpy(), strict=True)
    return np.array([adjusted_rand_score(*pair) for pair in pairs])


def random_labels(shape, labels, seed):
    return torch.randint(0, labels, shape, generator=torch.Generator().manual_seed(seed))


# adjusted Rand index ------------------------------------------------------------------------------------------------


def test_adjusted_rand_index_equals_the_golden_numbers():
    golden = np.load(GOLDEN / "segmentation_metrics.npz")
    true, predicted = torch.as_tensor(golden["true"]), torch.as_tensor(golden["predicted"])
    np.testing.assert_allclose(adjusted_rand_index(true, predicted, False), golden["ari"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(adjusted_rand_index(true, predicted), golden["foreground_ari"], rtol=0, atol=1e-12)
    assert np.isnan(golden["foreground_ari"]).any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16])
@pytest.mark.parametrize(("true_labels", "predicted_labels"), [(1, 1), (2, 1), (1, 3), (2, 2), (11, 21), (200, 5)])
def test_adjusted_rand_index_equals_scikit_learn(dtype, true_labels, predicted_labels):
    true = random_labels((7, 9, 13), true_labels, 1)
    predicted = random_labels((7, 9, 13), predicted_labels, 2)
    predicted[0] = true[0]
    expected = overall_oracle(true, predicted), foreground_oracle(true, predicted)
    true, predicted = true.to(dtype), predicted.to(dtype)
    np.testing.assert_allclose(adjusted_rand_index(true, predicted, False), expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(adjusted_rand_index(true, predicted), expected[1], rtol=0, atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), images=st.integers(1, 3), pixels=st.integers(1, 8))
def test_adjusted_rand_index_equals_scikit_learn_on_tiny_images(data, images, pixels):
    labels = st.lists(st.integers(0, 3), min_size=images * pixels, max_size=images * pixels)
    true = torch.tensor(data.draw(labels)).view(images, pixels)
    predicted = torch.tensor(data.draw(labels)).view(images, pixels)
    np.testing.assert_allclose(
        adjusted_rand_index(true, predicted, False), overall_oracle(true, predicted), rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(
        adjusted_rand_index(true, predicted), foreground_oracle(true, predicted), rtol=0, atol=1e-12
    )


def test_adjusted_rand_index_is_exact_on_large_images():
    true, predicted = random_labels((2, 1024, 1024), 4, 3), random_labels((2, 1024, 1024), 7, 4)
    predicted[1] = true[1] + (predicted[1] == 0)
    np.testing.assert_allclose(
        adjusted_rand_index(true, predicted), foreground_oracle(true, predicted), rtol=0, atol=1e-12
    )


def test_wide_labels_are_counted_without_a_second_copy_of_them():
    true, predicted = random_labels((40, 128, 128), 11, 3), random_labels((40, 128, 128), 21, 4)
    assert peak_bytes(lambda: adjusted_rand_index(true, predicted)) < 0.5 * true.nbytes
    expected = adjusted_rand_index(true.to(torch.uint8), predicted.to(torch.uint8))
    assert adjusted_rand_index(true, predicted).equal(expected)
    np.testing.assert_allclose(expected, foreground_oracle(true, predicted), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(1, 32767), (1, 32768), (2, 16384), (32768, 1), (7, 4681), (3, 10923)])
@pytest.mark.parametrize("images", [1, 2])
def test_tables_are_exact_where_their_cells_no_longer_fit_into_16_bits(rows, columns, images):
    true, predicted = random_labels((images, 8), rows, 5), random_labels((images, 8), columns, 6)
    true[-1, -1], predicted[-1, -1] = rows - 1, columns - 1  # the last cell of all
    expected = torch.zeros(images, rows, columns, dtype=torch.int64)
    expected.index_put_((torch.arange(images)[:, None], true, predicted), torch.tensor(1), accumulate=True)
    assert torch.cat(list(count_tables(true, predicted))).equal(expected)


def test_an_image_without_foreground_has_no_foreground_score_but_an_overall_one():
    true, predicted = random_labels((3, 6, 6), 4, 5), random_labels((3, 6, 6), 4, 6)
    true[1] = 0
    assert adjusted_rand_index(true, predicted).isnan().tolist() == [False, True, False]
    assert not adjusted_rand_index(true, predicted, ignore_background=False).isnan().any()


@pytest.mark.parametrize("has_background", [True, False])
def test_label_values_and_gaps_do_not_matter(has_background):
    """Names as large as they get need no table of that size."""
    true, predicted = random_labels((5, 8, 8), 4, 7), random_labels((5, 8, 8), 6, 8)
    true[3] = true[3].clamp(min=1)
    if not has_background:
        true += 1
    names = torch.tensor([0, 2**62, 17, 2**40 + 1, 5])
    others = torch.tensor([2**50, 3, 0, 2**33, 2**63 - 1, 12])
    for score in (adjusted_rand_index, mean_best_overlap, mean_iou):
        torch.testing.assert_close(score(names[true], others[predicted]), score(true, predicted), rtol=0, atol=1e-15)


def test_as_many_segments_as_pixels_are_scored_in_parts():
    """Tables of 4097 x 4097 cells for four images do not fit at once."""
    true = torch.arange(4096).view(1, 64, 64).repeat(4, 1, 1)
    predicted = true.flip(1).clone()
    predicted[2] = predicted[2] // 2
    expected = foreground_oracle(true, predicted)
    np.testing.assert_allclose(adjusted_rand_index(true, predicted), expected, rtol=0, atol=1e-12)


def test_more_segments_than_a_table_can_hold_are_refused():
    labels = torch.arange(128 * 128).view(1, 128, 128)
    with pytest.raises(UserError, match="16383 true and 16383 predicted segments, but their table may have at most"):
        adjusted_rand_index(labels, labels)


def test_an_empty_batch_has_no_scores():
    nothing = torch.zeros(0, 4, 4, dtype=torch.uint8)
    for score in (adjusted_rand_index, mean_best_overlap, mean_iou):
        assert score(nothing, nothing).shape == (0,)


@pytest.mark.parametrize("score", [adjusted_rand_index, mean_best_overlap, mean_iou])
def test_bad_labels_get_one_sentence(score):
    labels = random_labels((2, 4, 4), 3, 9)
    with pytest.raises(UserError, match=r"shape \(2, 4, 4\) and predicted ones \(2, 4, 3\); they must be equal"):
        score(labels, labels[..., :3])
    with pytest.raises(UserError, match="a true label is -1, but labels are not negative"):
        score(labels - 1, labels)
    with pytest.raises(UserError, match="a predicted label is -2, but labels are not negative"):
        score(labels, labels - 2)
    with pytest.raises(UserError, match=r"predicted labels are torch.float32, but must be integers"):
        score(labels, labels.float())
    with pytest.raises(UserError, match=r"labels have shape \(4,\), but \(B, H, W\) is needed"):
        score(labels[0, 0], labels[0, 0])


# overlaps -----------------------------------------------------------------------------------------------------------


def overlap_oracle(true, predicted):
    """Best and matched IoU of one image, by masks and by trying every assignment."""
    from itertools import permutations

    objects = [true == label for label in np.unique(true) if label != 0]
    segments = [predicted == label for label in np.unique(predicted)]
    if not objects:
        return math.nan, math.nan
    table = np.array([[(a & b).sum() / (a | b).sum() for b in segments] for a in objects])
    padded = np.zeros((len(objects), max(table.shape)))
    padded[:, : table.shape[1]] = table
    rows = range(len(objects))
    matched = max(sum(padded[rows, list(p)]) for p in permutations(range(padded.shape[1]), len(objects)))
    return table.max(axis=1).mean(), matched / len(objects)


@pytest.mark.parametrize(("objects", "segments"), [(4, 3), (2, 6), (5, 5), (4, 1), (1, 3)])
def test_overlaps_equal_masks_and_all_assignments(objects, segments):
    true, predicted = random_labels((6, 5, 7), objects, 10), random_labels((6, 5, 7), segments, 11)
    true[2] = 0
    predicted[3] = predicted[3].clamp(max=1)
    pairs = zip(true.numpy(), predicted.numpy(), strict=True)
    best, matched = np.array([overlap_oracle(*pair) for pair in pairs]).T
    np.testing.assert_allclose(mean_best_overlap(true, predicted), best, rtol=1e-13)
    np.testing.assert_allclose(mean_iou(true, predicted), matched, rtol=1e-13)


def test_background_covered_by_a_segment_makes_the_segment_larger():
    true = torch.tensor([[0, 0, 1, 1]])
    predicted = torch.tensor([[0, 5, 5, 5]])
    assert mean_best_overlap(true, predicted).item() == pytest.approx(2 / 3)
    assert mean_iou(true, predicted).item() == pytest.approx(2 / 3)


def test_two_objects_share_a_best_segment_but_not_a_matched_one():
    true = torch.tensor([[1, 1, 2, 2]])
    predicted = torch.tensor([[3, 3, 3, 3]])
    assert mean_best_overlap(true, predicted).item() == 0.5
    assert mean_iou(true, predicted).item() == 0.25


# labels and reconstructions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype"), [((2, 7, 5, 6), torch.uint8), ((2, 257, 9), torch.int64)])
def test_labels_are_the_slots_with_the_largest_mask(shape, dtype):
    masks = torch.rand(shape, generator=torch.Generator().manual_seed(12))
    masks[:, 1] = masks[:, 0]  # the first of equal masks
    labels = labels_from_masks(masks)
    assert labels.dtype == dtype
    assert torch.equal(labels.long(), torch.as_tensor(masks.numpy().argmax(1)))
    assert not (labels == 1).any()


def test_masks_without_slots_are_refused():
    with pytest.raises(UserError, match=r"masks have shape \(2, 0, 4\), but \(B, K, ...\) with at least one slot"):
        labels_from_masks(torch.zeros(2, 0, 4))


def test_squared_error_is_the_training_loss_of_each_image():
    images, other = torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(13))
    each = squared_error(images, other)
    expected = [torch.nn.functional.mse_loss(a, b) for a, b in zip(images, other, strict=True)]
    torch.testing.assert_close(each, torch.stack(expected))
    assert squared_error(images.half(), other.half()).dtype == torch.float32
    with pytest.raises(UserError, match=r"shape \(4, 3, 8, 8\) and the target \(4, 3, 8, 4\); they must be equal"):
        squared_error(images, other[..., :4])


# average precision --------------------------------------------------------------------------------------------------


def slow_average_precision(predictions, targets, distance):
    """The definition as a loop over the ranking."""

    def attributes(row):
        return [int(np.argmax(part)) for part in np.split(row[:15], [3, 5, 7])]

    ranking = sorted(np.ndindex(predictions.shape[:2]), key=lambda at: -predictions[at][-1])
    taken, hits = set(), []
    for image, slot in ranking:
        row = predictions[image, slot]
        best, chosen = math.inf, None
        for number, target in enumerate(targets[image]):
            if target[-1] == 1 and attributes(row) == attributes(target):
                apart = np.linalg.norm((row[15:18] - target[15:18]) * 6)
                if apart < best:
                    best, chosen = apart, (image, number)
        hit = chosen is not None and best < distance and chosen not in taken
        hits.append(hit)
        if hit:
            taken.add(chosen)
    hits_so_far = np.cumsum(hits)
    precision, recall = hits_so_far / np.arange(1, len(hits) + 1), hits_so_far / targets[..., -1].sum()
    area, before = 0.0, 0.0
    for at in range(len(hits)):
        area += (recall[at] - before) * precision[at:].max()
        before = recall[at]
    return area


def property_rows(images, slots, objects, seed, noise=0.04):
    """Targets with padding, and predictions that are noisy copies of them: many agree, several on one object."""
    draws = np.random.default_rng(seed)
    targets = np.zeros((images, objects, 19))
    for part, width in ((0, 3), (3, 2), (5, 2), (7, 8)):
        kind = draws.integers(0, min(width, 2), (images, objects))
        np.put_along_axis(targets, (part + kind)[..., None], 1.0, axis=2)
    targets[..., 15:18] = draws.random((images, objects, 3))
    targets[..., 18] = draws.random((images, objects)) < 0.7
    source = draws.integers(0, objects, (images, slots))
    predictions = np.take_along_axis(targets, source[..., None], axis=1)
    predictions[..., :15] = predictions[..., :15] * 0.5 + draws.random((images, slots, 15)) * 0.6
    predictions[..., 15:18] += draws.normal(0, noise, (images, slots, 3))
    predictions[..., 18] = draws.random((images, slots)).round(1)  # with many ties
    return predictions, targets


@pytest.mark.parametrize("distance", [math.inf, 1.0, 0.5, 0.25, 0.125])
def test_average_precision_equals_the_golden_numbers(distance):
    golden = np.load(GOLDEN / "average_precision.npz")
    key = "ap/-1" if distance == math.inf else f"ap/{distance}"
    score = average_precision(torch.as_tensor(golden["predictions"]), torch.as_tensor(golden["targets"]), distance)
    assert score.item() == pytest.approx(float(golden[key]), rel=0, abs=1e-12)


@pytest.mark.parametrize("distance", [math.inf, 1.0, 0.4, 0.25])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_average_precision_equals_a_loop_over_the_ranking(distance, seed):
    predictions, targets = property_rows(9, 8, 6, seed)
    expected = slow_average_precision(predictions, targets, distance)
    assert expected > 0.01
    score = average_precision(torch.as_tensor(predictions), torch.as_tensor(targets), distance)
    assert score.item() == pytest.approx(expected, rel=0, abs=1e-7)


def test_the_ranking_is_one_over_all_images():
    predictions, targets = (torch.as_tensor(rows) for rows in property_rows(6, 5, 4, 4))
    order = torch.tensor([5, 2, 0, 1, 4, 3])
    predictions[..., -1] = torch.rand(6, 5, generator=torch.Generator().manual_seed(14))
    whole = average_precision(predictions, targets)
    torch.testing.assert_close(average_precision(predictions[order], targets[order]), whole, rtol=0, atol=1e-12)
    each = [average_precision(predictions[i : i + 1], targets[i : i + 1]) for i in range(6)]
    assert abs(torch.stack(each).nanmean() - whole) > 1e-3  # a mean over images is another number


def test_a_distance_at_the_limit_is_too_far():
    targets = torch.zeros(1, 1, 19)
    targets[..., [0, 3, 5, 7, 18]] = 1
    predictions = targets.clone()
    predictions[..., 15] = 0.125  # 0.75 in scene units, exactly
    assert average_precision(predictions, targets, distance=0.75) == 0
    assert average_precision(predictions, targets, distance=0.7500001) == 1


def test_a_perfect_prediction_scores_one_and_padding_is_no_object():
    _, targets = property_rows(4, 5, 6, 5)
    targets = torch.as_tensor(targets)
    assert average_precision(targets, targets).item() == pytest.approx(1, rel=0, abs=1e-12)
    assert average_precision(targets, targets * 0).isnan()


def test_bad_properties_get_one_sentence():
    predictions, targets = (torch.as_tensor(rows) for rows in property_rows(3, 4, 5, 6))
    with pytest.raises(UserError, match=r"predictions have shape \(3, 4, 18\), but \(n, number, 19\) is needed"):
        average_precision(predictions[..., 1:], targets)
    with pytest.raises(UserError, match="there are predictions of 3 images and targets of 2"):
        average_precision(predictions, targets[:2])
    with pytest.raises(UserError, match="predictions hold NaN or infinite numbers"):
        average_precision(predictions * math.nan, targets)
    with pytest.raises(UserError, match="at least one row per image"):
        average_precision(predictions[:, :0], targets)
    with pytest.raises(UserError, match="distance is 0, but must be positive"):
        average_precision(predictions, targets, distance=0)


def test_an_image_scores_the_same_bits_alone_and_beside_images_with_other_labels():
    random = np.random.default_rng(0)
    true = torch.from_numpy(random.integers(0, 9, (40, 12, 12)))
    predicted = torch.from_numpy(random.integers(0, 17, (40, 12, 12)))
    true[::2] %= 4  # half of the images have fewer objects and segments than their neighbours
    predicted[::3] %= 5

    def scores(true, predicted):
        comparison = Comparison(true=true, predicted=predicted)
        return {name: metric().score(comparison) for name, metric in all_metrics().items() if metric.needs == "labels"}

    together = scores(true, predicted)
    assert together["f_ari"].equal(adjusted_rand_index(true, predicted))
    assert together["ari"].equal(adjusted_rand_index(true, predicted, ignore_background=False))
    assert together["mbo"].equal(mean_best_overlap(true, predicted))
    assert together["miou"].equal(mean_iou(true, predicted))
    for image in range(len(true)):
        for name, score in scores(true[image : image + 1], predicted[image : image + 1]).items():
            assert score[0] == together[name][image], name


def test_pixels_are_counted_once_for_all_metrics(monkeypatch):
    counts = []
    monkeypatch.setattr(metric, "count_tables", lambda *maps: counts.append(1) or count_tables(*maps))
    comparison = Comparison(true=torch.ones(2, 3, 3, dtype=torch.int64), predicted=torch.zeros(2, 3, 3).long())
    for kind in all_metrics().values():
        if kind.needs == "labels":
            kind().score(comparison)
    assert len(counts) == 1


@pytest.mark.parametrize("name", all_metrics())
def test_every_metric_says_what_it_is_and_keeps_to_its_bounds(name):
    """The contract, over the registry: a new class is held to it before anyone writes a test for it."""
    kind = all_metrics()[name]
    assert kind.name == name
    assert kind.label
    assert description(kind)
    low, high = kind.bounds
    assert low < high
    for seed in range(20):
        draws = torch.Generator().manual_seed(seed)
        masks = torch.rand(5, 4, 6, 6, generator=draws)
        images, noisy = torch.rand(2, 5, 3, 6, 6, generator=draws)
        predictions, targets = torch.rand(5, 4, 19, generator=draws), torch.rand(5, 3, 19, generator=draws).round()
        comparison = Comparison(
            inputs=images, slots=torch.rand(5, 4, 8, generator=draws), attention=masks.flatten(2), masks=masks,
            true=torch.randint(0, 4, (5, 6, 6), generator=draws), predicted=labels_from_masks(masks),
            reconstruction=noisy, predictions=predictions, targets=targets, objects=torch.arange(5),
        )  # fmt: skip
        values = kind().score(comparison)
        assert values.shape == (() if kind.of == "set" else (5,))
        known = values[~values.isnan()]
        assert ((known >= low) & (known <= high)).all()
    if kind.needs == "labels":
        same = dataclasses.replace(comparison, predicted=comparison.true)
        assert torch.equal(kind().score(same), torch.full((5,), high, dtype=torch.float64)) == (
            kind.direction == "higher"
        )


def made(**attributes):
    """A class of a metric with these attributes."""
    return type("Made", (Metric,), attributes)


def test_a_metric_that_does_not_say_what_it_is_is_refused_in_one_sentence():
    whole = {"name": "made", "label": "Made", "direction": "lower", "needs": "nothing", "bounds": (0.0, 1.0)}
    for missing in whole:
        with pytest.raises(TypeError, match=f"^metric Made has no '{missing}'; each says name, label, direction"):
            made(**{name: value for name, value in whole.items() if name != missing})
    for changes, sentence in (
        ({"direction": "up"}, "direction of metric Made is 'up'; it must be one of 'higher', 'lower'"),
        ({"needs": "masks"}, "needs of metric Made is 'masks'; it must be one of 'labels', 'reconstruction'"),
        ({"of": "set"}, "metric Made is one of a set and needs nothing; of 'set' are those that need 'properties'"),
        ({"name": "ari"}, "metric name 'ari' of Made is taken by slotnorm.metrics.metric.ARI"),
        ({"name": "<b>a b</b>"}, "metric Made has the name '<b>a b</b>'; it takes small letters, digits and - _ . @"),
        ({"name": "../up"}, r"metric Made has the name '\.\./up'; it takes small letters"),
        ({"name": 7}, "metric Made has the name 7; it takes small letters"),
        ({"name": "visible"}, "metric Made has the name 'visible'; it takes .* and none of visible, loss"),
        ({"label": None}, "label of metric Made is None; it must be a text"),
        ({"bounds": None}, r"bounds of metric Made are None; they must be the least value and the largest, as in \(0"),
        ({"bounds": (1.0, 0.0)}, r"bounds of metric Made are \(1.0, 0.0\); they must be the least value and the larg"),
        ({"bounds": ("0", "1")}, r"bounds of metric Made are \('0', '1'\); they must be the least value"),
        ({"validated_as": "f_ari"}, "metric Made is validated as 'f_ari', as f_ari is; choose another name"),
    ):
        with pytest.raises(TypeError, match=sentence):
            made(**{**whole, **changes})
    assert "made" not in all_metrics()


def test_a_metric_that_looks_at_what_it_does_not_need_is_told():
    with pytest.raises(TypeError, match="does not hold what the metric looks at; its `needs` must say so"):
        all_metrics()["l2"]().score(Comparison(inputs=torch.zeros(1, 3, 2, 2)))
