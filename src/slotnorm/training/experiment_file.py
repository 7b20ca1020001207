"""An experiment as a file: a run's experiment.json, or its document alone; what a run is launched from."""

import json
from pathlib import Path
from typing import Any

from slotnorm.config import Experiment
from slotnorm.errors import UserError
from slotnorm.storage import files
from slotnorm.storage.seals import read_sealed
from slotnorm.storage.serialization import from_document, to_document

FORMAT = 1  # of a run's experiment.json
_MOST_BYTES = 1 << 22  # an experiment is a few kilobytes; a larger file is not one and is not parsed


def read_experiment(path: Path) -> Experiment:
    """The experiment that a file says; anything missing, unknown or of a wrong kind in it is refused by name."""
    if path.is_dir():
        inside = path / "experiment.json"
        way_out = f"give {inside}" if inside.is_file() else "name a file"
        raise UserError(f"{path} is a folder, and an experiment is a file; {way_out}")
    if not path.is_file():
        raise UserError(f"there is no file {path}; an experiment is a run's experiment.json, or a document like it")
    content = _parsed(path)
    try:
        if "sha256_of_this" in content:
            return unpacked(read_sealed(path), path)
        return from_document(Experiment, content)
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path} is not an experiment: {error}") from error


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Write the document of an experiment alone, for `read_experiment`."""
    files.write(path, json.dumps(to_document(experiment), indent=2, allow_nan=False).encode() + b"\n")


def unpacked(content: dict[str, Any], path: Path) -> Experiment:
    """The experiment in the content of a run's experiment.json."""
    if content.get("format") != FORMAT:
        raise UserError(f"{path} has format {content.get('format')}, this slotnorm reads {FORMAT}: install a newer one")
    return from_document(Experiment, content.get("experiment"))


def _parsed(path: Path) -> dict[str, Any]:
    """The JSON object in a file that people may have written."""
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise UserError(f"{path} is {size} bytes long: not an experiment")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object with named fields")
    return content
