"""Files of the first format, kept in tests/formats/first: they are read, gone on with and never taken for another run.

They were written before documents could lack a field, by a training of `tiny.experiment("batch_norm")`.
"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import slotnorm as sn
import tiny
from slotnorm.config import Experiment, Recipe
from slotnorm.errors import UserError
from slotnorm.evaluation import scoring
from slotnorm.evaluation.rows import Rows
from slotnorm.models import weights
from slotnorm.models.weights import restore
from slotnorm.report.model_views import Inspector
from slotnorm.report.reading import read
from slotnorm.storage import archives
from slotnorm.storage.seals import open_description, read_sealed, seal_description, write_sealed
from slotnorm.storage.serialization import from_document, to_document
from slotnorm.studies.run_evaluation import plan_evaluations, read_judgement
from slotnorm.training import checkpoints
from slotnorm.training.learner import Learner
from slotnorm.training.loop import train
from slotnorm.training.runs import Run
from slotnorm.training.schedule import learning_rate

FIRST = Path(__file__).parent / "formats" / "first" / "toy-batch_norm-1"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    shutil.copytree(FIRST, tmp_path / FIRST.name)
    return Run.open(tmp_path / FIRST.name)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data"), 64).directory


def refuse(*_: Any) -> Any:
    pytest.fail("computed again")


def test_an_experiment_weights_and_rows_of_the_first_format_are_read(run: Run) -> None:
    assert run.experiment.recipe.initialization == "gaussian"
    assert run.record().identity == run.experiment.identity
    assert to_document(run.experiment) == read_sealed(run.path / "experiment.json")["experiment"]
    model = run.model()
    exported = sn.load(run.path / "model.safetensors")
    assert exported.experiment == model.experiment == run.experiment
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, exported.state_dict()[name])
    rows = [Rows.load(path) for path in sorted((run.path / "rows").glob("*.npz"))]
    assert [part.unique("slots") for part in rows] == [[3], [4], [5]]
    judgement = read_judgement(run.path)
    assert judgement is not None
    assert judgement["weights"] == rows[0].header["weights"]
    assert from_document(Experiment, rows[0].header["experiment"]) == run.experiment


def test_a_finished_run_of_the_first_format_is_finished(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "learn", refuse)
    assert train(run.experiment, run.path.parent, data=data).path == run.path


def test_a_run_in_progress_goes_on_where_it_was(run: Run, data: Path) -> None:
    for path in run.checkpoints.glob("step-12.*"):
        path.unlink()
    lines = [line for line in (run.path / "metrics.jsonl").read_text().splitlines() if json.loads(line)["step"] <= 8]
    assert train(run.experiment, run.path.parent, data=data).finished
    assert (run.path / "metrics.jsonl").read_text().splitlines()[: len(lines)] == lines
    ours, optimizer = checkpoints.load(run.checkpoints, 12)
    theirs, their_optimizer = checkpoints.load(FIRST / "checkpoints", 12)
    farthest = 2 * sum(learning_rate(run.experiment.recipe, step) for step in range(8, 12))
    alpha = slice(3 * 8 * 8, None)
    for name, tensor in theirs.tensors.items():
        # another machine's last bits, and those of a layer that does the same in another order
        allowed = torch.full_like(tensor, 1e-5) + 1e-3 * tensor.abs()
        # These add the same to all slots before a softmax over slots: their true gradient is 0, what is left of it is
        # rounding, and Adam makes steps of any gradient that are as long as the learning rate, in any direction.
        if name == "slot_attention.norm_slots.bias":
            allowed += farthest
        if name == "decoder.mlp.2.bias":
            allowed[alpha] += farthest
        assert ((ours.tensors[name] - tensor).abs() <= allowed).all(), name
    assert optimizer.keys() == their_optimizer.keys()
    # for the same reason those two change nothing that a model does
    images, noise = torch.rand(2, 3, 8, 8) * 2 - 1, torch.randn(2, 4, 8)
    with torch.no_grad():
        ours_seen, theirs_seen = (restore(given, FIRST)(images, noise=noise) for given in (ours, theirs))
    torch.testing.assert_close(ours_seen.masks, theirs_seen.masks, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(ours_seen.reconstruction, theirs_seen.reconstruction, rtol=1e-3, atol=1e-5)


def test_rows_of_the_first_format_are_used_and_not_made_again(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Rows.concat([Rows.load(path) for path in sorted((run.path / "rows").glob("*.npz"))])
    monkeypatch.setattr(scoring.Evaluation, "parts", refuse)
    (evaluation,) = plan_evaluations([run.path], "toy4", slots=range(3, 6), scenes=8, data=data)
    assert evaluation.evaluate().equals(before)
    assert [path.name for path in sorted((run.path / "rows").glob("*.npz"))] == ["toy4.npz"]


def test_a_half_written_evaluation_of_the_first_format_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = tiny.build_scenes(tmp_path / "crowded", 64, crowded=True)
    monkeypatch.setattr(scoring.Evaluation, "_score_group", refuse)
    (evaluation,) = plan_evaluations([run.path], "toy7", slots=[3, 4], scenes=8, data=scenes.directory)
    rows = evaluation.evaluate()
    monkeypatch.undo()
    assert not (run.path / "rows" / ".unfinished").exists()
    again = sn.score(run.model(), evaluation.scenes, slots=[3, 4], dataset="toy7", run=run.name)
    assert set(again.unique("metric")) - set(rows.unique("metric")) == {"count"}  # which there was not when it began
    again = again.where(metric=rows.unique("metric"))
    assert rows["image"].tolist() == again["image"].tolist()
    np.testing.assert_allclose(rows["value"], again["value"], rtol=1e-4, atol=1e-5)


def test_a_field_at_its_default_is_no_part_of_a_document_and_of_an_identity() -> None:
    plain = tiny.experiment()
    learned = dataclasses.replace(plain, recipe=dataclasses.replace(plain.recipe, initialization="learned"))
    assert "initialization" not in to_document(plain)["recipe"]
    assert to_document(plain, complete=True)["recipe"]["initialization"] == "gaussian"
    assert to_document(learned)["recipe"]["initialization"] == "learned"
    assert plain.identity != learned.identity
    for experiment in (plain, learned):
        assert from_document(Experiment, to_document(experiment)) == experiment
        assert from_document(Experiment, to_document(experiment, complete=True)) == experiment


def test_a_missing_field_has_its_default_if_it_is_newer_and_is_named_if_it_is_not() -> None:
    document = to_document(tiny.recipe(), complete=True)
    del document["initialization"]
    assert from_document(Recipe, document) == tiny.recipe()
    del document["steps"]
    with pytest.raises(UserError, match="^recipe lacks the field 'steps'$"):
        from_document(Recipe, document)


def test_what_is_newer_than_the_program_is_one_sentence(run: Run) -> None:
    content = read_sealed(run.path / "experiment.json")
    later = {**content, "experiment": {**content["experiment"], "temperature": 2}}
    write_sealed(run.path / "experiment.json", later)
    with pytest.raises(
        UserError,
        match="experiment has no field 'temperature'; .*; if a newer slotnorm wrote it, install that one$",
    ):
        Run.open(run.path)
    write_sealed(run.path / "experiment.json", {**content, "format": 2})
    with pytest.raises(UserError, match="has format 2, this slotnorm reads 1: install a newer one"):
        Run.open(run.path)
    path = run.path / "rows" / "toy4-03.npz"
    arrays = archives.read_arrays(path)
    header = archives.from_text(arrays["header"], path)
    archives.write_arrays(path, {**arrays, "header": archives.as_text({**header, "format": 99})})
    with pytest.raises(UserError, match="has rows in format 99, this slotnorm reads .*; install a newer"):
        Rows.load(path)


def test_weights_newer_than_the_program_are_one_sentence(run: Run, tmp_path: Path) -> None:
    whole = weights.unpack(run.path / "model.safetensors")
    path = tmp_path / "newer.safetensors"
    for changed, sentence in (
        ({"format": 2}, "has format 2, this slotnorm reads 1: install a newer one$"),
        ({"experiment": {**to_document(whole.experiment), "temperature": 2}}, "if a newer slotnorm wrote it, install"),
    ):
        packed = weights.pack(whole)
        path.write_bytes(packed)
        metadata, tensors = weights.read_tensors(path)
        description = {**open_description("slotnorm", metadata, path), **changed}
        save_file(tensors, path, seal_description("slotnorm", description))
        with pytest.raises(UserError, match=sentence):
            sn.load(path)


def test_pictures_and_diagnostics_of_the_first_format_are_shown_without_running_a_model(run: Run) -> None:
    section = read([run.path]).sections[0]
    illustration, missing_pictures = Inspector(run_models=False).illustrate(section)
    diagnostics, missing_diagnostics = Inspector(run_models=False).diagnose(section)
    assert missing_pictures == missing_diagnostics == []
    assert illustration is not None
    assert diagnostics is not None
    assert list(diagnostics.counts) == ["batch_norm"]


def test_pictures_newer_than_the_program_are_named_and_stay(run: Run) -> None:
    path = run.path / "examples" / "toy4.npz"
    arrays = archives.read_arrays(path)
    record = archives.from_text(arrays["record"], path)
    archives.write_arrays(path, {**arrays, "record": archives.as_text({**record, "format": 2})})
    newer = path.read_bytes()
    _, (note,) = Inspector().illustrate(read([run.path]).sections[0])
    assert "has examples in format 2, this slotnorm reads 1; install a newer one, or delete it" in note
    assert path.read_bytes() == newer


def test_a_run_of_learned_slots_trains_resumes_and_is_scored_at_its_own_number(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = tiny.experiment(initialization="learned")
    whole = train(experiment, tmp_path / "whole", data=data)
    parts = tmp_path / "parts"
    train(tiny.experiment(initialization="learned", steps=8, checkpoint_every=4), parts, data=data)
    again = train(experiment, parts, data=data)
    assert whole.weights().tensors["slot_attention.slots_initial"].shape == (4, 8)
    assert {name.partition("@")[2] for name in whole.validation()} == {"4"}
    assert set(again.weights().tensors) == set(whole.weights().tensors)
    (evaluation,) = plan_evaluations([whole.path], "mine", scenes=8, data=data)
    assert evaluation.evaluate().unique("slots") == [4]
    with pytest.raises(UserError, match="^num_slots is 3, but this model has a learned start of 4 slots: ask for 4"):
        plan_evaluations([whole.path], "mine", slots=[3, 4], scenes=8, data=data)
    with pytest.raises(UserError, match="num_slots is 12, but this model has a learned start of 4 slots"):
        train(experiment, tmp_path / "more", data=data, validate_slots=(12,))
    with pytest.raises(UserError, match="was started with recipe.initialization learned, not gaussian"):
        train(tiny.experiment(), parts, data=data)
    with pytest.raises(UserError, match="there is no initialization 'lerned'; did you mean 'learned'"):
        train(tiny.experiment(initialization="lerned"), tmp_path / "x", data=data)
    loaded = sn.load(whole.export(tmp_path / "learned.safetensors"))
    assert loaded.slot_attention.initialization.name == "learned"
