"""What step-N.json says of a checkpoint: its files by hash, the metrics behind it, and what its bits depend on."""

import dataclasses
from pathlib import Path

from slotnorm.errors import UserError
from slotnorm.storage.schemas import LARGEST, read_document, require_between, require_hash
from slotnorm.storage.seals import write_sealed
from slotnorm.storage.serialization import to_document

LARGEST_METRICS = 1 << 28  # bytes of metrics.jsonl; a million lines


@dataclasses.dataclass(frozen=True)
class FileFacts:
    """What identifies a file's content."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        require_hash(self.sha256)
        require_between("size", self.size, 0, LARGEST)


@dataclasses.dataclass(frozen=True)
class MetricsFacts:
    """What identifies the lines of metrics.jsonl up to a step."""

    step: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        require_hash(self.sha256)
        require_between("step", self.step, 0, LARGEST)
        require_between("bytes", self.bytes, 0, LARGEST_METRICS)


@dataclasses.dataclass(frozen=True)
class Environment:
    """What the bits of a training depend on besides its experiment."""

    slotnorm: str
    torch: str
    numpy: str
    python: str
    threads: int
    world_size: int
    device: str

    def __post_init__(self) -> None:
        require_between("threads", self.threads, 1, 1 << 20)
        require_between("world_size", self.world_size, 1, 1 << 20)


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a training is, and of which run."""

    run: str
    identity: str
    """The experiment's."""
    data: str
    """The data's fingerprint."""
    steps: int
    """All of the recipe, when it was saved."""
    metrics: MetricsFacts
    seconds: float
    """Of training so far."""

    def __post_init__(self) -> None:
        require_hash(self.identity)
        require_between("steps", self.steps, 1, LARGEST)


@dataclasses.dataclass(frozen=True)
class Record(Environment, Progress):
    """A checkpoint's record, whose writing is the commit."""

    step: int
    files: dict[str, FileFacts]

    def __post_init__(self) -> None:
        Environment.__post_init__(self)
        Progress.__post_init__(self)
        require_between("step", self.step, 1, self.steps)
        if set(self.files) != set(file_names(self.step)):
            raise UserError(f"files are {sorted(self.files)[:4]}, but those of step {self.step} are two others")
        if self.metrics.step != self.step:
            raise UserError(f"metrics are those of step {self.metrics.step}, not {self.step}")

    def foreign(self, identity: str, data: str) -> str:
        """Why it is not of the run of this experiment on this data; empty when it is."""
        if self.identity != identity:
            return f"belongs to another run, {self.run}"
        return "" if self.data == data else f"was trained on other data ({self.data[:12]}, not {data[:12]})"

    @property
    def environment(self) -> Environment:
        """That it was saved in."""
        return Environment(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Environment)})


def file_names(step: int) -> tuple[str, str]:
    """The files of a checkpoint besides its record: weights, and the optimizer's state."""
    return f"step-{step}.safetensors", f"step-{step}.optimizer.safetensors"


def write_record(path: Path, step: int, files: dict[str, FileFacts], progress: Progress, where: Environment) -> None:
    """Write a record; its keys are in the order of the first format."""
    write_sealed(
        path,
        {"step": step, "files": to_document(files), **to_document(progress), **to_document(where)},
        make_folder=False,
    )


def read_record(path: Path) -> Record:
    """The record in a file, every field of it checked; `DamagedFile` says what is wrong."""
    return read_document(Record, path, "the record of a checkpoint")
