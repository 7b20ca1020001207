"""Files that are whole or not there: written beside their place, flushed to disk, read back, then renamed.

What is written goes nowhere else: a link in a file's or a folder's place is refused, not followed.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from slotnorm.errors import DamagedFile, UserError, way_out_of_writing

_BLOCK = 1 << 20

# how files are opened for writing; each is 0 where the system does not have it
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal, in bounded memory."""
    digest = hashlib.sha256()
    with open_to_read(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def open_to_read(path: Path) -> BinaryIO:
    """A file that is read; what is not a file (a pipe nobody writes to, a device without end, a folder) is an OSError.

    The one way to open what somebody may have put there: nothing waits, and a size that was looked at is the size.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | PLAIN & ~getattr(os, "O_NOFOLLOW", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    reason = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is not a file"
    raise OSError(errno.EISDIR, reason, str(path))


def unreadable(path: Path, error: OSError) -> UserError:
    """What is said of a file that the system does not give; what lies there decides the way out."""
    if error.errno in (errno.EACCES, errno.EPERM):
        way_out = "let this user read it"
    elif not os.path.lexists(path):
        way_out = "name a file that exists"
    elif path.is_symlink() or not stat.S_ISREG(os.lstat(path).st_mode):
        way_out = "move it away, or put a file in its place"
    else:
        way_out = "put a copy in its place"
    return UserError(f"cannot read {path}: {error.strerror or error}; {way_out}")


def sync_folder(folder: Path) -> None:
    """Make renames and removals in `folder` survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush a file's content to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(descriptor: int, content: bytes | memoryview, offset: int) -> int:
    """Write all of `content` at `offset`, in as many pieces as the system takes; returns the place behind it."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
    return offset


def open_in_place(path: Path, flags: int = os.O_RDWR) -> int:
    """A descriptor of a file that is written where it is, made if it is not there; the one way to open such a file.

    Refused is what would change another file, too: a symbolic link, a second name of a file (a hard link). What is
    no file at all (a pipe, a device, a folder) is refused as well; what is not refused may be emptied (`O_TRUNC`).
    """
    try:
        descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_CREAT | os.O_NONBLOCK | PLAIN, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP or path.is_symlink():
            raise refused_link(path) from None
        if error.errno in (errno.EISDIR, errno.ENXIO):  # a folder; a pipe that nobody reads, or a socket
            raise UserError(f"cannot write {path}: it is not a file; move it away") from None
        raise
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink <= 1:
        if flags & os.O_TRUNC:  # only now: opening with it would have emptied a file that is refused
            os.ftruncate(descriptor, 0)
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise UserError(f"cannot write {path}: it is not a file; move it away")
    raise UserError(
        f"cannot write {path}: the file has {facts.st_nlink} names (hard links), and all of them would change; "
        "put a copy in its place"
    )


def refused_link(path: Path) -> UserError:
    """What is said of a link where something is to be written."""
    return UserError(f"{path} is a link, and links are not written through; put what it leads to in its place")


def require_no_link(path: Path) -> None:
    """Refuse a link in the place of what is to be written."""
    if path.is_symlink():
        raise refused_link(path)


def make_subfolder(folder: Path) -> None:
    """Make a folder inside one that the user has named; a link in its place, which may lead elsewhere, is refused."""
    try:
        require_no_link(folder)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"cannot make the folder {folder}: there is something else of that name; move it away")
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {folder}: {error.strerror or error}; {way_out_of_writing(error)}, or choose "
            "another folder"
        ) from error


@contextlib.contextmanager
def replacing(path: Path, make_folder: bool = True) -> Iterator[Path]:
    """Give a temporary path in the same folder; on success it is flushed and renamed to `path`, otherwise removed.

    The folder is made where there is none, unless not to: what somebody removed while it was in use stays away.
    """
    try:
        require_replaceable(path)
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path}: its folder cannot be made or used ({reason}); choose another") from error
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # whatever it is: what is made now is a file of its own
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN, 0o644))
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; {way_out_of_writing(error)}, or choose another folder"
        ) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def require_replaceable(path: Path) -> None:
    """Refuse to put a file in the place of what is not one."""
    if not path.name or path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; name a file, or move it away")
    if _is_special(path):
        raise UserError(
            f"cannot write {path}: it is not a file, and would be replaced by one; name a file, or move it away"
        )


def _is_special(path: Path) -> bool:
    """Whether it is a device, a pipe or the like, or leads to one, as /dev/null and /dev/stdout."""
    try:
        by_kernel = path.is_symlink() and os.readlink(path).startswith("/proc/")
        return by_kernel or not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:  # there is nothing, or a link that leads to nothing
        return False


def write(path: Path, content: bytes, make_folder: bool = True) -> str:
    """Write `content` atomically, read it back, and return its SHA-256."""
    expected = hashlib.sha256(content).hexdigest()
    with replacing(path, make_folder) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | PLAIN)
        try:
            write_at(descriptor, content, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if (actual := sha256(temporary)) != expected:
            raise DamagedFile(
                f"{path} reads back as {actual[:12]}, not as written {expected[:12]}: the disk is failing"
            )
    return expected
