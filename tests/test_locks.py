"""One writer per folder: on one machine, on several that share it, with the kernel's lock and without."""

import errno
import fcntl
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import processes
import tiny
from slotnorm.errors import Locked, LostFolder, UserError
from slotnorm.storage import locks
from slotnorm.storage.locks import Holder, Lock, lock_holder
from slotnorm.training import loop
from slotnorm.training.runs import Run


@pytest.fixture(params=["flock", "no flock"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernel's lock, and as on a file system that has none."""
    if request.param == "no flock":
        monkeypatch.setattr(locks, "try_flock", lambda descriptor: "not supported")
    return request.param


def write(folder: Path, holder: Holder, age: float = 0.0) -> Path:
    """The lock of another process, renewed so many seconds ago."""
    path = folder / ".lock"
    path.write_bytes(holder.to_bytes())
    os.utime(path, (time.time() - age,) * 2)
    return path


def elsewhere(**facts: object) -> Holder:
    """A process of another machine."""
    return Holder(**{"process": 7, "host": "node-12", "boot": "1" * 36, "started": "5", "token": "2" * 32, **facts})


def here(**facts: object) -> Holder:
    """A process of this machine, which would not hold the kernel's lock."""
    known = {"process": os.getpid(), "host": socket.gethostname(), "boot": locks._boot(), "token": "3" * 32}
    return Holder(**{**known, "started": locks._started(os.getpid()), "by_flock": False, **facts})


@pytest.mark.usefixtures("kernel")
def test_a_folder_is_written_by_one_and_afterwards_by_another(tmp_path: Path) -> None:
    with Lock(tmp_path / "new" / "folder") as lock:
        lock.check(thoroughly=True)
        assert lock.left_by == ""
        assert lock_holder(tmp_path / "new" / "folder") == f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(Locked, match=f"is being written by process {os.getpid()} on {socket.gethostname()}; wait"):
            Lock(tmp_path / "new" / "folder")
        lock.check(thoroughly=True)
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    assert lock_holder(tmp_path / "new" / "folder") is None
    lock.release()
    Lock(tmp_path / "new" / "folder").release()


def test_a_lock_says_process_host_and_boot(tmp_path: Path) -> None:
    with Lock(tmp_path):
        content = (tmp_path / ".lock").read_bytes()
        holder = Holder.from_bytes(content)
        assert holder is not None
        assert content.startswith(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        assert (holder.boot, holder.started) == (locks._boot(), locks._started(os.getpid()))
        assert holder.to_bytes() == content


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("holder", "age", "lives"),
    [
        (elsewhere(), 0, True),
        (elsewhere(), 50, True),
        (elsewhere(), 70, False),
        (elsewhere(host=socket.gethostname()), 0, True),  # before a restart, or another machine of that name
        (elsewhere(host=socket.gethostname()), 70, False),
        (here(), 9999, True),
        (here(started="1"), 0, False),  # its number was given to another process since
        (here(process=4194305), 0, False),  # above the most that Linux has
        (here(host="a-container"), 0, True),
        (here(host="a-container"), 70, False),
    ],
)
def test_whether_a_holder_lives_is_told_by_its_process_or_its_lease(
    tmp_path: Path, holder: Holder, age: float, lives: bool
) -> None:
    path = write(tmp_path, holder, age)
    assert lock_holder(tmp_path) == (str(holder) if lives else None)
    if lives:
        with pytest.raises(Locked, match=f"is being written by {holder}"):
            Lock(tmp_path)
        assert path.read_bytes() == holder.to_bytes()
        return
    with Lock(tmp_path) as lock:
        assert lock.left_by == str(holder)
        lock.check(thoroughly=True)
        assert [entry.name for entry in tmp_path.iterdir()] == [".lock"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("age", [0.0, 70.0])
def test_a_lock_of_the_first_format_is_understood(tmp_path: Path, age: float) -> None:
    path = tmp_path / ".lock"
    path.write_text(f"process 4194305 on {socket.gethostname()}")
    os.utime(path, (time.time() - age,) * 2)
    with Lock(tmp_path) as lock:
        assert lock.left_by == f"process 4194305 on {socket.gethostname()}"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"process 7 on x\n[]", b"process 7 on x\n{", b"[" * 4000])
def test_a_lock_without_a_name_is_waited_for_and_then_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (tmp_path / ".lock").write_bytes(content)
    with Lock(tmp_path) as lock:  # the kernel says that nobody holds it
        assert lock.left_by == "a process that did not say its name"
    (tmp_path / ".lock").write_bytes(content)
    monkeypatch.setattr(locks, "try_flock", lambda descriptor: "not supported")
    with pytest.raises(Locked, match="is being written by another process"):
        Lock(tmp_path)
    os.utime(tmp_path / ".lock", (time.time() - 70,) * 2)
    Lock(tmp_path).release()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("left", ["nothing", "a dead one's lock", "an unfinished takeover"])
def test_of_many_that_come_at_once_one_gets_in(tmp_path: Path, left: str) -> None:
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if left != "nothing":
            write(folder, elsewhere(), age=70)
        if left == "an unfinished takeover":
            guard = folder / f".lock.after-{elsewhere().token}-1.tmp"
            guard.touch()
            os.utime(guard, (time.time() - 70,) * 2)
        barrier, outcomes = threading.Barrier(8), []

        def enter(folder: Path = folder, barrier: threading.Barrier = barrier, outcomes: list = outcomes) -> None:
            barrier.wait()
            try:
                outcomes.append(Lock(folder))
            except Locked as refused:
                outcomes.append(refused)

        threads = [threading.Thread(target=enter) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        holders = [outcome for outcome in outcomes if isinstance(outcome, Lock)]
        assert len(outcomes) == 8
        assert len(holders) == 1
        holders[0].check(thoroughly=True)
        holders[0].release()


@pytest.mark.parametrize(
    "token", ["x/../../../../keep", "a\0", "a\ud800", "2" * 33, "2" * 31, "2" * 32 + "\n", "unnamed"]
)
def test_a_lock_with_a_token_that_we_never_write_is_damaged_and_names_no_file(tmp_path: Path, token: str) -> None:
    folder = tmp_path / "a" / "b" / "run"
    (folder / ".lock.after-x").mkdir(parents=True)
    keep = tmp_path / "keep-1.tmp"
    keep.write_text("mine")
    write(folder, elsewhere(token=token), age=2 * locks.LEASE)
    before = sorted(path for path in tmp_path.rglob("*") if path.name != ".lock")
    assert Holder.from_bytes((folder / ".lock").read_bytes()) is None
    assert lock_holder(folder) is None
    with Lock(folder) as lock:
        assert lock.left_by == "a process that did not say its name"
    assert sorted(tmp_path.rglob("*")) == before
    assert keep.read_text() == "mine"


def die_taking_over(call: str, folder: Path) -> None:
    """Take over the lock in `folder`, and be killed after this call for the file that says who does so."""
    original = getattr(os, call)

    def deadly(*arguments: Any) -> Any:
        made = original(*arguments)
        named = arguments[0] if call == "open" else os.readlink(f"/proc/self/fd/{arguments[0]}")
        if ".after-" in str(named):
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    setattr(os, call, deadly)
    Lock(folder)


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_a_process_killed_while_it_takes_over_is_not_waited_for(tmp_path: Path, call: str) -> None:
    """Whether it had said its name yet or not: by the kernel's lock, which ends with it, or by its number."""
    write(tmp_path, here(process=4194305))
    killed = processes.call(die_taking_over, call, tmp_path, environment={})
    assert killed.wait() == -signal.SIGKILL, killed.said
    with Lock(tmp_path) as lock:
        lock.check(thoroughly=True)
    assert not list(tmp_path.glob(".lock*"))


def test_who_is_taking_over_is_not_disturbed(tmp_path: Path) -> None:
    """A named process that lives, and one on another machine, which may."""
    for taker, age in ((here(), 0), (elsewhere(), 50)):
        write(tmp_path, here(process=4194305))
        guard = tmp_path / f".lock.after-{'3' * 32}-1.tmp"
        guard.write_bytes(taker.to_bytes())
        os.utime(guard, (time.time() - age,) * 2)
        with pytest.raises(Locked, match="is just being taken over by another process"):
            Lock(tmp_path)
        assert guard.read_bytes() == taker.to_bytes()
        guard.unlink()


def test_a_lock_is_read_where_the_kernels_lock_needs_a_file_open_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, whose flock is made of record locks."""
    flock = fcntl.flock

    def on_nfs(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", on_nfs)
    with Lock(tmp_path):
        assert lock_holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
    write(tmp_path, here(process=4194305))
    assert lock_holder(tmp_path) is None


def test_the_lease_is_renewed_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEWAL", 0.02)
    lock = Lock(tmp_path)
    os.utime(lock.path, (0, 0))
    deadline = time.monotonic() + 10
    while lock.path.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.time() - lock.path.stat().st_mtime < 10
    lock.release()
    assert not lock.path.exists()


@pytest.mark.usefixtures("kernel")
def test_a_lock_or_folder_that_is_gone_is_noticed(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "run")
    lock.path.unlink()
    with pytest.raises(LostFolder, match=r"was removed, moved or taken over .*\.lock is gone.*nothing more is written"):
        lock.check()
    with Lock(tmp_path / "run") as second:  # somebody else came in: they are not disturbed
        with pytest.raises(LostFolder):
            lock.check()
        lock.release()
        second.check(thoroughly=True)
    moved = Lock(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(LostFolder, match="is gone"):
        moved.check()
    moved.release()
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("kernel")
def test_a_lock_that_another_process_has_now_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that slept beyond its lease, and a second one on another machine that took it for dead."""
    asleep = Lock(tmp_path)
    write(tmp_path, elsewhere())
    asleep.check()  # the same file: its content is looked at before a save
    with pytest.raises(LostFolder, match="is another process's"):
        asleep.check(thoroughly=True)
    with pytest.raises(LostFolder, match="is another process's"):
        asleep.check()
    asleep.release()
    assert (tmp_path / ".lock").read_bytes() == elsewhere().to_bytes(), "what is not ours is not removed"


def test_the_renewal_notices_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEWAL", 0.02)
    lock = Lock(tmp_path)
    write(tmp_path, elsewhere())
    deadline = time.monotonic() + 10
    while not lock._reason and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(LostFolder, match="is another process's"):
        lock.check()
    lock.release()


def refusing(number: int) -> Callable[..., None]:
    """A call of the system that fails."""

    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fsync"])
def test_what_the_disk_refuses_is_one_sentence_with_a_way_out_that_fits_and_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    for number, sentence in (
        (errno.ENOSPC, "No space left on device; free some space, or choose"),
        (errno.EACCES, "Permission denied; let this user write there, or choose another folder"),
        (errno.EROFS, "Read-only file system; mount its disk for writing, or choose another folder"),
        (errno.EIO, "Input/output error; check its disk, or choose another folder"),
        (errno.EMFILE, "Too many open files; raise the limit on open files "),
    ):
        with monkeypatch.context() as broken:
            broken.setattr(os, call, refusing(number))
            with pytest.raises(UserError, match=rf"cannot write to .*: {sentence}"):
                Lock(tmp_path)
    assert list(tmp_path.iterdir()) == []
    Lock(tmp_path).release()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, place: original(descriptor, content[:9], place))
    with Lock(tmp_path) as lock:
        lock.check(thoroughly=True)


def test_a_folder_that_is_moved_while_scenes_are_made_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.build_scenes(tmp_path / "data").directory
    made, runs, elsewhere = loop.training_scenes, tmp_path / "runs", tmp_path / "elsewhere"

    def move(*given: Any) -> Any:
        runs.rename(elsewhere)
        return made(*given)

    monkeypatch.setattr(loop, "training_scenes", move)
    with pytest.raises(LostFolder, match="was removed, moved or taken over"):
        loop.train(tiny.experiment(), runs, data=data)
    assert not runs.exists()


@pytest.mark.parametrize("kind", ["link to a file", "link to nothing", "folder", "pipe"])
def test_what_is_no_file_under_the_locks_name_is_refused(tmp_path: Path, kind: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run"
    folder.mkdir()
    if kind == "folder":
        (folder / ".lock").mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / ".lock")
    else:
        if kind == "link to a file":
            victim.write_text("precious")
        (folder / ".lock").symlink_to(victim)
    sentence = "not a file; move it away" if kind in ("folder", "pipe") else "a link, and links are not written through"
    with pytest.raises(UserError, match=rf"\.lock is {sentence}"):
        Lock(folder)
    assert not victim.exists() or victim.read_text() == "precious"
    assert (kind == "link to a file") == victim.exists()


def no_flock() -> None:
    """As on a file system without the kernel's lock."""
    locks.try_flock = lambda descriptor: "not supported"


def no_flock_and_another_host() -> None:
    """The same, on another machine."""
    no_flock()
    locks._boot = lambda: "9" * 36
    socket.gethostname = lambda: "node-99"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


def test_without_flock_a_second_training_is_refused_here_and_on_another_machine(tmp_path: Path, data: Path) -> None:
    endless = tiny.experiment(steps=100_000)
    first = processes.train(endless, tmp_path / "runs", data, fault=(no_flock,))
    path = tmp_path / "runs" / endless.run_name
    first.until_saved(path)
    for fault in (no_flock, no_flock_and_another_host):
        second = processes.train(endless, tmp_path / "runs", data, fault=(fault,))
        assert second.wait() == 6, second.said
        assert f"{path} is being written by process {first.pid} on" in second.said
    first.process.kill()
    assert first.wait() == -signal.SIGKILL
    other = processes.train(endless, tmp_path / "runs", data, fault=(no_flock_and_another_host,))
    assert other.wait() == 6, "there the process cannot be seen to be dead, and its lease runs still"
    os.utime(path / ".lock", (time.time() - 70,) * 2)
    other = processes.train(endless, tmp_path / "runs", data, fault=(no_flock_and_another_host,))
    other.until(lambda: "resuming" in other.said)
    assert f"{path} was left by process {first.pid} on" in other.said
    other.send(signal.SIGTERM)
    assert other.wait() == 143
    assert not (path / ".lock").exists()


@pytest.mark.parametrize("what", ["folder", ".lock", "experiment.json"])
def test_a_training_whose_folder_or_lock_is_removed_says_so_and_ends(tmp_path: Path, data: Path, what: str) -> None:
    endless = tiny.experiment(steps=100_000)
    command = processes.train(endless, tmp_path / "runs", data)
    path = tmp_path / "runs" / endless.run_name
    command.until_saved(path)
    if what == "folder":
        path.rename(tmp_path / "trash")
        shutil.rmtree(tmp_path / "trash")
    else:
        (path / what).unlink()
    assert command.wait(60) == 8, command.said
    assert "while" in command.said
    assert "Traceback" not in command.said
    if what == "folder":
        assert not path.exists()
    if what == ".lock":
        assert Run.open(path).standing().step >= 4
