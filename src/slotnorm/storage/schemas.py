"""What sealed files must say: a dataclass is the schema of its file, and this the one way its content is checked.

A seal tells that nothing was altered by chance; whoever wants to can make one. So each kind of document is a frozen
dataclass: its annotations say the fields and their types, its `__post_init__` their ranges. What lacks a field, has
another one, or a value of another type or out of its range is a `DamagedFile`, before anything is made of it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from slotnorm.errors import DamagedFile, NewerFile, UserError
from slotnorm.storage.seals import read_sealed
from slotnorm.storage.serialization import from_document

T = TypeVar("T")

LARGEST = 1 << 48  # of a size, a step or a number of scenes; no disk and no training has more


def read_document(kind: type[T], path: Path, what: str) -> T:
    """The document in a sealed file; `what` it should be is said where it is something else."""
    return check_document(kind, read_sealed(path), path, what)


def check_document(kind: type[T], content: Any, path: Path, what: str, way_out: str = "") -> T:
    """The document that plain JSON values from `path` say."""
    try:
        return from_document(kind, content)
    except NewerFile as error:
        raise NewerFile(f"{path} is sealed but is not {what}: {error}") from error
    except DamagedFile:
        raise
    except (UserError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DamagedFile(f"{path} is sealed but is not {what}: {reason}{way_out and '; '}{way_out}") from error


def require_hash(text: str) -> None:
    """Refuse what is not a SHA-256 in hexadecimal."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise UserError(f"{text[:80]!r} is not a SHA-256 in hexadecimal")


def require_between(name: str, number: float, least: float, most: float) -> None:
    """Refuse a number out of its range."""
    if not least <= number <= most:
        raise UserError(f"{name} is {number}, but must be {least} to {most}")


def require_counts(name: str, counts: Mapping[str, int], most: int) -> None:
    """Refuse what is not numbers of things by a whole number, as text."""
    for key, count in counts.items():
        if not re.fullmatch("[0-9]{1,9}", key):
            raise UserError(f"{name} has {key[:40]!r}, which is not a number")
        require_between(f"{name}[{key}]", count, 0, most)
