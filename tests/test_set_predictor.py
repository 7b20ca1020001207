"""The matching loss against all matchings, tried one by one."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slotnorm.errors import UserError
from slotnorm.models import matching_loss


def cheapest(predictions: Tensor, targets: Tensor) -> Tensor:
    """The least mean cost over every way to pair the fewer with the more."""
    totals = []
    for some, others in zip(predictions, targets, strict=True):
        few, many = (some, others) if len(some) <= len(others) else (others, some)
        difference = [few - many[list(order)] for order in permutations(range(len(many)), len(few))]
        costs = [torch.where(d.abs() < 1, d.square() / 2, d.abs() - 0.5).mean() for d in difference]
        totals.append(torch.stack(costs).min())
    return torch.stack(totals).mean()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
def test_the_loss_is_the_least_over_all_matchings(num_slots, num_objects, seed):
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(3, num_slots, 4, dtype=torch.float64, generator=generator) * 2
    targets = torch.randn(3, num_objects, 4, dtype=torch.float64, generator=generator) * 2
    torch.testing.assert_close(matching_loss(predictions, targets), cheapest(predictions, targets), rtol=0, atol=1e-12)


def test_neither_the_order_of_slots_nor_of_objects_matters():
    predictions, targets = torch.rand(2, 6, 19), torch.rand(2, 6, 19)
    loss = matching_loss(predictions, targets)
    torch.testing.assert_close(matching_loss(predictions[:, torch.randperm(6)], targets[:, torch.randperm(6)]), loss)


def test_the_gradient_is_that_of_the_matched_pairs():
    targets = torch.tensor([[[0.0, 0.0], [5.0, 5.0]]], dtype=torch.float64)
    predictions = torch.tensor([[[5.25, 5.0], [9.0, 9.0], [0.0, 0.5]]], dtype=torch.float64, requires_grad=True)
    matching_loss(predictions, targets).backward()
    # two pairs of two outputs: each difference below 1 counts a quarter; the slot left over has no part
    expected = torch.tensor([[[0.25, 0.0], [0.0, 0.0], [0.0, 0.5]]], dtype=torch.float64) / 4
    torch.testing.assert_close(predictions.grad, expected)


def test_padding_teaches_the_slots_left_over_to_be_empty():
    targets = torch.zeros(1, 3, 2)
    targets[0, 0] = 1
    predictions = torch.tensor([[[1.0, 1.0], [0.0, 0.0], [0.0, 0.6]]], requires_grad=True)
    assert matching_loss(predictions, targets[:, :1]) == 0
    loss = matching_loss(predictions, targets)
    loss.backward()
    assert predictions.grad[0, 2, 1] > 0


def test_a_cost_that_is_not_finite_reaches_the_loss():
    predictions, targets = torch.rand(2, 3, 4), torch.rand(2, 3, 4)
    predictions[1, 2, 0] = float("nan")
    assert matching_loss(predictions, targets).isnan()
    predictions[1, 2, 0] = float("inf")
    assert not matching_loss(predictions, targets).isfinite()


def test_half_precision_is_matched_in_float32():
    predictions, targets = torch.rand(2, 5, 19), torch.rand(2, 5, 19)
    loss = matching_loss(predictions.bfloat16(), targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(matching_loss(predictions, targets).item(), rel=0.05)


@pytest.mark.parametrize(
    ("predictions", "targets"),
    [((2, 3, 4), (2, 3, 5)), ((2, 3, 4), (1, 3, 4)), ((3, 4), (3, 4)), ((2, 0, 4), (2, 3, 4)), ((2, 3, 4), (2, 0, 4))],
)
def test_shapes_that_do_not_fit_are_refused(predictions, targets):
    with pytest.raises(UserError, match="predictions have shape .* and targets .*; they must be"):
        matching_loss(torch.zeros(predictions), torch.zeros(targets))
