"""What `pip install slotnorm` gives: wheel and sdist, as built, installed into fresh environments, typed, tested."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import slotnorm
from left_out import LEFT_OUT, ROOT

LARGEST = 8_000_000  # bytes of the sdist
NAME = f"slotnorm-{slotnorm.__version__}"
USER = """\
import torch
import slotnorm as sn

attend = sn.SlotAttention(dim=8, normalization="weighted_sum")
slots, attention = attend(torch.ones(1, 4, 8), num_slots=2)
reveal_type(slots)
model = sn.load("toy-batch_norm")
reveal_type(model)
reveal_type(model(torch.ones(1, 3, 32, 32), num_slots=12).masks)
reveal_type(sn.foreground_ari(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2)))
attend(torch.ones(1, 4, 8), num_slot=2)
"""


def run(*words: object, **options: object) -> str:
    """What a command says; its failure shows all that it said."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The sdist, and the wheel that is built from it, as `python -m build` makes them."""
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


@pytest.fixture(params=["wheel", "sdist"])
def python(request, built, tmp_path):
    """A fresh environment's Python, into which pip installed slotnorm with all that it depends on, and nothing else."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", built[request.param])
    yield folder / "bin" / "python"
    shutil.rmtree(folder)  # torch alone is a gigabyte


@pytest.mark.release
def test_twine_has_nothing_to_say(built):
    pytest.importorskip("twine")
    printed = run(sys.executable, "-m", "twine", "check", "--strict", *built.values())
    assert printed.count("PASSED") == 2


@pytest.mark.release
def test_the_sdist_is_small_and_leaves_out_what_it_says(built):
    assert built["sdist"].stat().st_size <= LARGEST
    with tarfile.open(built["sdist"]) as archive:
        names = [name.removeprefix(f"{NAME}/") for name in archive.getnames()]
    assert {"LICENSE", "README.md", "CHANGELOG.md", "tests/conftest.py", "src/slotnorm/py.typed"} <= set(names)
    for name in LEFT_OUT:
        assert (ROOT / name).exists(), f"{name} is left out of nothing"
        assert not [held for held in names if f"{held}/".startswith(f"{name}/")]


@pytest.mark.release
def test_the_wheel_holds_the_package_and_nothing_else(built):
    committed = run("git", "ls-files", "src/slotnorm", cwd=ROOT).split()
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = archive.namelist()
    package = {f"src/{name}" for name in names if not name.startswith(f"{NAME}.dist-info/")}
    assert package == set(committed)
    assert f"{NAME}.dist-info/licenses/LICENSE" in names


@pytest.mark.release
def test_what_is_installed_works_and_is_typed(python, tmp_path):
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "SLOTNORM_CACHE": str(tmp_path / "cache")
    }
    program = python.parent / "slotnorm"
    assert run(program, "--version", env=bare, cwd=tmp_path).split()[:2] == ["slotnorm", slotnorm.__version__]
    assert "weighted_sum" in run(program, "norms", env=bare, cwd=tmp_path)
    table = run(program, "demo", "--scenes", "8", "--out", "demo", env=bare, cwd=tmp_path)
    assert "Batch Norm" in table
    assert list((tmp_path / "demo").glob("*.html"))
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "user.py"]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=bare, check=False).stdout
    told = [
        line.partition("note: Revealed type is ")[2].strip('"') for line in printed.splitlines() if "Revealed" in line
    ]
    tensor = "torch._tensor.Tensor"
    assert told == [tensor, "slotnorm.models.parts.SlotModel", tensor, tensor], printed
    assert 'Unexpected keyword argument "num_slot"' in printed


@pytest.mark.release
def test_pip_refuses_an_older_python_in_one_sentence(built):
    older = shutil.which("python3.10")
    if older is None or subprocess.run([older, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("there is no python3.10 here")
    words = [older, "-m", "pip", "install", "--no-deps", "--no-index", "--dry-run", str(built["wheel"])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "requires a different Python: 3.10" in done.stderr


@pytest.mark.release
def test_the_sdists_own_tests_pass(built, tmp_path):
    with tarfile.open(built["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / NAME
    environment = os.environ | {"PYTHONPATH": str(unpacked / "src")}
    printed = run(sys.executable, "-m", "pytest", "-rs", cwd=unpacked, env=environment)
    assert " passed" in printed
    reasons = [line for line in printed.splitlines() if line.startswith("SKIPPED")]
    assert any("left out of the source distribution" in line for line in reasons)


def test_a_clone_has_what_the_sdist_leaves_out():
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a clone")
    for name in LEFT_OUT:
        assert (ROOT / name).is_dir()
        assert list((ROOT / name).iterdir())
