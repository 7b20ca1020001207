"""An experiment as a file: a run's experiment.json, or its document alone; what a run is launched from."""

import dataclasses
import json
from pathlib import Path

from slotnorm.config import Experiment
from slotnorm.errors import UserError
from slotnorm.storage import files
from slotnorm.storage.schemas import LARGEST, check_document, require_between, require_hash
from slotnorm.storage.seals import RECORD, read_json, read_sealed
from slotnorm.storage.serialization import from_document, newer, to_document

FORMAT = 1  # of a run's experiment.json


@dataclasses.dataclass(frozen=True)
class RunDocument:
    """What a run's experiment.json says."""

    format: int
    slotnorm: str
    """The version that began it."""
    experiment: Experiment
    scenes: int
    """How many it is trained on."""
    data: str
    """The fingerprint of the set they come from."""
    commit: str | None = newer(None)
    """Of the program that began it, where that is known."""
    source: str | None = newer(None)
    """The folder of its data, where one was given."""
    plugins: dict[str, str] | None = newer(None)
    """The files given by `--plugin` that it is trained with, and the SHA-256 of each."""

    def __post_init__(self) -> None:
        for sha256 in (self.plugins or {}).values():
            require_hash(sha256)
        require_between("scenes", self.scenes, 1, LARGEST)
        require_hash(self.data)


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
            return read_run_document(path).experiment
        return from_document(Experiment, content)
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path} is not an experiment: {error}") from error


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Write the document of an experiment alone, for `read_experiment`."""
    files.write(path, json.dumps(to_document(experiment), indent=2, allow_nan=False).encode() + b"\n")


def read_run_document(path: Path) -> RunDocument:
    """A run's experiment.json, every field of it checked."""
    content = read_sealed(path)
    if content.get("format") != FORMAT:
        given = str(content.get("format"))[:40]
        raise UserError(f"{path} has format {given}, this slotnorm reads {FORMAT}: install a newer one")
    return check_document(RunDocument, content, path, "an experiment of a run")
