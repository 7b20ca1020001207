"""An experiment as a file: a run's experiment.json, or its document alone; what a run is launched from."""

import json
from pathlib import Path
from typing import Any

from slotnorm.config import Experiment
from slotnorm.errors import UserError
from slotnorm.storage import files
from slotnorm.storage.seals import RECORD, read_json, read_sealed
from slotnorm.storage.serialization import from_document, to_document

FORMAT = 1  # of a run's experiment.json


def read_experiment(path: Path) -> Experiment:
    """The experiment that a file says; anything missing, unknown or of a wrong kind in it is refused by name."""
    if path.is_dir():
        inside = path / "experiment.json"
        way_out = f"give {inside}" if inside.is_file() else "name a file"
        raise UserError(f"{path} is a folder, and an experiment is a file; {way_out}")
    if not path.is_file():
        raise UserError(f"there is no file {path}; an experiment is a run's experiment.json, or a document like it")
    content = read_json(path, RECORD.most_bytes)
    if not isinstance(content, dict):
        raise UserError(f"{path} is not an experiment: it is not a JSON object with named fields")
    try:
        if RECORD.key in content:
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
