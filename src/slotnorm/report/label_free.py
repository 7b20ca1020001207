"""Is it working, where nobody knows the objects: what the masks alone tell of each run of a section."""

from dataclasses import dataclass

from slotnorm.evaluation.label_free import ADVICE
from slotnorm.report.scores import RunScores
from slotnorm.report.sections import Section

TITLE = "Is it working?"
WORDS = (
    "Nobody marked the objects in these pictures, so no score says whether slots find them. What masks tell by "
    "themselves: moving, how many segments of an image follow its content (1 or more is good); sharing, among which "
    "share of all slots a pixel is divided (1/2 or less); coherence, how far masks are on the way from noise to whole "
    "segments (1/4 or more); and how many slots are in use, at the training K."
)
COLUMNS = ("slots", "moving", "sharing", "coherence", "in use")
_MEASURED = ("moving", "sharing", "coherence")


@dataclass(frozen=True)
class Verdict:
    """What masks tell of one run."""

    run: str
    norm: str
    cells: tuple[str, ...]
    """As COLUMNS names them."""
    advice: str
    """What is wrong and what to try, a sentence; empty where nothing is."""


def verdicts(section: Section) -> list[Verdict]:
    """Of each run of a section; none where scores tell more, or nothing was measured."""
    if "f_ari" in section.metrics() or not any(run.facts.get("binding") for run in section.runs):
        return []
    return [Verdict(run.name, run.norm, (_found(run), *_numbers(run)), _advice(run)) for run in section.runs]


def _found(run: RunScores) -> str:
    return {None: "not judged", False: "follow the pictures", True: "do not follow the pictures"}[run.failed]


def _advice(run: RunScores) -> str:
    if not run.failed:
        return ""
    reason = str(run.facts["binding"].get("reason", ""))
    tried = f"; try: {ADVICE[reason]} (docs/not-binding.md)" if reason in ADVICE else ""
    return f"{run.name}: the model {reason}{tried}."


def _numbers(run: RunScores) -> list[str]:
    judged = run.facts.get("binding") or {}
    used = (run.facts.get("validation") or {}).get(f"in_use@{run.train_slots}")
    shown = [_shown(judged.get(name)) for name in _MEASURED]
    return [*shown, "–" if used is None else f"{_shown(used)} of {run.train_slots}"]


def _shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "–"
