"""The bounds of pyproject.toml: what tests/versions makes of them, and, when asked for, the suite under each."""

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("versions")
_LOADER = SourceFileLoader("versions", str(SCRIPT))
versions = module_from_spec(spec_from_loader("versions", _LOADER))
_LOADER.exec_module(versions)


def test_the_oldest_environment_has_the_lower_bounds_of_its_python():
    assert "numpy==1.26" in versions.oldest("3.11")
    assert "numpy==2.1" in versions.oldest("3.13")
    declared = {re.split("[>; ]", line)[0] for line in versions.PROJECT["dependencies"]}
    for python in versions.PYTHONS:
        assert sorted(line.partition("==")[0] for line in versions.oldest(python)) == sorted(declared)  # once each


def test_a_dependency_without_a_lower_bound_is_refused(monkeypatch):
    monkeypatch.setitem(versions.PROJECT, "dependencies", ["numpy"])
    with pytest.raises(SystemExit, match="'numpy' of pyproject.toml has no lower bound; write NAME>=VERSION"):
        versions.oldest("3.11")


def test_a_marker_that_is_not_understood_is_refused(monkeypatch):
    monkeypatch.setitem(versions.PROJECT, "dependencies", ["numpy>=1; sys_platform == 'win32'"])
    with pytest.raises(SystemExit, match="use python_version < or >="):
        versions.oldest("3.11")


def test_no_python_is_declared_that_is_not_tried():
    assert versions.PYTHONS[0] == versions.PROJECT["requires-python"].removeprefix(">=")
    lines = versions.PROJECT["classifiers"]
    assert {line.rpartition(" ")[2] for line in lines if "Python :: 3." in line} <= set(versions.PYTHONS)


def test_a_python_that_is_not_here_is_said(monkeypatch, capsys):
    monkeypatch.setattr(versions.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["versions", "--python", "3.11", "--with", "newest"])
    assert versions.main() == 0
    assert capsys.readouterr().out.strip() == "Python 3.11, newest: not tested, there is no python3.11 here"


def test_an_environment_stays_only_where_it_is_asked_to(tmp_path):
    with versions.folder_for("Python 3.12, oldest", None) as folder:
        (folder / "environment").mkdir()
    assert not folder.exists()
    for _ in range(2):  # the second time in the same place
        with versions.folder_for("Python 3.12, oldest", tmp_path / "kept") as folder:
            (folder / "environment").mkdir(exist_ok=True)
    assert list((tmp_path / "kept").iterdir()) == [tmp_path / "kept" / "python-3.12-oldest"]
    assert (folder / "environment").is_dir()


@pytest.mark.versions
def test_the_suite_passes_with_the_oldest_and_the_newest_on_every_python():
    assert subprocess.run([sys.executable, SCRIPT], check=False).returncode == 0
