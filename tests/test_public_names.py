"""The public names as a user's type checker and a user's process see them."""

import importlib
import inspect
import json
import operator
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import slotnorm

SOURCE = Path(slotnorm.__file__).parents[1]
MODULES = ("data", "models", "theory")
NAMES = [
    *(f"sn.{name}" for name in slotnorm.__all__),
    *(f"sn.{module}.{name}" for module in MODULES for name in getattr(slotnorm, module).__all__),
]

# other packages are taken as they come: reading their types takes most of the time, and the names are ours
CONFIGURATION = f"""
[mypy]
strict = true
{f"mypy_path = {SOURCE}" if SOURCE.name == "src" else ""}
follow_imports = skip
[mypy-slotnorm.*]
follow_imports = normal
"""


def check(folder: Path, code: list[str]) -> list[str]:
    """What mypy says of each line of a user's file."""
    (folder / "mypy.ini").write_text(CONFIGURATION)
    (folder / "user.py").write_text("\n".join(["import slotnorm as sn", *code]) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", os.devnull, "user.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    notes: list[list[str]] = [[] for _ in code]
    for number, words in re.findall(r"^user\.py:(\d+): (.*)$", done.stdout, flags=re.MULTILINE):
        notes[int(number) - 2].append(words)
    assert any(notes), done.stdout + done.stderr
    return ["\n".join(words) for words in notes]


def test_types_reach_the_user_and_a_misspelt_keyword_is_refused(tmp_path: Path) -> None:
    """One run of mypy for all: starting it is most of the time."""
    revealed = [f"reveal_type({name})" for name in NAMES]
    calls = {
        'reveal_type(sn.load("toy-batch_norm"))': "SlotModel",
        'reveal_type(sn.Run.open("runs/x").model())': "SlotModel",
        'reveal_type(sn.segment("photo.png", "toy-batch_norm"))': "segmentation.Segmentation",
        'reveal_type(sn.segment(["one.png", "two.png"], "toy-batch_norm"))': "segmenting.Segmentations",
        'reveal_type(sn.train(sn.experiment("toy")))': "Run",
        "reveal_type(sn.normalizations())": "dict[str, type[slotnorm.normalization.Normalization]]",
    }
    refused = {
        'sn.SlotAttention(dim=64, normalisation="weighted_sum")': 'keyword argument "normalisation"',
        'sn.models.ImageAutoencoder(normalisation="weighted_sum")': 'keyword argument "normalisation"',
        "sn.SlotAttentoin": 'Module has no attribute "SlotAttentoin"',
        "sn.load(7)": 'incompatible type "int"',
    }
    notes = check(tmp_path, [*revealed, *calls, *refused])
    for name, words in zip(NAMES, notes[: len(revealed)], strict=True):
        assert words.startswith('note: Revealed type is "'), f"{name}: {words}"
        assert words != 'note: Revealed type is "Any"', f"{name} is Any for a type checker"
    for (line, expected), words in zip([*calls.items(), *refused.items()], notes[len(revealed) :], strict=True):
        assert expected in words, f"{line}: {words}"


def functions_of(value: Any) -> Iterator[FunctionType]:
    """A function itself; of a class all that a user calls or reads."""
    members = vars(value).values() if inspect.isclass(value) else [value]
    for member in members:
        function = getattr(member, "fget", None) or getattr(member, "func", None) or inspect.unwrap(member)
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType) and (function.__name__ == "__call__" or function.__name__[0] != "_"):
            yield function


@pytest.mark.parametrize("name", NAMES)
def test_nothing_public_returns_any(name: str) -> None:
    """Read from annotations: mypy above takes torch's own types for Any, because it does not follow them."""
    for function in functions_of(operator.attrgetter(name.removeprefix("sn."))(slotnorm)):
        returned = inspect.signature(function).return_annotation
        assert returned not in (Any, "Any", inspect.Signature.empty), function.__qualname__


# as by python -OO, but for slotnorm alone: torch without docstrings would have to be compiled anew
WITHOUT_DOCSTRINGS = """
import sys, types
from importlib.machinery import SourceFileLoader
flags, as_ever = sys.flags, SourceFileLoader.get_code
stripped = types.SimpleNamespace(**{name: getattr(flags, name) for name in dir(flags) if name[0] != "_"})
stripped.optimize = 2
def get_code(self, name):
    if name.startswith("slotnorm"):
        path = self.get_filename(name)
        return compile(self.get_data(path), path, "exec", dont_inherit=True, optimize=2)
    sys.flags = flags
    try:
        return as_ever(self, name)
    finally:
        sys.flags = stripped
SourceFileLoader.get_code = get_code
sys.flags = stripped
"""
IMPORT_ALL = """
import importlib, inspect, json, pkgutil, sys, slotnorm
loaded = [name for name in sys.modules if name.startswith("slotnorm.")]
import slotnorm.models
loaded += [name for name in sys.modules if name.startswith("slotnorm.models.")]
public = [name for name in slotnorm.__all__ if not name.startswith("__")]
before = {name: getattr(slotnorm, name) for name in public}
names = [module.name for module in pkgutil.walk_packages(slotnorm.__path__, "slotnorm.")]
for name in names:
    if name != "slotnorm.__main__":
        importlib.import_module(name)
after = {name: getattr(slotnorm, name) for name in public}
seen = {
    "loaded at once": loaded,
    "imported": len(names),
    "changed": [name for name in public if after[name] is not before[name]],
    "modules": [name for name in public if inspect.ismodule(after[name])],
    "not callable": [name for name in public if not (inspect.ismodule(after[name]) or callable(after[name]))],
    "documented": slotnorm.SlotAttention.__doc__,
}
"""
LISTS = """
from slotnorm.cli import main
for words in (["norms"], ["experiments"], ["--help"], ["segment", "--help"], ["data", "--help"]):
    try:
        main(words)
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{words} ended with {ended.code}")
print(json.dumps(seen))
"""


def run_code(code: str, *options: str) -> str:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def everything() -> tuple[str, dict[str, Any]]:
    """What lists print, and what is seen of the names, in a process without docstrings that imports every module."""
    *lists, seen = run_code(WITHOUT_DOCSTRINGS + IMPORT_ALL + LISTS).splitlines()
    return "\n".join(lists), json.loads(seen)


def test_the_public_names_are_lazy_and_still_themselves_after_every_module_is_imported(
    everything: tuple[str, dict[str, Any]],
) -> None:
    """`import slotnorm.train` must not turn the function of that name into a module."""
    _, seen = everything
    assert seen["loaded at once"] == []
    assert seen["imported"] > 100
    assert seen["changed"] == []
    assert sorted(seen["modules"]) == sorted(MODULES)
    assert seen["not callable"] == []


@pytest.mark.parametrize("owner", ["slotnorm", *(f"slotnorm.{module}" for module in MODULES)])
def test_no_module_bears_the_name_of_a_public_function_beside_it(owner: str) -> None:
    package = importlib.import_module(owner)
    assert package.__file__ is not None
    beside = {path.stem for path in Path(package.__file__).parent.iterdir()}
    functions = {name for name in package.__all__ if inspect.isroutine(getattr(package, name))}
    assert not beside & functions


def test_every_public_name_has_a_typed_reexport() -> None:
    """The list for type checkers and the list for the interpreter name the same things."""
    source = Path(slotnorm.__file__).read_text(encoding="utf-8")
    typed = set(re.findall(r"^    from slotnorm(?:\.\S+)? import \w+ as (\w+)$", source, flags=re.MULTILINE))
    assert typed == set(slotnorm.__all__) - {"__version__"}


def test_everything_imports_and_lists_work_without_docstrings(everything: tuple[str, dict[str, Any]]) -> None:
    """Formulas, help and summaries are made of them."""
    lists, seen = everything
    assert seen["documented"] is None
    for name in slotnorm.normalizations():
        assert name in lists


def test_python_may_strip_docstrings() -> None:
    run_code("import slotnorm", "-OO")
    assert "clevr-6-7" in run_code("from slotnorm.cli import main; main(['experiments'])", "-OO")


@pytest.mark.slow
def test_python_may_strip_all_docstrings() -> None:
    assert "weighted_sum" in run_code(IMPORT_ALL + LISTS, "-OO")
