"""tests/ready: the one command of a release refuses, and says what is lacking."""

import shutil
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_LOADER = SourceFileLoader("ready", str(Path(__file__).with_name("ready")))
ready = module_from_spec(spec_from_loader("ready", _LOADER))
_LOADER.exec_module(ready)


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A repository in which nothing is lacking, made from this one's files."""
    (tmp_path / "src" / "slotnorm").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "slotnorm" / "__init__.py", tmp_path / "src" / "slotnorm")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if "\nRepository = " not in project:
        project = project.replace("[project.urls]\n", '[project.urls]\nRepository = "https://example.org/slotnorm"\n')
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    (tmp_path / ".github" / "workflows" / "tests.yml").write_text("name: tests\n")
    git(tmp_path, "init", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "All of it")
    return tmp_path


def test_where_nothing_is_lacking_it_is_silent(checkout):
    assert list(ready.lacks(checkout)) == []


def test_without_the_repositorys_address_no_release_is_made(checkout):
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace("Repository = ", "Source = "))
    git(checkout, "commit", "-a", "-m", "No address")
    (sentence,) = ready.lacks(checkout)
    assert sentence == (
        '[project.urls] of pyproject.toml: Repository is not there; write the address, Repository = "https://..."'
    )


def test_each_lack_is_a_sentence(checkout):
    (checkout / ".github" / "workflows" / "tests.yml").write_text("# It has never run.\nname: tests\n")
    git(checkout, "checkout", "-b", "other")
    git(checkout, "tag", f"v{(version := ready_version(checkout))}")
    workflow, branch, changed, tagged = ready.lacks(checkout)
    assert workflow.startswith(".github/workflows/tests.yml says that it has never run; ")
    assert branch == "the branch is other; a release is made from main"
    assert changed == "1 file is not as committed (.github/workflows/tests.yml); commit or remove them"
    assert tagged.startswith(f"v{version} is tagged already; ")


def ready_version(checkout: Path) -> str:
    text = (checkout / "src" / "slotnorm" / "__init__.py").read_text()
    return text.partition('__version__ = "')[2].partition('"')[0]


def test_the_release_begins_with_it():
    page = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    (command,) = (line for line in page.splitlines() if "twine upload" in line)
    assert command.startswith("$ tests/ready && ")
