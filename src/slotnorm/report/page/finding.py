"""The finding in one sentence, made from the numbers at hand and hedged by what they show.

With 15 slots instead of 5, the baseline loses 0.26 of its F-ARI, while batch norm keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slotnorm.experiments import OTHERS, PROPOSED
from slotnorm.report.appearance import looks, signed
from slotnorm.report.contents import Report, SectionContents
from slotnorm.report.effects import ALL, PROPOSED_LESS_OTHERS, WITHOUT_FAILED, Change, Effect
from slotnorm.report.page.words import counted, listed, set_in_words
from slotnorm.report.resampling import Interval
from slotnorm.report.tables import at_slots

SCORE = (
    "Slot Attention takes a scene apart into slots, at best one for each object. F-ARI says how well the slots tell "
    "the objects apart: 1 is perfect, 0 is chance."
)
COMPARED = "The baseline is the usual Slot Attention; the others differ from it in one line, a normalization."
_VISIBLE = 0.005  # a change that rounds to 0.00 is none
_MUCH = 0.05  # of ARI: worth a word on the first screen
_LESS = 0.1  # of F-ARI at the training K: a start that is worth a word
_NONE = 0.1  # of F-ARI at the training K: hardly more than chance, nothing that could be kept or lost
_MOST_NAMED = 3


@dataclass(frozen=True)
class Finding:
    """What the first screen says."""

    sentence: str
    hedges: tuple[str, ...]
    """What it rests on and what speaks against it, a sentence or two each."""


def leading(report: Report) -> SectionContents | None:
    """The study that opens the page: the first with pictures and with more slots than in training, else with either."""
    sections = {effect.section for effect in report.effects}

    def value(contents: SectionContents) -> tuple[bool, bool]:
        pictured = contents.illustration is not None
        return (pictured and contents.section.title in sections, pictured or contents.section.title in sections)

    return max(report.sections, key=value, default=None)


def effect_of(report: Report, contents: SectionContents, metric: str, which: str = ALL) -> Effect | None:
    """A study's effect on its set with the fewest objects."""
    own = [effect for effect in report.effects if effect.section == contents.section.title]
    return min(
        (effect for effect in own if (effect.metric, effect.which) == (metric, which)),
        key=lambda effect: effect.place,
        default=None,
    )


def find(report: Report) -> Finding:
    """The sentence of the leading study; where nothing can be said, what is lacking for it."""
    contents = leading(report)
    if contents is None:
        return Finding("There is nothing to report: no run was given.", ())
    effect = effect_of(report, contents, "f_ari")
    if effect is None:
        return _lacking(contents)
    named = _named(effect)
    before, after = effect.slots
    sentence = f"With {after} slots instead of {before}, {_contrasted(_clauses(named))}."
    hedges = [
        _words(named), _start(contents, effect, named), _ground(report, contents, effect), _noise(effect, named),
        _background(report, contents, named),
        _pictured(contents, effect),
    ]  # fmt: skip
    return Finding(sentence, tuple(hedge for hedge in hedges if hedge))


def _lacking(contents: SectionContents) -> Finding:
    section = contents.section
    slots = section.slots()
    if not section.sets or not slots:
        return Finding(
            f"{counted(len(section.runs), 'run')} of {section.title}, none of them tested yet.",
            ("Run `slotnorm eval` on them, and make the report again.",),
        )
    if "f_ari" not in section.metrics():
        words = (
            f"The scenes of {section.sets[0]} have no true masks, so nothing says how well slots find their objects."
        )
        return Finding(words, ("What was measured of these runs stands below.",))
    if max(slots) <= section.train_slots:
        words = f"{section.title} was tested with at most {counted(max(slots), 'slot')}, no more than in training."
        return Finding(words, ("What more slots do to it cannot be said from these numbers.",))
    words = (
        f"No run of {section.title} was scored both with {section.train_slots} slots, as in training, and with more."
    )
    return Finding(words, ("So no change can be given. The curves below show what there is.",))


def _named(effect: Effect) -> list[Change]:
    """Those the sentence speaks of: the baseline and the proposed ones, or else the first few."""
    wanted = [effect.change(norm) for norm in (OTHERS[0], *PROPOSED)]
    known = [change for change in wanted if change is not None]
    return known if len(known) > 1 else list(effect.changes[:_MOST_NAMED])


def _words(named: Sequence[Change]) -> str:
    """What a reader from elsewhere needs to know to follow the sentence."""
    return f"{SCORE} {COMPARED}" if OTHERS[0] in {change.norm for change in named[:-1]} else SCORE


def _clauses(changes: Sequence[Change]) -> list[str]:
    """ "the baseline loses 0.12 of its F-ARI and weighted sum 0.06", "batch norm keeps it": who loses stands first."""
    kinds: dict[str, list[Change]] = {"loses": [], "gains": [], "keeps": [], "lacks": []}
    for change in changes:
        kinds[_kind(change)].append(change)
    clauses: list[str] = []
    for verb in ("loses", "gains"):
        some = kinds[verb]
        if some:
            of = " of its F-ARI" if verb == "loses" and not clauses else " F-ARI" if not clauses else ""
            first = f"{name(some[0])} {verb} {abs(some[0].median):.2f}{of}"
            clauses.append(listed([first, *(f"{name(change)} {abs(change.median):.2f}" for change in some[1:])]))
    if kinds["keeps"]:
        several = len(kinds["keeps"]) > 1
        what = "it" if clauses else ("their F-ARI" if several else "its F-ARI")
        clauses.append(f"{listed([name(change) for change in kinds['keeps']])} keep{'' if several else 's'} {what}")
    if kinds["lacks"]:
        have, what = "have" if len(kinds["lacks"]) > 1 else "has", "none" if clauses else "no F-ARI"
        clauses.append(f"{listed([name(change) for change in kinds['lacks']])} {have} next to {what} to lose")
    return clauses


def _contrasted(clauses: Sequence[str]) -> str:
    """ "the baseline loses 0.12 of its F-ARI, while batch norm keeps it"."""
    return ", while ".join([", ".join(clauses[:-1]), clauses[-1]]) if len(clauses) > 1 else clauses[0]


def _kind(change: Change) -> str:
    """Nothing is gained or lost below the noise and two decimals; what had no F-ARI to lose lacks it."""
    unsure = change.interval is not None and not change.interval.excludes(0)
    unchanged = unsure or abs(change.median) < _VISIBLE
    if not unchanged and change.median > 0:
        return "gains"
    return "lacks" if change.before < _NONE else "keeps" if unchanged else "loses"


def name(change: Change) -> str:
    """A normalization inside a sentence."""
    return (
        "the baseline"
        if change.norm == OTHERS[0]
        else change.label.lower()
        if change.norm in PROPOSED
        else change.label
    )


def _start(contents: SectionContents, effect: Effect, named: Sequence[Change]) -> str:
    """Who had far less to lose: a normalization that keeps a low score keeps little."""
    section, slots = contents.section, effect.slots[0]
    scores = {change.norm: at_slots(section, change.norm, "f_ari", effect.dataset, slots).median for change in named}
    best = max(scores.values())
    if best < _NONE:
        shown = listed([f"{scores[change.norm]:.2f} for {name(change)}" for change in named])
        return f"With {counted(slots, 'slot')}, as in training, F-ARI is {shown}: objects are hardly found at all."
    low = [change for change in named if scores[change.norm] < best - _LESS]
    if not low:
        return ""
    shown = listed([f"{name(change)} {scores[change.norm]:.2f}" for change in low])
    rest = listed([f"{name(change)} {scores[change.norm]:.2f}" for change in named if change not in low])
    return f"Not all had as much to lose: with {counted(slots, 'slot')} {shown}, but {rest}."


def _ground(report: Report, contents: SectionContents, effect: Effect) -> str:
    """Which runs and scenes the sentence rests on."""
    counts = {len(change.runs) for change in effect.changes}
    most = "one run" if max(counts) == 1 else counted(max(counts), "run")
    each = name(effect.changes[0]) if len(effect.changes) == 1 else "each normalization"
    runs = f"{most} of {each}" if len(counts) == 1 else f"up to {most} of {each}"
    study = f" of the study {contents.section.title}" if len(report.sections) > 1 else ""
    words = f"From {runs}{study} on scenes with {set_in_words(contents.section, effect.dataset)}"
    failed = contents.section.failures
    if not failed:
        return f"{words}."
    several = failed != 1
    words += f"; {failed} of these runs failed to follow objects and count{'s' * (not several)} here"
    without_failed = effect_of(report, contents, "f_ari", WITHOUT_FAILED)
    if without_failed is None:
        return f"{words}. None is left without them."
    without, with_failed = (_contrasted(_clauses(_named(shown))) for shown in (without_failed, effect))
    them = "them" if several else "it"
    if without == with_failed:
        return f"{words}; the sentence is the same without {them}."
    return f"{words}. Without {them} {without}."


def _pictured(contents: SectionContents, effect: Effect) -> str:
    """Where the pictures are of other scenes than the sentence, which ones."""
    illustration = contents.illustration
    if illustration is None or illustration.dataset == effect.dataset:
        return ""
    return f"The pictures are of scenes with {set_in_words(contents.section, illustration.dataset)}."


def _noise(effect: Effect, named: Sequence[Change]) -> str:
    """The interval of each change, and what it is over."""
    known = [change for change in named if change.interval is not None]
    if not known:
        return "There is nothing to tell how sure these changes are."
    shown = listed([f"{name(change)} {between(change.interval)}" for change in known if change.interval is not None])
    if all(change.over == "scenes" for change in known):
        how = " over scenes alone: another training of the same model may come out differently"
    elif any(change.rough for change in known):
        how = " over scenes and runs, rough with so few runs"
    else:
        how = " over scenes and runs"
    return f"95 % intervals{how}: {shown}."


def between(interval: Interval) -> str:
    """ "−0.14 to −0.10"; "−0.063 to −0.003", where two decimals would not show on which side of zero it lies."""
    hidden = interval.excludes(0) and any(abs(edge) < _VISIBLE for edge in interval)
    return " to ".join(signed(edge, 3 if hidden else 2) for edge in interval)


def _background(report: Report, contents: SectionContents, named: Sequence[Change]) -> str:
    """What ARI says of the same, where it falls; another story is that of one who loses ARI and not F-ARI."""
    effect = effect_of(report, contents, "ari")
    if effect is None:
        return ""
    changes = [change for norm in (change.norm for change in named) if (change := effect.change(norm)) is not None]
    falling = [change for change in changes if change.median <= -_MUCH]
    if not falling:
        return ""
    rest = [change for change in changes if change not in falling]
    shown = listed([f"{signed(change.median, 2)} for {name(change)}" for change in (*falling, *rest)])
    losing = {change.norm for change in named if _kind(change) == "loses"}
    says = "changes by" if losing.issuperset(change.norm for change in falling) else "tells another story:"
    return f"ARI, which counts the background too, {says} {shown}."


def over_studies(report: Report) -> str:
    """In how many studies the proposed normalizations keep more of their F-ARI than the others; nothing if in none."""
    pairs = []
    for effect in report.effects:
        if (effect.metric, effect.which, effect.place) == ("f_ari", ALL, 0):
            pairs += [pair for pair in effect.differences if (pair.norm, pair.than) == PROPOSED_LESS_OTHERS]
    if not pairs:
        return ""
    proposed, others = (listed([look.label for look in looks(norms).values()]) for norms in (PROPOSED, OTHERS))
    if len(pairs) == 1:
        (pair,) = pairs
        interval = f" (95 % interval {between(pair.interval)}, over {pair.over})" if pair.interval is not None else ""
        if pair.interval is None or not pair.interval.excludes(0):
            return f"Taken together, {proposed} differ from {others} by no more than can be noise{interval}."
        verb = "keep" if pair.value > 0 else "lose"
        return f"Taken together, {proposed} {verb} {abs(pair.value):.2f} more of their F-ARI than {others}{interval}."
    several = [pair for pair in pairs if "runs" in pair.over]
    single = [pair for pair in pairs if "runs" not in pair.over]
    sentences = []
    for some, noise, such in ((several, "scenes and runs", ""), (single, "scenes alone", " with one run each")):
        known = [pair.interval for pair in some if pair.interval is not None]
        more, less = sum(interval.low > 0 for interval in known), sum(interval.high < 0 for interval in known)
        if some:
            sentences.append(
                f"keep more of their F-ARI than {others} in {more} of {counted(len(some), 'study')}{such}, beyond the "
                f"noise of {noise}, and less in {less}"
            )
    return f"Taken together, {proposed} {'; they '.join(sentences)}."
