"""metrics.jsonl: the observer that writes it, and reading it against what a checkpoint knows of it."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotnorm.errors import DamagedFile, LostFolder, UserError, way_out_of_writing
from slotnorm.storage.files import open_in_place, open_to_read, sync_folder, write_at
from slotnorm.storage.seals import parse_json, read_bounded
from slotnorm.training.observers import Observer
from slotnorm.training.records import LARGEST_METRICS, MetricsFacts

_log = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
_TAIL = 1 << 16  # bytes at the end in which the last line is looked for


class MetricsFile(Observer, registered=False):
    """RUN/metrics.jsonl: lines are appended, and a resume cuts them back to what its checkpoint knows."""

    name, is_essential = "metrics.jsonl", True

    def __init__(self, path: Path, known: MetricsFacts | None) -> None:
        """Open for writing behind the lines that `known` (what `flush` returned, None at the start) describes.

        Lines that are not those are set aside in another file: nobody would notice later what is wrong with them.
        """
        self.path = path
        lines = b"" if known is None else self._saved_lines(known)
        self.validation = newest_validation([_row(line, path) for line in lines.splitlines()])
        """The newest scores among the saved lines."""
        try:
            self._descriptor = open_in_place(path)
            sync_folder(path.parent)  # flushing a file does not flush its name
            os.ftruncate(self._descriptor, len(lines))
        except OSError as error:
            raise self._cannot_write(error) from error
        self._hash = hashlib.sha256(lines)
        self.length = len(lines)

    def _saved_lines(self, known: MetricsFacts) -> bytes:
        try:
            return _verified(self.path, known)[0]
        except DamagedFile as damage:
            aside = self.path.with_name(f"metrics.damaged-{known.step}.jsonl")
            if self.path.exists() and not aside.exists():  # else it was set aside by a process that then died
                os.replace(self.path, aside)
            kept = f"; it is kept as {aside.name}" if aside.exists() else ""
            _log.warning(f"warning: {damage}{kept}; metrics begin anew, and the weights are not concerned")
            return b""

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        self._append({"step": step, **numbers})

    def on_validation(self, step: int, scores: dict[str, float]) -> None:
        self._append({"step": step, "validation": scores})

    def _append(self, row: dict[str, Any]) -> None:
        self._require_untouched()
        line = json.dumps(row).encode() + b"\n"
        self._hash.update(line)
        try:
            self.length = write_at(self._descriptor, line, self.length)
        except OSError as error:
            raise self._cannot_write(error) from error

    def flush(self, step: int) -> MetricsFacts:
        """Make all lines survive a power loss; returns what identifies them."""
        self._require_untouched()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._cannot_write(error) from error
        return MetricsFacts(step, self.length, self._hash.hexdigest())

    def _require_untouched(self) -> None:
        """Raise `LostFolder` when the file is not there any more, or somebody else wrote it."""
        written = os.fstat(self._descriptor)
        try:
            same = os.path.samestat(os.stat(self.path, follow_symlinks=False), written)
        except OSError:
            same = False
        if not same or written.st_size != self.length:
            raise LostFolder(
                f"{self.path} was removed, replaced or changed while it was written; nothing more is saved, and the "
                "same command continues from the last checkpoint"
            )

    def _cannot_write(self, error: OSError) -> UserError:
        return UserError(
            f"cannot write {self.path}: {error.strerror}; {way_out_of_writing(error)}, then the same command continues "
            "from the last checkpoint"
        )


def read_metrics(path: Path, known: MetricsFacts | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines that a checkpoint knows, verified, and those after them, which nothing vouches for yet.

    A `DamagedFile` says that the former are not what was written. Of the latter a broken one ends the list: it is being
    written, or lost its end.
    """
    saved, later = _verified(path, known)
    rows = [_row(line, path) for line in saved.splitlines()]
    following: list[dict[str, Any]] = []
    for line in later.split(b"\n")[:-1]:
        try:
            following.append(_row(line, path))
        except DamagedFile:
            break
    return rows, following


def newest_validation(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The scores of the last line that has any, empty before the first validation."""
    return next((row["validation"] for row in reversed(rows) if "validation" in row), {})


def last_step(path: Path) -> int:
    """The step of the last whole line, 0 when there is none; nothing is verified."""
    try:
        with open_to_read(path) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
            lines = file.read(_TAIL).split(b"\n")[:-1]
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(_row(line, path)["step"])
        except DamagedFile:
            continue
    return 0


def _verified(path: Path, known: MetricsFacts | None) -> tuple[bytes, bytes]:
    """The bytes that `known` describes, and those behind them."""
    try:
        content = read_bounded(path, LARGEST_METRICS) if path.is_file() else b""
    except UserError as error:  # of a failing disk, or somebody else's file
        raise DamagedFile(str(error)) from error
    if known is None:
        return b"", content
    saved = content[: known.bytes]
    if hashlib.sha256(saved).hexdigest() != known.sha256:
        raise DamagedFile(f"{path} is not what was written up to step {known.step}")
    return saved, content[known.bytes :]


def _row(line: bytes, path: Path) -> dict[str, Any]:
    """One line: a step, and numbers by name or a validation with such."""
    row = parse_json(line, path)
    if isinstance(row, dict) and isinstance(row.get("step"), int) and not isinstance(row["step"], bool):
        scores = row.get("validation", {})
        numbers = [value for name, value in row.items() if name != "validation"]
        if isinstance(scores, dict) and all(_is_number(value) for value in [*numbers, *scores.values()]):
            return row
    raise DamagedFile(f"{path} has a line that is not one of metrics")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
