"""Each private name of PyTorch that slotnorm uses is removed in turn: the results stay, up to rounding."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import torch

import slotnorm
from slotnorm.models import convolution
from slotnorm.runtime import torch_internals
from slotnorm.slot_attention import SlotAttention, iteration
from slotnorm.training.optimizer import Adam


@pytest.fixture
def nnpack_asked_anew():
    torch_internals.nnpack_is_there.cache_clear()
    yield
    torch_internals.nnpack_is_there.cache_clear()


def test_a_torch_that_is_too_old_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(ImportError, match=r"^slotnorm needs torch 2.13, this is 2.5.1\+cpu: pip"):
        runpy.run_path(torch_internals.__file__)


@pytest.mark.parametrize("version", ["2.14.0.dev20260801", "2.9.0+cu128"])
def test_a_torch_that_the_tests_have_not_seen_is_one_sentence_and_no_refusal(monkeypatch, caplog, version):
    monkeypatch.setattr(torch, "__version__", version)
    runpy.run_path(torch_internals.__file__)
    (message,) = caplog.messages
    assert message.startswith(f"torch {version} is not 2.13, the version that slotnorm is tested with; ")


def test_the_sentences_name_the_bounds_that_pip_enforces():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bounds,) = (line for line in project["dependencies"] if line.startswith("torch>"))
    assert Path(torch_internals.__file__).read_text().count(f"pip install '{bounds}'") == 2


def test_the_softmax_gradient_is_the_same_without_its_kernel(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    gradient, logits = (torch.randn(2, 5, 7, generator=generator) for _ in range(2))
    softmax = logits.requires_grad_().softmax(dim=1)
    (expected,) = torch.autograd.grad(softmax, logits, gradient)
    fast = torch_internals.softmax_backward(gradient, softmax.detach(), 1)
    monkeypatch.delattr(torch, "_softmax_backward_data")
    plain = torch_internals.softmax_backward(gradient, softmax.detach(), 1)
    assert torch.equal(fast, expected)
    torch.testing.assert_close(plain, expected)


def gradients_of(attend, tokens, noise):
    slots, attention = attend(tokens, noise=noise)
    loss = slots.square().sum() + attention[:, 0].sum()
    return torch.autograd.grad(loss, [tokens, *attend.parameters()])


@pytest.mark.parametrize("name", ["_current_graph_task_id", "_are_functorch_transforms_active"])
def test_without_these_names_the_layer_has_no_backward_of_its_own(monkeypatch, name):
    given = SlotAttention(8), torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 3, 8)
    assert iteration.own_backward_is_possible()
    expected = gradients_of(*given)
    monkeypatch.delattr(torch._C, name)
    assert not iteration.own_backward_is_possible()
    for plain, own in zip(gradients_of(*given), expected, strict=True):
        torch.testing.assert_close(plain, own, rtol=1e-4, atol=1e-5)


def test_beneath_automatic_differentiation_the_layer_has_the_same_bits(monkeypatch):
    given = SlotAttention(8), torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 3, 8)
    beneath = gradients_of(*given)
    monkeypatch.delattr(torch._C, "_AutoDispatchBelowADInplaceOrView")
    assert all(map(torch.equal, beneath, gradients_of(*given)))


def test_what_is_to_be_differentiated_is_never_beneath_automatic_differentiation():
    weight = torch.ones(2, requires_grad=True)
    with torch_internals.beneath_autograd():
        assert (weight * 2).requires_grad
    with torch.no_grad(), torch_internals.beneath_autograd(), torch.enable_grad():
        assert not (weight * 2).requires_grad


def test_a_transform_of_torch_func_sees_plain_operations():
    told = []
    torch.func.vmap(lambda number: told.append(iteration.own_backward_is_possible()) or number)(torch.ones(2))
    assert told == [False]


@pytest.mark.usefixtures("nnpack_asked_anew")
def test_without_nnpacks_name_the_usual_convolution_is_taken(monkeypatch):
    layer, images = convolution.Convolution(8, 8, 5), torch.randn(1, 8, 9, 9)
    monkeypatch.delattr(torch, "_nnpack_spatial_convolution")
    assert torch.equal(layer(images), torch.nn.functional.conv2d(images, layer.weight, layer.bias, padding=2))


def test_tensors_are_divided_one_by_one_where_they_cannot_be_together(monkeypatch):
    together, singly = [torch.arange(3.0), torch.ones(2, 2)], [torch.arange(3.0), torch.ones(2, 2)]
    torch_internals.divide_(together, 3)
    monkeypatch.delattr(torch, "_foreach_div_")
    torch_internals.divide_(singly, 3)
    assert all(map(torch.equal, together, singly))


@pytest.mark.parametrize("removed", [False, True], ids=["with torch's function", "without it"])
def test_adam_moves_as_torchs_own_does(monkeypatch, removed):
    if removed:
        monkeypatch.delattr(torch_internals.ADAM, "adam")
    weight = torch.linspace(-1, 1, 6).requires_grad_()
    optimizer = Adam({"weight": weight})
    # by hand, in float64: Kingma and Ba's update
    expected, mean, square = weight.detach().double(), torch.zeros(6).double(), torch.zeros(6).double()
    for step in range(1, 6):
        gradient = torch.sin(torch.arange(6.0) * step)
        weight.grad = gradient.clone()
        optimizer.step(0.01, 1e-8)
        mean = 0.9 * mean + 0.1 * gradient.double()
        square = 0.999 * square + 0.001 * gradient.double() ** 2
        expected = expected - 0.01 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-5, atol=1e-6)
    assert float(optimizer.state["step/weight"]) == 5


def test_no_other_file_names_a_private_part_of_torch():
    source = Path(slotnorm.__file__).parent
    private = re.compile(r"\btorch\._[A-Za-z]\w*|\btorch\.optim\.adam\b")
    naming = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if private.search(path.read_text())}
    assert naming == {"runtime/torch_internals.py"}


def test_a_tensor_that_outlived_a_transform_is_taken_as_what_it_wraps():
    attend, tokens, noise = SlotAttention(8), torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    leaked = []

    def loss(wrapped):
        leaked.append(wrapped)
        return wrapped.sum()

    torch.func.grad(loss)(tokens)
    slots = attend(leaked[0], noise=noise)[0]
    slots.sum().backward()
    of_leaked = attend.query.weight.grad.clone()
    attend.zero_grad()
    expected = attend(tokens, noise=noise)[0]
    expected.sum().backward()
    assert torch.equal(slots, expected)
    assert torch.equal(of_leaked, attend.query.weight.grad)


def test_functions_are_applied_without_their_base_class_having_apply(monkeypatch):
    class Bare:
        apply = "its own"

    monkeypatch.setattr(torch.autograd, "Function", Bare)
    assert torch_internals.quick_apply(Bare) == "its own"
