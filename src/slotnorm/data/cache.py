"""Where built datasets live: `$SLOTNORM_CACHE`, or the user's cache directory."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """`$SLOTNORM_CACHE` when set, else `slotnorm` in the user's cache directory (XDG, or ~/Library/Caches on macOS)."""
    if named := os.environ.get("SLOTNORM_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "slotnorm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slotnorm"


def set_folder(name: str, split: str, protocol: str = "paper") -> Path:
    """Where the set `name` is built and looked for: `$SLOTNORM_CACHE/data/NAME/PROTOCOL/SPLIT`."""
    return cache_folder() / "data" / name / protocol / split
