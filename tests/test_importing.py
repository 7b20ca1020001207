"""Layers of other packages: what lucidrains' `slot-attention`, as it is installed, computes, ours computes."""

import pytest
import torch
from torch import nn

from slotnorm.errors import UserError
from slotnorm.models import carry_over


def new_layer(kind: str = "SlotAttention", **options: int) -> nn.Module:
    """One of their layers; the package takes two seconds to import, which only the process that runs these should."""
    import slot_attention

    return getattr(slot_attention, kind)(**options)


def trained(dim: int, seed: int, steps: int = 30, **options: int) -> nn.Module:
    """Their layer after a few steps, so that no bias, scale or shift is what it was initialised to."""
    torch.manual_seed(seed)
    layer = new_layer(num_slots=4, dim=dim, **options)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(steps):
        tokens = 2 * torch.randn(4, 12, dim)
        loss = (layer(tokens).mean(1) - tokens.amax(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name in ("to_q", "to_k", "to_v", "norm_input", "norm_slots"):
        assert getattr(layer, name).bias.abs().min() > 0
    return layer


def start(layer: nn.Module, num_slots: int) -> torch.Tensor:
    """The initial slots that their layer draws after the same seed."""
    mu, sigma = layer.slots_mu, layer.slots_logsigma.exp()
    torch.manual_seed(7)
    return mu + sigma * torch.randn(3, num_slots, mu.shape[-1], dtype=mu.dtype)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(("dim", "options"), [(16, {}), (64, {"iters": 5}), (160, {}), (24, {"hidden_dim": 300})])
def test_a_trained_layer_gives_the_same_slots(dim: int, options: dict[str, int], seed: int) -> None:
    theirs = trained(dim, seed, **options)
    tokens = torch.randn(3, 40, dim)
    for dtype, most in ((torch.float32, 1e-5), (torch.float64, 1e-11)):
        theirs = theirs.to(dtype)
        ours = carry_over(theirs.state_dict(), iterations=theirs.iters)
        assert ours.mlp[0].out_features == max(dim, options.get("hidden_dim", 128))
        for num_slots in (1, 4, 11):
            initial = start(theirs, num_slots)
            with torch.no_grad():
                slots, _ = ours(tokens.to(dtype), slots=initial)
                torch.manual_seed(7)
                expected = theirs(tokens.to(dtype), num_slots=num_slots)
            torch.testing.assert_close(slots, expected, rtol=0, atol=most)


def test_another_eps_and_half_precision_are_carried_over() -> None:
    theirs = trained(16, 0)
    theirs.eps = 1e-2
    tokens, initial = torch.randn(3, 40, 16), start(theirs, 5)
    torch.manual_seed(7)
    expected = theirs(tokens, num_slots=5)
    ours = carry_over(theirs.state_dict(), eps=theirs.eps)
    torch.testing.assert_close(ours(tokens, slots=initial)[0], expected, rtol=0, atol=1e-5)
    assert (carry_over(theirs.state_dict())(tokens, slots=initial)[0] - expected).abs().max() > 1e-4
    assert carry_over(new_layer(num_slots=4, dim=16).state_dict()).normalization.eps == 1e-8
    for dtype in (torch.float16, torch.bfloat16):
        halved = theirs.to(dtype)
        ours = carry_over(halved.state_dict(), eps=theirs.eps)
        assert ours.key.weight.dtype == torch.float32
        torch.manual_seed(7)
        expected = halved.float()(tokens, num_slots=5)
        torch.testing.assert_close(ours(tokens, slots=start(halved, 5))[0], expected, rtol=0, atol=1e-5)


def test_initial_slots_are_drawn_alike() -> None:
    theirs = trained(16, 0)
    ours = carry_over(theirs.state_dict())
    tokens = torch.randn(2, 9, 16)
    torch.manual_seed(3)
    expected = theirs(tokens)
    torch.manual_seed(3)
    torch.testing.assert_close(ours(tokens, num_slots=4)[0], expected, rtol=0, atol=1e-5)


def test_zero_biases_leave_the_norms_alone() -> None:
    theirs = trained(16, 0)
    for linear in (theirs.to_q, theirs.to_k, theirs.to_v):
        nn.init.zeros_(linear.bias)
    ours = carry_over(theirs.state_dict())
    assert torch.equal(ours.norm_input.bias, theirs.norm_input.bias)
    assert torch.equal(ours.gru.bias_ih, theirs.gru.bias_ih)
    nn.init.zeros_(theirs.to_k.weight)  # a singular map without a bias is no obstacle
    carry_over(theirs.state_dict())


def test_a_nearly_singular_key_is_carried_over_and_a_singular_one_refused() -> None:
    theirs = trained(16, 0)
    left, values, right = torch.linalg.svd(theirs.to_k.weight.detach().double())
    values[-1] = 1e-6
    theirs.to_k.weight.data = (left @ values.diag() @ right).float()
    ours = carry_over(theirs.state_dict())
    tokens, initial = torch.randn(3, 40, 16), start(theirs, 5)
    torch.manual_seed(7)
    expected = theirs(tokens, num_slots=5)
    torch.testing.assert_close(ours(tokens, slots=initial)[0], expected, rtol=0, atol=1e-5)
    nn.init.zeros_(theirs.to_k.weight)
    with pytest.raises(UserError, match="to_k.weight is singular, so to_k.bias cannot be carried over"):
        carry_over(theirs.state_dict())


def test_other_widths_and_other_layers_are_one_sentence() -> None:
    state = new_layer(num_slots=4, dim=16).state_dict()
    narrow = new_layer(num_slots=4, dim=8).state_dict()
    with pytest.raises(UserError, match=r"mlp.2.weight is \(8, 128\), but with slots of width 16 and an MLP of width"):
        carry_over(state | {"mlp.2.weight": narrow["mlp.2.weight"]})
    with pytest.raises(UserError, match="this is not the state of slot_attention.SlotAttention: it has no slots_mu"):
        carry_over({})
    with pytest.raises(UserError, match=r"by its state, not as SlotAttention; give layer.state_dict\(\)"):
        carry_over(new_layer(num_slots=4, dim=16))
    with pytest.raises(UserError, match="to_q.weight is int, but must be a tensor"):
        carry_over(state | {"to_q.weight": 5})
    with pytest.raises(UserError, match=r"slots_mu is \(\), but with slots of width 0"):
        carry_over(state | {"slots_mu": torch.tensor(1.0)})
    with pytest.raises(UserError, match="to_v.weight has values that are not finite"):
        carry_over(state | {"to_v.weight": torch.full((16, 16), float("nan"))})
    with pytest.raises(UserError, match="it has no gru.bias_hh"):
        carry_over({name: tensor for name, tensor in state.items() if name != "gru.bias_hh"})
    heads = new_layer("MultiHeadSlotAttention", num_slots=4, dim=16).state_dict()
    with pytest.raises(UserError, match="the state of slot_attention.SlotAttention: it (has no|also has)"):
        carry_over(heads)
