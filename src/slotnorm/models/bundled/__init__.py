"""The trained models that come with the package, each checked against the list of SHA-256 beside them."""

import json
from importlib import resources
from pathlib import Path

from slotnorm.errors import DamagedFile, UserError, nearest
from slotnorm.storage import files

HASHES = "hashes.json"
_REINSTALL = "install slotnorm again: pip install --force-reinstall --no-deps slotnorm"


def bundled_folder() -> Path:
    """Where the package keeps them."""
    return Path(str(resources.files("slotnorm.models.bundled")))


def bundled_files(folder: Path | None = None) -> list[Path]:
    """The checkpoints inside the package (or in `folder`), each checked against the list of SHA-256 beside them."""
    place = bundled_folder() if folder is None else folder
    try:
        hashes = json.loads((place / HASHES).read_text(encoding="utf-8"))
        listed = sorted((str(name), str(sha256)) for name, sha256 in hashes.items())
    except OSError as error:
        raise UserError(
            f"this slotnorm has no bundled checkpoints: {place / HASHES} cannot be read; {_REINSTALL}"
        ) from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{place / HASHES} is damaged ({error}); {_REINSTALL}") from error
    for name, sha256 in listed:
        if not (place / name).is_file():
            raise DamagedFile(f"{place / name} is missing; {_REINSTALL}")
        if files.sha256(place / name) != sha256:
            raise DamagedFile(f"{place / name} is damaged: its SHA-256 is not the published one; {_REINSTALL}")
    return [place / name for name, _ in listed if name.endswith(".safetensors")]


def bundled_names() -> list[str]:
    """The names of the models that this installation has, as toy-weighted_sum; nothing is checked."""
    return sorted(path.stem for path in bundled_folder().glob("*.safetensors"))


def bundled_file(name: str) -> Path:
    """The checkpoint of that name, as toy-weighted_sum."""
    known = {path.stem: path for path in bundled_files()}
    if name not in known:
        raise UserError(f"this slotnorm has no bundled checkpoint {name!r}; {nearest(name, known)}")
    return known[name]
