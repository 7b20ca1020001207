"""`slotnorm demo` on a folder of small untrained models: what it prints, draws, writes and refuses."""

import dataclasses
import json
import re
import tempfile
import webbrowser
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import slotnorm
import tiny
from slotnorm import experiments
from slotnorm.cli.verbs import main
from slotnorm.config import ImageModel
from slotnorm.data.generator import build as build_scenes
from slotnorm.errors import DamagedFile, UserError
from slotnorm.evaluation.scoring import score
from slotnorm.models import bundled as bundle_module
from slotnorm.models import weights
from slotnorm.models.building import build
from slotnorm.report import demo
from slotnorm.report.curves import Curve, Panel
from slotnorm.report.terminal import ASCII, UNICODE, characters, chart, legend, table
from slotnorm.storage import files
from slotnorm.studies import run_evaluation
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

NORMS = ("weighted_mean", "batch_norm")
SMALL = ImageModel(
    size=32, channels=8, dim=8, hidden=16, kernel=3, strides=(2, 2), positions="fourier", decoder="dense",
    decoder_hidden=(8,),
)  # fmt: skip


def export(folder, norms=NORMS):
    """Untrained models of the toy study as they would be bundled."""
    toy = experiments.experiment("toy")
    recipe = dataclasses.replace(toy.recipe, model=SMALL)
    for norm in norms:
        experiment = dataclasses.replace(toy, norm=norm, seed=2, recipe=recipe)
        state = build(experiment).state_dict()
        weights.export(weights.Weights(state, experiment, 0, {}), folder / f"toy-{norm}.safetensors", "# card")
    listed = {path.name: files.sha256(path) for path in folder.iterdir()}
    (folder / bundle_module.HASHES).write_text(json.dumps(listed))
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return export(tmp_path_factory.mktemp("bundled"))


@pytest.fixture(scope="module")
def shown_demo(bundle):
    return demo.run_demo(3, bundle)


@pytest.fixture
def copy(bundle, tmp_path):
    folder = tmp_path / "bundled"
    folder.mkdir()
    for path in bundle.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_the_table_has_the_scores_of_the_models_on_new_scenes(shown_demo, bundle, tmp_path):
    assert shown_demo.slots == (5, 10, 15)
    toy = experiments.study("toy")
    few = toy.tests[0]
    scenes = build_scenes(toy.experiment.scenes.spec("test", few.objects), 3, tmp_path / "scenes")
    values = shown_demo.values(few.name)
    assert list(values) == list(NORMS)
    for norm in NORMS:
        rows = score(slotnorm.load(bundle / f"toy-{norm}.safetensors"), scenes, [10], source="masks")
        for metric in ("f_ari", "ari", "l2"):
            assert values[norm][metric][1] == pytest.approx(np.nanmean(rows.where(metric=metric)["value"]), rel=1e-6)


def test_every_number_of_slots_up_to_three_times_the_training_one_is_looked_at(shown_demo):
    for test in experiments.study("toy").tests:
        assert shown_demo.section.slots(test.name) == list(range(2, 16))
    assert shown_demo.report.sections[0].illustration.slots == list(range(2, 16))
    assert all(run.failed is not None for run in shown_demo.section.runs)


def test_the_verb_prints_draws_writes_and_needs_no_cache(bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bundle_module, "bundled_folder", lambda: bundle)
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "temporary").mkdir()
    out = tmp_path / "my page"
    main(["demo", "--scenes", "2", "--out", str(out)])
    shown = capsys.readouterr()
    assert "toy4: 2 new scenes with 2 to 4 objects, as in training" in shown.out
    assert "toy7: 2 new scenes with 5 to 7 objects, more than in training" in shown.out
    assert re.search(r"^Baseline( +−?\d\.\d+){9}$", shown.out, re.MULTILINE)
    assert "F-ARI ↑ on toy4" in shown.out
    assert shown.out.endswith(f"page: {out / 'index.html'}\n")
    assert "\x1b" not in shown.out
    html = (out / "index.html").read_text()
    assert html.startswith("<!doctype html>")
    assert "<title>slotnorm demo</title>" in html
    assert not (tmp_path / "cache").exists()
    assert not list((tmp_path / "temporary").iterdir()), "the scenes are removed"
    main(["demo", "--scenes", "2", "--out", str(out)])
    assert (out / "index.html").read_text() == html, "the same command gives the same page"


def test_without_a_browser_it_says_where_the_page_is(shown_demo, bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "run_demo", lambda num, device: shown_demo)
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    main(["demo", "--open", "--out", str(tmp_path)])
    assert opened == [(tmp_path / "index.html").as_uri()]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    main(["demo", "--open", "--out", str(tmp_path)])
    assert "no browser was found; open" in capsys.readouterr().err

    def fail(address):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "open", fail)
    assert demo.open_page(tmp_path / "index.html") is False


def test_a_damaged_bundled_file_is_named_with_how_to_reinstall(copy):
    path = copy / "toy-batch_norm.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"toy-batch_norm.safetensors is damaged: .* pip install --force-reinstall"):
        demo.run_demo(2, copy)
    path.unlink()
    with pytest.raises(DamagedFile, match=r"toy-batch_norm.safetensors is missing; install slotnorm again"):
        demo.run_demo(2, copy)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_list_of_hashes_is_named(copy, content):
    (copy / bundle_module.HASHES).write_bytes(content)
    with pytest.raises(DamagedFile, match=r"hashes.json is damaged .* install slotnorm again"):
        bundle_module.bundled_files(copy)


def test_a_package_without_checkpoints_says_so(tmp_path):
    with pytest.raises(UserError, match="has no bundled checkpoints: .* install slotnorm again"):
        bundle_module.bundled_files(tmp_path)


def test_bad_input_is_one_sentence_before_anything_is_computed(bundle, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--scenes 1 is too few"):
        demo.run_demo(1, bundle)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out .*file cannot be used"):
        demo.prepare(tmp_path / "file")
    (tmp_path / "index.html").write_text("my own page")
    with pytest.raises(UserError, match="index.html is there and was not made by the demo"):
        demo.prepare(tmp_path)

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(UserError, match="no temporary folder can be made .No space left on device.*TMPDIR"):
        demo.run_demo(2, bundle)


def panel(curves: dict[str, list[float]], points: list[int]) -> Panel:
    def curve(values):
        array = np.asarray(values, float)
        return Curve(np.asarray(points), array, array, array, array * 0, np.ones(len(points), int), {"run": array})

    return Panel("f_ari", "masks", "slots", ("toy4",), None, {n: curve(v) for n, v in curves.items()}, 5, 4)


def test_a_chart_has_every_marker_at_its_value():
    drawn = panel({"weighted_mean": [0.2, 0.9, 0.5], "weighted_sum": [0.2, 0.9, 0.9]}, [4, 5, 6])
    lines = [line.plain for line in chart(drawn)]
    assert lines[0] == "F-ARI ↑ on toy4"
    values = {}
    for line in lines[1:-2]:
        if match := re.match(r" *(-?\d\.\d\d)", line):
            values[line] = float(match[1])
    top = [line for line in lines if "●▲" in line]
    assert len(top) == 1, "equal values stand beside each other"
    middle = next(line for line in lines if "●" in line and "▲" not in line)
    assert lines.index(top[0]) < lines.index(middle)
    assert sum(line.count("●") for line in lines) == 2, "what fewer slots than in training score may leave the frame"
    assert max(values.values()) >= 0.9
    assert min(values.values()) <= 0.5
    assert lines[-1].split() == ["4", "[5]", "6", "slots", "K,", "[trained]"]
    column = lines[-1].index("[5]") + 1
    assert top[0][column] == "●"


def test_many_points_leave_out_numbers_that_do_not_fit():
    drawn = panel({"batch_norm": [0.9] * 40}, list(range(1, 41)))
    lines = [line.plain for line in chart(drawn)]
    assert max(map(len, lines)) < 120
    assert "[5]" in lines[-1]
    assert sum(line.count("◆") for line in lines) == 40
    numbers = re.findall(r"\d+", lines[-1])
    assert numbers == sorted(numbers, key=int)


def test_an_output_that_knows_no_unicode_gets_plain_characters():
    assert characters("utf-8") is UNICODE
    assert characters("ascii") is characters("latin-1") is ASCII
    drawn = panel({"weighted_mean": [0.9, -0.5]}, [5, 6])
    values = {"weighted_mean": {"l2": [0.1, float("nan")], "f_ari": [0.5, -0.25]}}
    lines = [line.plain for line in [*chart(drawn, ASCII), legend(NORMS, ASCII), *table(values, [5, 10], ASCII)]]
    assert all(line.isascii() for line in lines)
    assert any("-0.250" in line for line in lines)
    unicode = [line.plain for line in [*chart(drawn), *table(values, [5, 10])]]
    assert any("−0.250" in line for line in unicode)
    assert not any(re.search(r"-\d", line) for line in unicode)


def test_a_table_is_aligned():
    values = {norm: {"f_ari": [0.5, 0.25], "l2": [0.01, float("nan")]} for norm in NORMS}
    lines = [line.plain for line in table(values, [5, 10])]
    assert lines[1].split() == ["slots", "K", "5", "10", "5", "10"]
    assert lines[2].split() == ["Baseline", "0.500", "0.250", "0.0100", "–"]
    assert lines[1].index("10") + 2 == lines[2].index("0.250") + 5


def test_colours_only_where_they_are_wanted(monkeypatch):
    def printed(**options):
        screen = Console(force_terminal=True, color_system="truecolor", **options)
        with screen.capture() as capture:
            screen.print(legend(NORMS))
        return capture.get()

    assert "\x1b[38;2;0;114;178m●" in printed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "38;2" not in printed()


def test_the_median_run_is_put_into_the_package_by_a_script(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    from make_bundled import bundle as put

    scenes = tiny.build_scenes(tmp_path / "scenes").directory
    runs = [train(tiny.experiment(seed=seed, steps=2), tmp_path / "runs", data=scenes) for seed in (1, 2, 3)]
    f_ari = {}
    for job in run_evaluation.plan_evaluations(
        [run.path for run in runs], "toy4", slots=(4, 8, 12), scenes=16, data=scenes
    ):
        values = job.evaluate().where(metric="f_ari", source="masks", slots=4)["value"]
        f_ari[job.run.path] = float(np.nanmean(values))
    put([tmp_path / "runs"], tmp_path / "bundled", scenes)
    (path,) = bundle_module.bundled_files(tmp_path / "bundled")
    assert path.name == "toy-weighted_sum.safetensors"
    median = Run.open(sorted(f_ari, key=f_ari.__getitem__)[1])
    loaded, whole = slotnorm.load(path).state_dict(), median.model().state_dict()
    for name, tensor in loaded.items():
        assert tensor.dtype == whole[name].dtype
        assert torch.allclose(tensor, whole[name], rtol=1e-3, atol=1e-6)
    card = path.with_suffix(".md").read_text()
    assert card.startswith(f"# {median.name}")
    assert "half precision" in card
    assert all(f"| `toy4`, 16 scenes, K {number} |" in card for number in (4, 8, 12))
    assert card.count("SHA-256 of") == 1
    assert files.sha256(path) in card
