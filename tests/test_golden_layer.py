"""Slots, attention, gradients and running statistics of the authors' modules, in float64 (tests/golden)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from slotnorm import SlotAttention

GOLDEN = Path(__file__).parent / "golden"
FILES = {
    "weighted_mean": "mean",
    "layer_norm": "layer",
    "weighted_sum": "sum",
    "batch_norm": "batch",
    "unnormalized": "none",
    "kd_layer_norm": "kd_layer",
}


def load(name: str) -> tuple[SlotAttention, dict[str, torch.Tensor]]:
    with np.load(GOLDEN / f"slot_attention_{FILES[name]}.npz") as file:
        golden = {key: torch.from_numpy(file[key]) for key in file.files}
    weights = {key[2:].replace("norm_update", "normalization"): golden[key] for key in golden if key.startswith("w/")}
    layer = SlotAttention(16, normalization=name, hidden=24).double()
    layer.load_state_dict(weights, strict=True)
    return layer, golden


def assert_equal(ours: torch.Tensor, golden: torch.Tensor) -> None:
    torch.testing.assert_close(ours, golden.view_as(ours), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("name", FILES)
def test_training_equals_the_authors_modules(name, iterations):
    layer, golden = load(name)
    if name == "batch_norm":
        layer.normalization.running_mean.zero_()
        layer.normalization.running_var.fill_(1)
    tokens = golden["inputs"].clone().requires_grad_()
    slots, attention = layer(tokens, slots=golden["slots_init"], iterations=iterations)
    (slots * golden["cotangent"]).sum().backward()
    expected = {key.split("/")[-1]: value for key, value in golden.items() if key.startswith(f"train/{iterations}/")}
    ours = {
        "slots": slots, "attention": attention, "grad_inputs": tokens.grad,
        "grad_key": layer.key.weight.grad, "grad_value": layer.value.weight.grad,
    }  # fmt: skip
    if name == "batch_norm":
        ours["grad_alpha"] = layer.normalization.weight.grad
        ours |= dict(layer.normalization.named_buffers())
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        assert_equal(ours[key], value)


@pytest.mark.parametrize("name", FILES)
def test_evaluation_equals_the_authors_modules(name):
    layer, golden = load(name)
    layer.eval()
    if name == "batch_norm":
        layer.normalization.running_mean.copy_(golden["train/3/running_mean"])
        layer.normalization.running_var.copy_(golden["train/3/running_var"])
    for iterations in (1, 3, 5):
        for num_slots in (1, 5, 12):
            case = f"eval/{iterations}/{num_slots}/"
            start = golden[case + "slots_init"]
            slots, attention = layer(golden["inputs"], num_slots, slots=start, iterations=iterations)
            assert_equal(slots, golden[case + "slots"])
            assert_equal(attention, golden[case + "attention"])
