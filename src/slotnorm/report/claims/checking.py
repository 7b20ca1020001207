"""The paper's claims, each checked on our scores; what their words mean in numbers is said in vocabulary.py."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slotnorm import experiments
from slotnorm.report.claims import clevr, movi, properties, theory  # noqa: F401 (they register the claims)
from slotnorm.report.claims.estimates import Resamples, StudyScores, TransferScores
from slotnorm.report.claims.vocabulary import CLAIMS, Claim, Reason, Undecided
from slotnorm.report.sections import Section

Verdict = Literal["agrees", "differs", "undecided", "not run"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "differs", "undecided", "not run")
EXACT = "exact"  # the scale of what needs no run
PARTLY = "only a part was run"

# Which of our studies stands for which of the paper's, by scale. The first are the paper's own.
SCALES: dict[str, dict[str, str]] = {
    "full": {name: name for name in (
        "clevr-6-7", "clevr-6-11", "movi-10-11", "movi-6-7", "movi-6-11", "movi-d", "properties", "ablation",
    )},
    "clevr-mini": {"clevr-6-7": "clevr-mini-6-7"},
    "small": {"clevr-6-7": "small-6-7", "clevr-6-11": "small-6-11"},
    "toy": {
        "clevr-6-7": "toy", "properties": "toy-properties", "ablation": "toy-ablation",
        "movi-10-11": "toy-features-4-5", "movi-6-7": "toy-features-2-3", "movi-6-11": "toy-features-2-5",
        "movi-d": "toy-features-many",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One part of a claim, checked."""

    words: str
    holds: bool | None
    """None: not decided."""
    numbers: str
    """What it rests on, or what is missing."""
    reason: Reason = ""
    """Why it is not decided."""


@dataclass(frozen=True)
class Outcome:
    """What became of a claim at one scale."""

    claim: Claim
    scale: str
    """full, clevr-mini, small, toy; "exact" for theory; empty when nothing was run."""
    section: str
    """Title of the runs' section, with what differs from the registered study."""
    verdict: Verdict
    findings: tuple[Finding, ...]
    with_failed: Verdict | None = None
    """The verdict with failed runs kept; None when no run failed."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is undecided, each reason once; empty for other verdicts."""
        if self.verdict != "undecided":
            return ()
        reasons = [PARTLY if finding.reason == "not run" else finding.reason for finding in self.findings]
        return tuple(dict.fromkeys(reason for reason in reasons if reason))


def claims() -> list[Claim]:
    """All of them, by number."""
    return [CLAIMS[number] for number in sorted(CLAIMS)]


def check_claims(sections: Sequence[Section], with_theory: bool = True) -> list[Outcome]:
    """Every claim at every scale that has runs, and once as "not run" where none has.

    `with_theory` False leaves the propositions alone, which takes a few seconds.
    """
    outcomes: list[Outcome] = []
    resamples = Resamples()
    for claim in claims():
        if claim.study == "theory":
            checked = [_theory(claim)] if with_theory else []
        else:
            checked = [outcome for scale in SCALES for outcome in _at_scale(claim, scale, sections, resamples)]
        outcomes += checked or [Outcome(claim, "", "", "not run", ())]
    return outcomes


def _at_scale(claim: Claim, scale: str, sections: Sequence[Section], resamples: Resamples) -> list[Outcome]:
    stands_for = SCALES[scale]
    if claim.study not in stands_for:
        return []
    ours = stands_for[claim.study]
    if ours in experiments.transfers():
        return _transfer(claim, scale, experiments.transfers()[ours], sections, resamples)
    related: dict[str, Section] = {}
    for study, name in stands_for.items():
        for section in sections:
            if section.study == name:
                related.setdefault(study, section)
    outcomes = []
    for section in sections:
        if section.study == ours:
            scores = StudyScores(section, related, True, resamples)
            findings, partly = _findings(claim, scores), not _asked(ours).isdisjoint(section.norms)
            with_failed = None
            if any(used.failures for used in scores.used):
                with_failed = verdict(_findings(claim, StudyScores(section, related, False, resamples)), partly)
            outcomes.append(Outcome(claim, scale, described(section), verdict(findings, partly), findings, with_failed))
    return outcomes


def _asked(study: str) -> set[str]:
    """The normalizations that the paper has in a study; a run of another one is not a part of any claim."""
    return set(experiments.studies()[study].norms)


def _transfer(
    claim: Claim, scale: str, transfer: experiments.Transfer, sections: Sequence[Section], resamples: Resamples
) -> list[Outcome]:
    involved = [section for section in sections if section.study in transfer.studies]
    scores = TransferScores(involved, transfer, True, resamples)
    if not scores.evaluated:
        return []
    findings = _findings(claim, scores)
    with_failed = None
    if any(section.failures for section in involved):
        with_failed = verdict(_findings(claim, TransferScores(involved, transfer, False, resamples)), partly=True)
    return [Outcome(claim, scale, transfer.name, verdict(findings, partly=True), findings, with_failed)]


def _theory(claim: Claim) -> Outcome:
    findings = _findings(claim, None)
    return Outcome(claim, EXACT, "random layers", verdict(findings), findings)


def _findings(claim: Claim, scores: Any) -> tuple[Finding, ...]:
    findings = []
    try:
        for words, decide in claim.check(scores):
            try:
                decision = decide()
                findings.append(Finding(words, decision.holds, decision.numbers, decision.reason))
            except Undecided as missing:
                findings.append(Finding(words, None, str(missing), missing.reason))
    except Undecided as missing:
        findings.append(Finding(claim.statement, None, str(missing), missing.reason))
    return tuple(findings)


def verdict(findings: Sequence[Finding], partly: bool = False) -> Verdict:
    """A claim agrees when all its parts hold and differs when one does not; else it is undecided, or was not run.

    `partly`: some of the runs it asks for are there, so that it was not left out as a whole.
    """
    if any(finding.holds is False for finding in findings):
        return "differs"
    if not partly and all(finding.reason == "not run" for finding in findings):
        return "not run"
    return "agrees" if all(finding.holds for finding in findings) else "undecided"


def described(section: Section) -> str:
    """A section's title, and in which fields its experiment is not the registered one."""
    return section.title + (f" [{', '.join(section.changes)}]" if section.changes else "")


def counted(outcomes: Sequence[Outcome]) -> dict[str, dict[Verdict, int]]:
    """How many claims came to which verdict, for each scale at which something was run.

    Claims that need runs and have none at a scale count as not run there; the one that needs none counts as "exact".
    """
    counts: dict[str, dict[Verdict, int]] = {}
    for scale in (*SCALES, EXACT):
        first: dict[int, Verdict] = {}
        for outcome in outcomes:
            if outcome.scale == scale:
                first.setdefault(outcome.claim.number, outcome.verdict)
        if first:
            asked = [claim for claim in claims() if (claim.study == "theory") == (scale == EXACT)]
            verdicts = [first.get(claim.number, "not run") for claim in asked]
            counts[scale] = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    return counts


def in_short(outcomes: Sequence[Outcome]) -> str:
    """The counts as words: "toy: 3 agree, 5 differ, 12 undecided, 9 not run"."""
    several: dict[Verdict, str] = {"agrees": "agree", "differs": "differ"}

    def words(verdict: Verdict, count: int) -> str:
        return f"{count} {several.get(verdict, verdict) if count > 1 else verdict}"

    shown = [
        f"{scale}: " + ", ".join(words(verdict, count) for verdict, count in counts.items() if count)
        for scale, counts in counted(outcomes).items()
    ]
    return "; ".join(shown) or "none was run"


def as_records(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Outcomes as plain JSON values."""
    return [
        {
            "number": outcome.claim.number, "study": outcome.claim.study, "statement": outcome.claim.statement,
            "sentence": outcome.claim.sentence, "rule": outcome.claim.rule,
            "scale": outcome.scale, "section": outcome.section, "verdict": outcome.verdict,
            "reasons": list(outcome.reasons), "with_failed_runs": outcome.with_failed,
            "findings": [dataclasses.asdict(finding) for finding in outcome.findings],
        }
        for outcome in outcomes
    ]  # fmt: skip
