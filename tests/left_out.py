"""What the source distribution leaves out, because it is large; a clone has it, and tests that need it run there."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
LEFT_OUT = tuple(path.removeprefix("/") for path in _BUILD["sdist"]["exclude"])


def is_left_out(path: Path) -> bool:
    """Whether this is the source distribution and the path belongs to what it leaves out."""
    parts = (ROOT / name for name in LEFT_OUT)
    return any(path.resolve().is_relative_to(part) and not part.exists() for part in parts)


def needs(name: str) -> pytest.MarkDecorator:
    """Marks a test, or as `pytestmark` a file of tests, that needs a folder of LEFT_OUT."""
    assert name in LEFT_OUT
    reason = f"{name} is left out of the source distribution; a clone has it"
    return pytest.mark.skipif(is_left_out(ROOT / name), reason=reason)
