"""From the words of a command to its verb: help, version, plugins, and how it ends when something is wrong."""

import errno
import gc
import io
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from slotnorm import __version__
from slotnorm.cli import launching
from slotnorm.cli.messages import shown
from slotnorm.cli.parsing import entry, parse
from slotnorm.cli.signatures import of_function, summary
from slotnorm.errors import FULL, LIMITS, UserError, closest, nearest
from slotnorm.studies.relays import SUBMITTED_BY

# what a disk or its owner refuses, as against an error of ours
_REFUSED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOTDIR, errno.EISDIR,
    errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
}  # fmt: skip

_NO_THREAD = "can't start new thread"  # what Python says of it

_LEFT = 17  # columns for the names of verbs

Verbs = Mapping[str, Any]
"""Names with functions, or with the verbs of a group."""


def reads_arguments(verb: Callable[[list[str], str], None]) -> Callable[[list[str], str], None]:
    """Mark a verb that parses its own arguments, given as a list, and its name."""
    verb.reads_arguments = True  # type: ignore[attr-defined]
    return verb


@contextmanager
def importing() -> Iterator[None]:
    """Around imports that a user waits for: nothing there is garbage, and looking for it is an eighth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def run(verbs: Verbs, arguments: list[str]) -> None:
    """Run a command and exit: 0, 2 for a user's error, or what `errors.py` and the signals say."""
    _open_closed_streams()
    _write_any_name()
    try:
        _require_same_version()
        load_plugins(arguments)
        _run_to_last_line(verbs, arguments)
    except UserError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `slotnorm norms | head`: the reader has seen enough
        _leave(sys.stdout)
        sys.exit(0)
    except OSError as error:
        if error.errno in FULL and error.filename is None:  # `slotnorm norms > FILE`
            _leave(sys.stdout)
            _fail(f"cannot write: {error.strerror}; free some space, or choose another place", UserError.exit_code)
        if error.errno in LIMITS:
            what = "go on" if error.filename is None else f"open {error.filename}"
            _fail(f"cannot {what}: {error.strerror}; {LIMITS[error.errno]}", UserError.exit_code)
        if error.errno == errno.ENOENT and "temporary directory" in str(error.strerror):  # tempfile's
            _fail(f"{error.strerror}; set TMPDIR to a folder that can be written", UserError.exit_code)
        if error.errno not in _REFUSED or error.filename is None:
            raise
        _fail(f"cannot use {error.filename}: {error.strerror}; choose another place", UserError.exit_code)
    except ImportError as error:
        if not str(error).startswith("slotnorm needs "):  # a torch that is too old: runtime/torch_internals.py
            raise
        _fail(str(error).removeprefix("slotnorm "), UserError.exit_code)
    except TypeError as error:
        from slotnorm.normalization import BrokenContract  # which imports torch

        if not isinstance(error, BrokenContract):
            raise
        _fail(str(error), UserError.exit_code)
    except (MemoryError, RuntimeError) as error:
        if _NO_THREAD in str(error):
            _fail(f"cannot go on: {error}; {LIMITS[errno.EAGAIN]}", UserError.exit_code)
        if not _is_of_memory(error):
            raise
        asked = re.split(r"(?<!\d)\. |\n", str(error))[0].rstrip(".")
        _fail(f"there is not enough memory ({asked}); ask for fewer slots, or a smaller batch", UserError.exit_code)


def _run_to_last_line(verbs: Verbs, arguments: list[str]) -> None:
    """The verb, until all that it printed has been taken; help exits, and its lines may wait to be taken, too."""
    with shown():
        try:
            _dispatch(verbs, arguments, ["slotnorm"])
        except SystemExit:
            sys.stdout.flush()
            raise
    sys.stdout.flush()


def _open_closed_streams() -> None:
    """A stream that the shell closed (`2>&-`) takes what is written, and nobody reads it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends


def _write_any_name() -> None:
    """What the terminal's encoding lacks, as a folder's name may have it, is shown as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _leave(stream: TextIO) -> None:
    """Nothing more is written to it, not even when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_of_memory(error: Exception) -> bool:
    """Whether NumPy, PyTorch's allocator or a GPU has not as much memory as it was asked for."""
    by_torch = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return isinstance(error, MemoryError) or by_torch


def _require_same_version() -> None:
    """Refuse to be the job of another version, which may mean other things by the same words."""
    submitted_by = os.environ.get(SUBMITTED_BY, __version__)
    if submitted_by != __version__:
        raise UserError(
            f"this job was submitted by slotnorm {submitted_by}, but {socket.gethostname()} has {__version__}; install "
            "the same version on both"
        )


def _fail(sentence: str, exit_code: int) -> None:
    try:
        print(f"slotnorm: {sentence}", file=sys.stderr, flush=True)
    except OSError:  # it goes to a file, too, and the disk is full: the code still tells
        _leave(sys.stderr)
    sys.exit(exit_code)


def _dispatch(verbs: Verbs, arguments: list[str], path: list[str]) -> None:
    prog = " ".join(path)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(verbs, prog))
        return
    if arguments[0] == "--version" and len(path) == 1:
        print(f"slotnorm {__version__}")
        return
    name, *rest = arguments
    if name not in verbs:
        known = [*verbs, "help", "--version"] if len(path) == 1 else [*verbs, "help"]
        if name.startswith("-") and closest(name, known) is None:
            raise UserError(f"{name} stands before the verb, but options come behind it: {prog} VERB {name} ...")
        raise UserError(f"there is no {prog} {name!r}; {nearest(name, known)}")
    verb, called = verbs[name], f"{prog} {name}"
    if isinstance(verb, Mapping):
        _dispatch(verb, rest, [*path, name])
    elif getattr(verb, "reads_arguments", False):
        verb(rest, called)
    elif hasattr(verb, "launched_by"):
        launching.call(verb, rest, called)
    else:
        verb(**parse(of_function(verb), rest, called, summary(verb.__doc__)))


def _overview(verbs: Verbs, prog: str) -> str:
    """The help of a group: a line per verb, from its docstring, and what works with every verb."""
    lines = [f"usage: {prog} VERB ...", ""]
    for name, verb in verbs.items():
        about = ", ".join(verb) if isinstance(verb, Mapping) else summary(verb.__doc__)
        lines += entry(name, about, _LEFT)
    lines += ["", *entry("help VERB", f"what a verb takes; the same as {prog} VERB --help", _LEFT)]
    if prog == "slotnorm":
        lines += entry("--version", "which slotnorm this is", _LEFT)
        lines += entry(
            "--plugin FILE", "with every verb: run Python files of yours first, for the classes they add", _LEFT
        )
    return "\n".join(lines)


def load_plugins(arguments: list[str]) -> None:
    """Take every `--plugin FILE` out of the arguments and run the file: the user's own code, only when asked for.

    Words after the first file that are Python files, too, are more of them: no verb takes such files.
    """
    while (at := next((i for i, word in enumerate(arguments) if re.match("--plugin(=|$)", word)), None)) is not None:
        _, given, path = arguments.pop(at).partition("=")
        if not given and at < len(arguments):
            path = arguments.pop(at)
        if not path:
            raise UserError("--plugin needs a Python file of yours, as in --plugin my_norm.py")
        paths = [path]
        while not given and at < len(arguments) and arguments[at].endswith(".py"):
            paths.append(arguments.pop(at))
        from slotnorm.runtime.plugins import load_plugin

        for path in paths:
            load_plugin(Path(path))
