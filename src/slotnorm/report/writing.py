"""A report as files: tables, figures, pictures, claims, rows, and the page that ties them together.

The same runs give the same bytes. A file that an earlier report wrote and this one does not is removed, if it still is
what that one wrote.
"""

import csv
import dataclasses
import hashlib
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from slotnorm import __version__
from slotnorm.errors import DamagedFile, UserError
from slotnorm.evaluation.rows import Rows
from slotnorm.report import curves, diagnostics, effects, latex, tables
from slotnorm.report.claims.checking import as_records
from slotnorm.report.contents import Report, SectionContents, compose
from slotnorm.report.drawing import forest_figure
from slotnorm.report.drawing.choice import Choice
from slotnorm.report.drawing.curve_figures import draw
from slotnorm.report.drawing.diagnostics_figure import draw_diagnostics
from slotnorm.report.drawing.forest_figure import draw_forest, forests
from slotnorm.report.model_views import Inspector, spaced
from slotnorm.report.packed_rows import PackedRows
from slotnorm.report.page import page
from slotnorm.report.pictures import slots_table, visual_table
from slotnorm.report.prose import claims_page, report_page
from slotnorm.report.reading import RunCollection, find_folders, read
from slotnorm.report.safe_names import file_name
from slotnorm.report.scores import RunScores
from slotnorm.runtime.devices import choose_device
from slotnorm.runtime.progress import Progress
from slotnorm.storage import files
from slotnorm.storage.files import make_subfolder
from slotnorm.storage.schemas import read_document, require_hash
from slotnorm.storage.seals import write_sealed
from slotnorm.storage.serialization import to_document

_log = logging.getLogger(__name__)

MANIFEST = "report.json"
_PICTURED_SCENES = 3  # of the paper's visual tables
_PICTURED_SLOTS = 6
_FILE = re.compile(  # what a report's files are called; any other may be somebody's own
    r"(effect|curves|scores)\.csv|rows\.csv\.gz|claims\.(md|json)|provenance\.json|report\.md|index\.html"
    r"|(figures|tables|pictures)/(?!\.)[\w.+=-]{1,245}\.(svg|pdf|png|csv|tex|md)",
    re.ASCII,
)


def write_report(
    paths: Iterable[str | Path],
    out: str | Path,
    *,
    data: Path | None = None,
    models: bool = True,
    rows: bool = True,
    device: str | torch.device = "auto",
    choice: Choice = Choice(),  # noqa: B008 (frozen)
) -> Report:
    """Read runs and write everything about them to the folder `out`.

    `models` False runs none, and shows only pictures and diagnostics that were kept beside the runs; `rows` False
    leaves out rows.csv.gz. `data` is where scenes are, if not in the cache. Models run on `device` (auto, cpu, cuda or
    mps). `choice` says how the files in figures/ look and what they show.
    """
    chosen = choose_device(device)
    require_folder(Path(out))  # before models run for long
    with PackedRows() as packed:
        collection = _read(paths, packed if rows else None)
        choice.require_known(collection.sections)
        for run in collection.left_out:
            _log.warning(f"left out: {run.path}: {run.reason}")
        for run in collection.damaged:
            _log.warning(f"warning: {run.path} {run.reason}")
        inspector = Inspector(models, data, chosen)
        with Progress("sections", len(collection.sections)) as progress:

            def diagnose(section: Any) -> Any:
                measured = inspector.diagnose(section)
                progress.advance(note=section.title)
                return measured

            report = compose(collection, inspector.illustrate, diagnose)
        for run in inspector.damaged:
            _log.warning(f"warning: {run.path} {run.reason}")
        report = dataclasses.replace(report, damaged=(*report.damaged, *inspector.damaged))
        write(report, Path(out), packed if rows else None, choice)
    return report


def _read(paths: Iterable[str | Path], packed: PackedRows | None) -> RunCollection:
    folders = find_folders(paths)
    with Progress("runs", len(folders)) as progress:

        def keep(folder: str, rows: Rows) -> None:
            if packed is not None:
                packed.add(folder, rows)
            progress.advance()

        return read(folders, keep)


def write(
    report: Report,
    out: Path,
    rows: PackedRows | None = None,
    choice: Choice = Choice(),  # noqa: B008 (frozen)
) -> None:
    """Write a report's files to `out`, which must be empty or hold an earlier report; with `rows` those of its runs."""
    known = require_folder(out)
    folder = _Folder()
    for contents in report.sections:
        _add_section(folder, contents, choice)
    for pair in report.zero_shot:
        for table in pair:
            if table is not None:
                _add_table(folder, table, f"tables/{file_name(table.name)}")
    for forest in forests(choice.of_effects(report.effects)):
        drawn = draw_forest(forest, choice.form)
        _add_figure(folder, forest.file, drawn, forest_figure.to_csv(forest), forest.caption, choice)
    folder.add("effect.csv", effects.to_csv(report.effects))
    folder.add("curves.csv", curves_csv(report))
    folder.add("scores.csv", _scores_csv(report.runs))
    if rows is not None:
        folder.stream("rows.csv.gz", lambda: rows.chunks(run.facts["path"] for run in report.runs))
    folder.add("claims.md", claims_page(report.outcomes))
    folder.add("claims.json", json.dumps(as_records(report.outcomes), indent=1, ensure_ascii=False) + "\n")
    folder.add("provenance.json", json.dumps(report.provenance, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    folder.add("report.md", report_page(report, choice))
    folder.add(page.NAME, page.render(report))
    folder.write(out, known)


def curves_csv(report: Report) -> str:
    """Every point of every figure of a report."""
    return curves.to_csv(
        (contents.section.title, which, figure)
        for contents in report.sections
        for which, figure in contents.results.all_figures()
    )


@dataclasses.dataclass(frozen=True)
class _Manifest:
    """What a report's own list of its files says."""

    slotnorm: str
    files: dict[str, str]
    """SHA-256 by name."""

    def __post_init__(self) -> None:
        for name, sha256 in self.files.items():
            if not _FILE.fullmatch(name):
                raise UserError(f"{name[:80]!r} is not the name of a report's file")
            require_hash(sha256)


class _Folder:
    """The files of a report, by name, until all are made."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.streams: dict[str, Callable[[], Iterable[bytes]]] = {}

    def add(self, name: str, content: str | bytes) -> None:
        """A text is UTF-8; what that lacks, as the name of a run's folder may have it, is an escape."""
        self.files[name] = content.encode(errors="backslashreplace") if isinstance(content, str) else content

    def stream(self, name: str, chunks: Callable[[], Iterable[bytes]]) -> None:
        """A file that is not held in memory; `chunks` gives the same bytes whenever it is asked."""
        self.streams[name] = chunks

    def write(self, out: Path, known: Mapping[str, str]) -> None:
        """Remove what only an earlier report had, then write all; what belongs to the report is said first.

        So a report that was interrupted here is known as one, and the same command writes it again.
        """
        for name in set(known).difference(self.files, self.streams):
            if not (out / name).is_file():
                continue
            if files.sha256(out / name) == known[name]:
                (out / name).unlink()
            else:
                _log.info(f"note: {out / name} was changed since a report wrote it, and is kept")
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}
        for name, chunks in self.streams.items():
            digest = hashlib.sha256()
            for chunk in chunks():
                digest.update(chunk)
            hashes[name] = digest.hexdigest()
        write_sealed(out / MANIFEST, to_document(_Manifest(__version__, hashes)))
        for folder in {name.rpartition("/")[0] for name in hashes} - {""}:
            make_subfolder(out / folder)
        for name, content in self.files.items():
            files.write(out / name, content)
        for name, chunks in self.streams.items():
            with files.replacing(out / name) as temporary, open(temporary, "wb") as file:
                file.writelines(chunks())


def require_folder(out: Path) -> dict[str, str]:
    """SHA-256 by name of the files of the report that `out` holds; what is not known to be a report is refused."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out takes a folder")
    if not out.is_dir() or not any(out.iterdir()):
        return {}
    if not (out / MANIFEST).is_file():
        raise UserError(f"{out} is not empty and holds no report; give --out another folder, or an empty one")
    try:
        listed = read_document(_Manifest, out / MANIFEST, "the list of a report's files").files
    except DamagedFile as damage:  # a report that was interrupted has a whole one, which is replaced in one step
        raise UserError(
            f"{damage}; what is in {out} may not be a report's, so that nothing is overwritten: delete the folder, or "
            "give --out another one"
        ) from damage
    inside = out.resolve()
    return {name: sha256 for name, sha256 in listed.items() if (out / name).resolve().is_relative_to(inside)}


def _add_section(folder: _Folder, contents: SectionContents, choice: Choice) -> None:
    title = contents.section.title
    for which, figure in contents.results.all_figures():
        chosen = choice.of(figure)
        if chosen.figure is not None:
            data = curves.to_csv([(title, which, chosen.figure)], with_paths=True)
            caption = f"{title} {contents.section.factors}. {figure.caption} {chosen.left_out}".strip()
            _add_figure(
                folder, contents.figure_file(figure, ""), draw(chosen.figure, choice.form), data, caption, choice
            )
    for table in contents.results.all_tables():
        _add_table(folder, table, contents.table_file(table, ""))
    if contents.diagnostics is not None and (shown := choice.of_diagnostics(contents.diagnostics)) is not None:
        drawn, data = draw_diagnostics(shown, choice.form), diagnostics.to_csv(shown)
        caption = f"{title}: inside the models as K grows, on {shown.dataset}."
        _add_figure(folder, contents.diagnostics_file(""), drawn, data, caption, choice)
    illustration, section = contents.illustration, contents.section
    if illustration is not None:
        scenes = list(range(min(_PICTURED_SCENES, len(illustration.any.scenes))))
        for k in contents.picture_slots():
            folder.add(contents.picture_file(k), visual_table(illustration, k, scenes))
        growing = [k for k in illustration.slots if k >= section.train_slots] or illustration.slots
        folder.add(contents.picture_file(None), slots_table(illustration, spaced(growing, _PICTURED_SLOTS), 0))


def _add_figure(folder: _Folder, name: str, drawn: dict[str, bytes], data: str, caption: str, choice: Choice) -> None:
    """A figure as `name` with the endings of pictures, its data as CSV, and what a paper needs to include it."""
    for suffix, content in drawn.items():
        folder.add(f"{name}.{suffix}", content)
    folder.add(f"{name}.csv", data)
    folder.add(f"{name}.tex", latex.figure(name, caption, whole_page=choice.width == "page"))


def _add_table(folder: _Folder, table: tables.Table, name: str) -> None:
    """A table as `name` with three endings."""
    folder.add(f"{name}.md", tables.to_markdown(table))
    folder.add(f"{name}.tex", latex.table(name, table))
    folder.add(f"{name}.csv", tables.to_csv(table))


def _scores_csv(runs: Sequence[RunScores]) -> str:
    """One line for each run, set, source, metric and K: the mean over images and what it is a mean of."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([
        "run", "norm", "seed", "train_objects", "train_slots", "protocol", "failed", "dataset", "source", "metric",
        "slots", "mean", "scored", "undefined", "mean_of_few_visible", "scored_of_few_visible",
    ])  # fmt: skip
    for run in runs:
        failed = "" if run.failed is None else int(run.failed)
        head = [run.name, run.norm, run.seed, run.train_objects, run.train_slots, run.protocol, failed]
        for (dataset, source, metric), tally in sorted(run.tallies.items()):
            for k in sorted(set(tally.slots.tolist())):
                many, few = tally.mean(k), tally.mean(k, few=True)
                means = ["" if mean.value != mean.value else repr(mean.value) for mean in (many, few)]
                cells = [means[0], many.scored, many.undefined, means[1], few.scored]
                writer.writerow([*head, dataset, source, metric, k, *cells])
    return buffer.getvalue()
