"""Compute what the paper's runs ask of a cluster, and where it would break: python docs/make_clusters.py.

Prints the tables of docs/clusters.md. Sizes are those of the models that would be trained (`studies/costs.py`), hours
those that the experiments list, and what a job keeps beside its run was counted in a sweep on SLURM.
"""

from slotnorm.experiments import Study, studies
from slotnorm.storage.locks import RENEWAL
from slotnorm.studies.costs import cost_of

PUBLISHED = ("clevr", "movi-c-features")
FILES_PER_RUN = 5 + 2 * 3  # experiment, metrics, log, asked and job; of each checkpoint weights, optimizer and record
FILES_PER_JOB = 5  # in .jobs: a receipt, and submitit's pickle, result and two logs
SECONDS_BETWEEN_LOOKS = 0.5  # the launcher's process reads each run's metrics so often


def of_the_paper() -> list[Study]:
    """The studies whose hours are those of a GPU."""
    return [study for study in studies().values() if study.experiment.dataset in PUBLISHED]


def main() -> None:
    print("| experiment | runs | GPU hours | one checkpoint | disk |\n|---|---|---|---|---|")
    total_runs, total_hours, total_disk, per_hour, files = 0, 0.0, 0, 0.0, 0
    for study in of_the_paper():
        runs, cost, recipe = len(study.norms) * len(study.seeds), cost_of(study.experiment), study.experiment.recipe
        hours = runs * study.hours
        saves = recipe.steps / recipe.checkpoint_every / study.hours
        total_runs, total_hours, total_disk = total_runs + runs, total_hours + hours, total_disk + runs * cost.disk
        per_hour, files = per_hour + runs * saves * cost.checkpoint, files + runs * (FILES_PER_RUN + FILES_PER_JOB)
        name = f"{study.name} | {runs} | {hours:,.0f}"
        print(f"| {name} | {cost.checkpoint / 1e6:.0f} MB | {runs * cost.disk / 1e9:.1f} GB |")
    print(f"| all | {total_runs} | {total_hours:,.0f} | | {total_disk / 1e9:.1f} GB |\n")
    print("| the shared file system sees | these runs, all at once | 10,000 runs like them |\n|---|---|---|")
    scale = 10_000 / total_runs
    for what, number in (
        ("files", files),
        ("checkpoints written, GB per hour", per_hour / 1e9),
        ("renewals of locks, per second", total_runs / RENEWAL),
        ("metrics read by the launcher, per second, at most", total_runs / SECONDS_BETWEEN_LOOKS),
        ("disk, GB", total_disk / 1e9),
    ):
        print(f"| {what} | {rounded(number)} | {rounded(number * scale)} |")


def rounded(number: float) -> str:
    """For people: whole numbers, with a digit behind the point below a hundred."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


if __name__ == "__main__":
    main()
