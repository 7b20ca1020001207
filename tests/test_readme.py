"""What README and docs say is run: code blocks, commands, links; the set-up and test lines are those of .ci/run."""

import os
import re
import runpy
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from PIL import Image

import processes
from left_out import is_left_out

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# what makes a command of the pages short enough for a test; what trains, trains a few steps
SHORT: dict[str, list[str]] = {
    "train toy": ["--recipe.steps", "3", "--recipe.validation-scenes", "8"],
    "eval": ["--scenes", "8"],
    "demo": ["--scenes", "2"],
}
# what a command of the pages needs to be there, by its verb, or a page's Python by its name
_TRAIN = ["train", "toy", "--norm", "batch_norm", *SHORT["train toy"]]
_EVALUATE = ["eval", "runs", "--slots", "5:6", "--scenes", "8"]
BEFORE: dict[str, list[list[str]]] = {
    "eval": [_TRAIN],
    "segment": [["train", "toy", *SHORT["train toy"]]],
    "report": [_TRAIN, _EVALUATE],
    "report.md": [_TRAIN, _EVALUATE],
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(folder: Path, *words: str, before: Callable[[Path], None] = os.chdir) -> None:
    """Run `slotnorm WORDS` in a folder, in a process and with a cache of its own; `before` is called first."""
    environment = {"SLOTNORM_CACHE": str(folder / "cache")}
    command = processes.Command(list(words), folder / "said.txt", environment, before, folder)
    assert command.wait(600) == 0, command.said


def run_python(folder: Path) -> None:
    os.chdir(folder)
    runpy.run_path("page.py", run_name="__main__")


@pytest.fixture(scope="module")
def prepare(tmp_path_factory) -> Callable[[Path, list[list[str]]], None]:
    """Puts into a folder what commands leave there; those that several tests begin with are run once."""
    left: dict[str, Path] = {}

    def put(folder: Path, commands: list[list[str]]) -> None:
        if not commands:
            return
        key = repr(commands)
        if key not in left:
            left[key] = tmp_path_factory.mktemp("prepared")
            put(left[key], commands[:-1])
            run(left[key], *commands[-1])
        shutil.copytree(left[key], folder, dirs_exist_ok=True)

    return put


def short_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


LONG = ("slotnorm demo", "slotnorm theory")  # the tests of these verbs run them on less


def of_page(page: Path, value: object, name: str) -> ParameterSet:
    """A value that a page holds; those of the site's pages, and commands that are long, are tried with the site."""
    return pytest.param(value, marks=[] if page.parent == ROOT and value not in LONG else pytest.mark.docs, id=name)


@pytest.mark.parametrize("page", [of_page(page, page, short_name(page)) for page in PAGES if blocks(page, "python")])
def test_python_blocks_run_in_order(page, prepare, tmp_path):
    prepare(tmp_path, BEFORE.get(page.name, []))
    (tmp_path / "page.py").write_text("\n".join(blocks(page, "python")))
    run(tmp_path, before=run_python)


def test_set_up_and_test_lines_are_those_of_ci():
    (tests,) = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "pytest" in line]
    (main_job,), (in_readme,) = (block.splitlines() for block in blocks(ROOT / "README.md", "bash")[:2])
    assert in_readme == tests
    assert blocks(ROOT / "CONTRIBUTING.md", "bash")[0].startswith(tests)
    set_up, verb = main_job.rsplit(" && ", 1)
    assert set_up == "python3 -m venv .venv && .venv/bin/pip install -q ."
    assert verb.startswith(".venv/bin/slotnorm ")


def commands(page: Path) -> list[str]:
    """Every line of a bash block that starts with slotnorm, comments dropped, continued lines joined."""
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    last_parts = (line.split(" && ")[-1].removeprefix(".venv/bin/").split("  #")[0].strip() for line in lines)
    return [line for line in last_parts if line.startswith("slotnorm ")]


FIRST_IN = {command: page for page in reversed(PAGES) for command in reversed(commands(page))}  # each is run once


@pytest.mark.parametrize("command", [of_page(page, command, command) for command, page in reversed(FIRST_IN.items())])
def test_commands_run(command, prepare, tmp_path):
    words = shlex.split(command)[1:]
    extra = next((flags for start, flags in SHORT.items() if " ".join(words).startswith(start)), [])
    if "photo.png" in words:
        Image.linear_gradient("L").resize((60, 40)).save(tmp_path / "photo.png")
    prepare(tmp_path, BEFORE.get(words[0], []))
    run(tmp_path, *words, *extra)


@pytest.mark.parametrize("page", PAGES, ids=short_name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http", "reference/")):  # the reference is made, and checked, with the site
            assert (page.parent / target).exists() or is_left_out(page.parent / target), (
                f"{page.name} links to {target}, which is not there"
            )


@pytest.mark.parametrize("page", PAGES, ids=short_name)
def test_files_that_a_page_names_are_there(page):
    for name in re.findall(r"`[^`\n]*?\b((?:benchmarks|src|tests)/[\w./-]*\w)", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or is_left_out(ROOT / name), f"{page.name} names {name}, which is not there"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=short_name)
def test_a_page_of_the_site_links_to_other_pages_and_to_modules_alone(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            path = (page.parent / target).resolve()
            assert any(path.is_relative_to(ROOT / part) for part in ("docs", "src")), (
                f"{page.name} links to {target}, which is not part of the site"
            )


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=short_name)
def test_a_page_says_who_it_is_for_and_what_to_read_next(page):
    title, first, *_, last = page.read_text(encoding="utf-8").strip().split("\n\n")
    assert title.startswith("# ")
    assert first.startswith("For ")
    assert last.startswith("Read next: ")


def test_the_tests_that_pages_name_exist():
    written = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for page in PAGES:
        for name in re.findall(r"`(test_\w+)`", page.read_text()):
            assert f"def {name}(" in written, f"{page.name} names {name}, which is not there"
