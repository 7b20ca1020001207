"""Where built datasets live: `$SLOTNORM_CACHE`, or the user's cache directory."""

import os
import sys
from pathlib import Path

from slotnorm.errors import UserError

CACHE = "SLOTNORM_CACHE"  # the environment's variable that names the folder


def cache_folder() -> Path:
    """`$SLOTNORM_CACHE` when set, else `slotnorm` in the user's cache directory (XDG, or ~/Library/Caches on macOS)."""
    if named := os.environ.get(CACHE):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "slotnorm"
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "slotnorm"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # no HOME, and a user whom the system does not know
        raise UserError("there is no home folder to cache in; set SLOTNORM_CACHE to a folder") from error


def require_writable(folder: Path) -> None:
    """Make a folder of the cache, or say in one sentence that the cache cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(folder, os.W_OK) else "it is read-only"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise UserError(
            f"the cache folder {cache_folder()} cannot be written ({reason}); set SLOTNORM_CACHE to a folder that can"
        )


def set_folder(name: str, split: str, protocol: str = "paper") -> Path:
    """Where the set `name` is built and looked for: `$SLOTNORM_CACHE/data/NAME/PROTOCOL/SPLIT`."""
    return cache_folder() / "data" / name / protocol / split
