"""The layer under torch.compile, torch.export and ONNX, with batch, tokens and slots free; whole models as ONNX."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

import tiny
from slotnorm import SlotAttention, normalizations
from slotnorm.config import ImageModel
from slotnorm.data import Scenes
from slotnorm.errors import UserError
from slotnorm.models import SlotModel, build, export_onnx
from slotnorm.models.parts import Decomposition
from test_slot_attention import draw
from test_slot_attention import make_layer as make_long_layer

NAMES = list(normalizations())
WITH_STATE = "batch_norm"
# in a graph the normalizations are a few operations each: the one with buffers stands for all in the quick tests
ONE_QUICK = [pytest.param(name, marks=[] if name == WITH_STATE else pytest.mark.slow) for name in NAMES]


@pytest.fixture(autouse=True)
def _others_deprecations_are_not_ours():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*axis name: batch will not be used")
        yield


def make_layer(name: str) -> SlotAttention:
    """Of two iterations, the first and one that is told what the first measured: a graph grows with each."""
    return make_long_layer(name, iterations=2)


class FromNoise(torch.nn.Module):
    """The layer with noise as an input, so that K is the noise's."""

    def __init__(self, layer: SlotAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(tokens, noise=noise)


class FromSlots(FromNoise):
    """The layer with the initial slots as an input."""

    def forward(self, tokens: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(tokens, slots=slots)


def free() -> tuple[dict[int, object], dict[int, object]]:
    """Batch, tokens and slots of any number; made when a test asks, since all of SymPy is imported for it."""
    return {0: Dim("batch", min=1), 1: Dim("tokens", min=1)}, {0: Dim("batch", min=1), 1: Dim("slots", min=1)}


SIZES = [(1, 5, 2), (3, 17, 9), (2, 4, 11)]


@pytest.mark.parametrize("name", ONE_QUICK)
def test_it_compiles_as_one_graph_and_trains(name):
    layer, twin = make_layer(name), make_layer(name)
    inputs, start = draw(2, 9, 4, 12)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    tokens, other = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    slots, attention = compiled(tokens, slots=start)
    expected, expected_attention = twin(other, slots=start)
    (slots.square().sum() + attention.square().sum()).backward()
    (expected.square().sum() + expected_attention.square().sum()).backward()
    torch.testing.assert_close(slots, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(tokens.grad, other.grad, rtol=1e-9, atol=1e-10)
    for key, buffer in layer.normalization.named_buffers():
        torch.testing.assert_close(buffer, twin.normalization.get_buffer(key))


SMALL_MODELS = {
    "broadcast": ImageModel(
        size=8, channels=4, dim=4, hidden=8, strides=(2, 1), decoder_channels=4, decoder_strides=(2, 2)
    ),
    "dense": tiny.IMAGES,
    "features": tiny.FEATURES,
    "properties": tiny.PROPERTIES,
}


# what only graphs tell apart: the decoder with an own backward, and matching, which leaves the graph
QUICK_KINDS = ("dense", "properties")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in QUICK_KINDS else pytest.mark.slow) for kind in SMALL_MODELS]
)
def test_the_whole_training_step_of_a_model_is_one_graph_with_the_same_numbers(kind: str, tmp_path: Path) -> None:
    experiment = tiny.experiment(model=SMALL_MODELS[kind])
    model, scenes = build(experiment), tiny.build_scenes(tmp_path, 4)
    batch = to_batch(scenes, model)
    noise = torch.randn(4, 5, model.slot_attention.dim)

    def learn(inputs: torch.Tensor, properties: dict[str, torch.Tensor], noise: torch.Tensor) -> torch.Tensor:
        return model.loss(model(inputs, noise=noise, iterations=2), inputs, properties)

    def numbers(step: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        model.zero_grad(set_to_none=True)
        loss = step(*batch, noise)
        loss.backward()
        return loss.detach(), [parameter.grad for parameter in model.parameters()]

    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss, gradients = numbers(learn)
    model.load_state_dict(buffers, strict=False)
    compiled_loss, compiled_gradients = numbers(torch.compile(learn, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close(compiled_loss, loss)
    torch.testing.assert_close(compiled_gradients, gradients, rtol=1e-4, atol=1e-6)


def to_batch(scenes: Scenes, model: SlotModel) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """All scenes as the model's inputs, with their properties."""
    stored = {name: torch.from_numpy(scenes.read(name, np.arange(len(scenes)))) for name in scenes.fields}
    return model.prepare(stored.pop(model.input)), {name: stored[name] for name in scenes.properties}


@pytest.mark.parametrize("name", ONE_QUICK)
@pytest.mark.parametrize("wrapper", [FromNoise, pytest.param(FromSlots, marks=pytest.mark.slow)])
def test_an_exported_program_takes_any_batch_tokens_and_slots(name, wrapper):
    module = wrapper(make_layer(name)).eval()
    program = torch.export.export(module, draw(2, 7, 3, 12), dynamic_shapes=free(), strict=False)
    for batch, tokens, slots in SIZES:
        arguments = draw(batch, tokens, slots, 12)
        for ours, expected in zip(program.module()(*arguments), module(*arguments), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def open_session(path: Path):
    import onnxruntime  # a second that only these tests need

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.slow  # a whole model, below, has the layer in it
@pytest.mark.parametrize("name", NAMES)
def test_onnxruntime_gives_the_same_slots_and_attention(name, tmp_path):
    module = FromNoise(make_layer(name).float()).eval()
    example = tuple(tensor.float() for tensor in draw(2, 7, 3, 12))
    path = tmp_path / "layer.onnx"
    torch.onnx.export(
        module, example, path, input_names=["tokens", "noise"], output_names=["slots", "attention"],
        dynamic_shapes=free(), dynamo=True, verbose=False,
    )  # fmt: skip
    session = open_session(path)
    for batch, tokens, slots in SIZES:
        inputs, noise = (tensor.float() for tensor in draw(batch, tokens, slots, 12))
        results = session.run(None, {"tokens": inputs.numpy(), "noise": noise.numpy()})
        with torch.no_grad():
            expected = module(inputs, noise)
        for ours, reference in zip(results, expected, strict=True):
            np.testing.assert_allclose(ours, reference.numpy(), rtol=1e-4, atol=1e-5)


BROADCAST = ImageModel(
    size=8, channels=8, dim=8, hidden=16, kernel=3, strides=(1, 2), decoder="broadcast", decoder_strides=(2, 1)
)


def make_model(norm: str, config: object) -> SlotModel:
    """A model whose normalization has seen something, in evaluation mode."""
    model = build(tiny.experiment(norm, model=config))
    torch.manual_seed(1)
    for _ in range(2):
        model(model_inputs(model, 4), num_slots=3)
    return model.eval()


def model_inputs(model: SlotModel, batch: int) -> torch.Tensor:
    stored = torch.rand(batch, *model.input_shape)
    return 2 * stored.movedim(-1, 1) - 1 if model.input == "images" else stored


@pytest.mark.parametrize(
    ("norm", "config", "iterations"),
    [
        pytest.param("batch_norm", tiny.IMAGES, 2, id="dense", marks=pytest.mark.slow),
        pytest.param("weighted_sum", BROADCAST, 1, id="broadcast"),
        pytest.param("layer_norm", tiny.FEATURES, 1, id="features", marks=pytest.mark.slow),
        pytest.param("weighted_mean", tiny.PROPERTIES, None, id="properties", marks=pytest.mark.slow),
    ],
)
def test_onnxruntime_runs_a_whole_model_with_any_batch_and_number_of_slots(norm, config, iterations, tmp_path):
    model = make_model(norm, config).train(iterations is None)
    path = export_onnx(model, tmp_path / "model.onnx", iterations)
    assert model.training == (iterations is None)
    assert sorted(tmp_path.iterdir()) == [path], "one file, with the weights in it"
    session = open_session(path)
    assert [given.name for given in session.get_inputs()] == [model.input, "noise"]
    names = [output.name for output in session.get_outputs()]
    for batch, slots in ((1, 1), (3, 4), (2, 12), (5, 3)):
        inputs, noise = model_inputs(model, batch), torch.randn(batch, slots, 8)
        results = session.run(None, {model.input: inputs.numpy(), "noise": noise.numpy()})
        with torch.no_grad():
            expected = model.eval()(inputs, noise=noise, iterations=iterations)
        assert names == [name for name in Decomposition._fields if getattr(expected, name) is not None]
        for name, ours in zip(names, results, strict=True):
            np.testing.assert_allclose(ours, getattr(expected, name).numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    with pytest.raises(Exception, match="noise has no slots; give \\(batch, slots, 8\\) with one slot or more"):
        session.run(None, {model.input: inputs.numpy(), "noise": noise[:, :0].numpy()})


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("weighted_sum", tiny.PROPERTIES)
    with pytest.raises(UserError, match="model.pt does not end in .onnx, which is what is written; rename it"):
        export_onnx(model, tmp_path / "model.pt")
    with pytest.raises(UserError, match="a model of slotnorm is exported, not Linear"):
        export_onnx(torch.nn.Linear(2, 2), tmp_path / "model.onnx")

    def lacking(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript")

    monkeypatch.setattr(torch.onnx, "export", lacking)
    with pytest.raises(UserError, match="ONNX files are written with the package onnxscript; pip install onnx onnxscr"):
        export_onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
