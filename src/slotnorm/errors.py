"""What a user can do wrong or meet: one sentence with the value, the rule and the way out, and an exit code."""

import contextlib
import difflib
import errno
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path


class UserError(ValueError):
    """Something the user can put right; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 2

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


class DamagedFile(UserError):
    """A file's content is not what was written: never used silently."""


class NewerFile(DamagedFile):
    """A file has what this version does not know: a newer one may have written it, and nothing is wrong with it."""


class NoUsableCheckpoint(UserError):
    """Every checkpoint of a run is damaged."""

    exit_code = 4


class NonFinite(UserError):
    """A loss, gradient or input is NaN or infinite."""

    exit_code = 5


class Locked(UserError):
    """Another process writes this run or dataset."""

    exit_code = 6


class LostFolder(UserError):
    """The folder that is written was removed, moved or taken over by another process."""

    exit_code = 8


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, or that it abbreviates (wsum: weighted_sum), if there is one."""
    names = list(known)
    alike = difflib.get_close_matches(name, names, n=1)
    abbreviated = re.compile(".*".join(map(re.escape, name))) if len(name) > 1 else re.compile("$^")
    return next(iter([*alike, *filter(abbreviated.match, names)]), None)


def printable(text: str) -> str:
    """The text on one line and without control characters: a file's name or a server's words may hold any."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def refused(error: OSError) -> str:
    """What the system refused, for people: "cannot use runs/x: Permission denied"."""
    what = f"use {error.filename}" if error.filename is not None else "go on"
    return f"cannot {what}: {error.strerror or error}"


FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# limits of the process or the system, and what raises them
LIMITS = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close what other programs have open",
    errno.EAGAIN: "raise the limit on processes and threads (ulimit -u)",
}

_WAYS_OUT = {
    **LIMITS,
    **dict.fromkeys(FULL, "free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let this user write there"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "move away what is there"),
    errno.EROFS: "mount its disk for writing",
    errno.ENAMETOOLONG: "shorten its name",
}


def way_out_of_writing(error: OSError) -> str:
    """What to do where the system refused to write something: "free some space" on a full disk alone."""
    return _WAYS_OUT.get(error.errno or 0, "check its disk")


def describe(error: BaseException) -> str:
    """What code that is not ours raised: "KeyError: 'loss'"."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def place_of(error: BaseException) -> str:
    """Where in a user's own code it was raised: " (my_observer.py, line 9)"; empty where only libraries are."""
    libraries = (str(Path(__file__).parent), str(Path(os.__file__).parent), "<")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries) and "site-packages" not in frame.filename
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


@contextlib.contextmanager
def blaming(what: str, way_out: str = "mend it, or leave it out") -> Iterator[None]:
    """Around code that is not ours: an error becomes one sentence that says what failed, how and where."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} {describe(error)}{place_of(error)}; {way_out}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence on an unknown name: the nearest one that exists, then all of them."""
    names = list(known)
    close = closest(name, names)
    suggestion = f"did you mean {close!r}? " if close else ""
    return f"{suggestion}known are: {', '.join(names)}"
