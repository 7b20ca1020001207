"""A model's weights in one safetensors file that names its experiment and notices damage; it cannot run code."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors_torch
from torch import Tensor

from slotnorm import __version__
from slotnorm.config import Experiment
from slotnorm.errors import DamagedFile, NonFinite, UserError
from slotnorm.models.building import build, outline
from slotnorm.models.parts import SlotModel
from slotnorm.storage import files
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.storage.schemas import LARGEST, check_document, require_between, require_hash
from slotnorm.storage.seals import open_description, seal_description
from slotnorm.storage.serialization import to_document

GET_AGAIN = "get it again"
"""The way out where a file of weights is damaged."""

_FORMAT = 1
_KEY = "slotnorm"
_ROUNDED = "rounded_from"


@dataclasses.dataclass(frozen=True)
class _Description:
    """What the metadata of a weights file says."""

    format: int
    slotnorm: str
    step: int
    experiment: Experiment
    facts: dict[str, Any]
    sha256_of_tensors: str

    def __post_init__(self) -> None:
        require_between("step", self.step, 0, LARGEST)
        require_hash(self.sha256_of_tensors)


@dataclasses.dataclass(frozen=True)
class Weights:
    """What a weights file holds: the state dict, the experiment that made it, the step, and free facts about it."""

    tensors: dict[str, Tensor]
    experiment: Experiment
    step: int
    facts: dict[str, Any]


def pack(weights: Weights) -> bytes:
    """The file's bytes: the tensors under their own names, and a sealed description with a hash over all of them."""
    require_finite(weights.tensors)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.tensors.items()}
    description = {
        "format": _FORMAT,
        "slotnorm": __version__,
        "step": weights.step,
        "experiment": to_document(weights.experiment),
        "facts": weights.facts,
        "sha256_of_tensors": fingerprint(tensors),
    }
    return safetensors_torch.save(tensors, metadata=seal_description(_KEY, description))


def halve(weights: Weights) -> Weights:
    """The weights with their matrices in half precision, which takes half the room.

    The facts keep, as `rounded_from`, the hash of the weights as they were: rows that were made with them name it. A
    matrix with numbers that half precision does not have stays as it is.
    """
    if _ROUNDED in weights.facts:
        return weights
    tensors = {name: tensor.half() if _can_be_halved(tensor) else tensor for name, tensor in weights.tensors.items()}
    return dataclasses.replace(
        weights, tensors=tensors, facts={**weights.facts, _ROUNDED: fingerprint(weights.tensors)}
    )


def describe_rounding(weights: Weights) -> list[str]:
    """What a model card says of weights that were rounded."""
    if _ROUNDED not in weights.facts:
        return []
    return [
        "- Matrices are in half precision. Rows and scores were made with the weights before they were rounded, "
        f"whose hash is `{weights.facts[_ROUNDED]}`."
    ]


def _can_be_halved(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() > 1 and bool(tensor.half().isfinite().all())


def unpack(path: Path) -> Weights:
    """Read a file of `pack`; a damaged or foreign one is refused with the reason."""
    content, tensors = read_whole(path)
    description = check_document(_Description, content, path, "the weights of an experiment", GET_AGAIN)
    return Weights(tensors, description.experiment, description.step, description.facts)


def read_whole(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file of `pack` says, and its tensors: those that were written, and finite."""
    metadata, tensors = read_tensors(path)
    if _KEY not in metadata:
        raise UserError(f"{path} holds tensors but no experiment: it was not written by slotnorm; use run.export(...)")
    content = open_description(_KEY, metadata, path)
    if content.get("format") != _FORMAT:  # before all else, which a newer one may say in another way
        given = str(content.get("format"))[:40]
        raise UserError(f"{path} has format {given}, this slotnorm reads {_FORMAT}: install a newer one")
    if content.get("sha256_of_tensors") != fingerprint(tensors):
        raise DamagedFile(f"{path} is damaged: its content is not what was written; {GET_AGAIN}")
    require_finite_file(tensors, path)
    return content, tensors


def is_foreign(path: Path) -> bool:
    """Whether it is a safetensors file that does not say its experiment, as others write them."""
    return path.is_file() and _KEY not in read_tensors(path)[0]


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of any safetensors file."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; run.export({path.name!r}) writes one")
    try:
        with _with_a_text_for_name(path) as name, safe_open(name, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFile(f"{path} is damaged or not a safetensors file ({error})") from error


@contextlib.contextmanager
def _with_a_text_for_name(path: Path) -> Iterator[Path]:
    """The path, or another one of the same file where its name is not text, which safetensors does not open."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield Path(f"/dev/fd/{descriptor}")
        finally:
            os.close(descriptor)
    else:
        yield path


def require_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse to go on with a NaN or infinite tensor."""
    for name, tensor in tensors.items():
        if not _is_finite(tensor):
            raise NonFinite(f"{name} is not finite and is not saved; lower recipe.learning-rate and resume")


def require_finite_file(tensors: dict[str, Tensor], path: Path) -> None:
    """Refuse a file with a NaN or infinite number: none is ever saved, so somebody made it."""
    for name, tensor in tensors.items():
        if not _is_finite(tensor):
            raise DamagedFile(f"{path} is not what a training saves: {name} is not finite; {GET_AGAIN}")


def _is_finite(tensor: Tensor) -> bool:
    """Whether it has no NaN and no infinity; PyTorch cannot tell of floats of one byte, which are widened."""
    return not tensor.is_floating_point() or bool(
        (tensor if tensor.element_size() > 1 else tensor.float()).isfinite().all()
    )


def require_fit(expected: dict[str, Tensor], tensors: dict[str, Tensor], path: Path) -> None:
    """Refuse tensors without the names, shapes and kinds of number of a model: none is cut, repeated or left out."""
    for name in [*expected, *tensors]:
        if name not in tensors or name not in expected:
            lacks = "lacks" if name not in tensors else "has, beyond those of the model,"
            raise UserError(f"{path} does not fit the model of its experiment: it {lacks} {name[:80]}")
        wanted, given = expected[name], tensors[name]
        alike = wanted.dtype == given.dtype or (wanted.is_floating_point() and given.is_floating_point())
        if wanted.shape != given.shape or not alike:  # published weights may be kept in half precision
            raise UserError(
                f"{path} does not fit the model of its experiment: {name[:80]} is {tuple(given.shape)} {given.dtype}, "
                f"not {tuple(wanted.shape)} {wanted.dtype}"
            )


def restore(weights: Weights, path: Path) -> SlotModel:
    """The model of an experiment with these weights, in evaluation mode and with its `experiment` attached.

    Whether the file holds that model is known before the model takes any memory.
    """
    require_fit(outline(weights.experiment).state_dict(), weights.tensors, path)
    model = build(weights.experiment)
    model.load_state_dict(weights.tensors)
    rounded = weights.facts.get(_ROUNDED)
    model.rounded_from = rounded if isinstance(rounded, str) else None
    model.trained = weights.step, weights.facts
    return model.eval()


def export(weights: Weights, path: Path, card: str) -> None:
    """Write the weights and, beside them, the model card (Markdown, `path` with the suffix .md)."""
    sha256 = files.write(path, pack(weights))
    files.write(path.with_suffix(".md"), f"{card}\nSHA-256 of `{path.name}`: `{sha256}`\n".encode())
