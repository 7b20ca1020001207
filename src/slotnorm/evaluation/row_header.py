"""What the header of a file of rows says: where the rows come from. Every field is checked when a file is read."""

import dataclasses
from pathlib import Path
from typing import Any

from slotnorm.errors import DamagedFile
from slotnorm.storage.schemas import check_document, require_counts
from slotnorm.storage.serialization import newer

_WAY_OUT = "evaluate the run again"


@dataclasses.dataclass(frozen=True)
class _Mass:
    """Of a diagnosis: true and recovered masses of slots, by K."""

    keeps: Any
    pairs: dict[str, tuple[tuple[float, float], ...]]
    refused: str | None
    """Why they cannot be recovered."""

    def __post_init__(self) -> None:
        require_counts("pairs", dict.fromkeys(self.pairs, 0), 0)


@dataclasses.dataclass(frozen=True)
class _ScenesOfSlots:
    """Which scenes the rows of one K are of."""

    num_scenes: int | None = newer(None)
    images: str | None = newer(None)


@dataclasses.dataclass(frozen=True)
class _Header:
    """The fields that something depends on; none of them is in every file."""

    device: str = newer("")
    experiment: dict[str, Any] | None = newer(None)
    identity: str = newer("")
    images: str | None = newer(None)
    iterations: int | None = newer(None)
    mass: _Mass | None = newer(None)
    metrics: tuple[str, ...] = newer(())
    noise_seed: int | None = newer(None)
    num_scenes: int | None = newer(None)
    protocol: str = newer("")
    scenes: str | None = newer(None)
    scenes_of_slots: dict[str, _ScenesOfSlots] | None = newer(None)
    sources: tuple[str, ...] = newer(())
    step: int | None = newer(None)
    """Of the training, that the weights are of."""
    threads: int | None = newer(None)
    version: int = newer(1)
    versions: dict[str, str] | None = newer(None)
    weights: str = newer("")

    def __post_init__(self) -> None:
        require_counts("scenes_of_slots", dict.fromkeys(self.scenes_of_slots or {}, 0), 0)


def check_header(header: Any, path: Path) -> None:
    """Refuse a header in which a field is of another type; fields that nothing depends on may be anything."""
    if not isinstance(header, dict):
        raise DamagedFile(f"{path} is sealed but its header is not an object with named fields; {_WAY_OUT}")
    known = {field.name for field in dataclasses.fields(_Header)}
    checked = {name: value for name, value in header.items() if name in known}
    check_document(_Header, checked, path, "a file of rows", _WAY_OUT)
