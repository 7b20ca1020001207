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


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path in the same folder; on success it is flushed and renamed to `path`, otherwise removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}; free some space or choose another folder") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(path: Path, content: bytes) -> str:
    """Write `content` atomically, read it back, and return its SHA-256."""
    expected = hashlib.sha256(content).hexdigest()
    with replacing(path) as temporary:
        temporary.write_bytes(content)
        if (actual := sha256(temporary)) != expected:
            raise DamagedFile(f"{path} reads back as {actual[:12]}, not as written {expected[:12]}: the disk is failing")
    return expected
