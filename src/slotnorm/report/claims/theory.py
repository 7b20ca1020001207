"""Claim 30: the propositions, which need no run."""

from collections.abc import Iterator
from functools import cache, partial

from slotnorm.report.claims.vocabulary import Decision, Part, claim
from slotnorm.report.resampling import one_thread
from slotnorm.theory.checks import Check, check_theory


@cache  # half a second, and no run changes it: who writes many reports waits for it once
def _checks() -> list[Check]:
    with one_thread():
        return check_theory()


@claim(
    30, "theory",
    "the proposed keep the mass in the update codes; weighted mean and layer norm cannot (Propositions 1 "
    "and 2)",
    sentence="Propositions 1 and 2",
    rule="Each statement is measured on random layers, to rounding; `slotnorm theory` does so on a trained one, too.",
)  # fmt: skip
def _propositions(_: None) -> Iterator[Part]:
    for check in _checks():
        if check.where in ("Prop. 1", "Prop. 2", "Sec. 4.2"):
            numbers = f"largest error {check.form.format(check.random)} on random layers"
            yield check.statement, partial(Decision, check.holds, numbers)
