"""What the paper's words mean in numbers, defined once; what a claim is made of, and how its parts are decided."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from slotnorm.report.appearance import looks, signed
from slotnorm.report.effects import shown_interval
from slotnorm.report.resampling import Estimate

NOTICEABLE = 0.02
NOTICEABLE_L2 = 0.05  # a share
LARGE = 0.05
ONE_BACKGROUND = 0.7
GENERALLY = 0.75
_ROUNDING = 1e-9  # what sums of equal scores may leave in place of 0; which way depends on NumPy's version
FEWEST_RUNS = 2  # the fewest that the paper draws a curve of: batch norm on CLEVR (6, 11)
FEWEST_FOR_SPREAD = 3

WORDS = f"""\
All comparisons are between medians over the runs that did not fail, as in the paper. A comparison is decided only
beyond its noise: it holds when the whole 95 % interval of the difference (10,000 resamples of scenes and runs, paired
on the same scenes) lies on the side that the paper says, it does not hold when the whole interval lies on the other
side, and in between it is *within noise*. With fewer than {FEWEST_RUNS} runs of a normalization there are *too few
seeds*: scenes alone say nothing of other trainings.

- "above", "best", "highest", "lowest", "outperforms": the difference is above 0.
- "falls", "suffers", "deteriorates" with K: from one K to the other by more than {NOTICEABLE}; "robust", "does not
  fall", "comparable", "alike", "slightly", "unsubstantial": by no more. On F-ARI, ARI and average precision that is a
  difference; on ℓ² it is a share of the smaller of the two, {NOTICEABLE_L2}. "Noticeably better": above by more than
  {NOTICEABLE}. As read off the paper's curves, it is the difference of the medians at the two K.
- "substantial", "markedly", "far above", "large variability": by more than {LARGE}; the variability is the largest
  deviation of a run from the median, and needs {FEWEST_FOR_SPREAD} runs.
- "excess slots": K from the training K on, and not below the number of objects in the set plus one (a slot for each
  object and one for the background); up to the largest K evaluated.
- "generally", "in general": in at least {GENERALLY:.0%} of the cases (test sets, numbers of slots, distances); it does
  not hold when more than {1 - GENERALLY:.0%} of them go the other way. Each case is decided beyond its own noise.
- "overall", of a whole curve: the mean of the medians from the training K on.
- "trend" with the number of objects: the slope of the least-squares line through the medians.
- "background in one slot": a run's ARI at the training K is above {ONE_BACKGROUND}; a background over several
  slots is below.
- "low" F-ARI: below half of every other variant's, at each K from the number of objects plus one on; with fewer slots
  no variant can score high.
- Average precision at a distance at which no variant's median is above {NOTICEABLE} shows nothing and does not count.
- "no run", "every run", "some runs": one counterexample refutes the first two and one example proves the last, however
  many runs there are; otherwise as many runs are needed as the paper had.

A claim *agrees* when all its parts hold and *differs* when one of them does not. Otherwise it is *undecided*, for the
reasons given: within noise, too few seeds, all runs failed, only a part was run. *Not run*: there is no run to ask."""

Reason = Literal["", "not run", "all runs failed", "too few seeds", "within noise", "shows nothing"]


@dataclass(frozen=True)
class Decision:
    """Whether something holds, the numbers that it rests on, and where it is not decided (None) the reason."""

    holds: bool | None
    numbers: str
    reason: Reason = ""

    def negated(self) -> "Decision":
        return Decision(None if self.holds is None else not self.holds, self.numbers, self.reason)

    def at(self, place: str) -> "Decision":
        """The same with a place before its numbers."""
        return Decision(self.holds, f"{place}: {self.numbers}", self.reason)


Part = tuple[str, Callable[[], Decision]]
"""The words of a part of a claim, and how it is decided."""

Check = TypeVar("Check", bound=Callable[[Any], Iterator[Part]])


@dataclass(frozen=True)
class Claim:
    """One statement of the paper's text, and how it is checked."""

    number: int
    study: str
    """The paper's study (or transfer) it speaks of; "theory" for what needs no run."""
    statement: str
    sentence: str
    """The paper's own words."""
    rule: str
    """How they are read."""
    check: Callable[[Any], Iterator[Part]]
    """Scores -> its parts."""


CLAIMS: dict[int, Claim] = {}


def claim(number: int, study: str, statement: str, *, sentence: str, rule: str) -> Callable[[Check], Check]:
    """Register a function as the check of a claim."""

    if (taken := CLAIMS.get(number)) is not None:
        raise TypeError(f"claim {number} is taken by {taken.statement!r}; give yours another number")

    def register(check: Check) -> Check:
        CLAIMS[number] = Claim(number, study, statement, sentence, rule, check)
        return check

    return register


class Undecided(Exception):
    """A claim, or a part of one, that the runs at hand cannot decide; says what is missing."""

    def __init__(self, words: str, reason: Reason = "not run") -> None:
        super().__init__(words)
        self.reason: Reason = reason


def exceeds(estimate: Estimate, words: str, by: float = 0.0) -> Decision:
    """Whether a number is above `by`, beyond its noise."""
    shown = f"{words} {signed(estimate.value)} {shown_interval(estimate.interval)}".rstrip()
    if estimate.runs < FEWEST_RUNS or (interval := estimate.interval) is None:
        return Decision(None, shown, "too few seeds")
    if interval.low > by + _ROUNDING:
        return Decision(True, shown)
    return Decision(False, shown) if interval.high < by - _ROUNDING else Decision(None, shown, "within noise")


def within(estimate: Estimate, words: str, distance: float) -> Decision:
    """Whether a number is nowhere farther from 0 than `distance`, with all its noise."""
    above = exceeds(estimate, words, distance)
    below = exceeds(Estimate(-estimate.value, -estimate.draws, estimate.runs, estimate.scenes), words, distance)
    if above.holds or below.holds:
        return Decision(False, above.numbers)
    if above.holds is False and below.holds is False:
        return Decision(True, above.numbers)
    return Decision(None, above.numbers, above.reason or below.reason)


def every(decisions: Sequence[Decision], between: str = ", ") -> Decision:
    """Whether all hold: one that does not is enough against it, and one that is not decided leaves it open."""
    numbers = between.join(decision.numbers for decision in decisions)
    if any(decision.holds is False for decision in decisions):
        return Decision(False, numbers)
    open_ones = [decision for decision in decisions if decision.holds is None]
    return Decision(None, numbers, open_ones[0].reason) if open_ones else Decision(True, numbers)


def generally(decisions: Sequence[Decision], cases: str) -> Decision:
    """Whether the named share of them hold; undecided as long as the open ones could tip it."""
    held, total = sum(decision.holds is True for decision in decisions), len(decisions)
    against = sum(decision.holds is False for decision in decisions)
    numbers = f"of {total} {cases} {held} hold, {against} do not, {total - held - against} are not decided"
    if held >= GENERALLY * total:
        return Decision(True, numbers)
    if against > (1 - GENERALLY) * total:
        return Decision(False, numbers)
    return Decision(None, numbers, next(decision.reason for decision in decisions if decision.holds is None))


@cache
def label(norm: str) -> str:
    """What the paper calls the normalization."""
    return looks([norm])[norm].label


def noticeable(metric: str) -> float:
    return NOTICEABLE_L2 if metric == "l2" else NOTICEABLE
