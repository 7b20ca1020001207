"""`slotnorm eval`: rows beside runs, that are made once, go on after a kill, and are never used damaged."""

import csv
import dataclasses
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import slotnorm as sn
import tiny
from processes import Command
from slotnorm.cli.verbs import main
from slotnorm.config import Experiment
from slotnorm.errors import DamagedFile, Locked, UserError
from slotnorm.evaluation import failed_runs, row_files, scoring
from slotnorm.evaluation.failed_runs import RULE
from slotnorm.evaluation.rows import COLUMNS, Rows
from slotnorm.evaluation.scoring import Scores
from slotnorm.experiments import EvaluationSet, evaluation_set, evaluation_sets, experiment, study
from slotnorm.metrics import Comparison, Metric
from slotnorm.metrics import metric as metric_classes
from slotnorm.models import weights
from slotnorm.report.reading import read
from slotnorm.storage.locks import Lock
from slotnorm.storage.seals import read_sealed, write_sealed
from slotnorm.storage.serialization import from_document, to_document
from slotnorm.studies import run_evaluation, test_sets
from slotnorm.studies.evaluation_jobs import plan_jobs
from slotnorm.studies.run_evaluation import describe, plan_evaluations, read_judgement
from slotnorm.training import checkpoints, records
from slotnorm.training.experiment_scenes import evaluation_scenes
from slotnorm.training.loop import train
from slotnorm.training.runs import Objection, Run

NUM = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data"), 64).directory


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Run:
    return train(tiny.experiment(), tmp_path_factory.mktemp("runs"), data=data)


@pytest.fixture(scope="module")
def whole(finished: Run, data: Path) -> Rows:
    """What an evaluation that nothing happens to gives, straight from the model."""
    scenes = sn.data.Scenes.open(data).sample(NUM)
    return sn.score(finished.model(), scenes, slots=range(3, 7), dataset="mine", run=finished.name)


@pytest.fixture
def run(tmp_path: Path, finished: Run) -> Run:
    shutil.copytree(finished.path, tmp_path / finished.name, ignore=shutil.ignore_patterns("rows"))
    return Run.open(tmp_path / finished.name)


def evaluate(run: Run, data: Path, first: int = 3, last: int = 6, **changes: Any) -> Rows:
    arguments: dict[str, Any] = {"scenes": NUM, "data": data, **changes}
    (job,) = plan_evaluations([run.path], "mine", slots=range(first, last + 1), **arguments)
    return job.evaluate()


def names(run: Run) -> list[str]:
    return sorted(path.name for path in (run.path / "rows").iterdir())


def refuse(*_: Any) -> Any:
    pytest.fail("computed again")


def test_rows_are_kept_beside_the_run_and_made_once(
    run: Run, data: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = evaluate(run, data)
    assert rows.equals(whole)
    assert names(run) == ["binding.json", "mine.npz"]
    kept = Rows.load(run.path / "rows" / "mine.npz")
    assert kept.equals(whole)
    scenes = {name: whole.header[name] for name in ("num_scenes", "images")}
    assert kept.header == {**whole.header, "scenes_of_slots": {str(number): scenes for number in range(3, 7)}}
    assert rows.header == whole.header
    monkeypatch.setattr(scoring.Evaluation, "parts", refuse)
    monkeypatch.setattr(failed_runs, "judge", refuse)
    assert evaluate(run, data).equals(whole)
    assert evaluate(run, data, 4, 5).equals(whole.where(slots=[4, 5]))


def test_two_halves_and_other_batch_sizes_give_the_same_rows(run: Run, data: Path, whole: Rows) -> None:
    evaluate(run, data, 3, 4, batch_size=5)
    evaluate(run, data, 6, 6, batch_size=1)
    assert evaluate(run, data).equals(whole)


def die_after_parts(number: int) -> None:
    """Make this process die by SIGKILL when it has kept so many parts."""
    save, saved = Scores.save, []

    def watched(part: Scores, path: Path) -> None:
        save(part, path)
        saved.append(path)
        if len(saved) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Scores.save = watched  # type: ignore[method-assign]


def test_a_killed_evaluation_goes_on_to_the_same_rows(
    run: Run, data: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["eval", str(run.path), "--dataset", "mine", "--data", str(data), "--scenes", str(NUM), "--batch-size", "1"]
    killed = Command([*asked, "--slots", "3:6"], run.path.parent / "log.txt", None, die_after_parts, 2)
    assert killed.wait() == -signal.SIGKILL
    (folder,) = (run.path / "rows" / ".unfinished").iterdir()
    parts = [Scores.load(path) for path in sorted(folder.iterdir())]
    assert len(parts) == 2
    done = {image for part in parts for image in part.images.tolist()}
    assert 0 < len(done) < NUM

    scored: list[int] = []
    score_group = scoring.Evaluation._score_group

    def watched(self: Any, group: np.ndarray, slots: Any) -> Scores:
        scored.extend(self.scenes.index[group[group >= 0]].tolist())
        return score_group(self, group, slots)

    monkeypatch.setattr(scoring.Evaluation, "_score_group", watched)
    assert evaluate(run, data).equals(whole)
    assert not done & set(scored)
    assert len(scored) == NUM - len(done)
    assert ".unfinished" not in names(run)


def test_an_interrupted_evaluation_is_used_for_other_numbers_of_slots_too(
    run: Run, data: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    concat = Scores.concat

    def stop(parts: list[Scores]) -> Scores:
        if len(parts[0].images) > 3 and len(parts) > 1:
            raise KeyboardInterrupt
        return concat(parts)

    monkeypatch.setattr(Scores, "concat", stop)  # when all parts of a sweep over 4 and 5 slots are kept
    with pytest.raises(KeyboardInterrupt):
        evaluate(run, data, 4, 5, batch_size=1)
    monkeypatch.undo()
    scored: list[Any] = []
    score_group = scoring.Evaluation._score_group
    monkeypatch.setattr(
        scoring.Evaluation,
        "_score_group",
        lambda self, group, slots: scored.append(slots) or score_group(self, group, slots),
    )
    assert evaluate(run, data).equals(whole)
    assert set(scored) == {(3, 6)}


def test_average_precision_survives_an_interruption(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tiny.experiment(model=tiny.PROPERTIES, steps=2, flip=False), tmp_path, data=data)
    whole = sn.score(run.model(), sn.data.Scenes.open(data).sample(NUM), slots=[3, 4], dataset="mine", run=run.name)
    assert "ap@0.25" in whole.unique("metric")
    save, saved = Scores.save, []

    def interrupt(part: Scores, path: Path) -> None:
        save(part, path)
        saved.append(path)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Scores, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        evaluate(run, data, 3, 4, batch_size=1)
    assert evaluate(run, data, 3, 4).equals(whole)


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"", lambda content: content[9:]])
def test_damaged_rows_are_named_and_made_again(
    run: Run, data: Path, whole: Rows, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    evaluate(run, data)
    path = run.path / "rows" / "mine.npz"
    path.write_bytes(damage(path.read_bytes()))
    assert evaluate(run, data).equals(whole)
    assert f"{path} is not what was written" in caplog.text
    assert Rows.load(path).equals(whole)


def test_a_damaged_part_of_an_interrupted_evaluation_is_made_again(
    run: Run, data: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Rows, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        evaluate(run, data, batch_size=1)
    monkeypatch.undo()
    (folder,) = (run.path / "rows" / ".unfinished").iterdir()
    parts = sorted(folder.iterdir())
    parts[1].write_bytes(parts[1].read_bytes()[:-1] + b"x")
    assert evaluate(run, data).equals(whole)
    assert "making it again" in caplog.text


def test_rows_of_other_weights_are_removed_and_made_anew(
    run: Run, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = evaluate(run, data, 3, 3)
    evaluate(run, data, 4, 4)
    train(tiny.experiment(steps=16), run.path.parent, data=data)
    after = evaluate(Run.open(run.path), data, 3, 3)
    assert "has rows of other weights" in caplog.text
    assert names(run) == ["binding.json", "mine.npz"]
    assert after.header["weights"] != before.header["weights"]
    assert read_judgement(run.path)["weights"] == after.header["weights"]


@pytest.mark.parametrize("how", ["damaged", "removed", "removed, of rows that do not say their step"])
def test_rows_of_a_later_step_than_the_newest_whole_one_are_not_removed(run: Run, data: Path, how: str) -> None:
    """Whoever evaluates an unfinished run after its last checkpoint was lost would lose the rows of that, too."""
    evaluate(run, data, 3, 4)
    path = run.path / "rows" / "mine.npz"
    if "rows" in how:
        rows = Rows.load(path)
        rows.save(path, {name: told for name, told in rows.header.items() if name != "step"})
    before = {file: file.read_bytes() for file in (run.path / "rows").iterdir()}
    (job,) = plan_evaluations([run.path], "mine", slots=[3], scenes=NUM, data=data)
    last = run.checkpoints / "step-12.json"
    last.write_bytes(b"") if how == "damaged" else last.unlink()
    sentence = "mine.npz has rows of step 12, and the newest whole checkpoint is of step 8: they would be lost; `slot"
    with pytest.raises(UserError, match=sentence):
        plan_evaluations([run.path], "mine", slots=[3], scenes=NUM, data=data, unfinished=True)
    job = dataclasses.replace(job, evaluation=scoring.Evaluation(run.model(), job.scenes, job.slots))
    with pytest.raises(UserError, match=sentence):
        job.evaluate()
    with pytest.raises(UserError, match=sentence):
        job.score_part(np.arange(4), job.parts_folder / "shard")
    assert {file: file.read_bytes() for file in before} == before
    train(run.experiment, run.path.parent, data=data)
    assert evaluate(Run.open(run.path), data, 3, 4).equals(Rows.load(path))
    assert path.read_bytes() == before[path]


def test_a_run_whose_data_is_gone_does_not_keep_the_others_from_being_evaluated(
    tmp_path: Path, finished: Run, caplog: pytest.LogCaptureFixture
) -> None:
    paths = several(finished, tmp_path)
    moved = Run.open(paths["first"])
    Run(moved.path, moved.experiment, moved.scenes, moved.data, tmp_path / "gone").write()
    left_out: list[Objection] = []
    planned = plan_evaluations([tmp_path], slots=[3], scenes=4, left_out=left_out)
    assert {job.run.path.parent.name for job in planned} == {"second", "third"}
    assert [(run.path.parent.name, run.is_damaged) for run in left_out] == [("first", True)]
    assert f"was trained on {tmp_path / 'gone'}, which is not there any more" in caplog.text


def test_fewer_scenes_do_not_replace_more_and_more_do_replace_fewer(
    run: Run, data: Path, whole: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    few = evaluate(run, data, 3, 3, scenes=10)
    assert len(set(few["image"].tolist())) == 10
    assert evaluate(run, data, 3, 3).equals(whole.where(slots=3))
    caplog.clear()
    assert evaluate(run, data, 3, 3, scenes=10).equals(whole.where(slots=3))
    assert "has 40 scenes, with the 10 asked for: kept" in caplog.text


def test_rows_that_were_made_otherwise_are_made_anew(
    run: Run, data: Path, whole: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate(run, data, 3, 3)
    path = run.path / "rows" / "mine.npz"
    rows = Rows.load(path)
    rows.save(path, {**rows.header, "protocol": "authors", "identity": "other"})
    assert evaluate(run, data, 3, 3).equals(whole.where(slots=3))
    assert "was made otherwise (protocol, iterations or scenes); making it anew" in caplog.text


def test_runs_that_are_still_training_are_left_out_unless_asked_for(
    tmp_path: Path, run: Run, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unfinished = tmp_path / "more" / run.name
    shutil.copytree(run.path, unfinished)
    longer = tiny.experiment(steps=400)
    document = read_sealed(unfinished / "experiment.json")
    write_sealed(unfinished / "experiment.json", {**document, "experiment": to_document(longer)})
    arguments: dict[str, Any] = {"scenes": 8, "data": data, "slots": [3]}
    jobs = plan_evaluations([run.path, unfinished], "mine", **arguments)
    assert [job.run.path for job in jobs] == [run.path]
    messages = caplog.text
    way_out = "train it to the end, or evaluate its newest whole checkpoint with --unfinished"
    assert f"{unfinished} is still training, at step 12 of 400; {way_out}; it is left out" in messages
    with pytest.raises(UserError, match=f"the only run cannot be evaluated: .* step 12 of 400; {way_out}$"):
        plan_evaluations([unfinished], "mine", **arguments)
    assert len(plan_evaluations([run.path, unfinished], "mine", unfinished=True, **arguments)) == 2
    shutil.rmtree(unfinished / "checkpoints")
    with pytest.raises(UserError, match="the only run cannot be evaluated: .* at step 0 of 400; train it to the end$"):
        plan_evaluations([unfinished], "mine", unfinished=True, **arguments)


def test_bad_requests_are_refused_in_one_sentence_before_anything_is_computed(
    run: Run, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="there is no dataset 'clever6'; did you mean 'clevr6'"):
        plan_evaluations([run.path], "clever6")
    with pytest.raises(UserError, match="0 scenes cannot be scored; ask for one or more"):
        plan_evaluations([run.path], "mine", scenes=0, data=data)
    with pytest.raises(UserError, match="is not a run and holds none"):
        plan_evaluations([tmp_path / "absent"], "mine", data=data)
    with pytest.raises(UserError, match="slots are "):
        plan_evaluations([run.path], "mine", data=data, slots=range(5, 3))
    with pytest.raises(UserError, match=r"10000000 slots need about \d.* GiB and .* GiB are free; ask for at most"):
        plan_evaluations([run.path], "mine", data=data, slots=[3, 10**7])
    other = tmp_path / "other"
    with sn.data.Builder(other, {"images": ((16, 16, 3), "uint8")}, 3, {"made for": "tests"}) as builder:
        builder.append(images=np.zeros((3, 16, 16, 3), np.uint8), counts=np.zeros(3, np.int64))
        builder.finish()
    with pytest.raises(UserError, match=r"holds images of shape \(16, 16, 3\), but the model takes \(8, 8, 3\)"):
        plan_evaluations([run.path], "mine", data=other)
    assert not (run.path / "rows").exists()


def test_two_processes_do_not_write_the_rows_of_one_run(run: Run, data: Path) -> None:
    with Lock(run.path / "rows"), pytest.raises(Locked, match="is being written by process"):
        evaluate(run, data)


def test_the_run_is_judged_once_and_best_on_its_own_set(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate(run, data, 3, 3)
    judged = read_judgement(run.path)
    assert judged["rule"] == RULE
    assert judged["dataset"] == "mine"
    assert judged["failed"] == bool(judged["reason"])
    assert {"moving", "sharing", "coherence", "weights", "slots", "num_scenes"} < set(judged)
    own = evaluation_sets()["toy4"]
    (job,) = plan_evaluations([run.path], "toy4", slots=[3], scenes=8, data=data)
    assert job.test == own
    assert set(job.evaluate()["objects"].tolist()) <= {2, 3, 4}
    assert read_judgement(run.path)["dataset"] == "toy4"
    evaluate(run, data, 4, 4)
    assert read_judgement(run.path)["dataset"] == "toy4"
    (run.path / "rows" / "binding.json").write_text("{}")
    assert read_judgement(run.path) is None
    evaluate(run, data, 3, 3, scenes=1)
    assert read_judgement(run.path) is None


def test_sets_are_found_by_name_by_dataset_and_by_number_of_objects() -> None:
    assert evaluation_set("clevr6").objects == (3, 6)
    assert evaluation_set("clevr").name == "clevr10"
    assert evaluation_set("clevr10", (3, 6)).name == "clevr6"
    assert evaluation_set("clevr", (4, 5)) == EvaluationSet("clevr4-5", "clevr", (4, 5))
    assert evaluation_set("movi-d").objects == (1, 23)


def test_objects_filter_the_scenes_and_the_set_is_named_after_them(run: Run, data: Path) -> None:
    (job,) = plan_evaluations([run.path], "mine", objects=(2, 3), data=data, slots=[3])
    assert job.test.name == "mine2-3"
    assert set(job.scenes.counts.tolist()) == {2, 3}
    (job,) = plan_evaluations([run.path], "toy", objects=(1, 2), data=data, slots=[3])
    assert (job.test.name, set(job.scenes.counts.tolist())) == ("toy1-2", {1, 2})
    assert [job.test.name for job in plan_evaluations([run.path], data=data, slots=[3], objects=(1, 3))] == ["toy1-3"]


def test_unless_asked_for_the_numbers_of_slots_are_those_of_the_study(run: Run, data: Path) -> None:
    (job,) = plan_evaluations([run.path], "toy4", data=data, scenes=8)
    assert job.slots == tuple(range(2, 17))
    assert study("toy").test_slots == (2, 16)
    assert study("clevr-6-7").test_slots == (3, 24)


def test_an_experiment_with_a_name_of_its_own_is_tested_as_others_on_its_dataset(
    tmp_path: Path, run: Run, data: Path
) -> None:
    own = dataclasses.replace(run.experiment, name="mine", dataset="toy")
    tests = test_sets.find_tests(Run(tmp_path, own, 1, ""), None, None, data)
    assert [test.name for test in tests] == ["toy4", "toy7", "toy10"]
    unheard = dataclasses.replace(own, dataset="unheard-of")
    with pytest.raises(UserError, match="no study that is registered has test sets of 'unheard-of'; give --data"):
        test_sets.find_tests(Run(tmp_path, unheard, 1, ""), None, None, data)


def test_a_run_of_the_toy_study_as_it_once_was_is_tested_on_its_own_scenes_with_as_many_objects_as_they_hold(
    tmp_path: Path, data: Path
) -> None:
    documents = json.loads((Path(__file__).parent / "fixtures" / "experiments.json").read_text())
    (discs,) = (from_document(Experiment, each["document"]) for each in documents if each["document"]["name"] == "toy")
    assert discs.scenes is not None
    assert discs.scenes != study("toy").experiment.scenes
    short = dataclasses.replace(discs, recipe=tiny.recipe(model=discs.recipe.model))
    run = train(short, tmp_path)
    planned = plan_evaluations([run.path], slots=[3], scenes=4)
    assert [evaluation.test.name for evaluation in planned] == ["toy4", "toy7"]
    for evaluation in planned:
        assert evaluation.evaluation.scenes.images.shape[1:3] == (24, 24)


def test_the_command_prints_means_and_writes_csv(
    run: Run, data: Path, whole: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(data), "--scenes", str(NUM), "--slots", "3:6", "--csv", str(tmp_path / "rows.csv")]
    main(["eval", str(run.path), "--dataset", "mine", *arguments])
    printed = capsys.readouterr().out
    f_ari = whole.where(slots=4, metric="f_ari", source="masks")
    visible = whole.where(slots=4, metric="visible", source="masks")["value"]
    mean = np.mean([v for v, seen in zip(f_ari["value"], visible, strict=True) if seen > 1])
    (line,) = [line for line in printed.splitlines() if line.split()[0] == "4"]
    assert line.split()[1] == f"{mean:.4f}"
    assert f"{run.name} on mine: {NUM} scenes; apart: {(visible == 1).sum()} with one visible object" in printed
    assert "moving" in printed
    with open(tmp_path / "rows.csv", newline="") as file:
        names, *lines = csv.reader(file)
    assert tuple(names) == COLUMNS
    assert len(lines) == len(whole)
    with pytest.raises(SystemExit):
        main(["eval", str(run.path), "--slots", "3-6"])
    assert "--slots is '3-6', which is not numbers: write FIRST:LAST" in capsys.readouterr().err


def test_a_description_of_rows_without_masks_or_verdict_has_what_there_is() -> None:
    rows = Rows(run="a", dataset="b", image=[0, 1], slots=3, source="masks", metric="l2", value=[0.25, 0.75])
    assert describe(rows, None) == "a on b: 2 scenes\nK  l2 (masks)\n3      0.5000"


def test_on_a_terminal_a_table_has_as_many_columns_as_fit_the_masks_first_and_all_of_them_elsewhere(
    run: Run, data: Path, whole: Rows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["eval", str(run.path), "--dataset", "mine", "--data", str(data), "--scenes", str(NUM), "--slots", "3:6"]
    monkeypatch.setenv("COLUMNS", "50")
    main(command)
    heads, *lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()[1:]]
    heads = [head.strip() for head in heads if head]
    assert len(lines) == 4, "elsewhere nothing is said of it"
    assert len(heads) == 1 + len({(s, m) for (s, m), _ in whole.groups("source", "metric") if m != "visible"})

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(command)
    _, *table, note = capsys.readouterr().out.splitlines()
    shown = [head.strip() for head in table[0].split("  ") if head]
    assert 2 < len(shown) < len(heads)
    assert shown == heads[: len(shown)]
    assert all("(masks)" in head for head in shown[1:])
    assert max(map(len, table)) <= 50
    next_head = len(heads[len(shown)])
    assert max(map(len, table)) + 2 + next_head > 50, "one more would not fit"
    more = f"{len(heads) - len(shown)} more in a wider window or through a pipe; "
    assert note == f"{more}all rows: {run.name}/rows, or --csv FILE"


def test_the_model_is_built_once_for_all_sets_of_a_run(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    make = weights.build
    monkeypatch.setattr(weights, "build", lambda experiment: built.append(experiment) or make(experiment))
    monkeypatch.setattr(
        run_evaluation, "find_tests", lambda *_: [EvaluationSet(name, "mine", (0, 255)) for name in "ab"]
    )
    planned = plan_evaluations([run.path], "mine", slots=[3], scenes=8, data=data)
    for evaluation in planned:
        evaluation.evaluate()
    assert names(run) == ["a.npz", "b.npz", "binding.json"]
    assert built == [run.experiment]


def several(finished: Run, folder: Path) -> dict[str, Path]:
    """The same run three times."""
    paths = {name: folder / name / finished.name for name in ("first", "second", "third")}
    for path in paths.values():
        shutil.copytree(finished.path, path, ignore=shutil.ignore_patterns("rows"))
    return paths


def rows_are_a_file(run: Path) -> None:
    (run / "rows").touch()


def last_checkpoint_is_damaged(run: Path) -> None:
    (run / "checkpoints" / "step-12.safetensors").write_bytes(b"")


def experiment_is_damaged(run: Path) -> None:
    (run / "experiment.json").write_bytes(b"{}")


def experiment_is_gone(run: Path) -> None:
    (run / "experiment.json").unlink()


def weights_are_of_another_model(run: Path) -> None:
    """A set of files that belongs together, so that only making the model of it tells."""
    folder = run / "checkpoints"
    saved, optimizer = checkpoints.load(folder, 12)
    tensors = dict(list(saved.tensors.items())[1:])
    record = records.read_record(folder / "step-12.json")
    progress = records.Progress(**{name: getattr(record, name) for name in records.Progress.__annotations__})
    forged = dataclasses.replace(saved, tensors=tensors)
    checkpoints.save(folder, forged, optimizer, progress, record.environment, 2)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (rows_are_a_file, "there is something else of that name; move it away"),
        (last_checkpoint_is_damaged, "has 0 bytes instead of"),
        (experiment_is_damaged, "is not what was written: its seal does not match"),
        (experiment_is_gone, "it has no experiment.json"),
        (weights_are_of_another_model, "lacks"),
    ],
)
def test_one_bad_run_does_not_keep_the_others_from_being_evaluated(
    tmp_path: Path,
    finished: Run,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    sentence: str,
) -> None:
    paths = several(finished, tmp_path)
    damage(paths["first"])
    words = ["eval", str(tmp_path), "--dataset", "mine", "--data", str(data), "--slots", "3", "--scenes", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--csv", str(tmp_path / "all.csv")])
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert sentence in shown.err
    assert f"1 run could not be used: {finished.name}; the lines above say why, and the others are done" in shown.err
    assert shown.out.count(f"{finished.name} on mine: 4 scenes") == 2
    assert all((paths[name] / "rows" / "mine.npz").is_file() for name in ("second", "third"))
    assert (tmp_path / "all.csv").is_file()


def test_where_no_run_can_be_evaluated_the_first_ones_reason_is_the_sentence(
    tmp_path: Path, finished: Run, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in several(finished, tmp_path).values():
        (path / "rows").touch()
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(tmp_path), "--dataset", "mine", "--data", str(data), "--slots", "3", "--scenes", "4"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"slotnorm: cannot make the folder {tmp_path / 'first'}")


def test_rows_with_another_metric_are_kept_and_rows_without_it_are_made_anew(
    run: Run, data: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate(run, data, 3, 3)

    class Occupied(Metric):
        """How many slots have the largest mask somewhere."""

        name, label, direction, needs, bounds = "occupied_slots", "Occupied", "lower", "nothing", (1.0, math.inf)

        def score(self, comparison: Comparison) -> Tensor:
            assert comparison.masks is not None
            winners = comparison.masks.flatten(2).argmax(1)
            return torch.tensor([len(set(image.tolist())) for image in winners])

    try:
        rows = evaluate(run, data, 3, 3)
        assert "mine.npz has no occupied_slots; making it anew" in caplog.text
        assert rows.where(metric="occupied_slots").unique("source") == ["masks", "attention"]
        assert set(rows.where(metric="occupied_slots")["value"].tolist()) <= {1.0, 2.0, 3.0}
        assert rows.where(metric=whole.unique("metric")).equals(whole.where(slots=3))
    finally:
        del metric_classes._registry["occupied_slots"]
    monkeypatch.setattr(scoring.Evaluation, "parts", refuse)
    assert evaluate(run, data, 3, 3).equals(rows)


def as_first_form(run: Run, numbers: Iterable[int]) -> None:
    """Put the rows of `mine` as the first form had them, a file for each K."""
    folder = run.path / "rows"
    for number, rows in row_files.split_by_slots(Rows.load(folder / "mine.npz")):
        if number in numbers:
            rows.save(folder / f"mine-{number:02}.npz")
    (folder / "mine.npz").unlink()


def test_rows_of_the_first_form_are_read_put_together_and_not_made_again(
    run: Run, data: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(run, data)
    written = (run.path / "rows" / "mine.npz").read_bytes()
    as_first_form(run, range(3, 7))
    first = [f"mine-0{number}.npz" for number in range(3, 7)]
    assert names(run) == ["binding.json", *first]
    assert Rows.concat(row_files.load_rows(run.path / "rows")).equals(whole)
    monkeypatch.setattr(scoring.Evaluation, "parts", refuse)
    assert evaluate(run, data, 4, 5).equals(whole.where(slots=[4, 5]))
    assert names(run) == ["binding.json", "mine.npz"]
    assert (run.path / "rows" / "mine.npz").read_bytes() == written


def test_some_rows_of_the_first_form_are_gone_on_with(run: Run, data: Path, whole: Rows) -> None:
    evaluate(run, data)
    as_first_form(run, (3, 5))
    assert evaluate(run, data).equals(whole)
    assert names(run) == ["binding.json", "mine.npz"]


def test_rows_that_were_being_put_together_when_the_power_went_count_once(
    run: Run, data: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(run, data)
    folder = run.path / "rows"
    together = (folder / "mine.npz").read_bytes()
    as_first_form(run, (3, 4))
    (folder / "mine.npz").write_bytes(together)
    assert Rows.concat(row_files.load_rows(folder)).equals(whole)
    monkeypatch.setattr(scoring.Evaluation, "parts", refuse)
    assert evaluate(run, data, 3, 3).equals(whole.where(slots=3))
    assert names(run) == ["binding.json", "mine.npz"]
    assert Rows.load(folder / "mine.npz").equals(whole)


def test_a_file_tells_the_scenes_of_each_number_of_slots(run: Run, data: Path, whole: Rows) -> None:
    evaluate(run, data, scenes=10)
    evaluate(run, data, 4, 4)
    rows = Rows.load(run.path / "rows" / "mine.npz")
    assert sorted(scenes["num_scenes"] for scenes in row_files.scenes_of(rows)) == [10, NUM]
    assert rows.where(slots=4).equals(whole.where(slots=4))
    by_slots = dict(row_files.split_by_slots(rows))
    assert {number: part.header["num_scenes"] for number, part in by_slots.items()} == {3: 10, 4: NUM, 5: 10, 6: 10}
    assert evaluate(run, data).equals(whole)


@pytest.mark.usefixtures("quick_jobs")
def test_jobs_of_a_launcher_make_the_rows_of_one_process_also_by_ranges_of_scenes(
    run: Run, data: Path, whole: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", str(run.path), "--dataset", "mine", "--data", str(data), "--slots", "3:6", "--scenes", str(NUM)]
    main([*words, "--shards", "3", "--shard", "1"])
    (kept,) = (run.path / "rows" / ".unfinished").glob("mine@*/shard-0001-of-0003/000001.npz")
    inode = kept.stat().st_mtime_ns
    assert not (run.path / "rows" / "mine.npz").exists()
    main([*words, "--shards", "3", "--shard", "1"])  # what is there is not made again
    assert kept.stat().st_mtime_ns == inode
    capsys.readouterr()
    main([*words, "--shards", "3", "--on", "local", "--plan"])
    folder = run.path / "rows" / ".unfinished"
    states = ("to make", "made already", "to make")
    lines = [f"{folder / f'shard-{number:04}-of-0003'}: {state}\n" for number, state in enumerate(states)]
    assert capsys.readouterr().out == "".join([*lines, "2 of 3 jobs to submit\n"])
    assert not list(folder.glob("shard-*"))
    evaluations = plan_evaluations([run.path], "mine", slots=range(3, 7), scenes=NUM, data=data)
    assert [task.progress for task in plan_jobs(evaluations, [], shards=3)] == [0, 1, 0], "the bar counts what is whole"
    main([*words, "--shards", "3", "--on", "local", "--jobs", "2"])
    assert Rows.load(run.path / "rows" / "mine.npz").equals(whole)
    assert not (run.path / "rows" / ".unfinished").exists()
    shutil.rmtree(run.path / "rows")
    main([*words, "--on", "local"])
    assert Rows.load(run.path / "rows" / "mine.npz").equals(whole)
    assert (run.path / "rows" / "log.txt").is_file()
    assert not (run.path / "rows" / "job.json").exists()
    more = plan_evaluations([run.path], "mine", slots=range(3, 8), scenes=NUM, data=data)
    assert plan_jobs(more, [])[0].progress == 0, "rows with other numbers of slots are not those"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--shards", "3"], "--shards 3 needs --on, which runs them, or --shard for one of them"),
        (["--plan"], "--plan needs --on, whose jobs it shows"),
        (["--on", "local", "--retries", "-1"], "--retries is -1, but must not be negative"),
    ],
)
def test_what_only_jobs_can_do_is_refused_without_them(
    run: Run, data: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    words = ["eval", str(run.path), "--dataset", "mine", "--data", str(data), "--slots", "3", "--scenes", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*words, *more])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"slotnorm: {sentence}\n"
    assert not (run.path / "rows").exists()


@pytest.mark.usefixtures("quick_jobs")
def test_an_evaluation_that_fails_on_a_launcher_says_why(
    run: Run, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / "rows").mkdir()
    (run.path / "rows" / "mine.npz").mkdir()
    words = ["eval", str(run.path), "--dataset", "mine", "--data", str(data), "--slots", "3", "--scenes", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--on", "local"])
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert f"slotnorm: 1 of 1 jobs failed, {run.path / 'rows'} with exit code" in printed
    assert printed.endswith("the same command tries them again\n")


def test_a_set_of_smaller_objects_has_them() -> None:
    usual, shrunk = evaluation_sets()["small10"], evaluation_sets()["small10-shrunk"]
    assert (usual.objects, usual.radius, shrunk.objects) == (shrunk.objects, None, (3, 10))
    scenes = [evaluation_scenes(experiment("small-6-7"), test, 12) for test in (usual, shrunk)]
    areas = [(np.asarray(part.labels) > 0).sum() / part.counts.sum() for part in scenes]
    assert 0.5 < areas[1] / areas[0] < 0.75  # radii are four fifths of the usual ones


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("slots", 0, "slots 0, and the least is 1"),
        ("image", -7, "image -7, and the least is 0"),
        ("iterations", 0, "iterations 0, and the least is 1"),
        ("value", 1.5, r"f_ari 1\.5, and it lies from -0\.5 to 1"),
        ("value", -1e30, r"f_ari -1e\+30, and it lies from"),
    ],
)
def test_sealed_rows_with_numbers_that_no_evaluation_gives_are_damaged(tmp_path, column, value, sentence):
    honest = {"slots": [7, 7], "image": [0, 1], "iterations": [5, 5], "value": [0.5, math.nan]}
    (tmp_path / "rows").mkdir()
    path = tmp_path / "rows" / "toy4.npz"
    Rows(metric="f_ari", **honest).save(path, {})
    assert len(row_files.load_file(path)) == 2
    Rows(metric="f_ari", **{**honest, column: [honest[column][0], value]}).save(path, {})
    with pytest.raises(DamagedFile, match=f"toy4.npz is sealed but holds {sentence}.*evaluate the run again"):
        row_files.load_rows(tmp_path / "rows")
    Rows(metric="of a plugin", slots=[7], value=[1e30]).save(path, {})
    assert len(row_files.load_file(path)) == 1


def test_a_report_does_not_take_rows_of_an_earlier_step_for_those_of_the_run(run: Run, data: Path) -> None:
    evaluate(run, data)
    (scored,) = read([run.path]).runs
    assert scored.facts["step"] == run.step
    train(tiny.experiment(steps=16), run.path.parent, data=data)
    with pytest.raises(UserError, match=r"rows are of other weights than it has at step 16; `slotnorm eval .*` makes"):
        read([run.path])
    evaluate(Run.open(run.path), data)
    (scored,) = read([run.path]).runs
    assert scored.facts["step"] == 16
