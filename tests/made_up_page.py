"""A page as a report would make it, from made-up rows and made-up decompositions; no model is trained or run."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from made_up_rows import made_up
from slotnorm.config import SceneSpec
from slotnorm.data.generator import render
from slotnorm.evaluation.examples import Examples
from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import MAIN
from slotnorm.report.contents import Report, compose
from slotnorm.report.diagnostics import Diagnostics, diagnostics
from slotnorm.report.pictures import illustrate
from slotnorm.report.reading import RunCollection
from slotnorm.report.scores import summarize
from slotnorm.report.sections import Section, divide

SLOTS = (5, 7, 10, 15)
NASTY = "<script>alert('1')</script> \"Ünï\" & 😀 </script><!--"


def made_up_examples(norm: str, slots: Sequence[int] = SLOTS, scenes: int = 12, size: int = 16) -> Examples:
    """True segments as masks, the background shared by the spare slots where the codes lose the mass."""
    drawn = render(SceneSpec((2, 4), size, seed=3, style="flat", shapes=("disc",), radius=(0.14, 0.2)), range(scenes))
    labels, images = drawn["labels"], drawn["images"]
    masks, reconstructions = {}, {}
    for k in slots:
        random = np.random.default_rng([k, len(norm)])
        shares = np.zeros((scenes, k, size, size))
        for label in range(min(5, k)):
            shares[:, label] = labels == label
        if norm in ("weighted_mean", "layer_norm"):
            share = random.dirichlet(np.ones(k) / 2, (scenes, size, size)).transpose(0, 3, 1, 2)
            shares = 0.7 * shares + 0.3 * share
        masks[k] = np.rint(255 * shares / shares.sum(1, keepdims=True)).astype(np.uint8)
        noise = random.normal(0, 2 + k, images.shape)
        reconstructions[k] = np.clip(images + noise, 0, 255).astype(np.uint8)
    return Examples(f"toy-{norm}-1", norm, "toy4", np.arange(scenes), images, labels, masks, reconstructions)


# at the training K and at three times it: background held, foreground taken, F-ARI with the background divided
HELD = {
    "weighted_mean": ((0.4, 0.05, 0.95, 0.94, 0.93, 0.92), (0.1, 0.15, 0.9, 0.89, 0.88, 0.86)),
    "layer_norm": ((0.5, 0.04, 0.94, 0.93, 0.92, 0.91), (0.2, 0.1, 0.85, 0.84, 0.83, 0.81)),
    "weighted_sum": ((0.95, 0.06, 0.9, 0.93, 0.94, 0.945), (0.9, 0.07, 0.88, 0.92, 0.93, 0.94)),
    "batch_norm": ((0.97, 0.05, 0.92, 0.95, 0.96, 0.965), (0.95, 0.06, 0.91, 0.94, 0.95, 0.96)),
}
HELD_METRICS = ("background_share", "foreground_taken", "f_ari/1", "f_ari/2", "f_ari/3", "f_ari/10")


def made_up_diagnosis(section: Section) -> Diagnostics:
    """Who holds the background, as a diagnosis of each run would say: HELD with seed 1, a bit less with others."""
    parts = []
    for run in section.all_runs:
        measured = []
        for slots, values in zip((section.train_slots, 3 * section.train_slots), HELD[run.norm], strict=True):
            for metric, value in zip(HELD_METRICS, values, strict=True):
                measured.append(Rows(
                    run=run.name, norm=run.norm, seed=run.seed, train_slots=section.train_slots, dataset="toy4",
                    image=[0, 1], objects=3, slots=slots, source="diagnosis", metric=metric,
                    value=np.array([value - 0.005, value + 0.005]) * (1 - 0.01 * (run.seed - 1)),
                ))  # fmt: skip
        parts.append(Rows.concat(measured, {"mass": {"pairs": {}, "refused": ""}}))
    return diagnostics(section.title, parts)


@functools.cache  # it is frozen, and many tests start from the same one
def made_up_report(
    failed: tuple[tuple[str, int], ...] = (("weighted_sum", 2),), name: str = "toy", norms: tuple[str, ...] = MAIN,
    seeds: tuple[int, ...] = (1, 2, 3), **options: Any,
) -> Report:  # fmt: skip
    """Three seeds of each normalization; `failed` are those that the rule says so of."""
    rows = made_up(name, norms, seeds, slots=range(2, 17), failed=failed)
    runs = []
    for run in summarize(rows):
        judged = (run.norm, run.seed) in failed
        verdict = {"failed": judged, "reason": "noise masks" if judged else "", "moving": 2.5, "sharing": 0.2}
        facts = {
            "path": f"runs/{run.name}", "command": f"slotnorm train toy --norm {run.norm}", "weights": "a" * 64,
            "versions": {"torch": "2.7"}, "scenes": {"toy4": {"scenes": "b" * 64, "num_scenes": 40}},
            "binding": verdict,
        }  # fmt: skip
        runs.append(dataclasses.replace(run, failed=judged, facts=facts))
    material = RunCollection(tuple(divide(runs)), (), ("A note.",))
    examples = [made_up_examples(norm, **options) for norm in norms]
    return compose(
        material,
        lambda section: (illustrate(examples, section.train_slots), ()),
        lambda section: (made_up_diagnosis(section) if set(norms) <= set(HELD) else None, ()),
        with_theory=False,
    )


def renamed(report: Report, name: str) -> Report:
    """The same report with everything that can be named called `name`."""
    sections = []
    for contents in report.sections:
        section = dataclasses.replace(contents.section, title=name, where=name, changes=(name,))
        sections.append(dataclasses.replace(contents, section=section, notes=(name,)))
    provenance = [{**entry, "run": name, "command": name, "versions": {name: name}} for entry in report.provenance]
    effects = tuple(dataclasses.replace(effect, section=name) for effect in report.effects)
    return dataclasses.replace(
        report, sections=tuple(sections), effects=effects, notes=(name,), provenance=tuple(provenance)
    )
