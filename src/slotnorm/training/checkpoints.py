"""Checkpoints that are whole or not there: weights, optimizer state, and a sealed record that is the commit."""

import logging
import re
from pathlib import Path
from typing import Any

from safetensors import torch as safetensors_torch
from torch import Tensor

from slotnorm.errors import DamagedFile, NoUsableCheckpoint, UserError
from slotnorm.models.weights import Weights, pack, read_tensors, require_finite, unpack
from slotnorm.storage import files
from slotnorm.storage.seals import read_sealed, write_sealed

_log = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d+)\.(safetensors|optimizer\.safetensors|json)")


def save(folder: Path, weights: Weights, optimizer: dict[str, Tensor], record: dict[str, Any], keep: int) -> None:
    """Write step-N.safetensors, its optimizer state and last step-N.json; then remove all but the newest `keep`.

    A crash at any moment leaves either the whole checkpoint or files without a record, which the next save removes.
    """
    require_finite(optimizer)
    optimizer = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizer.items()}
    contents = {
        f"step-{weights.step}.safetensors": pack(weights),
        f"step-{weights.step}.optimizer.safetensors": safetensors_torch.save(optimizer),
    }
    written = {
        name: {"sha256": files.write(folder / name, content), "size": len(content)}
        for name, content in contents.items()
    }
    write_sealed(folder / f"step-{weights.step}.json", {"step": weights.step, "files": written, **record})
    _prune(folder, weights.step, keep)


def committed(folder: Path) -> list[int]:
    """The steps that have a record, newest first; whether they are whole is known only after `load`."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted((int(name[1]) for name in names if name and name[2] == "json"), reverse=True)


def read_record(folder: Path, step: int) -> dict[str, Any]:
    """The record of one checkpoint, after its files were checked against it; `DamagedFile` names what is wrong."""
    record = read_sealed(folder / f"step-{step}.json")
    if record["step"] != step:
        raise DamagedFile(f"{folder / f'step-{step}.json'} is the record of step {record['step']}")
    for name, expected in record["files"].items():
        path = folder / name
        if not path.is_file():
            raise DamagedFile(f"{path} is missing")
        if (size := path.stat().st_size) != expected["size"]:
            raise DamagedFile(f"{path} has {size} bytes instead of {expected['size']}")
        if files.sha256(path) != expected["sha256"]:
            raise DamagedFile(f"{path} is not what was written: its SHA-256 differs")
    return record


def load(folder: Path, step: int) -> tuple[Weights, dict[str, Tensor]]:
    """Weights and optimizer state of a checkpoint whose record was checked."""
    return unpack(folder / f"step-{step}.safetensors"), read_tensors(folder / f"step-{step}.optimizer.safetensors")[1]


def newest(folder: Path, identity: str | None = None) -> dict[str, Any] | None:
    """The record of the newest whole checkpoint, None when there is none at all.

    Damaged ones are named and passed over; when all are, `NoUsableCheckpoint` lists them and nothing is touched. With
    `identity` a checkpoint of another run is refused.
    """
    reasons = []
    for step in committed(folder):
        try:
            record = read_record(folder, step)
        except DamagedFile as damage:
            reasons.append(str(damage))
            continue
        if identity is not None and record["identity"] != identity:
            raise UserError(
                f"{folder / f'step-{step}.json'} belongs to another run, {record['run']}: "
                "move that checkpoint away, or train into another folder with --into"
            )
        for reason in reasons:
            _log.warning(f"warning: passing over a damaged checkpoint: {reason}; going on from step {step}")
        return record
    if reasons:
        raise NoUsableCheckpoint(
            f"every checkpoint in {folder} is damaged: {'; '.join(reasons)}; nothing was deleted: restore one of them "
            "from a copy, or train into another folder with --into"
        )
    return None


def _prune(folder: Path, step: int, keep: int) -> None:
    """Remove checkpoints older than the newest `keep` up to `step`, and what a crash left behind; none above `step`."""
    steps = committed(folder)
    kept = {*[old for old in steps if old <= step][:keep], *[later for later in steps if later > step]}
    stale = [path for path in folder.iterdir() if (name := _NAME.fullmatch(path.name)) and int(name[1]) not in kept]
    # the record goes first: without it the rest is not a checkpoint, so a crash in between leaves no damaged one
    for path in sorted(stale, key=lambda path: path.suffix != ".json"):
        path.unlink()
    remove_temporaries(folder)


def remove_temporaries(folder: Path) -> None:
    """Remove what an interrupted `files.replacing` left; only the holder of the run's lock may call this."""
    for path in folder.glob(".*.tmp"):
        path.unlink()
    files.sync_folder(folder)
