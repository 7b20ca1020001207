"""A model as an ONNX file, for programs without PyTorch: any batch, any number of slots."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slotnorm.errors import UserError
from slotnorm.models.parts import Decomposition, SlotModel
from slotnorm.storage import files


def export_onnx(model: SlotModel, path: str | Path, iterations: int | None = None) -> Path:
    """Write `model`, in evaluation mode, to a file that runtimes of ONNX read; returns its path.

    Inputs are `images` (B, 3, H, W) in [-1, 1] or `features` (B, N, F), and `noise` (B, K, D), standard normal, which
    says how many slots there are; both B and K are free. Outputs are those of `Decomposition` that the model has, by
    name. `iterations` are fixed in the file; None is the model's own.
    """
    path = Path(path)
    if not isinstance(model, SlotModel):
        raise UserError(f"a model of slotnorm is exported, not {type(model).__name__}; sn.load or run.model() give one")
    if path.suffix != ".onnx":
        raise UserError(f"{path} does not end in .onnx, which is what is written; rename it")
    exported = _WithNames(copy.deepcopy(model).cpu().eval(), iterations)
    inputs = torch.zeros(2, *_shape(model), dtype=exported.dtype)
    noise = torch.zeros(2, 3, model.slot_attention.dim, dtype=exported.dtype)
    with torch.no_grad():
        names = exported.describe(inputs, noise)
    batch, slots = torch.export.Dim("batch", min=1), torch.export.Dim("slots", min=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's about itself
            program = torch.onnx.export(
                exported, (inputs, noise), input_names=[model.input, "noise"], output_names=names,
                dynamic_shapes=({0: batch}, {0: batch, 1: slots}), dynamo=True, verbose=False,
            )  # fmt: skip
    except ModuleNotFoundError as error:
        raise UserError(f"ONNX files are written with the package {error.name}; pip install onnx onnxscript") from error
    assert program is not None
    _name_refusal(program, model.slot_attention.dim)
    with files.replacing(path) as temporary:
        program.save(temporary)
    return path


class _WithNames(nn.Module):
    """The model with noise as an input, and its outputs without those that it does not have."""

    def __init__(self, model: SlotModel, iterations: int | None) -> None:
        super().__init__()
        self.model, self.iterations = model, iterations

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def describe(self, inputs: Tensor, noise: Tensor) -> list[str]:
        """The names of its outputs."""
        decomposition = self.model(inputs, noise=noise, iterations=self.iterations)
        return [name for name, output in zip(Decomposition._fields, decomposition, strict=True) if output is not None]

    def forward(self, inputs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        first = noise[:, 0, 0]  # fails where there is no slot; see `_name_refusal`
        noise = noise + (first - first)[:, None, None]
        decomposition = self.model(inputs, noise=noise, iterations=self.iterations)
        return tuple(output for output in decomposition if output is not None)


def _shape(model: SlotModel) -> tuple[int, ...]:
    """Of one input as the model takes it: channels first."""
    *sides, last = model.input_shape
    return (last, *sides) if model.input == "images" else model.input_shape


def _name_refusal(program: Any, dim: int) -> None:
    """Call the operation that fails without a slot what should be read then: runtimes show an operation's name."""
    sentence = f"noise has no slots; give (batch, slots, {dim}) with one slot or more"
    for node in program.model.graph:
        if node.op_type == "Gather":
            node.name = sentence
            return
    raise AssertionError("the exported graph does not look at the first slot")
