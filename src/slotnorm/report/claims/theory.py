"""Claim 30: the propositions, which need no run."""

from collections.abc import Iterator
from functools import partial

from slotnorm.report.claims.vocabulary import Decision, Part, claim


@claim(
    30, "theory",
    "the proposed keep the mass in the update codes; weighted mean and layer norm cannot (Propositions 1 "
    "and 2)",
    sentence="Propositions 1 and 2",
    rule="Each statement is measured on random layers, and on a trained one where models may run, to "
    "rounding.",
)  # fmt: skip
def _propositions(trained: bool) -> Iterator[Part]:
    from slotnorm.theory.checks import check_theory
    from slotnorm.theory.layers import train_layer

    layer = train_layer()[0] if trained else None
    for check in check_theory(layer):
        if check.where in ("Prop. 1", "Prop. 2", "Sec. 4.2"):
            numbers = f"largest error {check.form.format(check.random)} on random layers"
            if check.trained is not None:
                numbers += f", {check.form.format(check.trained)} on a trained one"
            yield check.statement, partial(Decision, check.holds, numbers)
