"""Plain words for what the page shows: sets, studies, normalizations and scores, for readers who know none of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from slotnorm.data.generator import request
from slotnorm.experiments import ANY_NUMBER, evaluation_sets, studies
from slotnorm.normalization import formula, normalizations
from slotnorm.report.sections import Section

_TASKS = {
    "image_autoencoder": "rebuilds the image from its slots",
    "feature_autoencoder": "rebuilds features of the image from its slots",
    "set_predictor": "tells each object's properties from its slots",
}

# the same as the docstrings of normalization.py, for readers who have not met update codes
_PLAIN = {
    "weighted_mean": "the usual Slot Attention: divides by how much the slot was given, and so forgets how much it was",
    "layer_norm": "stretches every sum to the same length, which forgets it too",
    "weighted_sum": "divides by one constant for all, so that a slot that was given more has a longer sum",
    "batch_norm": "shifts and scales all sums alike, by numbers learned in training; their lengths still tell",
    "unnormalized": "takes the sum as it is",
    "kd_layer_norm": "gives all sums of an image one fixed spread, which depends on how many slots there are",
}

PAPER = (
    "Krimmel, Achterhold and Stückler, Attention Normalization Impacts Cardinality Generalization in Slot Attention, "
    "TMLR 2024"
)
FAILED_RUN = (
    "A run counts as failed when its slots do not follow the objects: when it cuts every image at the same places, "
    "gives noise, or shares each pixel among most slots. A fixed rule decides so from the masks alone, without seeing "
    "any true label."
)
_CHANGES_SHOWN = 3


def listed(words: Sequence[str], last: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def counted(number: int, noun: str) -> str:
    """ "1 run", "3 runs", "2 studies"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def objects_of(section: Section, dataset: str) -> tuple[int, int] | None:
    """The fewest and the most objects in a set's scenes: as registered, or as they were scored; None if unknown."""
    if (test := evaluation_sets().get(dataset)) is not None and test.objects != ANY_NUMBER:
        return test.objects
    counts = {
        count
        for run in section.all_runs
        for name, source, metric in run.tallies
        if name == dataset
        for count in run.objects(dataset, metric, source)
    }
    return (min(counts), max(counts)) if counts else None


def objects_in_words(section: Section, dataset: str) -> str:
    """ "2 to 4 objects"; where nobody counted, that."""
    known = objects_of(section, dataset)
    if known is None:
        return "an unknown number of objects"
    few, most = known
    noun = f"{size} object" if (size := _size_in_words(section, dataset)) else "object"
    return counted(most, noun) if few == most else f"{few} to {most} {noun}s"


def _size_in_words(section: Section, dataset: str) -> str:
    """ "smaller" or "larger" where the objects of a set have not the sizes of training, else nothing."""
    study, test = studies().get(section.study), evaluation_sets().get(dataset)
    if study is None or study.experiment.scenes is None or test is None or test.radius is None:
        return ""
    trained = request(study.experiment.scenes.spec("train", study.experiment.scenes.objects)).radius
    return "smaller" if test.radius < trained else "larger" if test.radius > trained else ""


def against_training(section: Section, dataset: str) -> str:
    """ "as in training", "more than in training", or nothing where one of the two is not known."""
    known = objects_of(section, dataset)
    if known is None or section.train_objects <= 0:
        return ""
    return "as in training" if known[1] <= section.train_objects else "more than in training"


def set_in_words(section: Section, dataset: str) -> str:
    """ "2 to 4 objects, as in training"."""
    compared = against_training(section, dataset)
    return objects_in_words(section, dataset) + (f", {compared}" if compared else "")


def task_of(section: Section) -> str:
    """What the models of a study do, "rebuilds the image from its slots"; nothing where runs do not say."""
    document = section.all_runs[0].facts.get("experiment")
    model: Any = document.get("recipe", {}).get("model", {}) if isinstance(document, Mapping) else {}
    return _TASKS.get(str(model.get("kind", "")), "") if isinstance(model, Mapping) else ""


def study_in_short(section: Section) -> str:
    """ "trained with 5 slots on scenes of at most 4 objects; the model rebuilds the image from its slots"."""
    objects = f" on scenes of at most {counted(section.train_objects, 'object')}" if section.train_objects > 0 else ""
    task = f"; the model {task_of(section)}" if task_of(section) else ""
    return f"trained with {counted(section.train_slots, 'slot')}{objects}{task}"


def study_in_words(section: Section) -> str:
    """One or two sentences: what was trained, on what, how often."""
    short = study_in_short(section)
    words = [f"{short[0].upper()}{short[1:]}."]
    tests = [f"{name} ({set_in_words(section, name)})" for name in section.sets]
    words.append(f"Tested on {listed(tests)}." if tests else "It was not tested on any set.")
    if section.where:
        stands_for = section.where.removeprefix("as ")
        small = "A small stand-in for the study of the paper's " if stands_for != section.where else "In the paper: "
        words.append(f"{small}{stands_for}.")
    if section.changes:
        more = len(section.changes) - _CHANGES_SHOWN
        shown = [*section.changes[:_CHANGES_SHOWN], *([f"and {more} more, which report.md lists"] if more > 0 else [])]
        words.append(f"Trained with other settings than this study has now: {'; '.join(shown)}.")
    return " ".join(words)


def norm_in_words(norm: str) -> tuple[str, str]:
    """What a normalization does, and its formula; one without plain words here says what its docstring does."""
    scheme = normalizations().get(norm)
    if scheme is None:
        return "is not installed here, so nothing is known of it but its name", ""
    symbols, _, rest = formula(scheme).partition(": ")
    return _PLAIN.get(norm, rest or symbols), symbols if rest else ""
