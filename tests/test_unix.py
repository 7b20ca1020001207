"""What only Unix has is in one module; without it everything imports, and the layer, metrics and models work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import slotnorm
from slotnorm.runtime import unix
from slotnorm.storage import locks

SOURCE = Path(slotnorm.__file__).parent
WITHOUT = """\
import os, signal, sys
sys.modules["fcntl"] = None  # an import of it fails
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGKILL"):
    delattr(signal, name)
import torch, matplotlib.pyplot  # with what they need themselves
for name in ("pread", "pwrite", "sysconf", "waitid", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"):
    delattr(os, name)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_other_file_names_what_windows_lacks():
    modules, signals = r"^\s*(?:import|from) (?:fcntl|pwd|grp|resource|termios)\b", r"signal\.SIG(?!INT|TERM|_)"
    lacking = re.compile(f"{modules}|{signals}", re.MULTILINE)
    naming = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if lacking.search(path.read_text())}
    assert naming == {"runtime/unix.py"}


def test_everything_imports_and_layer_metrics_and_models_work_without_what_windows_lacks():
    modules = [
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
        if path.stem != "__main__"
    ]
    printed = run(
        f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
        "import slotnorm as sn\n"
        "from slotnorm.runtime import unix\n"
        "assert unix.fcntl is None and unix.KILL == unix.NEARLY_OVER == signal.SIGTERM\n"
        "assert [number.name for number in unix.ENDING] == ['SIGINT', 'SIGTERM']\n"
        "slots, attention = sn.SlotAttention(8)(torch.ones(1, 4, 8, requires_grad=True), num_slots=2)\n"
        "slots.sum().backward()\n"
        "model = sn.load('toy-batch_norm')\n"
        "assert sn.segment(torch.zeros(3, 32, 32), model, slots=3).labels.shape == (32, 32)\n"
        "labels = sn.labels_from_masks(model(torch.zeros(1, 3, 32, 32), num_slots=3).masks)\n"
        "print(float(sn.adjusted_rand_index(labels, labels)))\n"
    )
    assert printed.split() == ["1.0"]


def test_without_flock_the_lease_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(unix, "fcntl", None)
    with locks.Lock(tmp_path), pytest.raises(locks.Locked, match="is being written by process"):
        locks.Lock(tmp_path)
    locks.Lock(tmp_path).release()
