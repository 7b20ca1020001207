"""The house itself: arrows, public names, what an import costs, what is declared, what the wheel holds."""

import ast
import functools
import importlib
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import slotnorm
from slotnorm.cli.verbs import VERBS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "slotnorm"


def rooms() -> list[str]:
    """The rooms in the order of the package's own docstring."""
    docstring = ast.get_docstring(ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8")))
    return re.findall(r"^- `(\w+)`: ", docstring, flags=re.MULTILINE)


RANK = {room: rank for rank, room in enumerate(rooms())}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(name: str) -> str:
    """slotnorm.data.scenes -> data."""
    return name.split(".")[1]


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions, but not for type checking alone."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "slotnorm":
            names |= {f"slotnorm.{alias.name}" for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module)
    return names


def test_imports_only_point_up():
    for path in modules():
        if path.parent == SOURCE and path.stem.startswith("__"):
            continue
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        here = room_of(name)
        assert here in RANK, f"{here} has no place in the docstring of slotnorm/__init__.py yet"
        for imported in imports_of(path):
            if imported.startswith("slotnorm."):
                there = room_of(imported)
                assert there in RANK, f"{name} imports {imported}, which is not a room"
                assert RANK[there] <= RANK[here], f"{name} imports {imported}: the arrow points down"


def test_theory_imports_the_layer_only():
    allowed = {"errors", "runtime", "normalization", "slot_attention", "theory"}
    for path in (SOURCE / "theory").glob("*.py"):
        rooms = {room_of(name) for name in imports_of(path) if name.startswith("slotnorm.")}
        assert rooms <= allowed, f"{path.name} imports {rooms - allowed}"


def test_every_public_name_is_there():
    for name, home in slotnorm._HOME.items():
        assert getattr(slotnorm, name).__name__ == name
        assert getattr(slotnorm, name).__module__.startswith(home), "in that module, or in one of its room"
    for name in slotnorm._MODULES:
        assert getattr(slotnorm, name) is importlib.import_module(f"slotnorm.{name}")
    assert set(slotnorm.__all__) == {"__version__", *slotnorm._HOME, *slotnorm._MODULES} == set(dir(slotnorm))
    promised = (
        "SlotAttention Aggregate Normalization normalizations adjusted_rand_index average_precision "
        "load experiment train score data models theory"
    )
    assert set(promised.split()) <= set(slotnorm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'SlotAttentoin'"):
        slotnorm.SlotAttentoin  # noqa: B018


def test_the_version_is_said_once():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in declared["project"]["dynamic"]
    source = (ROOT / declared["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    assert f'\n__version__ = "{slotnorm.__version__}"\n' in source
    assert not re.search("^version:", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    newest = re.search("^## (.*)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == slotnorm.__version__


def test_a_python_that_is_too_old_is_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    monkeypatch.setattr(sys, "version", "3.10.13 (main)")
    with pytest.raises(ImportError, match="^slotnorm needs Python 3.11 or newer, this is 3.10.13: python3.11 -m venv"):
        runpy.run_path(slotnorm.__file__)


LIGHT = [
    "slotnorm", "slotnorm.cli.verbs", "slotnorm.config", "slotnorm.experiments", "slotnorm.data",
    "slotnorm.data.scenes", "slotnorm.data.generator", "slotnorm.data.tfrecord", "slotnorm.data.clevr",
    "slotnorm.data.movi", "slotnorm.studies.launchers", "slotnorm.training.observers",
]  # fmt: skip


def test_nothing_light_imports_torch():
    code = (
        f"import sys, importlib\nfor name in {LIGHT!r}:\n"
        "    importlib.import_module(name)\n    assert 'torch' not in sys.modules, name"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def verbs(group: dict, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths = []
    for name, verb in group.items():
        paths += verbs(verb, (*path, name)) if isinstance(verb, dict) else [(*path, name)]
    return paths


def test_help_needs_no_torch():
    """One process for all verbs: what one of them imports, stays."""
    paths = [(), ("data",), *verbs(VERBS)]
    code = (
        f"import sys\nfrom slotnorm.cli.verbs import main\nfor verb in {paths!r}:\n"
        "    try:\n        main([*verb, '--help'])\n"
        "    except SystemExit as stop:\n        assert not stop.code, verb\n"
        "    assert 'torch' not in sys.modules, verb\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for verb in paths:
        assert f"usage: {' '.join(('slotnorm', *verb))}" in done.stdout


def test_an_unknown_verb_is_one_sentence_with_the_nearest():
    done = subprocess.run([sys.executable, "-m", "slotnorm", "nroms"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("slotnorm: there is no slotnorm 'nroms'; did you mean 'norms'?")
    assert done.stderr.count("\n") == 1


def test_output_piped_to_head_ends_quietly():
    command = f"{sys.executable} -m slotnorm experiments | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("experiment")


DISTRIBUTION = {"PIL": "pillow", "google_crc32c": "google-crc32c", "fontTools": "fonttools"}


def test_everything_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("vit", "fast", "tensorboard", "wandb", "pandas", "slurm", "ray", "hub")
    optional = [line for name in names for line in extras[name]]
    declared = {re.split(r"[<>=\[ ]", line)[0] for line in [*project["dependencies"], *optional]}
    used = {name.split(".")[0] for path in modules() for name in imports_of(path)}
    third = {name for name in used if name not in sys.stdlib_module_names and name != "slotnorm"}
    assert {DISTRIBUTION.get(name, name) for name in third} <= declared


@pytest.mark.parametrize("name", ["normalizations", "architecture", "metrics", "clusters"])
def test_pages_made_from_code_are_fresh(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    maker = importlib.import_module(f"make_{name}")
    assert maker.PAGE.read_text(encoding="utf-8") == maker.page(), f"run python docs/make_{name}.py"


def test_walks_through_the_house_take_no_step_back(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    for stations in importlib.import_module("make_architecture").WALKS.values():
        ranks = [RANK[module.partition("/")[0].removesuffix(".py")] for module, _ in stations]
        assert ranks == sorted(ranks)


def test_the_top_level_is_the_papers_page_and_little_else():
    entries = {path.name for path in SOURCE.iterdir()} - {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    assert entries == {name if (SOURCE / name).is_dir() else f"{name}.py" for name in rooms()}
    assert len(entries) <= 17


def test_only_the_models_know_their_kinds():
    """Everything else asks a model what it takes and gives; `isinstance` may ask whether it is a SlotModel at all."""
    kinds = {"ImageAutoencoder", "FeatureAutoencoder", "SetPredictor", "ImageModel", "FeatureModel", "SetModel"}
    for path in modules():
        if path.is_relative_to(SOURCE / "models"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                assert not asked & kinds, f"{path}:{node.lineno} asks for {asked & kinds}"
