"""From folders of runs to a folder of files: what is read, what is left out, what is refused, what is written."""

import csv
import dataclasses
import gzip
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import processes
import tiny
from made_up_page import made_up_examples
from made_up_rows import made_up, save
from slotnorm.cli import verbs
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.evaluation.rows import COLUMNS, Rows
from slotnorm.report.contents import Report, compose
from slotnorm.report.effects import DEFINITION
from slotnorm.report.model_views import Inspector, median_run, spaced
from slotnorm.report.packed_rows import PackedRows
from slotnorm.report.page.page import render
from slotnorm.report.prose import report_page
from slotnorm.report.reading import read
from slotnorm.report.writing import write, write_report
from slotnorm.storage import archives
from slotnorm.storage.seals import write_sealed
from slotnorm.studies.run_evaluation import plan_evaluations
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

pytestmark = pytest.mark.usefixtures("few_resamples")

SLOTS = (3, 4, 6, 12)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return tiny.build_scenes(tmp_path_factory.mktemp("data") / "many", 24, seed=1, crowded=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, crowd: Scenes) -> Path:
    """Two tiny runs, evaluated on one set."""
    scenes = tiny.build_scenes(tmp_path_factory.mktemp("data") / "few", 32)
    folder = tmp_path_factory.mktemp("runs")
    for norm in ("weighted_mean", "batch_norm"):
        train(tiny.experiment(norm, steps=4), folder, data=scenes.directory)
    for job in plan_evaluations([folder], "toy7", slots=SLOTS, scenes=12, data=crowd.directory):
        job.evaluate()
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil, without what a report may have kept beside the runs."""
    return Path(shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("examples", "diagnosis")))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def reported(trained: Path, crowd: Scenes, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    out = tmp_path_factory.mktemp("out") / "report"
    return out, write_report([trained], out, data=crowd.directory)


def test_a_report_of_trained_runs_has_everything(trained: Path, reported: tuple[Path, Report]) -> None:
    written = files_of(reported[0])
    assert {
        "report.md", "claims.md", "claims.json", "provenance.json", "curves.csv", "scores.csv", "rows.csv.gz",
        "report.json", "tables/toy.md", "tables/toy.tex", "tables/toy.csv", "figures/toy-segmentation.svg",
        "figures/effect.svg", "figures/effect-differences.png", "effect.csv",
        "figures/toy-segmentation.png", "figures/toy-reconstruction.svg", "figures/toy-attention.svg",
        "figures/toy-diagnostics.svg", "pictures/toy-4-slots.png", "pictures/toy-12-slots.png",
        "pictures/toy-over-slots.png", "figures/toy-background.svg", "figures/toy-background.png",
        "tables/toy-background.md", "tables/toy-background.tex", "tables/toy-background.csv",
        "figures/toy-count.svg", "figures/toy-count.pdf", "tables/toy-count.md", "tables/toy-count.tex",
    } <= set(written)  # fmt: skip
    pictures = [line for line in written["report.md"].decode().splitlines() if line.startswith("![")]
    assert len(pictures) == 11
    assert all(line.split("](")[1].rstrip(")") in written for line in pictures)
    with Image.open(io.BytesIO(written["pictures/toy-12-slots.png"])) as picture:
        assert picture.size == (96 + 3 * 136 + 12, 26 + 6 * 136 + 2 * 12 + 4)  # input, two variants; three scenes
    assert (trained / "toy-batch_norm-1" / "examples" / "toy7.npz").is_file()
    assert (trained / "toy-batch_norm-1" / "diagnosis" / "toy7.npz").is_file()
    provenance = json.loads(written["provenance.json"])
    assert [entry["run"] for entry in provenance] == ["toy-weighted_mean-1", "toy-batch_norm-1"]
    header = Rows.load(trained / "toy-batch_norm-1" / "rows" / "toy7.npz").header
    assert provenance[1]["weights"] == header["weights"]
    assert provenance[1]["scenes"]["toy7"]["scenes"] == header["scenes"]
    assert provenance[1]["command"].startswith("slotnorm train toy")


def test_the_same_runs_give_the_same_bytes_and_what_is_not_ours_stays(
    trained: Path, reported: tuple[Path, Report], capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = reported
    written = files_of(out)
    (out / "mine.txt").write_text("not ours")
    verbs.main(["report", str(trained), "--out", str(out), "--no-models"])  # what was made is kept beside the runs
    printed = capsys.readouterr().out
    assert printed.startswith("2 runs in 1 section; claims: ")
    assert f"report: {out / 'report.md'}" in printed
    again = files_of(out)
    assert again.pop("mine.txt") == b"not ours"
    assert again == written
    (out / "mine.txt").unlink()


def test_rows_are_written_whole_and_scores_as_means(trained: Path, reported: tuple[Path, Report]) -> None:
    out, report = reported
    lines = list(csv.reader(io.StringIO(gzip.decompress((out / "rows.csv.gz").read_bytes()).decode())))
    parts = [Rows.load(path) for path in sorted(trained.glob("*/rows/*.npz"))]
    assert lines[0] == list(COLUMNS)
    assert len(lines) == 1 + sum(map(len, parts))
    scores = list(csv.DictReader(io.StringIO((out / "scores.csv").read_text())))
    wanted = {"run": "toy-batch_norm-1", "metric": "l2", "source": "masks", "slots": "12"}
    line = next(line for line in scores if wanted.items() <= line.items())
    (run,) = [run for run in report.runs if run.norm == "batch_norm"]
    assert float(line["mean"]) == run.mean("toy7", "l2", 12).value
    rows = Rows.concat(parts).where(norm="batch_norm", metric="l2", slots=12)
    assert float(line["mean"]) == pytest.approx(rows["value"].mean())
    assert int(line["scored"]) == 12


def composed(runs: Path, inspector: Inspector) -> Report:
    return compose(read([runs]), inspector.illustrate, inspector.diagnose, with_theory=False)


def test_without_models_what_was_not_kept_is_named(runs: Path) -> None:
    report = composed(runs, Inspector(run_models=False))
    contents = report.sections[0]
    assert contents.illustration is None
    assert contents.diagnostics is None
    assert len(contents.notes) == 4
    assert all("toy7.npz was not made yet, and models are not run" in note for note in contents.notes)
    assert "was not made yet" in report_page(report)


def test_a_diagnosis_of_another_version_is_made_anew_or_named(runs: Path, crowd: Scenes) -> None:
    section = read([runs]).sections[0]
    inspector = Inspector(data=crowd.directory)
    first, _ = inspector.diagnose(section)
    assert first is not None
    path = runs / "toy-batch_norm-1" / "diagnosis" / "toy7.npz"
    rows = Rows.load(path)
    old = {name: value for name, value in rows.header.items() if name != "version"}  # the first version did not say
    rows.where(metric="occupied").save(path, old)
    second, notes = Inspector(run_models=False).diagnose(section)
    assert second is not None
    assert list(second.counts) == ["weighted_mean"]
    (note,) = notes
    assert note.startswith("No diagnostics of toy-batch_norm-1: ")
    assert note.endswith("toy7.npz is a diagnosis of version 1, this slotnorm makes 2, and models are not run.")
    third, notes = inspector.diagnose(section)
    assert notes == []
    assert third is not None
    assert third.counts == first.counts
    assert Rows.load(path).equals(rows)
    assert Rows.load(path).header == rows.header


def test_when_scenes_are_not_there_pictures_are_left_out_with_the_reason(runs: Path) -> None:
    section = read([runs]).sections[0]
    illustration, notes = Inspector(data=runs / "nowhere").illustrate(section)
    assert illustration is None
    assert len(notes) == 2
    assert all(note.startswith("No pictures of toy-") for note in notes)


def test_damaged_examples_are_made_again(runs: Path, crowd: Scenes) -> None:
    section = read([runs]).sections[0]
    inspector = Inspector(data=crowd.directory)
    first, _ = inspector.illustrate(section)
    path = runs / "toy-batch_norm-1" / "examples" / "toy7.npz"
    path.write_bytes(path.read_bytes()[:-100])
    second, notes = inspector.illustrate(section)
    assert notes == []
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.segmentation("batch_norm", 12), second.segmentation("batch_norm", 12))


def test_rows_and_exported_weights_without_checkpoints_are_enough(runs: Path, crowd: Scenes) -> None:
    """What is published of a run: its experiment, its rows, its weights."""
    for folder in sorted(runs.iterdir()):
        Run.open(folder).export(folder / "model.safetensors")
        shutil.rmtree(folder / "checkpoints")
    report = composed(runs, Inspector(data=crowd.directory))
    assert report.sections[0].illustration is not None
    assert report.sections[0].diagnostics is not None
    assert report.left_out == ()
    for folder in runs.iterdir():
        (folder / "experiment.json").unlink()
    assert len(composed(runs, Inspector(run_models=False)).runs) == 2


def test_weights_that_were_not_evaluated_are_not_pictured(runs: Path, crowd: Scenes) -> None:
    folder = runs / "toy-batch_norm-1"
    other = Run.open(runs / "toy-weighted_mean-1")
    shutil.rmtree(folder / "checkpoints")
    other.export(folder / "model.safetensors")
    _, notes = Inspector(data=crowd.directory).illustrate(read([runs]).sections[0])
    assert [note for note in notes if "are not those that were evaluated" in note]


def test_a_run_that_is_still_training_is_named_and_left_out(runs: Path) -> None:
    folder = runs / "toy-batch_norm-1"
    experiment = json.loads((folder / "experiment.json").read_text())
    experiment.pop("sha256_of_this")
    experiment["experiment"]["recipe"]["steps"] = 100
    write_sealed(folder / "experiment.json", experiment)
    report = composed(runs, Inspector(run_models=False))
    assert [run.norm for run in report.runs] == ["weighted_mean"]
    assert [(run.path.name, run.reason) for run in report.left_out] == [
        ("toy-batch_norm-1", "still training, at step 4 of 100")
    ]
    page = report_page(report)
    assert "1 left out:" in page
    assert "still training, at step 4 of 100" in page


def test_a_run_without_checkpoints_or_rows_is_at_its_start(runs: Path) -> None:
    folder = runs / "toy-batch_norm-1"
    for part in ("checkpoints", "rows"):
        shutil.rmtree(folder / part)
    assert [run.reason for run in read([runs]).left_out] == ["still training, at step 0 of 4"]


def test_rows_outlive_damaged_checkpoints(runs: Path, crowd: Scenes) -> None:
    for path in (runs / "toy-batch_norm-1" / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    report = composed(runs, Inspector(data=crowd.directory))
    assert len(report.runs) == 2
    assert any(note.startswith("toy-batch_norm-1 is damaged (") for note in report.notes)
    assert any(note.startswith("No pictures of toy-batch_norm-1") for note in report.sections[0].notes)


def test_pictures_that_cannot_be_kept_are_shown_all_the_same(
    runs: Path, crowd: Scenes, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in runs.iterdir():
        (folder / "examples").write_text("a file where the folder should be")
    illustration, notes = Inspector(data=crowd.directory).illustrate(read([runs]).sections[0])
    assert illustration is not None
    assert notes == []
    assert "it is shown all the same" in caplog.text


def test_no_finished_run_is_refused_in_one_sentence(runs: Path) -> None:
    for folder in runs.iterdir():
        shutil.rmtree(folder / "rows")
    with pytest.raises(UserError, match="none of the 2 runs can be reported: .*not evaluated yet; `slotnorm eval"):
        read([runs])


@pytest.mark.parametrize(
    ("paths", "sentence"),
    [
        ([], "there is nothing to report; give folders of runs"),
        (["nowhere"], "nowhere is not a folder"),
        (["."], "is not a run and holds none"),
    ],
)
def test_what_is_no_run_is_refused(
    paths: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        read(paths)


def test_failed_runs_are_counted_and_everything_is_given_with_and_without_them(tmp_path: Path) -> None:
    failed = [("batch_norm", 2)]
    rows = made_up("clevr-6-7", ["batch_norm"], [1, 2, 3], (7, 11), images=8, failed=failed)
    rows = rows.where(metric=("l2", "visible"))  # one figure is enough
    save(rows, tmp_path / "runs", failed)
    with PackedRows() as packed:
        report = compose(read([tmp_path / "runs"], packed.add), with_theory=False)
        write(report, tmp_path / "out", packed)
    contents = report.sections[0]
    assert contents.failures == {"batch_norm": "2 of 3 runs"}
    assert contents.results.figures_without_failed is not None
    assert len(contents.results.figures_without_failed) == len(contents.results.figures) == 1
    assert contents.results.table_without_failed is not None
    written = files_of(tmp_path / "out")
    assert "figures/clevr-6-7-without-failed-runs-reconstruction.svg" in written
    assert "tables/clevr-6-7-without-failed-runs.md" in written
    assert "rows.csv.gz" in written
    page = written["report.md"].decode()
    assert r"1 of them failed by the failed-run rule (clevr-6-7-batch\_norm-2)" in page
    assert "yes: splits the image by place" in page
    assert "| Batch Norm | 2 of 3 runs |" in page

    save(rows, tmp_path / "runs", [])
    write(compose(read([tmp_path / "runs"]), with_theory=False), tmp_path / "out")
    left = files_of(tmp_path / "out")
    assert not [name for name in left if "without-failed" in name]  # an earlier report's files are removed
    assert "rows.csv.gz" not in left


def test_the_effect_is_told_of_all_runs_and_then_without_the_failed_ones(tmp_path: Path) -> None:
    failed = [("batch_norm", 2)]
    save(made_up("clevr-6-7", ["batch_norm"], [1, 2, 3], (7, 21), images=8, failed=failed), tmp_path / "runs", failed)
    page = report_page(compose(read([tmp_path / "runs"]), with_theory=False))
    everything, without_failed = page.split("### Without failed runs")
    line = "| clevr-6-7 (6, 7), clevr6, K 7 → 21 | Batch Norm | {} (rough) |"
    assert everything.count(line.format(3)) == 1
    assert without_failed.count(line.format(2)) == 1
    assert page.count(line.format(3)) == page.count(line.format(2)) == page.count(DEFINITION) == 1


@pytest.mark.parametrize("failed", [[], [("batch_norm", 1)]])
def test_one_run_gets_no_table_without_a_number(tmp_path: Path, failed: list[tuple[str, int]]) -> None:
    save(made_up("clevr-6-7", ["batch_norm"], [1], (7, 21), images=8, failed=failed), tmp_path / "runs", failed)
    report = compose(read([tmp_path / "runs"]), with_theory=False)
    page = report_page(report)
    lines = page.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("|---")]
    assert heads
    assert all(number + 1 < len(lines) and lines[number + 1].startswith("|") for number in heads), "a head alone"
    assert "differences of these medians" not in page
    assert page.count("Without failed runs none is left.") == len(failed)
    assert "0 of 1 runs |" not in page
    html = render(report)
    assert html.count('<div class="kept"><p>No run is left.</p></div>') == len(failed)


def test_studies_are_sections_and_files_never_collide(tmp_path: Path) -> None:
    save(made_up("clevr-6-7", ["batch_norm"], [1], (7, 11), images=4), tmp_path / "runs")
    save(made_up("movi-6-7", ["batch_norm"], [1], (7, 11), images=4), tmp_path / "runs")
    longer = made_up("clevr-6-7", ["batch_norm"], [2], (7, 11), images=4)
    (folder,) = save(longer, tmp_path / "runs")
    for path in (folder / "rows").glob("*.npz"):
        rows = Rows.load(path)
        rows.header["experiment"]["recipe"]["steps"] = 20
        rows.save(path)
    report = compose(read([tmp_path / "runs"]), with_theory=False)
    assert [(contents.section.title, contents.stem) for contents in report.sections] == [
        ("clevr-6-7 (recipe.steps 500000)", "clevr-6-7"),
        ("clevr-6-7 (recipe.steps 20)", "clevr-6-7-2"),
        ("movi-6-7", "movi-6-7"),
    ]
    assert report.sections[1].section.changes == ("recipe.steps 20 instead of 500000",)


def test_runs_evaluated_on_a_transfer_alone_give_its_table(tmp_path: Path) -> None:
    rows = made_up("movi-6-7", ["batch_norm", "layer_norm"], [1], (24,), images=4)
    save(rows.where(dataset="movi-c6").with_columns(dataset="movi-d"), tmp_path / "runs")
    report = compose(
        read([tmp_path / "runs"]), Inspector(False).illustrate, Inspector(False).diagnose, with_theory=False
    )
    assert report.sections[0].results.figures == ()
    assert [table.name for table, _ in report.zero_shot] == ["movi-d zero-shot"]
    write(report, tmp_path / "out")
    assert "(0.809 ± 0.005)" in (tmp_path / "out" / "tables" / "movi-d-zero-shot.md").read_text()
    assert "## Zero-shot transfer" in (tmp_path / "out" / "report.md").read_text()


def test_names_with_markup_are_harmless(tmp_path: Path) -> None:
    rows = made_up("clevr-6-7", ["batch_norm"], [1], (7,), images=4).where(dataset="clevr6", metric=("l2", "visible"))
    (folder,) = save(rows.with_columns(dataset="<img src=x>_😀"), tmp_path / "runs")
    folder.rename(folder.with_name("a <b> `c` | $d_1$ 😀"))
    report = compose(read([tmp_path / "runs"]), with_theory=False)
    write(report, tmp_path / "out")
    for name, content in files_of(tmp_path / "out").items():
        if name.endswith((".md", ".tex", ".svg", ".html")):
            text = content.decode()
            assert "<img src=x" not in text, name
            assert "<b>" not in text, name
    page = (tmp_path / "out" / "report.md").read_text()
    assert r"a &lt;b&gt; \`c\` \| $d\_1$ 😀" in page


def keep_examples(folders: Iterable[Path], dataset: str) -> None:
    """Pictures as an earlier report would have kept them beside these runs."""
    for folder in folders:
        examples = made_up_examples(folder.name.split("-")[1], scenes=2)
        facts = {"weights": f"weights of {folder.name}"}
        kept = dataclasses.replace(examples, run=folder.name, dataset=dataset, facts=facts)
        kept.save(folder / "examples" / f"{dataset}.npz")


def test_pictures_are_of_the_set_that_the_finding_is_told_of(tmp_path: Path) -> None:
    folders = save(made_up("toy", ("weighted_mean", "batch_norm"), [1], (5, 7, 10, 15), images=4), tmp_path / "runs")
    (section,) = read([tmp_path / "runs"]).sections
    assert section.sets == ("toy4", "toy7", "toy10")
    inspector = Inspector(run_models=False)
    keep_examples(folders, "toy7")
    illustration, notes = inspector.illustrate(section)
    assert illustration is not None
    assert (illustration.dataset, list(illustration.examples), notes) == ("toy7", ["weighted_mean", "batch_norm"], [])
    keep_examples(folders[:1], "toy4")
    illustration, _ = inspector.illustrate(section)
    assert illustration is not None
    assert illustration.dataset == "toy7", "of more runs"
    keep_examples(folders, "toy4")
    illustration, _ = inspector.illustrate(section)
    assert illustration is not None
    assert illustration.dataset == "toy4"


def test_a_run_that_was_not_tested_on_a_set_is_not_shown_on_it(runs: Path, crowd: Scenes) -> None:
    (section,) = read([runs]).sections
    tested, other = section.runs
    elsewhere = {("toy4", source, metric): tally for (_, source, metric), tally in other.tallies.items()}
    facts = {**other.facts, "scenes": {"toy4": other.facts["scenes"]["toy7"]}}
    moved = dataclasses.replace(other, tallies=elsewhere, scenes={}, facts=facts)
    divided = dataclasses.replace(section, runs=(tested, moved), sets=("toy7", "toy4"))
    inspector = Inspector(data=crowd.directory)
    illustration, notes = inspector.illustrate(divided)
    assert illustration is not None
    assert list(illustration.examples) == ["weighted_mean"]
    assert notes == [f"No pictures of {other.name}: it was not evaluated on toy7."]
    _, notes = inspector.diagnose(divided)
    assert notes == [f"No diagnostics of {other.name}: it was not evaluated on toy7."]


def test_the_pictured_run_is_the_median_one_of_those_that_did_not_fail(tmp_path: Path) -> None:
    parts = []
    for seed, level in enumerate((0.9, 0.1, 0.5, 0.7), start=1):
        rows = made_up("clevr-6-7", ["batch_norm"], [seed], (7,), images=4)
        parts.append(rows.with_columns(value=np.where(rows["metric"] == "f_ari", level, rows["value"])))
    save(Rows.concat(parts), tmp_path / "runs", failed=[("batch_norm", 2)])
    (section,) = read([tmp_path / "runs"]).sections
    assert median_run(section, "batch_norm").seed == 4
    assert spaced(range(2, 17), 6) == [2, 5, 8, 10, 13, 16]
    assert spaced([1, 2], 6) == [1, 2]


Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {name: array for name, array in arrays.items() if name[:5] not in ("masks", "recon")},
        lambda arrays: {name: array if name == "record" else array[:0] for name, array in arrays.items()},
        lambda arrays: {**arrays, **{name: array[..., :0, :0] for name, array in arrays.items() if "masks" in name}},
        lambda arrays: {**arrays, "masks-0": arrays["masks-5"][:, :0]},
        lambda arrays: {**arrays, "masks-5": arrays["masks-5"][..., :8, :8]},
        lambda arrays: {**arrays, "labels": arrays["labels"][:, :8]},
        lambda arrays: {**arrays, "labels": arrays["labels"][:, :0]},
        lambda arrays: {**arrays, "reconstruction-5": arrays["reconstruction-5"][:, :8]},
        lambda arrays: {**arrays, "reconstruction-99": arrays["reconstruction-5"]},
        lambda arrays: {name: array for name, array in arrays.items() if name != "labels"},
        lambda arrays: {"masks-99": np.zeros((2, 99, 8, 8), np.uint8)}
        | {name: arrays[name] for name in ("record", "scenes", "images")},
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1])
def test_forged_examples_of_one_run_are_named_and_the_report_goes_on(
    tmp_path: Path, change: Change, number: int
) -> None:
    norms = ("weighted_mean", "batch_norm")
    folders = save(made_up("toy", norms, [1], (5, 7, 10, 15), images=4), tmp_path / "runs")
    keep_examples(folders, "toy4")
    path = folders[number] / "examples" / "toy4.npz"
    archives.write_arrays(path, change(archives.read_arrays(path)))
    report = write_report([tmp_path / "runs"], tmp_path / "out", models=False)
    assert len(report.runs) == 2
    assert re.search(
        "holds no examples|of different scenes|none of which was scored", "; ".join(report.sections[0].notes)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.take(np.zeros(len(rows), bool)),
        lambda rows: rows.with_header({name: told for name, told in rows.header.items() if name != "mass"}),
        lambda rows: rows.with_header({**rows.header, "mass": None}),
        lambda rows: Rows.concat([rows, rows], rows.header),
        lambda rows: rows.with_columns(dataset="toy4"),
        lambda rows: rows.with_columns(norm="weighted_sum"),
        lambda rows: rows.with_columns(train_slots=7),
        lambda rows: rows.where(metric="occupied"),
        lambda rows: rows.with_columns(value=np.nan),
        lambda rows: rows.with_columns(slots=-1),
    ],
)  # fmt: skip
def test_a_forged_diagnosis_of_one_run_is_named_and_the_report_goes_on(
    reported: tuple[Path, Report], trained: Path, tmp_path: Path, change: Callable[[Rows], Rows]
) -> None:
    runs = shutil.copytree(trained, tmp_path / "runs")
    for folder in runs.iterdir():
        path = folder / "diagnosis" / "toy7.npz"
        change(Rows.load(path)).save(path)
        assert len(write_report([runs], tmp_path / "out", models=False).runs) == 2


@pytest.mark.parametrize("name", ["examples", "diagnosis"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_closed_folder_of_what_was_kept_is_named_and_the_report_goes_on(
    tmp_path: Path, name: str, is_closed: bool
) -> None:
    norms = ("weighted_mean", "batch_norm")
    good, bad = save(made_up("toy", norms, [1], (5, 7, 10, 15), images=4), tmp_path / "runs")
    keep_examples([good, bad], "toy4")
    shutil.rmtree(bad / name, ignore_errors=True)
    (bad / name).mkdir(0) if is_closed else (bad / name).write_bytes(b"")
    page, words = tmp_path / "out" / "index.html", ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    command = processes.Command([*words, "--no-models"], tmp_path / "said.txt", None, processes.obey_permissions)
    assert command.wait() == 1, command.said
    reason = "Permission denied" if is_closed else "Not a directory"
    what = "pictures" if name == "examples" else "diagnostics"
    assert f"warning: {bad} has no {what}: cannot look into {bad / name}: {reason}; let this user read" in command.said
    assert f"1 run is damaged, and what is whole of it was used: {bad.name}" in command.said
    assert f"cannot look into {bad / name}: {reason}" in page.read_text()
    assert command.said.count("warning: ") == 1
