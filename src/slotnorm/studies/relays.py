"""Inside an engine's job: start the command, pass signals on to it, and keep what became of it in a receipt.

A receipt is a sealed document in the jobs' folder, so that whoever sees the folder knows how a job ended, whether or
not the engine remembers it. Engines carry a `Relay`, which is made of words and numbers alone.
"""

import contextlib
import ctypes
import dataclasses
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slotnorm import __version__
from slotnorm.errors import UserError
from slotnorm.runtime import unix
from slotnorm.storage import files
from slotnorm.storage.schemas import read_document
from slotnorm.storage.seals import write_sealed
from slotnorm.storage.serialization import to_document
from slotnorm.studies.launchers import Job, State

SUBMITTED_BY = "SLOTNORM_SUBMITTED_BY"  # the version of slotnorm that submitted the job, told to its command

FOLDER = ".jobs"  # beside the folders that the jobs write
_RECEIPT_BYTES = 16
_RECEIPT = re.compile(f"[0-9a-f]{{{2 * _RECEIPT_BYTES}}}\\.json")  # in FOLDER
_LONGEST_LINE = 1 << 16  # bytes at the end of a log in which its last line is looked for
_PORTS = range(20000, 30000)  # where the processes of one training meet; below those that systems give away
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_OF_ONE_MACHINE = ("tmpfs", "ramfs", "devtmpfs")  # file systems that no other machine can see

# a command that a signal stopped has saved and goes on when it is started again: for its launcher it is lost
_STOPPED = {128 + number for number in unix.ENDING if number != signal.SIGINT}


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What a job says of itself."""

    host: str
    """Where it was started."""
    code: int | None = None
    """The command's exit code, negative for the signal that killed it; None while it runs."""

    @property
    def state(self) -> State:
        """How the job stands, as far as it could still say so."""
        if self.code is None:
            return "running"
        return "lost" if self.code < 0 or self.code in _STOPPED else self.code


def read_receipt(path: Path) -> Receipt | None:
    """What a job has said of itself; None when it has not begun, or its receipt is damaged."""
    try:
        return read_document(Receipt, path, "the receipt of a job")
    except UserError:
        return None


def receipt_path(text: object) -> Path:
    """The receipt that a ticket names; one that `make_relays` never gave is a ValueError: anyone can make a ticket."""
    path = Path(str(text))
    if not path.is_absolute() or "\0" in str(path) or path.parent.name != FOLDER or not _RECEIPT.fullmatch(path.name):
        raise ValueError(f"{path} is not a receipt of a job")
    return path


@dataclasses.dataclass
class Relay:
    """A command to be run inside a job."""

    command: tuple[str, ...]
    log: str
    """Where what it says is appended."""
    receipt: str
    processes: int = 1
    """On each node: more than one, or more than one node, and torchrun starts them."""
    nodes: int = 1
    environment: tuple[tuple[str, str], ...] = ((SUBMITTED_BY, __version__),)
    """What its submitter tells it there: not every engine passes the submitter's own environment on."""

    def __post_init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_distributed(self) -> bool:
        """Whether torchrun starts several processes of the command."""
        return self.processes * self.nodes > 1

    def start(self, node: int = 0, first_host: str = "127.0.0.1", identity: str = "") -> None:
        """Start the command on this node, which is one of those that meet at `first_host` under `identity`."""
        if node == 0:
            self._note(None)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **dict(self.environment)}
        with open(files.open_in_place(Path(self.log), os.O_WRONLY | os.O_APPEND), "ab") as log:
            self._process = subprocess.Popen(
                self._words(node, first_host, identity), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=environment, preexec_fn=_follow_parent(self.is_distributed),
            )  # fmt: skip

    def wait(self, node: int = 0) -> int:
        """Wait for the command's end and keep its exit code, which is returned."""
        self._wait()
        assert self._process is not None
        code = self._process.wait()
        if node == 0:
            self._note(code)
        return code

    def stop(self, number: signal.Signals) -> None:
        """Pass a signal on, and wait until the command has saved and ended; may interrupt `wait`."""
        if self._process is not None:
            # torchrun knows SIGTERM alone, and passes it on; a worker of Ray ignores Ctrl-C, and so do its children
            plain = self.is_distributed or number == signal.SIGINT
            self._process.send_signal(signal.SIGTERM if plain else number)
            self._wait()

    def _wait(self) -> None:
        """Without Popen's own lock, which `stop`, called by a signal inside of `wait`, would wait for in vain."""
        assert self._process is not None
        with contextlib.suppress(ChildProcessError):  # another thread's `wait` has seen its end
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def _note(self, code: int | None) -> None:
        write_sealed(Path(self.receipt), to_document(Receipt(socket.gethostname(), code)))

    def _words(self, node: int, first_host: str, identity: str) -> list[str]:
        if not self.is_distributed:
            return list(self.command)
        python, module, *command = self.command  # python -m slotnorm ...
        torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(self.processes)]
        words = [module, "--", *command]  # else torchrun takes --log for an option of its own, cut short
        if self.nodes == 1:  # meet at a port that is free
            return [*torchrun, "--standalone", *words]
        port = _PORTS[zlib.crc32(identity.encode()) % len(_PORTS)]  # the same on every node, and another one's another
        place = ["--nnodes", self.nodes, "--node-rank", node, "--master-addr", first_host, "--master-port", port]
        return [*torchrun, *map(str, place), *words]


def _follow_parent(is_distributed: bool) -> Callable[[], None] | None:
    """What a child does before its command: be told to save when its parent dies, and leave SLURM's to its parent."""
    if not sys.platform.startswith("linux"):
        return None
    system = ctypes.CDLL(None)

    def prepare() -> None:
        system.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if is_distributed:  # torchrun itself would die of it, without a word to its processes
            signal.signal(unix.NEARLY_OVER, signal.SIG_IGN)

    return prepare


def make_relays(jobs: Sequence[Job], processes: int = 1, nodes: int = 1) -> list[Relay]:
    """A relay for each job, with receipts in the folder that these jobs share."""
    from slotnorm.data.cache import CACHE, cache_folder  # the command line starts without NumPy

    folder = make_private(jobs_folder([job.folder for job in jobs]))
    receipts = [str(folder / f"{secrets.token_hex(_RECEIPT_BYTES)}.json") for _ in jobs]
    environment = [(SUBMITTED_BY, __version__)]
    if os.environ.get(CACHE):
        environment.append((CACHE, str(cache_folder().absolute())))
    return [
        Relay(job.command, str(job.log), receipt, processes, nodes, tuple(environment))
        for job, receipt in zip(jobs, receipts, strict=True)
    ]


def jobs_folder(folders: Sequence[Path]) -> Path:
    """Where receipts, and what an engine itself writes, are kept for jobs of these folders.

    It is beside them; where they are inside of a run, in the run, and of several runs beside these.
    """
    from slotnorm.training.runs import is_run  # the command line starts without PyTorch

    above = [
        next((parent for parent in folder.parents if is_run(parent)), folder.parent)
        for folder in (folder.absolute() for folder in folders)
    ]
    return Path(os.path.commonpath(above)) / FOLDER


def make_private(folder: Path) -> Path:
    """Make a folder that only its owner can read and write; what jobs read is in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise UserError(f"{folder} is a link or somebody else's, and what jobs read is in it; remove it")
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
    return folder


def say_how_to_watch(receipts: Sequence[Path]) -> str:
    """What is said when the process that watched jobs ends, and the jobs go on."""
    folder = os.path.commonpath([receipt.parent.parent for receipt in receipts]) if receipts else "RUNS"
    status = shlex.join(["slotnorm", "status", str(folder)])
    return f"its jobs go on: `{status}` shows them, `{status} --cancel` stops them, and the same command waits for them"


def last_line(log: Path) -> str:
    """The last line of a log, for people; empty where there is none."""
    try:
        with files.open_to_read(log) as file:
            file.seek(max(log.stat().st_size - _LONGEST_LINE, 0))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def require_shared(folder: Path, hosts: Iterable[str]) -> None:
    """Refuse a folder that only this machine sees, when jobs run on others."""
    elsewhere = sorted(set(hosts) - {socket.gethostname(), "localhost", "127.0.0.1"})
    kind = _file_system(folder)
    if elsewhere and kind in _OF_ONE_MACHINE:
        raise UserError(
            f"{folder} is in the memory of {socket.gethostname()} ({kind}), which {elsewhere[0]} does not share; "
            "give a folder of a shared file system"
        )


def _file_system(folder: Path) -> str:
    """The kind of the file system that a folder, or the nearest folder above it that exists, is on."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    path = folder.absolute()
    inside = [(len(Path(place).parts), kind) for place, kind in mounts if path.is_relative_to(place)]
    return max(inside, default=(0, "unknown"))[1]
