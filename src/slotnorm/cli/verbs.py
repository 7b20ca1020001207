"""The verbs of the command line: each a few lines that call the library."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from slotnorm.cli import dispatch
from slotnorm.cli.data_verbs import DATA_VERBS, Objects, open_backbone
from slotnorm.cli.dispatch import importing, reads_arguments
from slotnorm.cli.launching import device_here, launched, require_launcher
from slotnorm.cli.signatures import POSITIONAL, Argument
from slotnorm.cli.training_options import parse_sweep, parse_training
from slotnorm.cli.values import read_numbers, read_slots
from slotnorm.config import require_seed
from slotnorm.runtime.columns import in_columns
from slotnorm.studies.launchers import RETRIES, Launcher, Local

if TYPE_CHECKING:
    from slotnorm.report.contents import Report
    from slotnorm.slot_attention import SlotAttention

Slots = Annotated[
    tuple[int, ...] | None, Argument(placeholder="FIRST:LAST|K,K,...", read=read_numbers, more=r"\d[\d:,]*")
]


def norms() -> None:
    """List the normalizations: name, the paper's label and section, whether the codes keep the mass, formula."""
    from slotnorm.normalization import formula, normalizations

    table = [("name", "label", "where", "keeps mass", "update codes")]
    for name, scheme in normalizations().items():
        table.append((name, scheme.label, scheme.where, "yes" if scheme.keeps_mass else "no", formula(scheme)))
    print("\n".join(in_columns(table)))


def metrics() -> None:
    """List the metrics: name, label, which direction is better, bounds, what each needs, and what it says."""
    from slotnorm.metrics import all_metrics, description

    table = [("name", "label", "better", "bounds", "of", "needs", "says")]
    for name, metric in all_metrics().items():
        bounds = f"{metric.bounds[0]:g} to {metric.bounds[1]:g}"
        table.append((name, metric.label, metric.direction, bounds, metric.of, metric.needs, description(metric)))
    print("\n".join(in_columns(table)))


def models() -> None:
    """List the bundled models: name, normalization, what each was trained on, slots, scores, size, licence."""
    from slotnorm.models.pretrained import listing

    print("\n".join(in_columns(listing())))


def experiments() -> None:
    """List the experiments by study: where in the paper, (O, K), steps, seeds, and hours per run."""
    from slotnorm.experiments import listing

    print(listing())


@reads_arguments
def train(arguments: list[str], prog: str) -> None:
    """Start a run, or go on with it: slotnorm train NAME --norm batch_norm --seed 3."""
    asked = parse_training(arguments, prog)
    if asked is None:
        return
    with importing():
        from slotnorm.runtime import allocator
        from slotnorm.training.loop import train

    allocator.keep_freed_memory()
    run = train(
        asked.experiment, asked.into, data=asked.data, workers=asked.workers,
        observers=("pictures", *asked.log), validate_slots=asked.validate_slots, device=asked.device,
    )  # fmt: skip
    print(run.summary())


@reads_arguments
def sweep(arguments: list[str], prog: str) -> None:
    """Train the runs of a study, with several normalizations and seeds: plan, skip what is finished, run."""
    asked = parse_sweep(arguments, prog)
    if asked is None:
        return
    from slotnorm.studies.jobs import require_success, with_script
    from slotnorm.studies.sweep import describe_plan, plan, report, sweep

    tasks = plan(asked.trainings)
    if asked.plan:
        print(with_script(describe_plan(tasks), tasks, asked.launcher))
        return
    sweep(tasks, asked.launcher, asked.retries)
    print(report(tasks))
    require_success(tasks, "runs")


def status(runs: Annotated[tuple[Path, ...], POSITIONAL], cancel: bool = False) -> None:
    """Show what waits, runs, stopped, is finished or failed, with rate and time left; reads the runs' folders alone.

    Args:
        runs: folders of runs, or folders that hold them
        cancel: also cancel their jobs that wait or run on an engine; what was trained is saved
    """
    from slotnorm.studies import status

    standing = status.read_status(runs)
    print(status.describe(standing))
    if cancel:
        print(status.cancel(standing))


def theory(run: Path | None = None, seed: int = 0) -> None:
    """Measure the paper's propositions on random and on trained parameters, with residuals, in seconds.

    Args:
        run: a run's folder, a .safetensors file, a bundled name such as toy-batch_norm, or a hub id as hub:OWNER/NAME,
            for the trained parameters (default: a layer trained on the spot)
        seed: of the random parameters and inputs
    """
    from slotnorm.theory.checks import check_theory, compare_equal_slots, refusals
    from slotnorm.theory.layers import train_layer
    from slotnorm.theory.table import show

    require_seed(seed)
    if run is None:
        layer, losses = train_layer(seed)
        trained = f"{len(losses)} steps on clustered tokens, loss {losses[0]:.2f} to {losses[-1]:.2f}"
    else:
        layer, trained = _layer_of(run), str(run)
    checks, sentences = check_theory(layer, seed), refusals(seed)
    show(checks, compare_equal_slots(layer, seed), sentences, trained)
    if not (all(check.holds for check in checks) and all(sentences.values())):
        sys.exit(1)


def _layer_of(path: Path) -> "SlotAttention":
    """The Slot Attention layer of a model of ours, or of any file of weights that has one."""
    from slotnorm.models.weights import is_foreign, read_tensors
    from slotnorm.theory.layers import layer_from_state
    from slotnorm.training.loading import load

    return layer_from_state(read_tensors(path)[1] if is_foreign(path) else load(path).state_dict())


@launched()
def evaluate(
    runs: Annotated[tuple[Path, ...], POSITIONAL],
    dataset: str | None = None,
    slots: Slots = None,
    objects: Objects = None,
    scenes: int | None = None,
    data: Path | None = None,
    csv: Path | None = None,
    unfinished: bool = False,
    batch_size: int = 64,
    device: str = "auto",
    shards: int = 1,
    shard: int | None = None,
    retries: int = RETRIES,
    plan: bool = False,
    launcher: Launcher | None = None,
) -> None:
    """Score runs while the number of slots varies: one row per image, number of slots and metric, beside each run.

    Args:
        runs: folders of runs, or folders that hold them
        dataset: a test set (clevr6, clevr10, movi-d, toy, ...) or a dataset (clevr: its widest set); unless given, the
            test sets of each run's study
        slots: numbers of slots, as 3:24 (both included) or 5,10,15 (default: the study's, 3:24; toy 2:16)
        objects: only scenes with so many, as 3:6 (both included)
        scenes: how many are scored (default: the study's, 1280; toy 320)
        data: folder of the built set, or of its splits, when it is not in the cache
        csv: also write all rows here
        unfinished: evaluate the newest checkpoint of runs that are still training, too
        batch_size: scenes scored between two savings; changes no row
        device: where models run: auto (a GPU if there is one), cpu, cuda or mps
        shards: ranges of scenes that jobs of --on score side by side, per run; changes no row
        shard: only score this range, counted from 0, and keep it beside the others
        retries: how often a job of --on that was lost, e.g. with a machine, is submitted again
        plan: only print which jobs --on would submit, and how
    """
    with importing():
        from slotnorm.evaluation.rows import Rows
        from slotnorm.runtime import allocator
        from slotnorm.runtime.shards import Shard
        from slotnorm.studies.evaluation_jobs import evaluate_on, plan_jobs, score_shard
        from slotnorm.studies.jobs import describe_jobs, with_script
        from slotnorm.studies.options import evaluation_words
        from slotnorm.studies.run_evaluation import describe, evaluate_all, plan_evaluations, read_judgement
        from slotnorm.training.runs import Objection, require_none_damaged

    allocator.keep_freed_memory()
    part = Shard(shard or 0, shards)
    require_launcher(launcher, shards if shard is None else 1, plan)
    left_out: list[Objection] = []
    used: list[Objection] = []
    planned = plan_evaluations(
        runs, dataset, slots=slots, objects=objects, scenes=scenes, data=data, unfinished=unfinished,
        batch_size=batch_size, device=device_here(device, launcher), left_out=left_out, used=used,
    )  # fmt: skip
    if shard is not None:
        score_shard(planned, part)
        return
    if launcher is not None:
        words = evaluation_words(dataset, slots, objects, scenes, data, unfinished, batch_size, device)
        tasks = plan_jobs(planned, words, shards)
        if plan:
            print(with_script(describe_jobs(tasks), tasks, launcher.for_one_process()))
            return
        evaluate_on(launcher, tasks, retries)
    scored = []
    for evaluation, made in evaluate_all(planned, left_out):
        scored.append(made)
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(describe(made, read_judgement(evaluation.run.path), room), flush=True)
    if csv is not None:
        Rows.concat(scored).to_csv(csv)
        print(f"rows: {csv}")
    require_none_damaged(left_out, used)


def judge(run: Annotated[Path, POSITIONAL], data: Path | None = None, device: str = "auto") -> None:
    """Say whether a model's slots follow what is in the images, without labels: the failed-run rule, and slots in use.

    Args:
        run: a run's folder, a .safetensors file that a run exported, a bundled name such as toy-batch_norm, or a hub id
            as hub:OWNER/NAME
        data: any folder of pictures, of a built set, or of its splits, with or without masks (default: the data that
            the run remembers; a model without a run's folder remembers none, and scenes are made where its experiment
            says how)
        device: where the model runs: auto (a GPU if there is one), cpu, cuda or mps
    """
    from slotnorm.studies.judging import judge_model

    print(judge_model(run, data, device))


def report(
    runs: Annotated[tuple[Path, ...], POSITIONAL],
    out: Path = Path("report"),
    data: Path | None = None,
    models: bool = True,
    rows: bool = True,
    device: str = "auto",
    style: Literal["paper", "slides", "dark"] = "paper",
    width: Literal["page", "column"] = "page",
    norms: tuple[str, ...] | None = None,
    metrics: tuple[str, ...] | None = None,
) -> None:
    """Draw the figures and tables of the paper from evaluated runs, with pictures, diagnostics and its claims.

    Args:
        runs: folders of runs, or folders that hold them
        out: where the report goes; the same command writes the same files again
        data: folder of the built set, or of its splits, when it is not in the cache
        models: run the models for pictures and diagnostics that are not kept beside the runs yet
        rows: write all rows as rows.csv.gz
        device: where models run: auto (a GPU if there is one), cpu, cuda or mps
        style: how figures look: for a paper, for slides, or for a dark background
        width: how wide figures are: a page of a paper (6.75 inches; a slide is 12), or one of its two columns
        norms: normalizations that figures show (default: all); tables, claims and the page always have all
        metrics: metrics that figures show (default: all)
    """
    from slotnorm.report.drawing.choice import Choice
    from slotnorm.report.writing import write_report

    choice = Choice(style, width, norms, metrics)
    _show(write_report(runs, out, data=data, models=models, rows=rows, device=device, choice=choice), out)


def _show(report: "Report", folder: Path) -> None:
    """What a report comes to, and where it is."""
    from slotnorm.report.prose import headline
    from slotnorm.training.runs import require_none_damaged

    print(headline(report))
    print(f"report: {folder / 'report.md'}")
    print(f"page: {folder / 'index.html'}")
    require_none_damaged(report.left_out, report.damaged)


@launched(default=lambda: Local(jobs=os.cpu_count() or 1))
def reproduce(
    name: Annotated[str, POSITIONAL],
    out: Path | None = None,
    norms: tuple[str, ...] | None = None,
    seeds: tuple[int, ...] | None = None,
    steps: int | None = None,
    scenes: int | None = None,
    slots: Slots = None,
    data: Path | None = None,
    device: str = "auto",
    retries: int = RETRIES,
    plan: bool = False,
    quick: bool = False,
    launcher: Launcher | None = None,
) -> None:
    """Everything for one figure or table of the paper: train what is missing, evaluate, report.

    Args:
        name: a study, as `slotnorm experiments` lists them
        out: folder for runs/ and report/ (default: reproduce-NAME); the same command continues an interrupted one
        norms: normalizations (default: the study's)
        seeds: seeds (default: the study's)
        steps: train for fewer steps than the recipe says
        scenes: how many test scenes are scored (default: the study's)
        slots: numbers of slots to evaluate, as 3:24 (both included) or 5,10,15 (default: the study's)
        data: folder of the built set, or of its splits, when it is not in the cache
        device: where models run: auto (a GPU if there is one), cpu, cuda or mps
        retries: how often a job that its launcher lost, e.g. with a machine, is submitted again
        plan: only print what would be trained, the hours and the disk it takes, and what is submitted
        quick: train for fewer steps, as few as show the effect
    """
    from slotnorm.cli.reproduction import Reproduction, describe_plan, reproduce
    from slotnorm.runtime import allocator

    allocator.keep_freed_memory()
    out = Path(f"reproduce-{name}") if out is None else out
    where = launcher or Local()
    asked = Reproduction(name, out, norms, seeds, steps, scenes, slots, data, device, where, retries, quick)
    if plan:
        print(describe_plan(asked))
        return
    _show(reproduce(asked), asked.report)


def segment(
    image: Annotated[Path, POSITIONAL],
    run: Path,
    out: Path = Path("masks"),
    slots: Annotated[str | None, Argument(placeholder="INT|auto", read=read_slots)] = None,
    seed: int = 0,
    backbone: str | None = None,
    weights: str | None = None,
    device: str = "auto",
) -> None:
    """Segment an image, or all of a folder, with a trained model: label map, overlay, cut-outs and a JSON each.

    Args:
        image: a PNG, JPEG, WebP, TIFF or BMP file of any size, or a folder of them
        run: a run's folder, a .safetensors file that a run exported, a bundled name such as toy-batch_norm, or a hub id
            as hub:OWNER/NAME
        out: where the results go, a folder for each image
        slots: K; auto takes three times as many as in training, says how many of them hold an object, and calls the
            rest background (default: as in training)
        seed: of the noise that slots start from; the same seed gives the same result
        backbone: for models of features, the network that makes them: a name of timm, a bundled name, run:FOLDER, a
            .safetensors file or hub:OWNER/NAME
        weights: of the backbone, a file or hub
        device: where models run: auto (a GPU if there is one), cpu, cuda or mps
    """
    with importing():
        from slotnorm.report.segmenter import Segmenter, segment_files
        from slotnorm.training.loading import load

    model = load(run, device)
    protocol = model.experiment.recipe.protocol if model.experiment else "paper"
    network = None if backbone is None else open_backbone(backbone, weights, protocol=protocol)
    for line in segment_files(image, Segmenter(model, slots, seed, network), out):
        print(line, flush=True)


def demo(
    out: Path = Path("slotnorm-demo"),
    open_: Annotated[bool, Argument(name="open")] = False,
    scenes: int = 200,
    device: str = "auto",
) -> None:
    """See the paper's effect in a minute: trained models of each normalization with more and more slots; no network.

    Args:
        out: where the HTML page goes
        open_: show the page in a browser
        scenes: how many new scenes of each test set are looked at
        device: where models run: auto (a GPU if there is one), cpu, cuda or mps
    """
    import torch

    from slotnorm.report.demo import open_page, prepare, run_demo, show_demo, write_demo_page
    from slotnorm.runtime import allocator
    from slotnorm.runtime.devices import choose_device

    allocator.keep_freed_memory()
    torch.set_num_threads(1)  # on pictures this small a second thread waits more than it works
    choose_device(device)  # before a folder is made
    prepare(out)
    comparison = run_demo(scenes, device=device)
    show_demo(comparison)
    page = write_demo_page(comparison, out)
    print(f"page: {page}")
    if open_ and not open_page(page):
        print(f"no browser was found; open {page.resolve()} yourself", file=sys.stderr)


VERBS: dict[str, Any] = {
    "norms": norms,
    "metrics": metrics,
    "experiments": experiments,
    "models": models,
    "theory": theory,
    "train": train,
    "sweep": sweep,
    "status": status,
    "eval": evaluate,
    "judge": judge,
    "report": report,
    "segment": segment,
    "demo": demo,
    "reproduce": reproduce,
    "data": DATA_VERBS,
}


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit: 0, 2 for a user's error, or what `errors.py` and the signals say."""
    dispatch.run(VERBS, list(sys.argv[1:] if argv is None else argv))
