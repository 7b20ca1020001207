"""How runs stand: what waits, runs, stopped, is finished or failed, read from their folders alone, on any machine.

Nothing is asked of a launcher and no lock is taken: whoever sees the folders sees the same. Jobs are cancelled through
the launcher that has them.
"""

import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from slotnorm.errors import DamagedFile, UserError, printable
from slotnorm.runtime.columns import in_columns
from slotnorm.runtime.progress import clock
from slotnorm.storage.locks import lock_holder
from slotnorm.studies.jobs import CANCELLED, NOTE, JobNote, folders_with_notes, read_note, write_note
from slotnorm.studies.launchers import LOG, find_launcher
from slotnorm.studies.sweep import ASKED
from slotnorm.training.experiment_file import read_experiment
from slotnorm.training.records import read_record
from slotnorm.training.runs import Run, folders_below, is_run, looks_like_run, refusal_of_model

State = Literal["waits", "runs", "stopped", "finished", "failed"]
"""Of those that are not finished: waits is what was submitted and has not begun, stopped what nobody works on."""
_SECONDS_OF_SILENCE = 600.0  # a run that says nothing for so long is shown with the time of its last word


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """How one run stands."""

    path: Path
    state: State
    step: int = 0
    """Of the newest whole checkpoint; while it is trained the newest that its metrics tell of."""
    steps: int = 0
    """All that were asked for."""
    rate: float | None = None
    """Steps per second, where it runs and that is known."""
    note: str = ""
    """Who trains it, or why it failed."""

    @property
    def left(self) -> int:
        """Steps that are still to be trained."""
        return max(self.steps - self.step, 0) if self.state in ("waits", "runs", "stopped") else 0


def read_status(paths: Iterable[str | Path]) -> list[RunStatus]:
    """How the runs at `paths` stand, each a run or a folder of runs, begun or only asked for; none is refused.

    So do jobs that evaluate them, and those of features, while they are noted.
    """
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        inside = folders_below(path, lambda folder: looks_like_run(folder) or (folder / ASKED).is_file())
        inside += [folder for folder in folders_with_notes(path) if folder not in inside]
        if not inside:
            raise UserError(
                refusal_of_model(path)
                or f"{path} is not a run and holds none; `slotnorm train` and `slotnorm sweep` make them"
            )
        folders |= {folder.resolve(): folder for folder in inside}
    return [_status(folder) for folder in folders.values()]


def describe(statuses: Sequence[RunStatus]) -> str:
    """A line for each run, and the sum of all."""
    table = [("run", "state", "step", "steps/s", "left", "")]
    for status in statuses:
        rate = "" if status.rate is None else f"{status.rate:.3g}"
        left = clock(status.left / status.rate) if status.rate else ""
        step = f"{status.step}/{status.steps}" if status.steps else ""
        table.append((printable(str(status.path)), status.state, step, rate, left, status.note))
    return "\n".join([*in_columns(table), _sum(statuses)])


def cancel(statuses: Sequence[RunStatus]) -> str:
    """Cancel the jobs of runs that wait or run, on whatever launcher; what was trained is saved. A line for each."""
    given: dict[str, list[tuple[Path, JobNote]]] = {}
    for status in statuses:
        note = read_note(status.path) if status.state in ("waits", "runs", "stopped") else None
        if note is not None and note.state == "submitted":
            given.setdefault(note.on, []).append((status.path, note))
    lines = []
    for name, noted in given.items():
        launcher = find_launcher(name)()
        jobs = [(path, note) for path, note in noted if launcher.goes_on(note.ticket)]
        for path, note in jobs:  # first: whoever watches them must not take them for lost
            write_note(path, dataclasses.replace(note, state="cancelled", reason=CANCELLED))
        if jobs:
            launcher.cancel([note.ticket for _, note in jobs])
            lines.append(f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} of {name} cancelled; what ran saves first")
        if others := len(noted) - len(jobs):
            lines.append(
                f"{others} {'run belongs' if others == 1 else 'runs belong'} to a command that runs on {name}; "
                "Ctrl-C in its terminal stops it"
            )
    return "\n".join(lines or ["no job waits or runs"])


def _sum(statuses: Sequence[RunStatus]) -> str:
    counts = ", ".join(f"{sum(status.state == state for status in statuses)} {state}" for state in get_args(State))
    left, rate = sum(status.left for status in statuses), sum(status.rate or 0.0 for status in statuses)
    if not left:
        return counts
    return f"{counts}; {left} steps left" + (f", about {clock(left / rate)} at {rate:.3g} steps/s" if rate else "")


def _status(folder: Path) -> RunStatus:
    """One that cannot be read is shown as failed, with the reason, and hides no other."""
    try:
        return _readable_status(folder)
    except UserError as error:
        return RunStatus(folder, "failed", note=str(error))
    except OSError as error:
        return RunStatus(folder, "failed", note=f"cannot read {error.filename or folder}: {error.strerror or error}")


def _job_status(folder: Path) -> RunStatus:
    """Of a job that trains nothing: it has begun when it has said something."""
    note = read_note(folder)
    if note is None or note.state == "failed":
        return RunStatus(folder, "failed", note="its note is damaged" if note is None else note.reason)
    if note.state == "cancelled":
        return RunStatus(folder, "stopped", note=note.reason)
    return RunStatus(folder, "runs" if (folder / LOG).is_file() else "waits", note=f"given to {note.on}")


def _readable_status(folder: Path) -> RunStatus:
    asked = folder / ASKED
    if not looks_like_run(folder) and not asked.is_file():
        return _job_status(folder)
    run = Run.open(folder) if is_run(folder) or not asked.is_file() else None
    experiment = read_experiment(asked) if asked.is_file() or run is None else run.experiment
    standing = None if run is None else run.standing()
    step, steps = 0 if standing is None else standing.step, experiment.recipe.steps
    if standing is not None and step >= steps:
        return RunStatus(folder, "finished", step, steps)
    if (holder := lock_holder(folder)) is not None:
        if run is not None:  # who trains it writes the metrics now
            step = max(step, min(run.logged_step, steps))
        return RunStatus(folder, "runs", step, steps, _rate(run, step), holder + _silence(folder))
    note = read_note(folder)
    if note is not None and note.state == "failed":
        return RunStatus(folder, "failed", step, steps, note=note.reason)
    given = "" if note is None else f"given to {note.on}" if note.state == "submitted" else note.reason
    damage = f"{standing}; {standing.way_out}" if standing is not None and standing.damage else ""
    if damage and not step:  # no checkpoint to go on from
        return RunStatus(folder, "failed", step, steps, note=damage)
    waits = note is not None and note.state == "submitted" and not _begun_since(folder)
    state: State = "waits" if waits else "stopped"
    return RunStatus(folder, state, step, steps, note="; ".join(filter(None, (given, damage))))


def _begun_since(folder: Path) -> bool:
    """Whether a job has said something since it was submitted."""
    log, note = folder / LOG, folder / NOTE
    return log.is_file() and log.stat().st_mtime > note.stat().st_mtime


def _rate(run: Run | None, step: int) -> float | None:
    """Steps per second: those of the newest checkpoint in its seconds of training; before it, since the run began."""
    if run is None or not step:
        return None
    if saved := run.step:
        try:
            seconds = read_record(run.checkpoints / f"step-{saved}.json").seconds
        except DamagedFile:  # or removed since, for a newer one
            return None
        return saved / seconds if seconds > 0 else None
    # both written by the machine that trains, so that its clock need not agree with this one's
    seconds = (run.path / "metrics.jsonl").stat().st_mtime - (run.path / "experiment.json").stat().st_mtime
    return step / seconds if seconds > 0 else None


def _silence(folder: Path) -> str:
    """How long ago a run that should be running spoke, if that is long."""
    metrics = folder / "metrics.jsonl"
    age = time.time() - metrics.stat().st_mtime if metrics.is_file() else 0.0
    return f", last word {clock(age)} ago" if age > _SECONDS_OF_SILENCE else ""
