"""What a user can do wrong or meet: one sentence with the value, the rule and the way out, and an exit code."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user can put right; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 2


class DamagedFile(UserError):
    """A file's content is not what was written: never used silently."""


class NoUsableCheckpoint(UserError):
    """Every checkpoint of a run is damaged."""

    exit_code = 4


class NonFinite(UserError):
    """A loss, gradient or input is NaN or infinite."""

    exit_code = 5


class Locked(UserError):
    """Another process writes this run or dataset."""

    exit_code = 6


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence on an unknown name: the nearest one that exists, then all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return f"{suggestion}known are: {', '.join(names)}"
