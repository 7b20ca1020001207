"""The fast ways of decoding and mixing against the plain ones: equal in float64, gradients too, and smaller."""

import pytest
import torch
from torch import Tensor

from live_memory import peak_bytes
from plain_models import PlainAutoencoder, plain_features, plain_images
from slotnorm.models import FeatureAutoencoder, ImageAutoencoder, SlotModel, mixing

BROADCAST = {"size": 16, "channels": 8, "dim": 6, "hidden": 10, "strides": (1, 2), "decoder_strides": (2, 2, 1)}
DENSE = {
    "size": 8, "channels": 8, "dim": 6, "hidden": 10, "kernel": 3, "strides": (1,), "decoder": "dense",
    "decoder_hidden": (12, 16),
}  # fmt: skip
FEATURES = {"tokens": 25, "features": 14, "dim": 6, "decoder": 20, "hidden": 10}
KINDS = {"broadcast": BROADCAST, "dense": DENSE, "features": FEATURES}


def make(kind: str, batch: int = 3, num_slots: int = 5) -> tuple[SlotModel, PlainAutoencoder, Tensor, Tensor]:
    """A model, its plain peer with the same weights, inputs and initial slots, in float64."""
    torch.manual_seed(4)
    arguments = KINDS[kind]
    if kind == "features":
        fast, plain = FeatureAutoencoder(**arguments), plain_features(**arguments)
        inputs = torch.randn(batch, 25, 14, dtype=torch.float64)
    else:
        fast, plain = ImageAutoencoder(**arguments), plain_images(**arguments)
        inputs = torch.rand(batch, 3, arguments["size"], arguments["size"], dtype=torch.float64) * 2 - 1
    fast, plain = fast.double(), plain.double()
    for parameter in fast.parameters():  # biases and scales start at 0 and 1, where mistakes hide
        torch.nn.init.normal_(parameter, std=0.3)
    plain.load_state_dict(fast.state_dict())
    return fast, plain, inputs, torch.randn(batch, num_slots, 6, dtype=torch.float64)


def tile_of(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Have tiles of so many rows, whatever the model's size."""
    monkeypatch.setattr(mixing, "rows_at_once", lambda row_bytes, device: rows)
    monkeypatch.setattr("slotnorm.models.image_autoencoder.rows_at_once", lambda row_bytes, device: rows)
    monkeypatch.setattr("slotnorm.models.feature_mixing.rows_at_once", lambda row_bytes, device: rows)


def losses(masks: Tensor, reconstruction: Tensor, inputs: Tensor) -> Tensor:
    """A loss on which both the reconstruction and the masks have a bearing."""
    weights = torch.linspace(-1, 1, masks[0].numel(), dtype=masks.dtype).view_as(masks[0])
    return (reconstruction - inputs).square().mean() + (masks.square() * weights).mean()


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_equal_the_plain_model_at_any_tile(kind, recompute, rows, monkeypatch):
    fast, plain, inputs, slots = make(kind)
    fast.recompute = recompute
    tile_of(monkeypatch, rows)
    slots.requires_grad_()
    decomposition = fast(inputs, slots=slots)
    expected = plain(inputs, slots)
    for name, value in zip(("slots", "attention", "masks", "reconstruction"), expected, strict=True):
        torch.testing.assert_close(getattr(decomposition, name), value, rtol=0, atol=1e-12)
    (for_slots,) = torch.autograd.grad(losses(*expected[2:], inputs), slots, retain_graph=True)
    losses(*expected[2:], inputs).backward()
    slots.grad = None
    losses(decomposition.masks, decomposition.reconstruction, inputs).backward()
    torch.testing.assert_close(slots.grad, for_slots, rtol=0, atol=1e-10)
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in fast.named_parameters():
        if not name.startswith(("slot_attention.slots_",)):  # initial slots were given
            torch.testing.assert_close(
                parameter.grad, gradients[name], rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("strides", [(2, 2), (2, 2, 1)], ids=["channels last", "by transforms"])
def test_the_broadcast_decoder_rounds_as_float32_does(strides, recompute):
    """Its layouts and transforms are for float32 alone, which the tests in float64 never take."""
    torch.manual_seed(4)
    arguments = {**BROADCAST, "decoder_strides": strides}
    exact = plain_images(**arguments).double()
    fast = ImageAutoencoder(**arguments, recompute=recompute)
    exact.load_state_dict(fast.state_dict())
    slots = torch.randn(3, 5, 6, requires_grad=True)
    wide = slots.detach().double().requires_grad_()
    decoded, expected = fast.read(slots, slots)[2:4], exact.decoder(wide)
    with torch.no_grad():
        evaluated = fast.read(slots, slots)[2:4]
    weights = torch.linspace(-1, 1, 5)[:, None, None]
    for masks, reconstruction in (decoded, expected):
        (reconstruction.square().mean() + (masks.square() * weights).mean()).backward()
    pairs = [*zip(decoded, expected, strict=True), *zip(evaluated, expected, strict=True), (slots.grad, wide.grad)]
    gradients = {name: parameter.grad for name, parameter in exact.named_parameters()}
    pairs += [(parameter.grad, gradients[f"decoder.{name}"]) for name, parameter in fast.decoder.named_parameters()]
    for value, reference in pairs:
        assert (value - reference).abs().max() < 1e-5 * reference.abs().max()


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 20, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_with_the_running_softmax_equals_the_plain_model(kind, rows, monkeypatch):
    fast, plain, inputs, slots = make(kind, num_slots=9)
    tile_of(monkeypatch, rows)
    with torch.no_grad():
        decomposition, expected = fast(inputs, slots=slots), plain(inputs, slots)
        alone = fast(inputs, slots=slots, reconstruct=False)
    torch.testing.assert_close(decomposition.masks, expected[2], rtol=0, atol=1e-12)
    torch.testing.assert_close(decomposition.reconstruction, expected[3], rtol=0, atol=1e-12)
    torch.testing.assert_close(alone.masks, expected[2], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        decomposition.masks.sum(1), torch.ones_like(decomposition.masks[:, 0]), rtol=0, atol=1e-12
    )
    assert alone.reconstruction is None


@pytest.mark.parametrize("kind", KINDS)
def test_masks_alone_have_gradients(kind):
    fast, plain, inputs, slots = make(kind)
    masks, expected = fast(inputs, slots=slots, reconstruct=False).masks, plain(inputs, slots)[2]
    weights = torch.randn_like(expected)
    (masks * weights).sum().backward()
    (expected * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in fast.decoder.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[f"decoder.{name}"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("loss", ["masks", "reconstruction"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_one_output_alone_has_the_plain_gradients(kind, recompute, loss):
    fast, plain, inputs, slots = make(kind)
    fast.recompute = recompute
    decomposition, (_, _, *expected) = fast(inputs, slots=slots), plain(inputs, slots)
    getattr(decomposition, loss).square().sum().backward()
    expected[loss == "reconstruction"].square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in fast.decoder.named_parameters():
        expected_gradient = gradients[f"decoder.{name}"]
        if parameter.grad is None:  # the last layer's colours or features have no part in masks
            assert expected_gradient.abs().max() == 0
        else:
            torch.testing.assert_close(parameter.grad, expected_gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_can_be_differentiated_again(kind, recompute):
    """A penalty on the gradient's size, whose own gradient must be the plain model's."""
    fast, plain, inputs, slots = make(kind, batch=1, num_slots=3)
    fast.recompute = recompute
    penalties = []
    for model, outputs in ((fast, fast(inputs, slots=slots)[2:4]), (plain, plain(inputs, slots)[2:])):
        weights = [parameter for name, parameter in model.named_parameters() if name.startswith("decoder")]
        first = torch.autograd.grad(losses(*outputs, inputs), weights, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in first)
        penalty.backward()
        penalties.append(penalty)
    torch.testing.assert_close(*penalties, rtol=1e-10, atol=0)
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in fast.decoder.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[f"decoder.{name}"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_weights_get_no_gradient_and_slots_do(kind):
    for recompute in (False, True):
        fast, plain, inputs, slots = make(kind)
        fast.recompute = recompute
        for model in (fast, plain):
            model.requires_grad_(False)
        start = slots.clone().requires_grad_()
        (expected,) = torch.autograd.grad(losses(*plain(inputs, start)[2:], inputs), start)
        decomposition = fast(inputs, slots=start)
        losses(decomposition.masks, decomposition.reconstruction, inputs).backward()
        torch.testing.assert_close(start.grad, expected, rtol=0, atol=1e-10)
        assert all(parameter.grad is None for parameter in fast.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_any_size_leave_masks_finite(kind, monkeypatch):
    fast, plain, inputs, slots = make(kind)
    tile_of(monkeypatch, 2)
    with torch.no_grad():
        slots *= 1e4  # logits in the thousands: exp alone would overflow
        masks, reconstruction = fast(inputs, slots=slots, iterations=1)[2:4]
        expected = plain(inputs, slots, 1)
        direct = fast.read(slots, slots, True)
    torch.testing.assert_close(masks, expected[2], rtol=0, atol=1e-9)
    assert torch.isfinite(reconstruction).all()
    assert torch.isfinite(direct.masks).all()
    assert torch.isfinite(direct.reconstruction).all()


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_gives_nearly_the_same_and_finite_gradients(kind, recompute):
    fast, _, inputs, slots = make(kind)
    fast, inputs, slots = fast.float(), inputs.float(), slots.float()
    with torch.no_grad():
        for parameter in fast.decoder.parameters():
            parameter *= 0.5  # logits near 1, of which bfloat16 keeps two digits
    fast.recompute = recompute
    exact = fast(inputs, slots=slots)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decomposition = fast(inputs, slots=slots)
        with torch.no_grad():
            evaluated = fast(inputs, slots=slots)
    losses(decomposition.masks.float(), decomposition.reconstruction.float(), inputs).backward()
    for outcome in (decomposition, evaluated):
        assert (outcome.masks.float() - exact.masks).abs().max() < 0.05
        torch.testing.assert_close(outcome.masks.float().sum(1), torch.ones_like(exact.masks[:, 0]), rtol=0, atol=0.02)
        assert (
            outcome.reconstruction.float() - exact.reconstruction
        ).abs().max() < 0.1 * exact.reconstruction.abs().max()
    gradients = {name: parameter.grad.clone() for name, parameter in fast.decoder.named_parameters()}
    fast.zero_grad()
    losses(exact.masks, exact.reconstruction, inputs).backward()
    for name, parameter in fast.decoder.named_parameters():
        distance = (gradients[name] - parameter.grad).norm() / parameter.grad.norm()
        assert distance < 0.1, name


def growth_with_slots(model: SlotModel, work: str) -> tuple[int, int]:
    """How many more bytes 24 slots need than 8, and how many of them are the larger result."""
    peaks = {}
    for num_slots in (8, 24):
        slots = torch.randn(1, num_slots, model.slot_attention.dim)
        if work == "evaluate":
            with torch.no_grad():
                peaks[num_slots] = peak_bytes(lambda slots=slots: model.read(slots, slots, True))
        else:
            peaks[num_slots] = peak_bytes(
                lambda slots=slots: model.read(slots, slots, True).reconstruction.sum().backward()
            )
    with torch.no_grad():
        masks = model.read(slots, slots, False).masks
    return peaks[24] - peaks[8], masks.numel() * 4 * 16 // 24


@pytest.mark.parametrize("work", ["evaluate", "recompute"])
@pytest.mark.parametrize("kind", ["image", "features"])
def test_working_memory_does_not_grow_with_the_number_of_slots(kind, work, monkeypatch):
    if kind == "image":
        model = ImageAutoencoder(size=32, channels=16, dim=16, strides=(1,), decoder_strides=(2, 2, 1))
    else:
        model = FeatureAutoencoder(tokens=64, features=48, dim=16, decoder=64, hidden=16)
    tile_of(monkeypatch, 1)
    model.recompute = True
    growth, returned = growth_with_slots(model, work)
    slots = 16 * 64 * 4 * 4  # the sixteen slots themselves, their first layer and the gradients of both
    copies = 1 if work == "evaluate" else 2  # masks, and in backward their product with themselves once
    assert growth <= copies * returned + slots
    model.recompute = False
    if work == "recompute":
        assert growth_with_slots(model, work)[0] > 5 * growth, "the kept graph is what recomputing saves"


@pytest.mark.parametrize(("kind", "most"), [("image", 0.75), ("features", 0.7)])
def test_a_training_step_slot_by_slot_needs_less_memory_than_the_plain_model(kind, most, monkeypatch):
    tile_of(monkeypatch, 1)
    if kind == "image":
        arguments = {"size": 64, "channels": 32, "dim": 32, "hidden": 64}
        fast, plain = ImageAutoencoder(**arguments), plain_images(**arguments)
        inputs, slots = torch.rand(1, 3, 64, 64), torch.randn(1, 7, 32)
    else:
        arguments = {"tokens": 196, "features": 192, "dim": 32, "decoder": 256, "hidden": 128}
        fast, plain = FeatureAutoencoder(**arguments), plain_features(**arguments)
        inputs, slots = torch.randn(1, 196, 192), torch.randn(1, 11, 32)
    fast_peak = peak_bytes(lambda: (fast(inputs, slots=slots).reconstruction - inputs).square().mean().backward())
    plain_peak = peak_bytes(lambda: (plain(inputs, slots)[3] - inputs).square().mean().backward())
    assert fast_peak <= most * plain_peak


def test_tiles_are_chosen_by_device_in_one_place():
    row = 64 * 128 * 128 * 4  # of the paper's decoder
    assert mixing.rows_at_once(row, torch.device("cpu")) == 1
    assert mixing.rows_at_once(row, torch.device("cuda")) == 64
    assert mixing.rows_at_once(1 << 40, torch.device("cuda")) == 1


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 6, 8, 100])
def test_tiles_cover_every_row_once_and_are_not_larger_than_asked(at_once):
    seen = torch.zeros(5, 3)
    for tile in mixing.tiles(torch.zeros(5, 3, 1), at_once):
        seen[tile] += 1
        assert seen[tile].numel() <= at_once
    assert (seen == 1).all()
