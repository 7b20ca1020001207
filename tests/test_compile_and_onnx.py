"""The layer under torch.compile, torch.export and ONNX, with batch, tokens and slots free."""

import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from torch.export import Dim

from slotnorm import SlotAttention, normalizations
from test_slot_attention import draw, make_layer

NAMES = list(normalizations())


@pytest.fixture(autouse=True)
def _others_deprecations_are_not_ours():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*axis name: batch will not be used")
        yield


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


FREE = ({0: Dim("batch", min=1), 1: Dim("tokens", min=1)}, {0: Dim("batch", min=1), 1: Dim("slots", min=1)})
SIZES = [(1, 5, 2), (3, 17, 9), (2, 4, 11)]


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("wrapper", [FromNoise, FromSlots])
@pytest.mark.parametrize("name", NAMES)
def test_an_exported_program_takes_any_batch_tokens_and_slots(name, wrapper):
    module = wrapper(make_layer(name)).eval()
    program = torch.export.export(module, draw(2, 7, 3, 12), dynamic_shapes=FREE, strict=False)
    for batch, tokens, slots in SIZES:
        arguments = draw(batch, tokens, slots, 12)
        for ours, expected in zip(program.module()(*arguments), module(*arguments), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_onnxruntime_gives_the_same_slots_and_attention(name, tmp_path):
    module = FromNoise(make_layer(name).float()).eval()
    example = tuple(tensor.float() for tensor in draw(2, 7, 3, 12))
    path = tmp_path / "layer.onnx"
    torch.onnx.export(
        module, example, path, input_names=["tokens", "noise"], output_names=["slots", "attention"],
        dynamic_shapes=FREE, dynamo=True, verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch, tokens, slots in SIZES:
        inputs, noise = (tensor.float() for tensor in draw(batch, tokens, slots, 12))
        results = session.run(None, {"tokens": inputs.numpy(), "noise": noise.numpy()})
        with torch.no_grad():
            expected = module(inputs, noise)
        for ours, reference in zip(results, expected, strict=True):
            np.testing.assert_allclose(ours, reference.numpy(), rtol=1e-4, atol=1e-5)
