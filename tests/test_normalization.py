"""Contracts that every normalization keeps, over the registry: a new class is tested before anyone writes a test."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import processes
import tiny
from slotnorm import Aggregate, Normalization, SlotAttention, normalization, normalizations
from slotnorm.normalization import BrokenContract, UnknownNormalization, WeightedSum, formula
from slotnorm.storage.serialization import to_document
from test_slot_attention import draw, make_layer

NAMES = list(normalizations())


def test_the_six_of_the_paper_are_there_in_its_order():
    paper = ["weighted_mean", "layer_norm", "weighted_sum", "batch_norm", "unnormalized", "kd_layer_norm"]
    assert NAMES[:6] == paper
    labels = [normalizations()[name].label for name in paper]
    assert labels == ["Baseline", "Layer Norm", "Weighted Sum", "Batch Norm", "Unnormalized", "K-D-Layer Norm"]


@pytest.mark.parametrize("name", NAMES)
def test_its_class_says_what_it_is(name):
    scheme = normalizations()[name]
    assert scheme.name == name
    assert scheme.label
    assert scheme.where
    assert isinstance(scheme.keeps_mass, bool)
    assert "=" in formula(scheme), "the first line of the docstring is the formula"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_slots_are_interchangeable(name, training):
    layer = make_layer(name).train(training)
    inputs, start = draw(2, 9, 5, 12)
    order = torch.tensor([3, 0, 4, 1, 2])
    slots, attention = copy.deepcopy(layer)(inputs, slots=start)
    permuted, permuted_attention = copy.deepcopy(layer)(inputs, slots=start[:, order])
    torch.testing.assert_close(permuted, slots[:, order], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(permuted_attention, attention[:, order], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_tokens_does_not_matter(name):
    layer = make_layer(name).eval()
    inputs, start = draw(2, 9, 5, 12)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    slots, attention = layer(inputs, slots=start)
    shuffled, shuffled_attention = layer(inputs[:, order], slots=start)
    torch.testing.assert_close(shuffled, slots, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(shuffled_attention, attention[..., order], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_images_are_independent_in_evaluation(name):
    layer = make_layer(name).eval()
    inputs, start = draw(4, 9, 5, 12)
    together, _ = layer(inputs, slots=start)
    for image in range(4):
        alone, _ = layer(inputs[image : image + 1], slots=start[image : image + 1])
        torch.testing.assert_close(alone[0], together[image], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_slot_stays_finite_and_so_does_its_gradient(name):
    normalization = make_layer(name).normalization.eval()
    sums = torch.randn(2, 4, 12, dtype=torch.float64)
    mass = torch.rand(2, 4, 1, dtype=torch.float64)
    sums[:, 1], mass[:, 1] = 0, 0
    sums.requires_grad_()
    mass.requires_grad_()
    updates, _ = normalization(Aggregate(sums, mass, 9, sums.sum(1, keepdim=True)), None)
    updates.square().sum().backward()
    assert updates.isfinite().all()
    assert sums.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_or_buffer_depends_on_the_number_of_slots(name):
    layer = make_layer(name)
    before = {key: value.shape for key, value in layer.state_dict().items()}
    for num_slots in (1, 3, 40):
        inputs, start = draw(2, 9, num_slots, 12)
        assert layer(inputs, slots=start)[0].shape == (2, num_slots, 12)
    assert {key: value.shape for key, value in layer.state_dict().items()} == before


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_leaves_running_statistics_alone_and_training_moves_them_once_a_pass(name):
    layer = make_layer(name)
    inputs, start = draw(2, 9, 5, 12)
    before = copy.deepcopy(dict(layer.normalization.named_buffers()))
    layer.eval()(inputs, slots=start)
    after_evaluation = copy.deepcopy(dict(layer.normalization.named_buffers()))
    for key, value in before.items():
        torch.testing.assert_close(after_evaluation[key], value, rtol=0, atol=0)
    layer.train()(inputs, slots=start, iterations=1)
    once = copy.deepcopy(dict(layer.normalization.named_buffers()))
    layer.load_state_dict(layer.state_dict() | {f"normalization.{key}": value for key, value in before.items()})
    layer.train()(inputs, slots=start, iterations=4)
    for key, value in layer.normalization.named_buffers():
        torch.testing.assert_close(value, once[key])
        assert not torch.equal(value, before[key])


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_is_reentrant(name):
    """What the first iteration measured travels in the carry, not in the module."""
    layer = make_layer(name).eval()
    inputs, start = draw(2, 9, 5, 12)
    first = layer.trace(inputs, slots=start, iterations=1)[0].aggregate
    other = Aggregate(first.sums * 3 + 1, first.mass, first.num_tokens, first.total)
    updates, carry = layer.normalization(first, None)
    expected, _ = layer.normalization(other, carry)
    layer.normalization(other, None)
    again, _ = layer.normalization(other, carry)
    torch.testing.assert_close(again, expected, rtol=0, atol=0)
    assert updates.shape == first.sums.shape


@pytest.mark.parametrize("name", NAMES)
def test_keeps_mass_is_proved_or_refuted(name):
    """Propositions 1 and 2: equal update codes of slots with unequal mass refute that the mass is kept."""
    layer = make_layer(name).eval()
    inputs, _ = draw(1, 9, 1, 12)
    single = layer.trace(inputs, slots=torch.zeros(1, 1, 12, dtype=torch.float64), iterations=1)[0]
    two = layer.trace(inputs, slots=torch.zeros(1, 2, 12, dtype=torch.float64), iterations=1)[0]
    torch.testing.assert_close(single.aggregate.mass[0, 0], 2 * two.aggregate.mass[0, 0])
    same_codes = torch.allclose(single.updates[0, 0], two.updates[0, 0], rtol=1e-5, atol=1e-5)
    unequal = layer.trace(inputs[:, :1], slots=draw(1, 1, 2, 12)[1], iterations=1)[0]
    assert not torch.allclose(unequal.aggregate.mass[0, 0], unequal.aggregate.mass[0, 1], rtol=0.01)
    same_codes |= torch.allclose(unequal.updates[0, 0], unequal.updates[0, 1], rtol=1e-5, atol=1e-5)
    assert normalizations()[name].keeps_mass == (not same_codes)


def test_weighted_sum_takes_a_given_scale():
    layer = SlotAttention(12, normalization=WeightedSum(12, scale=4.0)).double()
    inputs, start = draw(1, 9, 3, 12)
    step = layer.trace(inputs, slots=start, iterations=1)[0]
    torch.testing.assert_close(step.updates, step.aggregate.sums / 4)
    for scale in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="scale of weighted_sum is .*; it must be positive"):
            WeightedSum(12, scale=scale)


def test_unknown_names_are_refused_with_the_nearest_one():
    with pytest.raises(
        UnknownNormalization, match="no normalization 'weigthed_sum'; did you mean 'weighted_sum'?"
    ) as instance:
        SlotAttention(8, normalization="weigthed_sum")
    for name in NAMES:
        assert name in str(instance.value)
    with pytest.raises(UnknownNormalization, match="no normalization 3"):
        SlotAttention(8, normalization=3)
    with pytest.raises(ValueError, match="weighted_sum is built for dim 4, the slots have 8; build it with dim=8"):
        SlotAttention(8, normalization=WeightedSum(4))


def test_a_class_without_its_attributes_is_refused_when_it_is_defined():
    with pytest.raises(TypeError, match="has no 'label'"):
        type("Nameless", (Normalization,), {"__doc__": "u = 0", "name": "nameless"})
    complete = {"label": "x", "where": "here", "keeps_mass": True}
    with pytest.raises(TypeError, match="has no docstring"):
        type("Silent", (Normalization,), {"name": "silent", **complete})
    with pytest.raises(TypeError, match=r"'layer_norm' of Second is taken by slotnorm\.normalization\.LayerNorm"):
        type("Second", (Normalization,), {"__doc__": "u = 0", "name": "layer_norm", **complete})
    assert list(normalizations()) == NAMES


PLUGIN = '''
from slotnorm import Normalization

class RootMass(Normalization):
    """u_k = ũ_k / √(Σ_n γ_nk): between mean and sum."""
    name, label, where, keeps_mass = "root_mass", "Root Mass", "this file", True

    def forward(self, aggregate, carry):
        return aggregate.sums / (aggregate.mass + 1e-8).sqrt(), None
'''


def run_code(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a piece of code in a fresh process, with `path` on its search path."""
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_an_empty_batch_does_not_spoil_the_running_statistics():
    layer = SlotAttention(8, "batch_norm")
    with pytest.raises(ValueError, match="batch_norm has no statistics of an empty batch"):
        layer(torch.randn(0, 5, 8), num_slots=3)
    assert all(buffer.isfinite().all() for buffer in layer.normalization.buffers())
    assert layer.eval()(torch.randn(0, 5, 8), num_slots=3)[0].shape == (0, 3, 8)


def test_a_plugin_file_adds_a_normalization(tmp_path):
    file = tmp_path / "my norm.py"
    file.write_text(PLUGIN)
    code, listed = processes.run_command(tmp_path, "--plugin", str(file), "norms")
    assert code == 0, listed
    assert "root_mass" in listed
    assert processes.run_command(tmp_path, "norms", f"--plugin={file}") == (0, listed)
    assert "root_mass" not in processes.run_command(tmp_path, "norms")[1]
    assert "--plugin needs a Python file" in processes.run_command(tmp_path, "norms", "--plugin")[1]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "which --plugin names; give the path of a Python file"),
        ("1 / 0", "fails with ZeroDivisionError"),
        ("x = (", "fails with SyntaxError"),
    ],
)
def test_a_plugin_that_does_not_load_is_one_sentence(tmp_path, content, sentence):
    file = tmp_path / "plugin.py"
    if content is not None:
        file.write_text(content)
    code, printed = processes.run_command(tmp_path, "--plugin", str(file), "norms")
    assert code == 2
    assert sentence in printed
    assert "Traceback" not in printed


def test_an_installed_package_adds_a_normalization_by_entry_point(tmp_path):
    (tmp_path / "their_norm.py").write_text(PLUGIN)
    info = tmp_path / "their_norm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their_norm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slotnorm.normalizations]\nroot_mass = their_norm\n")
    code = "import slotnorm, torch; slotnorm.SlotAttention(8, 'root_mass')(torch.ones(1, 4, 8), 2); print('works')"
    done = run_code(code, tmp_path)
    assert done.stdout.strip() == "works", done.stderr
    (tmp_path / "their_norm.py").write_text("import nowhere_to_be_found")
    done = run_code("import slotnorm; print(len(slotnorm.normalizations()))", tmp_path)
    assert done.stdout.strip() == "6"
    assert "'their_norm' does not load" in done.stderr


def use_a_normalization_without_forward(_: Path) -> None:
    described = {"__doc__": "u = ?", "name": "empty", "label": "Empty", "where": "nowhere", "keeps_mass": False}
    type("Empty", (Normalization,), described)
    with pytest.raises(TypeError, match=r"Empty defines no forward\(aggregate, carry\)"):
        SlotAttention(8, "empty")(torch.ones(1, 4, 8), 2)


def test_a_normalization_without_forward_says_so(tmp_path):
    elsewhere = processes.call(use_a_normalization_without_forward, tmp_path, environment={})  # it stays registered
    assert elsewhere.wait() == 0, elsewhere.said


OWN = PLUGIN.replace("self, aggregate, carry", "{takes}").replace(
    "return aggregate.sums / (aggregate.mass + 1e-8).sqrt(), None", "return {returns}"
)


def own(returns: str, takes: str = "self, aggregate, carry") -> str:
    return OWN.format(takes=takes, returns=returns)


MUST = "RootMass.forward must return (codes, carry), the codes being a torch.float32 tensor of shape (2, 3, 8)"
BROKEN = [
    ("aggregate.sums", f"{MUST}; it returned a torch.float32 tensor of shape (2, 3, 8)"),
    ("None", f"{MUST}; it returned None"),
    ("aggregate.sums, None, 1", f"{MUST}; it returned 3 values"),
    ("aggregate.mass, None", f"{MUST}; the codes it returned are a torch.float32 tensor of shape (2, 3, 1)"),
    ("aggregate.sums[0], None", f"{MUST}; the codes it returned are a torch.float32 tensor of shape (3, 8)"),
    ("aggregate.sums.double(), None", f"{MUST}; the codes it returned are a torch.float64 tensor of shape (2, 3, 8)"),
    ("aggregate.sums.tolist(), None", f"{MUST}; the codes it returned are an object of the type list"),
]


@pytest.fixture
def registry():
    known = dict(normalization._registry)
    yield normalization._registry
    normalization._registry.clear()
    normalization._registry.update(known)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("returns", "sentence"), BROKEN)
def test_what_a_forward_returns_is_refused_in_one_sentence_where_the_layer_cannot_use_it(returns, sentence):
    exec(own(returns), {"__name__": "my_norm"})
    layer = SlotAttention(8, "root_mass")
    with pytest.raises(BrokenContract) as raised:
        layer(torch.randn(2, 5, 8), num_slots=3)
    assert str(raised.value) == sentence


def test_a_forward_without_carry_is_refused_when_it_is_defined(registry):
    sentence = r"RootMass\.forward takes \(self, aggregate\); it must take \(self, aggregate, carry\)"
    with pytest.raises(TypeError, match=sentence):
        exec(own("aggregate.sums, None", takes="self, aggregate"), {"__name__": "my_norm"})
    assert "root_mass" not in registry
    exec(own("aggregate.sums, None", takes="self, *arguments").replace("aggregate", "arguments[0]"), {})


@pytest.mark.parametrize(
    ("returns", "sentence", "expected"),
    [
        ("aggregate.sums", "RootMass.forward must return (codes, carry), the codes being a torch.float32", 2),
        ("aggregate.sums * float('nan'), None", "is nan at step 0; the weights were left as they were", 5),
    ],
)
def test_training_with_a_normalization_that_cannot_be_used_ends_in_one_sentence(tmp_path, returns, sentence, expected):
    data = tiny.build_scenes(tmp_path / "data", 24).directory
    file, asked = tmp_path / "my_norm.py", tmp_path / "asked.json"
    file.write_text(own(returns))
    asked.write_text(json.dumps(to_document(tiny.experiment("root_mass"))))
    words = ["--plugin", str(file), "train", "--experiment", str(asked), "--data", str(data), "--into", str(tmp_path)]
    code, printed = processes.run_command(tmp_path, *words)
    assert code == expected, printed
    assert sentence in printed
    assert "Traceback" not in printed
    assert expected == 2 or "look at the codes of RootMass, at the data" in printed
