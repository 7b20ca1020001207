"""Datasets: `load` a built set by name, or `Scenes.open` any folder; neither imports torch.

In come published files, a user's pictures, or nothing but a seed; out go sets of scenes on disk, each with its manifest
or not there, and batches of them in an order that the seed decides.
"""

import re
from pathlib import Path

from slotnorm.data.builder import Builder
from slotnorm.data.cache import cache_folder, set_folder
from slotnorm.data.manifest import MANIFEST
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError

__all__ = ["Builder", "Scenes", "cache_folder", "load", "set_folder"]


def load(
    name: str,
    split: str = "test",
    max_objects: int | None = None,
    protocol: str = "paper",
    directory: str | Path | None = None,
) -> Scenes:
    """The built set `name` from the cache folder, or from `directory` (the set itself, or a folder of its splits)."""
    for what, word in (("dataset", name), ("split", split), ("protocol", protocol)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", word):
            raise UserError(f"{word!r} cannot name a {what}: use letters, digits, '-', '_' and '.'")
    folder = set_folder(name, split, protocol) if directory is None else Path(directory)
    if directory is not None and not (folder / MANIFEST).exists() and (folder / split / MANIFEST).exists():
        folder = folder / split
    if directory is None and not (folder / MANIFEST).exists():
        raise UserError(f"{name} {split} ({protocol}) is not built: {folder} holds no {MANIFEST}; {_way_out()}")
    return Scenes.open(folder).filter(max_objects=max_objects)


def _way_out() -> str:
    root = cache_folder() / "data"
    built = sorted({path.relative_to(root).parts[0] for path in root.glob(f"*/*/*/{MANIFEST}")})
    listing = f"built are: {', '.join(built)}" if built else "nothing is built yet"
    return f"`slotnorm data --help` lists what builds a set, or give its folder; {listing}"
