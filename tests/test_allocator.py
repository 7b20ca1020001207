"""glibc's allocator is told to keep freed memory, by the command line alone."""

import os
import platform
import subprocess
import sys

import pytest

GLIBC = platform.libc_ver()[0] == "glibc"
CODE = """
import resource
from slotnorm.runtime.allocator import keep_freed_memory
done = {call}
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):  # above the 32 MB where glibc learns to keep memory by itself
    b"x" * 2**26
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


def run(call: str, **environment: str) -> tuple[str, int]:
    given = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | environment
    done, faults = subprocess.run(
        [sys.executable, "-c", CODE.format(call=call)], env=given, capture_output=True, text=True, check=True
    ).stdout.split()
    return done, int(faults)


@pytest.mark.skipif(not GLIBC, reason="only glibc is spoken to")
def test_freed_memory_is_kept_and_not_faulted_in_again():
    done, faults = run("keep_freed_memory()")
    assert done == "True"
    _, usual = run("None")  # importing the module does nothing
    assert usual > 5 * faults


@pytest.mark.skipif(not GLIBC, reason="only glibc is spoken to")
def test_what_the_user_set_stands():
    done, _ = run("keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="100000")
    assert done == "False"


def test_another_libc_is_left_alone(monkeypatch):
    from slotnorm.runtime.allocator import keep_freed_memory

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert keep_freed_memory() is False
