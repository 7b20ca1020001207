"""metrics.jsonl while training: the observer that checkpoints rely on."""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from slotnorm.errors import UserError
from slotnorm.training.observers import Observer

_log = logging.getLogger(__name__)


class MetricsFile(Observer, registered=False):
    """RUN/metrics.jsonl: lines are appended, and a resume cuts them back to what its checkpoint knows."""

    name, is_essential = "metrics.jsonl", True

    def __init__(self, path: Path, known: dict[str, Any] | None) -> None:
        """Open for writing behind the lines that `known` (what `flush` returned, None at the start) describes."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            lines = os.pread(self._descriptor, known["bytes"], 0) if known else b""
            os.ftruncate(self._descriptor, len(lines))
        except OSError as error:
            raise self._cannot_write(error) from error
        self._hash = hashlib.sha256(lines)
        self.length = len(lines)
        if known and self._hash.hexdigest() != known["sha256"]:
            _log.warning(f"warning: {path} is damaged before step {known['step']}; the weights are not concerned")

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        self._append({"step": step, **numbers})

    def on_validation(self, step: int, scores: dict[str, float]) -> None:
        self._append({"step": step, "validation": scores})

    def _append(self, row: dict[str, Any]) -> None:
        line = json.dumps(row).encode() + b"\n"
        self._hash.update(line)
        try:
            while line:
                written = os.pwrite(self._descriptor, line, self.length)
                self.length, line = self.length + written, line[written:]
        except OSError as error:
            raise self._cannot_write(error) from error

    def flush(self, step: int) -> dict[str, Any]:
        """Make all lines survive a power loss; returns what identifies them."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._cannot_write(error) from error
        return {"step": step, "bytes": self.length, "sha256": self._hash.hexdigest()}

    def _cannot_write(self, error: OSError) -> UserError:
        return UserError(
            f"cannot write {self.path}: {error.strerror}; free some space, then the same command continues from the "
            "last checkpoint"
        )
