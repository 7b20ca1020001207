"""Files that are whole or not there: written beside their place, flushed to disk, read back, then renamed."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from slotnorm.errors import DamagedFile, UserError

_BLOCK = 1 << 20


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal, in bounded memory."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


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


@contextlib.contextmanager
def replacing(path: Path, make_folder: bool = True) -> Iterator[Path]:
    """Give a temporary path in the same folder; on success it is flushed and renamed to `path`, otherwise removed.

    The folder is made where there is none, unless not to: what somebody removed while it was in use stays away.
    """
    if not path.name or path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; name a file")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path}: no folder can be made for it ({reason}); choose another") from error
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another folder"
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(path: Path, content: bytes, make_folder: bool = True) -> str:
    """Write `content` atomically, read it back, and return its SHA-256."""
    expected = hashlib.sha256(content).hexdigest()
    with replacing(path, make_folder) as temporary:
        temporary.write_bytes(content)
        sync_file(temporary)
        if (actual := sha256(temporary)) != expected:
            raise DamagedFile(
                f"{path} reads back as {actual[:12]}, not as written {expected[:12]}: the disk is failing"
            )
    return expected
