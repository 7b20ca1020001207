"""Things that are one class each and known by existing: a class registers itself under its name."""

import inspect
import re
import sys
from collections.abc import Collection
from typing import Generic, TypeVar

from slotnorm.errors import UserError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """The classes of one kind by name: those of slotnorm, then those of plugins, in the order of their definition."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def add(self, cls: type[T]) -> None:
        """Register a class under its own `name`; one without name or docstring, or whose name is taken, is refused."""
        name = cls.__dict__.get("name")
        if not isinstance(name, str) or not re.fullmatch("[a-z][a-z0-9_-]*", name):
            raise TypeError(
                f"{self.kind} {cls.__name__} has the name {name!r}; each says its own: small letters, digits, - and _"
            )
        stripped = sys.flags.optimize >= 2  # python -OO: nobody has docstrings
        if not stripped and not (cls.__dict__.get("__doc__") or "").strip():
            raise TypeError(f"{self.kind} {cls.__name__} has no docstring; its first line says what it is in lists")
        if name in self._classes:
            taken = self._classes[name]
            raise TypeError(
                f"{self.kind} name {name!r} of {cls.__name__} is taken by {taken.__module__}.{taken.__name__}"
            )
        self._classes[name] = cls

    def all(self) -> dict[str, type[T]]:
        """Every class by name."""
        return dict(self._classes)

    def find(self, name: str) -> type[T]:
        """The class of that name; an unknown one is refused with those that exist."""
        require_known(self.kind, name, self._classes)
        return self._classes[name]

    def described(self) -> str:
        """Names with the first lines of their docstrings, for help."""
        first_lines = {name: inspect.cleandoc(cls.__doc__ or "").partition("\n")[0] for name, cls in self.all().items()}
        return "; ".join(f"{name} ({line.removesuffix('.')})" if line else name for name, line in first_lines.items())


def require_known(kind: str, name: object, known: Collection[str]) -> None:
    """Refuse a name that no class of a kind has."""
    if not isinstance(name, str) or name not in known:
        raise UserError(
            f"there is no {kind} {name!r}; {nearest(str(name), known)} "
            "(one of your own is added by --plugin FILE, or by importing the module that defines it)"
        )
