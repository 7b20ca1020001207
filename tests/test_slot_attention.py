"""The layer against the paper's pseudocode (oracle.py) in float64, and what its call promises."""

import copy
import gc
import pickle
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import slotnorm
from oracle import PlainSlotAttention
from slotnorm import SlotAttention, normalizations
from slotnorm.slot_attention import Iteration

NAMES = list(normalizations())


def make_layer(name: str = "weighted_sum", dim: int = 12, seed: int = 0, **options) -> SlotAttention:
    """A float64 layer whose every parameter and buffer is random, as after training."""
    torch.manual_seed(seed)
    layer = SlotAttention(dim, normalization=name, hidden=20, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for buffer in layer.normalization.buffers():
            buffer.add_(torch.rand_like(buffer))
    return layer


def draw(batch: int, tokens: int, slots: int, dim: int, dim_in: int | None = None, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(batch, tokens, dim_in or dim, generator=generator, dtype=torch.float64) * 2 + 0.7
    return inputs, torch.randn(batch, slots, dim, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("num_slots", [1, 2, 7, 30])
@pytest.mark.parametrize("name", NAMES)
def test_values_gradients_and_buffers_equal_the_pseudocode(name, num_slots, training):
    layer = make_layer(name).train(training)
    twin = copy.deepcopy(layer)
    inputs, start = draw(3, 23, num_slots, 12)
    results = []
    for module, call in ((layer, layer), (twin, PlainSlotAttention(twin))):
        tokens, slots = inputs.clone().requires_grad_(), start.clone().requires_grad_()
        out, attention = call(tokens, slots=slots, iterations=3)
        (out.square().sum() + (attention * torch.arange(23)).square().sum() / 100).backward()
        gradients = {key: value.grad for key, value in module.named_parameters() if value.grad is not None}
        results.append((out, attention, tokens.grad, slots.grad, gradients, dict(module.named_buffers())))
    ours, theirs = results
    for mine, expected in zip(ours[:4], theirs[:4], strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)
    assert ours[4].keys() == theirs[4].keys()
    for key in theirs[4]:
        torch.testing.assert_close(ours[4][key], theirs[4][key], rtol=1e-9, atol=1e-10, msg=key)
    for key in theirs[5]:
        torch.testing.assert_close(ours[5][key], theirs[5][key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_without_gradients_gives_the_same_numbers(name):
    layer = make_layer(name).eval()
    inputs, start = draw(2, 17, 5, 12)
    with_graph = layer(inputs, slots=start, iterations=5)
    with torch.no_grad():
        without = layer(inputs, slots=start, iterations=5)
    for ours, other in zip(with_graph, without, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-12)


def test_tokens_may_be_wider_or_narrower_than_slots():
    for dim_in in (5, 31):
        layer = make_layer(dim=12, dim_in=dim_in)
        inputs, start = draw(2, 9, 4, 12, dim_in)
        ours, theirs = layer(inputs, slots=start), PlainSlotAttention(layer)(inputs, start)
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-11, atol=1e-11)


def test_there_may_be_more_slots_than_tokens():
    layer = make_layer()
    inputs, start = draw(2, 3, 8, 12)
    slots, attention = layer(inputs, slots=start)
    assert slots.shape == (2, 8, 12)
    assert attention.shape == (2, 8, 3)
    torch.testing.assert_close(attention.sum(1), torch.ones(2, 3, dtype=torch.float64))


def test_initial_slots_are_mean_plus_noise_times_deviation():
    layer = make_layer()
    inputs, noise = draw(2, 9, 4, 12)
    start = layer.slots_mu + layer.slots_log_sigma.exp() * noise
    torch.testing.assert_close(layer(inputs, num_slots=4, noise=noise)[0], layer(inputs, slots=start)[0])


def test_initial_slots_are_drawn_anew_when_no_noise_is_given():
    layer = make_layer()
    inputs, _ = draw(2, 9, 4, 12)
    assert not torch.equal(layer(inputs, num_slots=4)[0], layer(inputs, num_slots=4)[0])
    torch.manual_seed(3)
    first = layer(inputs, 4)[0]
    torch.manual_seed(3)
    torch.testing.assert_close(layer(inputs, 4)[0], first)


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_holds_what_each_iteration_did(name):
    layer = make_layer(name).eval()
    inputs, start = draw(2, 9, 4, 12)
    codes: list[torch.Tensor] = []
    _, attention = PlainSlotAttention(layer)(inputs, start, iterations=4, codes=codes)
    steps = layer.trace(inputs, slots=start, iterations=4)
    assert len(steps) == 4
    torch.testing.assert_close(steps[0].slots, start)
    torch.testing.assert_close(steps[-1].attention, attention)
    for step, updates in zip(steps, codes, strict=True):
        torch.testing.assert_close(step.updates, updates, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(step.aggregate.mass, step.attention.sum(-1, keepdim=True))
        values = layer.value(layer.norm_input(inputs))
        torch.testing.assert_close(step.aggregate.sums, step.attention @ values)
        torch.testing.assert_close(step.aggregate.total, values.sum(1, keepdim=True))
        assert step.aggregate.num_tokens == 9


def test_gradients_can_be_differentiated_again():
    layer = make_layer("weighted_mean", dim=4)
    inputs, start = draw(2, 5, 3, 4)

    def outputs(tokens, slots):
        return layer(tokens, slots=slots, iterations=2)

    arguments = (inputs.requires_grad_(), start.requires_grad_())
    assert torch.autograd.gradcheck(outputs, arguments)
    assert torch.autograd.gradgradcheck(outputs, arguments)
    plain = PlainSlotAttention(layer)
    penalties = []
    for call in (layer, plain):
        slots, attention = call(*arguments[:1], slots=arguments[1], iterations=3)
        (gradient,) = torch.autograd.grad(slots.square().sum() + attention.square().sum(), inputs, create_graph=True)
        wanted = (inputs, start, *(parameter for name, parameter in layer.named_parameters() if "slots_" not in name))
        penalties.append(torch.autograd.grad(gradient.square().sum(), wanted, materialize_grads=True))
    for ours, expected in zip(*penalties, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


LOSSES = {
    "the slots": lambda slots, attention, steps: slots.square().sum(),
    "the attention": lambda slots, attention, steps: (attention * torch.arange(9)).square().sum(),
    "the first attention": lambda slots, attention, steps: (steps[0].attention * torch.arange(9)).square().sum(),
    "slots between iterations": lambda slots, attention, steps: steps[1].slots.square().sum(),
    "mass and sums": lambda slots, attention, steps: sum(
        step.aggregate.mass.square().sum() + step.aggregate.sums.sin().sum() for step in steps
    ),
}


@pytest.mark.parametrize("frozen", ["nothing", "tokens", "key.weight", "gru.weight_ih", "mlp.0.bias"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_own_backward_gives_the_gradients_of_plain_operations(loss, frozen, monkeypatch):
    """Of whatever the loss depends on, with or without a part that takes no gradient."""
    layer = make_layer("layer_norm")
    inputs, start = draw(2, 9, 4, 12)
    if frozen not in ("nothing", "tokens"):
        layer.get_parameter(frozen).requires_grad_(False)
    results = []
    for is_possible in (True, False):
        monkeypatch.setattr(
            "slotnorm.slot_attention.iteration.own_backward_is_possible", lambda answer=is_possible: answer
        )
        tokens, slots = inputs.clone().requires_grad_(frozen != "tokens"), start.clone().requires_grad_()
        steps: list[Iteration] = []
        value = LOSSES[loss](*layer(tokens, slots=slots, trace=steps), steps)
        wanted = [tensor for tensor in (tokens, slots, *layer.parameters()) if tensor.requires_grad]
        results.append((value, *torch.autograd.grad(value, wanted, materialize_grads=True)))
    assert len(results[0]) > 5
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("numbers_at_once", [1, 40, 150, 300])
def test_the_tokens_gradient_is_the_same_in_blocks(numbers_at_once, monkeypatch):
    """Blocks of one token, of some tokens of an image, of one image, of two of three."""
    layer = make_layer()
    inputs, start = draw(3, 11, 4, 12)
    gradients = []
    for size in (1 << 20, numbers_at_once):
        monkeypatch.setattr("slotnorm.slot_attention.iteration._NUMBERS_AT_ONCE", size)
        tokens = inputs.clone().requires_grad_()
        layer(tokens, slots=start)[0].square().sum().backward()
        gradients.append(tokens.grad)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_a_recomputed_forward_gives_the_same_gradients():
    layer = make_layer()
    inputs, start = draw(2, 9, 4, 12)
    gradients = []
    for call in (layer, lambda *given, **named: checkpoint(layer, *given, **named, use_reentrant=False)):
        tokens = inputs.clone().requires_grad_()
        call(tokens, slots=start)[0].square().sum().backward()
        gradients.append(tokens.grad)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_a_call_is_forgotten_with_its_results():
    """No cycle of references keeps tokens until the garbage collector comes by."""
    layer = make_layer()
    inputs, start = draw(2, 9, 4, 12)
    tokens = inputs.clone().requires_grad_()
    gc.disable()
    try:
        slots, attention = layer(tokens, slots=start)
        slots.square().sum().backward()
        watched = [weakref.ref(tensor) for tensor in (tokens, slots, attention)]
        del tokens, slots, attention
        assert [reference() for reference in watched] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("changed", ["start", "slots", "attention"])
def test_what_is_changed_in_place_before_the_backward_is_noticed(changed):
    inputs, start = draw(2, 9, 4, 12)
    slots, attention = make_layer()(inputs.requires_grad_(), slots=start)
    {"start": start, "slots": slots, "attention": attention}[changed].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (slots.sum() + attention.square().sum()).backward()


def test_a_backward_pass_that_skips_the_tokens_leaves_nothing_behind():
    layer = make_layer()
    inputs, start = draw(2, 9, 4, 12)
    tokens = inputs.requires_grad_()
    loss = layer(tokens, slots=start)[0].square().sum()
    (expected,) = torch.autograd.grad(loss, tokens, retain_graph=True)
    torch.autograd.grad(loss, layer.query.weight, retain_graph=True)
    (again,) = torch.autograd.grad(loss, tokens, retain_graph=True)
    torch.autograd.grad(loss, layer.query.weight, retain_graph=True)
    (with_graph,) = torch.autograd.grad(loss, tokens, create_graph=True)
    torch.testing.assert_close(again, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(with_graph, expected, rtol=1e-10, atol=1e-12)


def test_per_sample_gradients_by_function_transforms_work():
    layer = make_layer()
    inputs, start = draw(3, 9, 4, 12)

    def loss(tokens, slots):
        return layer(tokens[None], slots=slots[None])[0].square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss))(inputs, start)
    tokens = inputs.clone().requires_grad_()
    layer(tokens, slots=start)[0].square().sum().backward()
    torch.testing.assert_close(per_sample, tokens.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_aggregates_in_float32_over_many_tokens(name, dtype):
    torch.manual_seed(0)
    layer = SlotAttention(8, normalization=name, hidden=16).train()
    with torch.no_grad():
        layer.norm_input.bias.fill_(8.0)  # values far from zero: sums over 16,384 tokens pass 65,504
    inputs, start = torch.randn(1, 16384, 8), torch.randn(1, 3, 8)
    half = copy.deepcopy(layer).to(dtype)
    wide = copy.deepcopy(half).float()  # the same rounded weights
    expected = wide.trace(inputs.to(dtype).float(), slots=start.to(dtype).float())
    steps = half.trace(inputs.to(dtype), slots=start.to(dtype))
    for step, reference in zip(steps, expected, strict=True):
        assert step.aggregate.sums.dtype == torch.float32
        torch.testing.assert_close(step.aggregate.sums, reference.aggregate.sums, rtol=1e-5, atol=1e-2)
    assert max(step.aggregate.sums.abs().max() for step in steps) > 65504
    slots, attention = half(inputs.to(dtype), slots=start.to(dtype))
    assert slots.dtype == attention.dtype == dtype
    assert slots.isfinite().all()
    for buffer in half.normalization.buffers():
        assert buffer.dtype == torch.float32
        assert buffer.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_nothing_inside_the_layer(name):
    layer = make_layer(name).float()
    inputs, start = (tensor.float() for tensor in draw(2, 9, 4, 12))
    twin = copy.deepcopy(layer)
    expected, _ = layer(inputs, slots=start)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        slots, _ = twin(inputs, slots=start)
        from_half, _ = twin(inputs.bfloat16(), slots=start)
    torch.testing.assert_close(slots, expected)
    assert from_half.dtype == torch.float32
    slots.sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_can_be_taken_inside_of_autocast(name):
    layer = make_layer(name).float()
    inputs, start = (tensor.float() for tensor in draw(2, 9, 4, 12))
    plain, inside = copy.deepcopy(layer), copy.deepcopy(layer)
    plain(inputs, slots=start)[0].square().sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside(inputs, slots=start)[0].square().sum().backward()
    ours, exact = (
        torch.cat([parameter.grad.flatten() for parameter in each.parameters() if parameter.grad is not None])
        for each in (inside, plain)
    )
    assert (ours - exact).norm() < 0.05 * exact.norm()  # autocast halves the maps around the gathering


@pytest.mark.parametrize("name", NAMES)
def test_masked_tokens_are_as_if_left_out(name):
    layer = make_layer(name).eval()
    inputs, start = draw(2, 9, 4, 12)
    present = torch.ones(2, 9, dtype=torch.bool)
    present[0, 5:] = False
    present[1, :7] = False
    padded = torch.where(present[..., None], inputs, torch.nan).requires_grad_()
    slots, attention = layer(padded, slots=start, token_mask=present)
    slots.square().sum().backward()
    for image in range(2):
        shown = inputs[image : image + 1, present[image]].clone().requires_grad_()
        alone, alone_attention = layer(shown, slots=start[image : image + 1])
        alone.square().sum().backward()
        torch.testing.assert_close(slots[image], alone[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(attention[image][:, present[image]], alone_attention[0], rtol=1e-10, atol=1e-10)
        assert (attention[image][:, ~present[image]] == 0).all()
        torch.testing.assert_close(padded.grad[image, present[image]], shown.grad[0], rtol=1e-9, atol=1e-10)
    assert (padded.grad[~present] == 0).all()


def test_copies_and_pickles_behave_like_the_original():
    for name in NAMES:
        layer = make_layer(name)
        inputs, start = draw(2, 9, 4, 12)
        expected = layer.eval()(inputs, slots=start)[0]
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            torch.testing.assert_close(twin(inputs, slots=start)[0], expected, rtol=0, atol=0)
        fresh = SlotAttention(12, normalization=name, hidden=20).double().eval()
        fresh.load_state_dict(layer.state_dict())
        torch.testing.assert_close(fresh(inputs, slots=start)[0], expected, rtol=0, atol=0)


def test_parameters_have_the_agreed_names_and_shapes():
    expected = {
        "norm_input.weight": (5,), "norm_input.bias": (5,), "norm_slots.weight": (4,), "norm_slots.bias": (4,),
        "norm_mlp.weight": (4,), "norm_mlp.bias": (4,), "key.weight": (4, 5),
        "query.weight": (4, 4), "value.weight": (4, 5),
        "gru.weight_ih": (12, 4), "gru.weight_hh": (12, 4), "gru.bias_ih": (12,), "gru.bias_hh": (12,),
        "mlp.0.weight": (7, 4), "mlp.0.bias": (7,), "mlp.2.weight": (4, 7), "mlp.2.bias": (4,),
        "slots_mu": (4,), "slots_log_sigma": (4,), "normalization.weight": (1,), "normalization.bias": (1,),
        "normalization.running_mean": (1,), "normalization.running_var": (1,),
    }  # fmt: skip
    layer = SlotAttention(4, "batch_norm", dim_in=5, hidden=7)
    assert {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()} == expected


def test_initial_values_follow_the_protocol():
    torch.manual_seed(0)
    dim = 64
    layer = SlotAttention(dim, hidden=128)
    authors = SlotAttention(dim, hidden=128, protocol="authors")
    bounds = {
        layer.key.weight: (6 / (dim + dim)) ** 0.5, layer.value.weight: (6 / (dim + dim)) ** 0.5,
        layer.query.weight: (6 / (dim + dim)) ** 0.5, layer.gru.weight_ih: (6 / (dim + 3 * dim)) ** 0.5,
        layer.mlp[0].weight: (6 / (dim + 128)) ** 0.5, layer.mlp[2].weight: (6 / (dim + 128)) ** 0.5,
        layer.slots_mu: (6 / (dim + 1)) ** 0.5, layer.slots_log_sigma: (6 / (dim + 1)) ** 0.5,
        authors.slots_mu: (3 / dim) ** 0.5, authors.slots_log_sigma: (3 / dim) ** 0.5,
    }  # fmt: skip
    for parameter, bound in bounds.items():
        assert 0.9 * bound < parameter.abs().max() <= bound
    gram = layer.gru.weight_hh.T @ layer.gru.weight_hh
    torch.testing.assert_close(gram, torch.eye(dim), rtol=0, atol=1e-5)
    for bias in (layer.gru.bias_ih, layer.gru.bias_hh, layer.mlp[0].bias, layer.mlp[2].bias):
        assert (bias == 0).all()


SENTENCES = [
    ({"tokens": torch.ones(2, 8)}, r"tokens have shape \(2, 8\); it must be \(batch, tokens, 8\)"),
    ({"tokens": torch.ones(2, 5, 7)}, r"tokens have shape \(2, 5, 7\).*dim_in"),
    ({"tokens": torch.ones(2, 0, 8)}, "at least one token"),
    ({"num_slots": 0}, "num_slots is 0; there must be at least one slot"),
    ({"num_slots": -3}, "num_slots is -3"),
    ({"num_slots": None}, "the number of slots is missing; give num_slots, noise or slots with every call .*learned"),
    ({"iterations": 0}, "iterations is 0; there must be at least one"),
    (
        {"num_slots": None, "slots": torch.ones(2, 3, 9)},
        r"shape of slots is \(2, 3, 9\); it must be \(2, slots, 8\)",
    ),
    ({"num_slots": None, "noise": torch.ones(1, 3, 8)}, r"the shape of noise is \(1, 3, 8\)"),
    (
        {"num_slots": 4, "noise": torch.ones(2, 3, 8)},
        "num_slots is 4, but the shape of noise says 3; leave",
    ),
    ({"token_mask": torch.ones(2, 5)}, r"token_mask is \(2, 5\) torch.float32; it must be torch.bool"),
    ({"token_mask": torch.ones(2, 4, dtype=torch.bool)}, r"token_mask is \(2, 4\)"),
    ({"token_mask": torch.tensor([[True] * 5, [False] * 5])}, "token_mask hides every token of image 1"),
]


@pytest.mark.parametrize(("arguments", "sentence"), SENTENCES)
def test_what_cannot_be_meant_is_refused_in_one_sentence(arguments, sentence):
    layer = SlotAttention(8)
    with pytest.raises(ValueError, match=sentence) as raised:
        layer(**{"tokens": torch.ones(2, 5, 8), "num_slots": 3, **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tokens": np.ones((2, 5, 8))}, "tokens are of the type numpy.ndarray; give a tensor, as torch.as_tensor"),
        ({"tokens": None}, "tokens are of the type builtins.NoneType; give a tensor"),
        ({"num_slots": 2.5}, "num_slots is 2.5; it must be a whole number"),
        ({"num_slots": True}, "num_slots is True; it must be a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_sentence(arguments, sentence):
    with pytest.raises(TypeError, match=sentence):
        SlotAttention(8)(**{"tokens": torch.ones(2, 5, 8), "num_slots": 3, **arguments})


def test_the_constructors_help_is_its_own():
    assert SlotAttention.__init__.__doc__ != torch.nn.Module.__init__.__doc__
    assert "arguments" in SlotAttention.__init__.__doc__


def test_an_unknown_protocol_is_refused():
    for wrong in ({"dim": 0}, {"dim_in": 0}, {"hidden": -1}, {"iterations": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*; it must be at least 1"):
            SlotAttention(**{"dim": 4, **wrong})
    with pytest.raises(ValueError, match="protocol is 'original'; it must be 'paper' or 'authors'"):
        SlotAttention(8, protocol="original")


def test_the_layer_and_what_it_imports_need_torch_alone(tmp_path):
    """Carried away into another project, they work there."""
    source, package = Path(slotnorm.__file__).parent, tmp_path / "slotnorm"
    shutil.copytree(source / "slot_attention", package / "slot_attention")
    (package / "runtime").mkdir()
    for name in ("normalization.py", "initialization.py", "runtime/torch_internals.py"):
        shutil.copy(source / name, package / name)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch; before = set(sys.modules)\n"
        "from slotnorm.slot_attention import SlotAttention\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "assert new <= {'slotnorm', 'torch'}, new\n"
        "print(SlotAttention(8)(torch.ones(1, 4, 8), num_slots=2)[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == "torch.Size([1, 2, 8])", done.stderr
