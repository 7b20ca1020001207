"""Classes from a file of one's own: a metric is in rows, tables, figures and the page; a start of slots trains."""

import csv
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import processes
import tiny
from slotnorm import initialization
from slotnorm.cli.dispatch import load_plugins
from slotnorm.cli.verbs import main
from slotnorm.errors import UserError
from slotnorm.evaluation.rows import Rows
from slotnorm.metrics import metric
from slotnorm.runtime.plugins import load_plugin, loaded_plugins
from slotnorm.storage.files import sha256
from slotnorm.storage.serialization import to_document
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

SHARPNESS = '''
import torch
from slotnorm.metrics import Metric

class Sharpness(Metric):
    """Mean over pixels of the largest mask."""

    name, label, direction, needs, bounds = "sharpness", "Sharpness of masks", "lower", "nothing", (0.0, 1.0)
    validated_as = "sharp"

    def score(self, comparison):
        return comparison.masks.flatten(2).amax(dim=1).mean(dim=1)
'''


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What plugins register is forgotten afterwards."""
    known = dict(metric._registry)
    yield
    metric._registry.clear()
    metric._registry.update(known)
    for name in [name for name in sys.modules if name.startswith("slotnorm_plugin_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run, with its data beside its folder."""
    folder = tmp_path_factory.mktemp("trained")
    return train(tiny.experiment(steps=1), folder / "runs", data=tiny.build_scenes(folder / "data", 24).directory)


def written(folder: Path, content: str, name: str = "my_metric.py") -> str:
    (folder / name).write_text(content)
    return str(folder / name)


def test_a_metric_of_a_plugin_is_in_rows_tables_figures_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny.build_scenes(tmp_path / "data", 24).directory
    runs = [
        train(tiny.experiment(norm, steps=2), tmp_path / "runs", data=data) for norm in ("batch_norm", "layer_norm")
    ]
    plugin, folders = written(tmp_path, SHARPNESS), [str(run.path) for run in runs]
    asked = ["--data", str(data), "--dataset", "toy4", "--slots", "4:5", "--scenes", "16"]
    main(["eval", *folders, *asked])
    assert "sharpness" not in capsys.readouterr().out
    main(["eval", *folders, *asked, "--plugin", plugin])
    assert "sharpness (masks)" in capsys.readouterr().out

    rows = Rows.load(next(iter(sorted((runs[0].path / "rows").glob("toy4*.npz")))))
    values = rows.where(metric="sharpness", source="masks", slots=4)["value"]
    assert len(values) == 16
    assert ((values > 0.25) & (values <= 1)).all()
    assert values == pytest.approx(plainly(runs[0], data, rows.where(metric="sharpness", source="masks", slots=4)))

    main(["report", *folders, "--out", str(tmp_path / "report"), "--plugin", plugin, "--no-models"])
    (table,) = (tmp_path / "report" / "tables").glob("toy.md")
    assert "Sharpness of masks ↓" in table.read_text()
    with open(tmp_path / "report" / "curves.csv", newline="") as file:
        drawn = [row for row in csv.DictReader(file) if row["metric"] == "sharpness"]
    assert {row["norm"] for row in drawn} == {"batch_norm", "layer_norm"}
    assert {row["x"] for row in drawn if row["against"] == "slots"} == {"4", "5"}
    assert list((tmp_path / "report" / "figures").glob("toy-sharpness.svg"))
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Sharpness of masks" in page
    assert "Sharpness of masks against slots and objects" in page


def plainly(run: Run, data: Path, rows: Rows) -> list[float]:
    """The sharpness of each row's image, straight from the model."""
    from slotnorm.data import Scenes
    from slotnorm.runtime import randomness

    model, scenes, values = run.model(), Scenes.open(data), []
    for image in rows["image"].tolist():
        noise = torch.from_numpy(randomness.slot_noise(0, "evaluation", [(image, 4)], 4, 8))
        inputs = model.prepare(torch.from_numpy(scenes.read("images", np.array([image]))))
        with torch.no_grad():
            values.append(float(model(inputs, noise=noise).masks.amax(1).mean()))
    return values


def test_a_metric_of_a_plugin_is_watched_in_training_when_it_says_so(tmp_path: Path) -> None:
    data = tiny.build_scenes(tmp_path / "data", 24).directory
    load_plugin(Path(written(tmp_path, SHARPNESS)))
    run = train(tiny.experiment(steps=1), tmp_path / "runs", data=data)
    assert 0.25 < run.validation()["sharp@4"] <= 1
    assert 1 / 12 < run.validation()["sharp@12"] <= 1


def test_rows_with_a_metric_whose_plugin_is_not_given_are_noted(tmp_path: Path, trained: Run) -> None:
    run, data = Run.open(shutil.copytree(trained.path, tmp_path / trained.path.name)), trained.path.parents[1] / "data"
    plugin = written(tmp_path, SHARPNESS)
    main(["eval", str(run.path), "--data", str(data), "--dataset", "toy4", "--slots", "4", "--plugin", plugin])
    del metric._registry["sharpness"]
    main(["report", str(run.path), "--out", str(tmp_path / "report"), "--no-models"])
    report = (tmp_path / "report" / "report.md").read_text()
    assert "the rows' sharpness is not a metric that is known and is not shown; give its --plugin" in report


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "comparison.masks.flatten(2).amax(dim=1)",
            "the metric sharpness gave (16, 64), but must give a tensor with one number for each of 16 images",
        ),
        (
            "[0.5] * len(comparison.masks)",
            "the metric sharpness gave list, but must give a tensor with one number for each",
        ),
        ("1 / 0", "the metric sharpness fails with ZeroDivisionError: division by zero (my_metric.py, line "),
        (
            "comparison.masks[:, 0, 0, 0] + 0j",
            "the metric sharpness gave (16,) torch.complex64, but must give a tensor",
        ),
        ("torch.empty(len(comparison.masks), device='meta')", "the metric sharpness gave (16,) torch.float32 on meta"),
        ("torch.full((len(comparison.masks),), float('inf'))", "the metric sharpness gave an infinite score"),
    ],
)
def test_a_score_that_is_none_is_one_sentence_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trained: Run, change: str, sentence: str
) -> None:
    run, data = Run.open(shutil.copytree(trained.path, tmp_path / "run")), trained.path.parents[1] / "data"
    asked = ["eval", str(run.path), "--data", str(data), "--dataset", "toy4", "--slots", "4", "--scenes", "16"]
    main(asked)
    before = {path: path.read_bytes() for path in run.path.rglob("*.npz")}
    content = re.sub("return .*", f"return {change}", SHARPNESS).replace('validated_as = "sharp"', "")
    with pytest.raises(SystemExit) as stop:
        main([*asked, "--plugin", written(tmp_path, content)])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err.strip().splitlines()[-1]
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("import sys\nsys.exit(0)", "fails with SystemExit: 0 (my_metric.py, line 2)"),
        ("raise ValueError('two\\nlines')", "fails with ValueError: two\\nlines (my_metric.py, line 1)"),
        (
            "import not_installed_here",
            "fails with ModuleNotFoundError: No module named 'not_installed_here' (my_metric",
        ),
        (SHARPNESS + SHARPNESS, "metric name 'sharpness' of Sharpness is taken by slotnorm_plugin_my_metric.Sharpness"),
        (
            SHARPNESS.replace("direction, ", "").replace('"lower", ', ""),
            "metric Sharpness has no 'direction'; each",
        ),
        (
            SHARPNESS.replace('"lower"', '"down"'),
            "direction of metric Sharpness is 'down'; it must be one of 'higher'",
        ),
        ("def (", "fails with SyntaxError: "),
    ],
)
def test_a_plugin_that_fails_or_a_metric_that_does_not_say_what_it_is_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, sentence: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["metrics", "--plugin", written(tmp_path, content)])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1


def test_metrics_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["metrics", "--plugin", written(tmp_path, SHARPNESS)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", *metric.all_metrics()]
    assert lines[1].split()[:3] == ["f_ari", "F-ARI", "higher"]
    assert lines[-1].split()[:6] == ["sharpness", "Sharpness", "of", "masks", "lower", "0"]


START = '''
import torch
from slotnorm import Initialization

class Wide(Initialization):
    """slot_k = s ε_k: a learned scale for all slots and channels."""

    name, label, where, interchangeable = "wide", "Wide", "a test", True

    def make_parameters(self):
        return {"slots_scale": torch.nn.Parameter(torch.empty(1))}

    def draw(self, layer, protocol):
        torch.nn.init.constant_(layer.slots_scale, 2.0)

    def start(self, layer, noise):
        return layer.slots_scale * noise
'''


def test_an_initialization_of_a_plugin_trains_is_scored_and_is_refused_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny.build_scenes(tmp_path / "data", 24).directory
    known = dict(initialization._registry)
    load_plugin(Path(written(tmp_path, START, "my_start.py")))
    try:
        run = train(tiny.experiment(steps=2, initialization="wide"), tmp_path / "runs", data=data)
        assert run.weights().tensors["slot_attention.slots_scale"].item() != 2.0
        assert {name.partition("@")[2] for name in run.validation()} == {"4", "12"}
        main(["eval", str(run.path), "--data", str(data), "--dataset", "toy4", "--slots", "4:5"])
        assert "f_ari (masks)" in capsys.readouterr().out
    finally:
        initialization._registry.clear()
        initialization._registry.update(known)
    with pytest.raises(UserError, match="there is no initialization 'wide'; .*one of your own is added by"):
        run.model()


def test_several_plugins_follow_one_option_and_other_words_stay(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.py" for name in "abc"]
    for file in files:
        file.write_text("")
    words = ["eval", "--plugin", str(files[0]), str(files[1]), "runs", f"--plugin={files[2]}", "x.py"]
    load_plugins(words)
    assert [path for path in loaded_plugins() if path in files] == files
    assert words == ["eval", "runs", "x.py"]


def test_two_plugins_of_one_file_name_are_both_kept(tmp_path: Path) -> None:
    """A sweep gives its processes what `loaded_plugins` lists: none may take another one's place."""
    files = [tmp_path / folder / "same.py" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("")
        load_plugin(file)
        load_plugin(file)
    assert [path for path in loaded_plugins() if path in files] == files


def test_a_run_remembers_its_plugins_and_notes_when_one_has_changed(tmp_path: Path) -> None:
    """The command of the run, given again elsewhere, trains it; its model card names what it needs."""
    data = tiny.build_scenes(tmp_path / "data", 24).directory
    plugin, asked = Path(written(tmp_path, START, "my_start.py")), tmp_path / "asked.json"
    asked.write_text(json.dumps(to_document(tiny.experiment(steps=2, initialization="wide"))))
    words = ["--plugin", str(plugin), "train", "--experiment", str(asked), "--data", str(data)]
    code, printed = processes.run_command(tmp_path, *words, "--into", str(tmp_path / "runs"))
    assert code == 0, printed
    run = Run.open(tmp_path / "runs" / "toy-weighted_sum-1")
    again = shlex.split(run.command)
    assert again[again.index("--plugin") + 1] == str(plugin)
    again[again.index("--into") + 1] = str(tmp_path / "again")
    code, printed = processes.run_command(tmp_path, *again[1:])
    assert code == 0, printed
    assert Run.open(tmp_path / "again" / run.name).record().files == run.record().files

    run.export(tmp_path / "wide.safetensors")
    card = (tmp_path / "wide.md").read_text()
    assert "import my_start  # first" in card
    assert "--plugin my_start.py`.\n" in card
    assert f"- Needs the file `my_start.py` (SHA-256 `{sha256(plugin)}`)" in card
    assert str(tmp_path) not in card

    longer = ["--recipe.steps", "3"]
    code, printed = processes.run_command(tmp_path, *again[1:], *longer)
    assert code == 0, printed
    assert "has changed" not in printed
    plugin.write_text(START.replace("2.0", "3.0"))
    longer[-1] = "4"
    for changed in (True, False):
        code, printed = processes.run_command(tmp_path, *again[1:], *longer)
        assert code == 0, printed
        assert (f"note: {plugin} has changed since" in printed) == changed
        longer[-1] = "5"
