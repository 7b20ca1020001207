"""Compute what the paper's runs ask of a cluster, and where it would break: python docs/make_clusters.py.

Writes the tables of docs/clusters.md. Sizes are those of the models that would be trained, and those measured on runs
(`studies/costs.py`); hours are those that the studies list; files were counted in a sweep on SLURM.
"""

from pathlib import Path

from slotnorm.experiments import Study, studies
from slotnorm.storage.locks import RENEWAL
from slotnorm.studies.costs import cost_of

PAGE = Path(__file__).with_name("clusters.md")
BEGIN, END = "<!-- made by docs/make_clusters.py -->\n", "<!-- end -->\n"

PUBLISHED = ("clevr", "movi-c-features")
FILES_PER_RUN = 6  # experiment, metrics, log, lock, asked and job
FILES_PER_CHECKPOINT = 3  # weights, optimizer and record
FILES_PER_JOB = 5  # in .jobs: a receipt, and submitit's pickle, result and two logs
SECONDS_BETWEEN_LOOKS = 0.5  # the launcher's process reads each run's metrics so often


def of_the_paper() -> list[Study]:
    """The studies whose hours are those of a GPU."""
    return [study for study in studies().values() if study.experiment.dataset in PUBLISHED]


def tables() -> str:
    """What each study costs, and what a shared file system sees of all."""
    lines = ["| study | runs | GPU hours | one checkpoint | disk |", "|---|---|---|---|---|"]
    total_runs, total_hours, total_disk, per_hour, files = 0, 0.0, 0, 0.0, 0
    for study in of_the_paper():
        runs, cost, recipe = len(study.norms) * len(study.seeds), cost_of(study.experiment), study.experiment.recipe
        hours, disk = runs * study.hours, runs * cost.disk
        saves = recipe.steps / recipe.checkpoint_every / study.hours
        pictures = recipe.steps // recipe.validate_every
        kept = FILES_PER_RUN + recipe.keep_checkpoints * FILES_PER_CHECKPOINT + pictures + FILES_PER_JOB
        total_runs, total_hours, total_disk = total_runs + runs, total_hours + hours, total_disk + disk
        per_hour, files = per_hour + runs * saves * cost.checkpoint, files + runs * kept
        sizes = f"{cost.checkpoint / 1e6:.0f} MB | {disk / 1e9:.1f} GB"
        lines.append(f"| {study.name} | {runs} | {hours:,.0f} | {sizes} |")
    lines.append(f"| all | {total_runs} | {total_hours:,.0f} | | {total_disk / 1e9:.1f} GB |")
    lines += ["", "| the shared file system sees | these runs, all at once | 10,000 runs like them |", "|---|---|---|"]
    for what, number in (
        ("files", files),
        ("checkpoints written, GB per hour", per_hour / 1e9),
        ("renewals of locks, per second", total_runs / RENEWAL),
        ("metrics read by the launcher, per second, at most", total_runs / SECONDS_BETWEEN_LOOKS),
        ("disk, GB", total_disk / 1e9),
    ):
        lines.append(f"| {what} | {rounded(number)} | {rounded(number * 10_000 / total_runs)} |")
    return "\n".join([*lines, ""])


def rounded(number: float) -> str:
    """For people: whole numbers, with a digit behind the point below a hundred."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def page() -> str:
    """The page with its tables made anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
