"""Checkpoints that are whole or not there: weights, optimizer state, and a sealed record that is the commit."""

import contextlib
import dataclasses
import logging
import os
import re
from pathlib import Path

from safetensors import torch as safetensors_torch
from torch import Tensor

from slotnorm.errors import DamagedFile, NoUsableCheckpoint, UserError
from slotnorm.models.weights import (
    GET_AGAIN,
    Weights,
    pack,
    read_tensors,
    read_whole,
    require_finite,
    require_finite_file,
    unpack,
)
from slotnorm.storage import files
from slotnorm.training import records
from slotnorm.training.records import Environment, FileFacts, Progress, Record, file_names, write_record

_log = logging.getLogger(__name__)

RESTORE = "restore one of them from a copy, or train into another folder with --into"
MOVE_AWAY = "move that checkpoint away, or train into another folder with --into"
"""The ways out where no checkpoint can be used, whoever says so."""

_NAME = re.compile(r"step-(\d+)\.(safetensors|optimizer\.safetensors|json)")


def save(
    folder: Path, weights: Weights, optimizer: dict[str, Tensor], progress: Progress, where: Environment, keep: int
) -> None:
    """Write step-N.safetensors, its optimizer state and last step-N.json; then remove all but the newest `keep`.

    A crash at any moment leaves either the whole checkpoint or files without a record, which the next save removes; a
    save that fails leaves none. The folder that `folder` is in must be there: a run that was removed is not made again.
    """
    require_finite(optimizer)
    optimizer = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizer.items()}
    contents = zip(file_names(weights.step), (pack(weights), safetensors_torch.save(optimizer)), strict=True)
    files.make_subfolder(folder)
    record = folder / f"step-{weights.step}.json"
    try:
        written = {
            name: FileFacts(files.write(folder / name, content, False), len(content)) for name, content in contents
        }
        write_record(record, weights.step, written, progress, where)
    except BaseException:
        if not record.exists():
            for name in file_names(weights.step):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
        raise
    try:
        prune(folder, weights.step, keep)
    except OSError as error:
        raise UserError(
            f"cannot remove old files of {folder}: {error.strerror or error}; step {weights.step} is saved, and the "
            "same command continues"
        ) from error


def committed(folder: Path) -> list[int]:
    """The steps that have a record, newest first; whether they are whole is known only after `load`."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted((int(name[1]) for name in names if name and name[2] == "json"), reverse=True)


def read_record(folder: Path, step: int) -> Record:
    """The record of one checkpoint, after its files were checked against it; `DamagedFile` names what is wrong."""
    record = records.read_record(folder / f"step-{step}.json")
    if record.step != step:
        raise DamagedFile(f"{folder / f'step-{step}.json'} is the record of step {record.step}")
    for name, expected in record.files.items():
        path = folder / name
        try:
            if not path.is_file():
                raise DamagedFile(f"{path} is missing")
            if (size := path.stat().st_size) != expected.size:
                raise DamagedFile(f"{path} has {size} bytes instead of {expected.size}")
            if files.sha256(path) != expected.sha256:
                raise DamagedFile(f"{path} is not what was written: its SHA-256 differs")
        except OSError as error:  # of a failing disk, or somebody else's file
            raise DamagedFile(f"{path} cannot be read: {error.strerror or error}") from error
    return record


def load(folder: Path, step: int) -> tuple[Weights, dict[str, Tensor]]:
    """Weights and optimizer state of a checkpoint whose record was checked."""
    weights, optimizer = file_names(step)
    state = read_tensors(folder / optimizer)[1]
    require_finite_file(state, folder / optimizer)
    return unpack(folder / weights), state


@dataclasses.dataclass(frozen=True)
class Examination:
    """What the checkpoints of a run are, as their files prove."""

    record: Record | None
    """Of the newest whole one."""
    damage: tuple[str, ...]
    """What is wrong with each that is newer."""


def examine(folder: Path) -> Examination:
    """Check checkpoints from the newest to the first whole one; nothing is said or touched."""
    if os.path.lexists(folder) and not folder.is_dir():
        reason = str(files.refused_link(folder)) if folder.is_symlink() else f"{folder} is not a folder"
        return Examination(None, (reason,))
    damage: list[str] = []
    for step in committed(folder):
        try:
            record = read_record(folder, step)
            _require_whole_weights(folder / file_names(step)[0])
            return Examination(record, tuple(damage))
        except UserError as reason:
            damage.append(str(reason).removesuffix(f"; {GET_AGAIN}"))  # a checkpoint has other ways out
    return Examination(None, tuple(damage))


def _require_whole_weights(path: Path) -> None:
    """Refuse weights that no training saves, though the record was sealed over them."""
    try:
        read_whole(path)
    except DamagedFile:
        raise
    except UserError:  # of another version: whoever needs them says so
        return


def obstacle(folder: Path, step: int) -> str:
    """What would refuse a save of a later step: something that is not a file under its name; empty if nothing would."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (name := _NAME.fullmatch(path.name)) and int(name[1]) > step:
            try:
                files.require_replaceable(path)
            except UserError as refusal:
                return str(refusal)
    return ""


def newest(folder: Path, identity: str | None = None, data: str | None = None) -> Record | None:
    """The record of the newest whole checkpoint, None when there is none at all.

    Damaged ones are named and passed over; when all are, `NoUsableCheckpoint` lists them and nothing is touched. With
    `identity` and `data` a checkpoint of another run is refused.
    """
    examination = examine(folder)
    record, damage = examination.record, examination.damage
    if record is None and damage:
        raise NoUsableCheckpoint(
            f"every checkpoint in {folder} is damaged: {'; '.join(damage)}; nothing was deleted: {RESTORE}"
        )
    if record is not None and identity and data and (foreign := record.foreign(identity, data)):
        raise UserError(f"{folder / f'step-{record.step}.json'} {foreign}: {MOVE_AWAY}")
    if record is not None:
        for reason in damage:
            _log.warning(f"warning: passing over a damaged checkpoint: {reason}; going on from step {record.step}")
    return record


def prune(folder: Path, step: int, keep: int) -> None:
    """Remove checkpoints older than the newest `keep` up to `step`, and what a crash left behind; none above `step`."""
    # the record goes first: without it the rest is not a checkpoint, so a crash in between leaves no damaged one
    for path in sorted(_stale(folder, step, keep), key=lambda path: path.suffix != ".json"):
        path.unlink()
    remove_temporaries(folder)


def has_leftovers(folder: Path, step: int, keep: int) -> bool:
    """Whether `prune` would find something to remove."""
    return bool(_stale(folder, step, keep)) or any(not _is_folder(path) for path in folder.glob(".*.tmp"))


def _stale(folder: Path, step: int, keep: int) -> list[Path]:
    steps = committed(folder)
    kept = {*[old for old in steps if old <= step][:keep], *[later for later in steps if later > step]}
    return [
        path
        for path in folder.iterdir()
        if (name := _NAME.fullmatch(path.name)) and int(name[1]) not in kept and not _is_folder(path)
    ]


def remove_temporaries(folder: Path, *patterns: str) -> None:
    """Remove what an interrupted `files.replacing` left, of some files or all; for the holder of the run's lock."""
    for path in [path for pattern in patterns or (".*.tmp",) for path in folder.glob(pattern)]:
        if not _is_folder(path):
            path.unlink(missing_ok=True)
    files.sync_folder(folder)


def _is_folder(path: Path) -> bool:
    """What was not made by a save, whatever its name is, and is left alone."""
    return path.is_dir() and not path.is_symlink()
