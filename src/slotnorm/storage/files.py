"""Files that are whole or not there: written beside their place, flushed to disk, read back, then renamed."""

import contextlib
import fcntl
import hashlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from slotnorm.errors import DamagedFile, Locked, UserError

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
    if not path.name or path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; name a file")
    try:
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


def write(path: Path, content: bytes) -> str:
    """Write `content` atomically, read it back, and return its SHA-256."""
    expected = hashlib.sha256(content).hexdigest()
    with replacing(path) as temporary:
        temporary.write_bytes(content)
        sync_file(temporary)
        if (actual := sha256(temporary)) != expected:
            raise DamagedFile(
                f"{path} reads back as {actual[:12]}, not as written {expected[:12]}: the disk is failing"
            )
    return expected


class Lock:
    """The right to write `folder`: held from construction until `release`, or until this process dies.

    The lock is the kernel's, on a file that says who holds it, so that a file left behind by a dead process locks
    nothing; `left_by` says who died, or is empty. `with Lock(folder) as lock:` releases it at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        while True:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                reason = error.strerror or error
                raise UserError(f"cannot write to {folder}: {reason}; choose another folder") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
                os.close(descriptor)
                sentence = f"{folder} is being written by {holder}; wait for it to end or choose another folder"
                raise Locked(sentence) from None
            try:
                current = self.path.stat().st_ino
            except FileNotFoundError:
                current = None
            if current == os.fstat(descriptor).st_ino:
                break
            os.close(descriptor)  # the last holder removed its file between our opening it and locking it
        self._descriptor: int | None = descriptor
        self.left_by = os.pread(descriptor, 200, 0).decode(errors="replace")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the right back and remove the file; a second call does nothing."""
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def lock_holder(folder: Path) -> str | None:
    """Who holds the lock of `folder`, as its file says; None when nobody does. The lock itself is not touched.

    Of a holder on this machine it is known whether it still lives; one on another machine is believed.
    """
    try:
        holder = (folder / ".lock").read_bytes()[:200].decode(errors="replace")
    except OSError:
        return None
    named = re.fullmatch(r"process (\d{1,10}) on (.+)", holder)
    if named is not None and named[2] == socket.gethostname() and not _lives(int(named[1])):
        return None
    return holder or "another process"


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's, so it is there
        return True
    return True
