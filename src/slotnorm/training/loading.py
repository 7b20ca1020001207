"""From a name or a path to a model: the one way, for the library, the command line and reports."""

import logging
import os
from pathlib import Path

import torch

from slotnorm.errors import UserError, nearest
from slotnorm.models.bundled import bundled_names
from slotnorm.models.parts import SlotModel
from slotnorm.models.pretrained import PREFIX, is_hub_id, is_pretrained, load_pretrained
from slotnorm.runtime.devices import choose_device
from slotnorm.training.runs import Run, is_run

_log = logging.getLogger(__name__)

_WHAT = (
    "a model is a run's folder, a .safetensors file that a run exported, a bundled name, or a hub id as hub:OWNER/NAME"
)


def load(source: str | Path, device: str | torch.device = "cpu") -> SlotModel:
    """The model of a run's folder, of a .safetensors file, of a bundled name, or of a hub id as "hub:owner/name".

    Of a folder it is the newest whole checkpoint or, where there are none, the weights that were exported into it. The
    model is in evaluation mode, on `device` (auto, cpu, cuda or mps), and `model.experiment` says what it was trained
    for and how.
    """
    return _read(source).to(choose_device(device))


def _read(source: str | Path) -> SlotModel:
    if not isinstance(source, str | os.PathLike):
        raise UserError(f"{type(source).__name__} is not a model of slotnorm; {_WHAT}")
    path = Path(source)
    if is_run(path):
        return _of_run(path)
    if path.is_file() or is_pretrained(source):
        return load_pretrained(source)
    raise UserError(_refusal(path))


def _of_run(path: Path) -> SlotModel:
    run = Run.open(path)
    exported = sorted(path.glob("*.safetensors"))
    if exported and not run.checkpoints.is_dir():
        return _read(exported[0])
    model = run.model()
    step, facts = model.trained or (0, {})
    model.trained = step, {**facts, "validation": run.validation()}  # which a checkpoint's weights do not hold
    if not (standing := run.standing()).finished:
        _log.info(f"note: {path} is {standing}; its newest whole checkpoint is used")
    return model


def _refusal(path: Path) -> str:
    if path.is_dir():
        return f"{path} is not a run: it has no experiment.json; {_WHAT}"
    if path.suffix == ".safetensors" or len(path.parts) != 1:
        hub = f"; a model on the hub is {PREFIX}{path}" if is_hub_id(str(path)) else ""
        return f"there is no {path}; {_WHAT}{hub}"
    return f"there is no {path}; {_WHAT}; {nearest(str(path), bundled_names())}"
