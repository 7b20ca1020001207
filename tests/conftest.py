import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

COUNTS = Path(__file__).parents[1] / "docs" / "reliability.json"

# One thread per test process: several run side by side, and CPU bits depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Compiled modules are kept, whatever the environment says: dozens of processes would compile the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
_MEMORY, _ROOM = "/dev/shm", 2 << 30  # bytes: all folders of all tests together hold a quarter of that


def _is_roomy(folder: str) -> bool:
    """Whether it is a place for hundreds of megabytes in which this user may write, and run what is written."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize >= _ROOM and not system.f_flag & os.ST_NOEXEC


# Folders of tests are in memory where it has room: tests flush tens of thousands of small files, which a disk makes
# them wait for. PYTEST_DEBUG_TEMPROOT or --basetemp puts them elsewhere.
if _is_roomy(_MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and commands that tests start would inherit that


@pytest.fixture
def quick_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of the local launcher are forked instead of started anew, and looked at often."""
    import processes
    from slotnorm.studies import jobs, launchers

    ours = types.SimpleNamespace(Popen=processes.JobProcess, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(launchers, "subprocess", ours)
    monkeypatch.setattr(jobs, "_SECONDS_BETWEEN_LOOKS", 0.02)


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """A fifth of the bootstrap's resamples, where a test asks what is made of them and not what they are."""
    from slotnorm.report import resampling

    caches = (resampling._scene_weights, resampling._run_draws)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "RESAMPLES", resampling.RESAMPLES // 5)
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Runs that ask for slow tests write how many faults were tried and survived, for docs/reliability.md.

    A test says so by `record_property("fault", (fault, tried, survived))`. One that failed loses its entry.
    """
    if "slow" not in config.option.markexpr.replace("not (slow", ""):
        return
    counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    before = dict(counts)
    for outcome in ("failed", "passed"):
        for report in terminalreporter.stats.get(outcome, []):
            faults = [value for name, value in getattr(report, "user_properties", []) if name == "fault"]
            if outcome == "failed":
                counts.pop(report.nodeid, None)
            elif faults and report.when == "call":
                counts[report.nodeid] = [list(fault) for fault in faults]
    if counts != before:
        COUNTS.write_text(json.dumps(dict(sorted(counts.items())), indent=1) + "\n")
        subprocess.run([sys.executable, str(COUNTS.with_name("make_reliability.py"))], check=True)
