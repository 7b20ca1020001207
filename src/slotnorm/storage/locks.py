"""The right to write a folder: one process at a time, on one machine or on many that share the folder.

`.lock` says who holds it: process, host, boot and a token. It is made in one step that no two processes can both do.
The kernel's lock on it (flock) ends with its holder; where that does not work or does not reach other machines, the
lease decides: the holder renews the file's time, and a file that was not renewed for `LEASE` seconds, by the file
system's own clock, is a dead holder's. `docs/reliability.md` says what is promised where.
"""

import contextlib
import dataclasses
import errno
import json
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

from slotnorm.errors import Locked, LostFolder, UserError, way_out_of_writing
from slotnorm.runtime.unix import Flock, try_flock
from slotnorm.storage.files import PLAIN, refused_link, write_at

NAME = ".lock"
RENEWAL = 10.0  # seconds between two renewals of the lease
LEASE = 60.0  # seconds without one after which a holder on another machine counts as dead
_MOST_BYTES = 4096
_PATIENCE = 0.5  # seconds in which a lock that was just made gets its content
_TOKEN_BYTES = 16
_TOKEN = re.compile(f"([0-9a-f]{{{2 * _TOKEN_BYTES}}})?")  # none in a lock of slotnorm 0.1; it becomes a file's name
_ATTEMPTS = 100  # a lock that is made and removed more often than that while it is looked at is in use


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock; a lock of slotnorm 0.1 says process and host alone."""

    process: int
    host: str
    boot: str = ""
    """Which start of the machine's kernel."""
    started: str = ""
    """When the process started, in the kernel's ticks: a number that was used again is told from it."""
    token: str = ""
    by_flock: bool = True
    """Whether it holds the kernel's lock, too."""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"

    @classmethod
    def current(cls, by_flock: bool) -> "Holder":
        """This process."""
        process = os.getpid()
        return cls(process, socket.gethostname(), _boot(), _started(process), secrets.token_hex(_TOKEN_BYTES), by_flock)

    def to_bytes(self) -> bytes:
        facts = {"boot": self.boot, "started": self.started, "token": self.token, "by_flock": self.by_flock}
        return f"{self}\n{json.dumps(facts)}\n".encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Holder | None":
        """Who this content names; None when it is not, or not yet, a lock's."""
        words, _, facts = content.decode(errors="replace").partition("\n")
        named = re.fullmatch(r"process ([0-9]{1,10}) on (\S{1,255})", words)
        if named is None:
            return None
        try:
            known = json.loads(facts) if facts else {}
            texts = {name: str(known[name])[:80] for name in ("boot", "started", "token") if name in known}
            if not _TOKEN.fullmatch(texts.get("token", "")):
                return None
            return cls(int(named[1]), named[2], **texts, by_flock=known.get("by_flock") is not False)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None


class Lock:
    """The right to write `folder`: held from construction until `release`, or until this process dies.

    `left_by` names the dead process it was taken over from, or is empty. `check` is called before anything is written:
    a folder that was removed, or a lock that another process has, ends the writing. `with Lock(folder) as lock:`
    releases it at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self.left_by = ""
        self._reason = ""  # why it was lost
        self._ended = threading.Event()
        try:
            self._descriptor, self._holder = self._take()
        except OSError as error:
            raise UserError(
                f"cannot write to {folder}: {error.strerror or error}; {way_out_of_writing(error)}, or choose "
                "another folder"
            ) from error
        self._identity = _identity(os.fstat(self._descriptor))
        self._released = False
        self._renewal = threading.Thread(target=self._renew, name="slotnorm-lock", daemon=True)
        self._renewal.start()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def check(self, thoroughly: bool = False) -> None:
        """Raise `LostFolder` when the folder or the lock is not there any more, or is another process's.

        Quick enough for every step. `thoroughly` reads the lock again, which also reaches through the caches of a
        shared file system: before every save.
        """
        if not self._reason:
            try:
                same = _identity(os.stat(self.path, follow_symlinks=False)) == self._identity
                if (thoroughly or not same) and not self._is_ours():
                    self._reason = f"{self.path} is another process's"
            except FileNotFoundError:
                self._reason = f"{self.path} is gone"
            except OSError as error:
                self._reason = f"{self.path} cannot be read: {error.strerror or error}"
        if self._reason:
            raise LostFolder(
                f"{self.folder} was removed, moved or taken over while this process wrote it ({self._reason}); nothing "
                "more is written: what was saved stands where it was moved to, and the same command continues from it"
            )

    def release(self) -> None:
        """Give the right back and remove the file; a second call does nothing."""
        if self._released:
            return
        self._released = True
        self._ended.set()
        self._renewal.join()  # it uses the descriptor, whose number another file may have once it is closed
        with contextlib.suppress(OSError):
            if self._is_ours():
                self.path.unlink()
        os.close(self._descriptor)

    def _take(self) -> tuple[int, Holder]:
        began = time.monotonic()
        for _ in range(_ATTEMPTS):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | PLAIN, 0o644)
            except FileExistsError:
                if (taken := self._take_over(is_patient=time.monotonic() - began < _PATIENCE)) is not None:
                    return taken
                time.sleep(_PATIENCE / _ATTEMPTS)
                continue
            return self._write(descriptor)
        raise Locked(f"{self.folder} is being written by several processes; wait for them to end")

    def _take_over(self, is_patient: bool) -> tuple[int, Holder] | None:
        """The lock that is there, if its holder is dead; None to look again, and `Locked` if it lives."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | PLAIN)
        except FileNotFoundError:  # released this moment
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise refused_link(self.path) from None
            if error.errno == errno.EISDIR:
                raise self._not_a_file() from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self._not_a_file()
            flock = try_flock(descriptor)
            holder = Holder.from_bytes(os.pread(descriptor, _MOST_BYTES, 0))
            verdict = _judge(holder, flock, descriptor, self.folder)
            if verdict == "unclear" and is_patient:
                return None
            if verdict == "alive" or (verdict == "unclear" and flock != "taken"):
                raise self._locked(holder)
            if self._is_still(descriptor) and (taken := self._replace(descriptor, holder)) is not None:
                descriptor = -1
                return taken
            return None
        finally:
            if descriptor != -1:
                os.close(descriptor)

    def _replace(self, descriptor: int, dead: Holder | None) -> tuple[int, Holder] | None:
        """Put this process in a dead one's place; of several that try, on whatever machines, one does."""
        token = dead.token if dead is not None and dead.token else "unnamed"
        with self._guarded(token):
            reopened = os.open(self.path, os.O_RDONLY | PLAIN)  # as others may have left it since it was looked at
            try:
                same = Holder.from_bytes(os.pread(reopened, _MOST_BYTES, 0)) == dead and self._is_still(descriptor)
            finally:
                os.close(reopened)
            if not same:
                return None
            self.left_by = str(dead) if dead is not None else "a process that did not say its name"
            return self._write(descriptor)

    @contextlib.contextmanager
    def _guarded(self, token: str) -> Iterator[None]:
        """Be the one that takes over from this dead holder, by a file that one process alone can make.

        It names its maker as a lock does: one that a dead process left is passed by, and removed in the end.
        """
        passed: list[Path] = []
        for number in range(1, _ATTEMPTS):
            guard = self.folder / f"{NAME}.after-{token}-{number}.tmp"
            try:
                descriptor = os.open(guard, os.O_RDWR | os.O_CREAT | os.O_EXCL | PLAIN, 0o644)
                break
            except FileExistsError:
                self._require_dead(guard)
                passed.append(guard)
        else:
            raise Locked(f"{self.folder} is being taken over by several processes")
        try:
            maker = Holder.current(by_flock=try_flock(descriptor) == "taken")
            write_at(descriptor, maker.to_bytes(), 0)
            yield
        finally:
            for path in (*passed, guard):
                path.unlink(missing_ok=True)
            os.close(descriptor)

    def _require_dead(self, guard: Path) -> None:
        """Refuse to take over where another process is about to."""
        began = time.monotonic()
        while True:
            try:
                descriptor = os.open(guard, os.O_RDWR | PLAIN)
            except FileNotFoundError:  # it is done; what it did is looked at next
                return
            try:
                flock = try_flock(descriptor)
                maker = Holder.from_bytes(os.pread(descriptor, _MOST_BYTES, 0))
                verdict = _judge(maker, flock, descriptor, self.folder)
            finally:
                os.close(descriptor)
            is_late = time.monotonic() - began > _PATIENCE
            if verdict == "dead" or (verdict == "unclear" and is_late and flock == "taken"):
                return
            if verdict == "alive" or is_late:
                raise Locked(f"{self.folder} is just being taken over by another process")
            time.sleep(_PATIENCE / _ATTEMPTS)

    def _write(self, descriptor: int) -> tuple[int, Holder]:
        """Hold the lock by its content, and by the kernel where it can; what cannot be written leaves no file."""
        try:
            deadline = time.monotonic() + 4 * _PATIENCE  # longer than those wait who see a lock without a name
            while (flock := try_flock(descriptor)) == "held elsewhere":  # by one that looks whether it is held
                if time.monotonic() > deadline:
                    raise self._locked(None)
                time.sleep(_PATIENCE / _ATTEMPTS)
            holder = Holder.current(by_flock=flock == "taken")
            os.ftruncate(descriptor, write_at(descriptor, holder.to_bytes(), 0))
            os.fsync(descriptor)
        except BaseException as error:
            if not isinstance(error, Locked):  # then it is another one's by now
                self.path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        return descriptor, holder

    def _renew(self) -> None:
        while not self._ended.wait(RENEWAL):
            with contextlib.suppress(OSError):  # a network's hiccup; the lease has time for several more
                os.utime(self._descriptor)
            try:
                self.check(thoroughly=True)
            except LostFolder:  # the writer hears it from its own next check
                return

    def _is_ours(self) -> bool:
        descriptor = os.open(self.path, os.O_RDONLY | PLAIN)
        try:
            holder = Holder.from_bytes(os.pread(descriptor, _MOST_BYTES, 0))
            return holder is not None and holder.token == self._holder.token
        finally:
            os.close(descriptor)

    def _is_still(self, descriptor: int) -> bool:
        """Whether an open file is the one at the path."""
        try:
            return _identity(os.stat(self.path, follow_symlinks=False)) == _identity(os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _not_a_file(self) -> UserError:
        return UserError(f"cannot write to {self.folder}: {self.path} is not a file; move it away")

    def _locked(self, holder: Holder | None) -> Locked:
        who = holder or "another process"
        return Locked(f"{self.folder} is being written by {who}; wait for it to end or choose another folder")


def lock_holder(folder: Path) -> str | None:
    """Who holds the lock of `folder`; None when nobody does, or a process that is dead. The lock is not touched."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY | PLAIN)
    except OSError:
        return None
    try:
        holder = Holder.from_bytes(os.pread(descriptor, _MOST_BYTES, 0))
        verdict = _judge(holder, try_flock(descriptor), descriptor, folder)
        return None if verdict == "dead" else str(holder or "another process")
    finally:
        os.close(descriptor)


def _judge(holder: Holder | None, flock: Flock, descriptor: int, folder: Path) -> Literal["alive", "dead", "unclear"]:
    """Whether the holder of a lock lives; unclear where it was made this moment, or another process looks, too."""
    if holder is None:
        return "alive" if flock == "held elsewhere" else "unclear" if _age(descriptor, folder) < LEASE else "dead"
    lives = _lives(holder, flock, descriptor, folder)
    if flock == "held elsewhere" and not lives:
        return "unclear"
    return "alive" if lives else "dead"


def _lives(holder: Holder, flock: Flock, descriptor: int, folder: Path) -> bool:
    """One of this kernel's would hold its lock, if it could; else its number tells. Of one elsewhere the lease does."""
    is_here = holder.boot == _boot() if holder.boot else holder.host == socket.gethostname()
    if is_here and flock == "taken" and holder.by_flock:
        return False
    if is_here and holder.host == socket.gethostname():
        return _started(holder.process) == holder.started if holder.started else _exists(holder.process)
    return flock == "held elsewhere" or _age(descriptor, folder) < LEASE


def _age(descriptor: int, folder: Path) -> float:
    """Seconds since a lease was renewed, by the file system's clock: machines need not agree on the time."""
    return _now(folder) - os.fstat(descriptor).st_mtime


def _now(folder: Path) -> float:
    """The time that the file system of `folder` gives a file that is made now."""
    path = folder / f"{NAME}.clock-{secrets.token_hex(8)}.tmp"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN, 0o600)
    except OSError:  # a folder that can only be read: this machine's clock must do
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _boot() -> str:
    """Which start of this machine's kernel this is; empty where that is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(process: int) -> str:
    """When a process of this machine started; empty when there is none, or that is not told."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's, so it is there
        return True
    return True
