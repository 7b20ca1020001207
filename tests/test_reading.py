"""What a report reads and where it writes: rows that do not belong together are refused or noted, nothing is lost."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from made_up_rows import made_up, save
from slotnorm.cli.verbs import main
from slotnorm.errors import UserError
from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import experiment
from slotnorm.report import writing
from slotnorm.report.contents import compose
from slotnorm.report.reading import read
from slotnorm.report.writing import write
from slotnorm.storage import files
from slotnorm.storage.seals import write_sealed
from slotnorm.training.runs import Run

pytestmark = pytest.mark.usefixtures("few_resamples")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Made-up rows of two runs."""
    rows = made_up("clevr-6-7", ["weighted_mean", "batch_norm"], [1], (7, 11), images=8)
    save(rows.where(metric=("f_ari", "visible")), tmp_path / "fake")
    return tmp_path / "fake"


def only_left_out(folder: Path) -> str:
    """Why the run of batch norm is left out; the other one is reported, as if it were alone."""
    material = read([folder])
    assert [run.norm for run in material.runs] == ["weighted_mean"]
    assert not any("batch_norm-1" in note for note in material.notes)
    (run,) = material.left_out
    assert run.path.name == "clevr-6-7-batch_norm-1"
    assert run.is_damaged
    with pytest.raises(UserError, match="the only run cannot be reported"):
        read([run.path])
    return run.reason


def test_a_damaged_file_of_rows_leaves_its_run_out(fake: Path) -> None:
    path = fake / "clevr-6-7-batch_norm-1" / "rows" / "clevr6-7.npz"
    content = bytearray(path.read_bytes())
    content[200] ^= 4
    path.write_bytes(content)
    assert str(path) in only_left_out(fake)


def test_a_run_that_nobody_may_read_is_left_out(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, is_file = fake / "clevr-6-7-batch_norm-1", Path.is_file

    def refuse(path: Path) -> bool:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed(path) if path != closed else refuse(closed / "listed"))
    assert only_left_out(fake) == f"cannot read {closed / 'experiment.json'}: Permission denied"


def test_a_full_disk_of_temporary_files_is_not_a_runs_damage(fake: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        read([fake], keep=full)


def test_a_report_without_a_damaged_run_names_it_and_exits_with_1(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = fake / "clevr-6-7-batch_norm-1"
    (damaged / "rows" / "binding.json").write_bytes(b"")
    words = ["report", str(fake), "--out", str(tmp_path / "out"), "--no-models"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = capsys.readouterr()
    reason = f"{damaged}: {damaged / 'rows' / 'binding.json'} does not say whether the run failed"
    assert ended.value.code == 1
    assert f"left out: {reason}" in shown.err
    assert "1 run could not be used: clevr-6-7-batch_norm-1; the lines above say why" in shown.err
    assert shown.out.startswith("1 run in 1 section")
    for page in ("report.md", "index.html"):
        assert "does not say whether the run failed" in (tmp_path / "out" / page).read_text()
    shutil.rmtree(damaged / "rows")  # not evaluated yet: nothing happened to it
    (damaged / "checkpoints").mkdir(parents=True)
    Run(damaged, experiment("clevr-6-7", norm="batch_norm", seed=1), 8, "0" * 64).write()
    main(words)
    assert f"left out: {damaged}: still training" in capsys.readouterr().err


def test_rows_of_a_run_that_lost_its_experiment_are_reported_and_marked(
    fake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fake / "clevr-6-7-batch_norm-1" / "checkpoints"
    folder.mkdir()
    (folder / "step-8.json").touch()
    material = read([fake])
    assert len(material.runs) == 2
    (damaged,) = material.damaged
    reason = f"is known by its rows alone: {damaged.path} is not a run: it has no experiment.json any more; put that"
    assert damaged.reason.startswith(reason)
    assert f"{damaged.path.name} {damaged.reason}." in material.notes
    with pytest.raises(SystemExit) as ended:
        main(["report", str(fake), "--out", str(tmp_path / "out"), "--no-models"])
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert f"warning: {damaged.path} {reason}" in shown
    assert f"1 run is damaged, and what is whole of it was used: {damaged.path.name}; the lines above say why" in shown
    for page in ("report.md", "index.html"):
        assert "is known by its rows alone" in (tmp_path / "out" / page).read_text()


def test_rows_of_another_protocol_are_refused(fake: Path) -> None:
    rows = made_up("clevr-6-7", ["layer_norm"], [1], (7,), images=8).with_columns(protocol="authors")
    save(rows, fake)
    with pytest.raises(
        UserError, match="follows the protocol 'paper' and .* 'authors': their numbers cannot be compared"
    ):
        read([fake])


def test_rows_on_other_scenes_under_the_same_name_are_refused(fake: Path) -> None:
    save(made_up("clevr-6-7", ["layer_norm"], [1], (7,), images=8), fake, scenes="others")
    with pytest.raises(UserError, match="were evaluated on different scenes that are both called clevr6"):
        read([fake])


def test_another_number_of_scenes_is_a_note(fake: Path) -> None:
    save(made_up("clevr-6-7", ["layer_norm"], [1], (7,), images=4), fake, images="the first four")
    notes = read([fake]).notes
    assert "clevr-6-7: not all runs are scored on the same scenes of clevr6 (numbers: 4 to 8)." in notes


def test_other_scenes_with_some_numbers_of_slots_are_a_note_and_other_sets_are_refused(fake: Path) -> None:
    path = fake / "clevr-6-7-batch_norm-1" / "rows" / "clevr6-7.npz"
    rows = Rows.load(path)
    rows.save(path, {**rows.header, "images": "the first four"})
    told = "clevr-6-7-batch_norm-1: not every number of slots is scored on the same scenes of clevr6."
    assert told in read([fake]).notes
    rows.save(path, {**rows.header, "scenes": "others"})
    assert "rows holds rows on different scenes that are both called clevr6" in only_left_out(fake)


def test_rows_of_different_weights_in_one_run_leave_it_out(fake: Path) -> None:
    save(made_up("clevr-6-7", ["batch_norm"], [1], (15,), images=8), fake, weights="newer")
    assert "holds rows of different weights" in only_left_out(fake)


def test_rows_of_another_run_are_refused(tmp_path: Path) -> None:
    """Copied into the folder of a run, they would be reported under its name."""
    for norm in ("weighted_sum", "batch_norm"):
        (folder,) = save(made_up("clevr-6-7", [norm], [1], (7,), images=8), tmp_path)
        Run(folder, experiment("clevr-6-7", norm=norm, seed=1), 8, "0" * 64).write()
    assert [run.norm for run in read([tmp_path]).runs] == ["weighted_sum", "batch_norm"]
    folders = {norm: tmp_path / f"clevr-6-7-{norm}-1" for norm in ("weighted_sum", "batch_norm")}
    for path in (folders["batch_norm"] / "rows").glob("*.npz"):
        shutil.copy(path, folders["weighted_sum"] / "rows")
    sentence = (
        "weighted_sum-1/rows holds rows of a run with norm batch_norm, but this run has weighted_sum; delete that"
    )
    with pytest.raises(UserError, match=sentence):
        read([folders["weighted_sum"]])


def test_rows_that_are_there_twice_leave_their_run_out(fake: Path) -> None:
    folder = fake / "clevr-6-7-batch_norm-1" / "rows"
    shutil.copy(folder / "clevr6-7.npz", folder / "copy.npz")
    assert "holds rows twice for the same image, slots and metric" in only_left_out(fake)


def test_rows_of_other_iterations_are_set_aside_with_a_note(fake: Path) -> None:
    more = made_up("clevr-6-7", ["batch_norm"], [1], (15,), images=8).with_columns(iterations=9)
    folder = fake / "clevr-6-7-batch_norm-1" / "rows"
    header = Rows.load(folder / "clevr6-7.npz").header
    more.where(dataset="clevr6").save(folder / "more.npz", header)
    material = read([fake])
    assert (
        "clevr-6-7-batch_norm-1: rows with 9 iterations are left aside; its own for evaluation are 5." in material.notes
    )
    (run,) = [run for run in material.runs if run.norm == "batch_norm"]
    assert run.slots("clevr6", "f_ari") == [7, 11]


def test_a_verdict_that_does_not_say_whether_the_run_failed_leaves_it_out(fake: Path) -> None:
    (fake / "clevr-6-7-batch_norm-1" / "rows" / "binding.json").write_text('{"failed": "perhaps"}')
    assert "does not say whether the run failed" in only_left_out(fake)


def test_a_missing_verdict_is_noted(fake: Path) -> None:
    (fake / "clevr-6-7-batch_norm-1" / "rows" / "binding.json").unlink()
    material = read([fake])
    assert "clevr-6-7: the failed-run rule was not asked for 1 of 2 runs." in material.notes
    assert "clevr-6-7: no runs of layer_norm, weighted_sum yet." in material.notes
    alone = read([fake / "clevr-6-7-batch_norm-1"])
    assert "clevr-6-7: the failed-run rule was not asked for its only run." in alone.notes


def test_a_folder_with_other_things_is_not_written_to(fake: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "report.md").write_text("mine")
    report = compose(read([fake]), with_theory=False)
    with pytest.raises(UserError, match="thesis is not empty and holds no report"):
        write(report, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "report.md").read_text() == "mine"
    with pytest.raises(UserError, match="is a file; --out takes a folder"):
        write(report, tmp_path / "thesis" / "report.md")


def test_an_interrupted_report_is_written_again(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, out = compose(read([fake]), with_theory=False), tmp_path / "out"
    write(report, tmp_path / "whole")
    done: list[Path] = []

    def interrupted(path: Path, content: bytes) -> str:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(path)
        return files.write(path, content)

    monkeypatch.setattr(writing, "files", SimpleNamespace(write=interrupted))
    with pytest.raises(KeyboardInterrupt):
        write(report, out)
    monkeypatch.undo()
    assert len(done) == 5
    write(report, out)
    assert files_of(out) == files_of(tmp_path / "whole")


@pytest.mark.parametrize("content", ['{"tests": 12, "passed": 12}\n', "{", "sealed"])
def test_a_folder_whose_report_json_is_not_a_reports_is_not_written_to(
    fake: Path, tmp_path: Path, content: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.md").write_text("mine")
    if content == "sealed":
        write_sealed(out / "report.json", {"slotnorm": "1", "files": ["report.md"]})
    else:
        (out / "report.json").write_text(content)
    before = files_of(out)
    with pytest.raises(UserError, match=r"report\.json .*; what is in .*out may not be .*: delete the folder, or give"):
        write(compose(read([fake]), with_theory=False), out)
    assert files_of(out) == before


@pytest.mark.parametrize(
    "name", ["../precious.txt", "/precious.txt", "mine.txt", "mine/report.md", "figures/.mine.svg"]
)
def test_a_list_of_other_files_than_a_report_writes_has_nothing_removed(fake: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    place = tmp_path / "precious.txt" if name == "/precious.txt" else out / name
    (out / "figures").mkdir(parents=True)
    place.parent.mkdir(exist_ok=True)
    place.write_text("keep")
    write_sealed(out / "report.json", {"slotnorm": "1", "files": {name: files.sha256(place)}})
    with pytest.raises(UserError, match="is not the name of a report's file"):
        write(compose(read([fake]), with_theory=False), out)
    assert place.read_text() == "keep"


def test_what_an_earlier_report_alone_wrote_is_removed_unless_it_was_changed(fake: Path, tmp_path: Path) -> None:
    report, out = compose(read([fake]), with_theory=False), tmp_path / "out"
    old = [out / "figures" / "old.svg", out / "figures" / "changed.svg"]
    old[0].parent.mkdir(parents=True)
    for path in old:
        path.write_text("a figure")
    write_sealed(
        out / "report.json", {"slotnorm": "1", "files": {f"figures/{path.name}": files.sha256(path) for path in old}}
    )
    old[1].write_text("my figure")
    write(report, out)
    assert not old[0].exists()
    assert old[1].read_text() == "my figure"
