"""The paper's claims, each checked on our scores; what its words mean in numbers is said in evidence.py."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slotnorm import experiments
from slotnorm.report.claims import beyond_discovery, discovery  # noqa: F401 (they register the claims)
from slotnorm.report.claims.vocabulary import CLAIMS, Claim, Evidence, NotRun, TransferEvidence
from slotnorm.report.sections import Section

Verdict = Literal["agrees", "agrees as far as run", "differs", "not run"]

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
    """None: could not be decided."""
    numbers: str
    """What it rests on, or what is missing."""


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


def claims() -> list[Claim]:
    """All of them, by number."""
    return [CLAIMS[number] for number in sorted(CLAIMS)]


def check_claims(sections: Sequence[Section], with_theory: bool = True) -> list[Outcome]:
    """Every claim at every scale that has runs, and once as "not run" where none has."""
    outcomes: list[Outcome] = []
    for claim in claims():
        if claim.study == "theory":
            found = [_theory(claim)] if with_theory else []
        else:
            found = [outcome for scale in SCALES for outcome in _at_scale(claim, scale, sections)]
        outcomes += found or [Outcome(claim, "", "", "not run", ())]
    return outcomes


def _at_scale(claim: Claim, scale: str, sections: Sequence[Section]) -> list[Outcome]:
    stands_for = SCALES[scale]
    if claim.study not in stands_for:
        return []
    ours = stands_for[claim.study]
    if ours in experiments.transfers():
        return _transfer(claim, scale, experiments.transfers()[ours], sections)
    related: dict[str, Section] = {}
    for study, name in stands_for.items():
        for section in sections:
            if section.study == name:
                related.setdefault(study, section)
    outcomes = []
    for section in sections:
        if section.study == ours:
            evidence = Evidence(section, related)
            findings = _findings(claim, evidence)
            kept = None
            if any(one.failures for one in evidence.used):
                kept = verdict(_findings(claim, Evidence(section, related, leave_out_failed=False)))
            outcomes.append(Outcome(claim, scale, described(section), verdict(findings), findings, kept))
    return outcomes


def _transfer(claim: Claim, scale: str, transfer: experiments.Transfer, sections: Sequence[Section]) -> list[Outcome]:
    involved = [section for section in sections if section.study in transfer.studies]
    evidence = TransferEvidence(involved, transfer)
    if not evidence.evaluated:
        return []
    findings = _findings(claim, evidence)
    kept = None
    if any(section.failures for section in involved):
        kept = verdict(_findings(claim, TransferEvidence(involved, transfer, leave_out_failed=False)))
    return [Outcome(claim, scale, transfer.name, verdict(findings), findings, kept)]


def _theory(claim: Claim) -> Outcome:
    findings = _findings(claim, None)
    return Outcome(claim, "exact", "random and trained layers", verdict(findings), findings)


def _findings(claim: Claim, evidence: Any) -> tuple[Finding, ...]:
    findings = []
    try:
        for words, decide in claim.check(evidence):
            try:
                holds, numbers = decide()
                findings.append(Finding(words, holds, numbers))
            except NotRun as missing:
                findings.append(Finding(words, None, str(missing)))
    except NotRun as missing:
        findings.append(Finding(claim.statement, None, str(missing)))
    return tuple(findings)


def verdict(findings: Sequence[Finding]) -> Verdict:
    """A claim agrees when all its parts hold, and differs when one does not; what was not run decides nothing."""
    held = [finding.holds for finding in findings]
    if False in held:
        return "differs"
    if True not in held:
        return "not run"
    return "agrees" if None not in held else "agrees as far as run"


def described(section: Section) -> str:
    """A section's title, and in which fields its experiment is not the registered one."""
    return section.title + (f" [{', '.join(section.changes)}]" if section.changes else "")


def counted(outcomes: Sequence[Outcome]) -> dict[Verdict, int]:
    """How many claims, by their verdict at the largest scale that was run."""
    first: dict[int, Verdict] = {}
    for outcome in outcomes:
        if first.get(outcome.claim.number, "not run") == "not run":
            first[outcome.claim.number] = outcome.verdict
    counts: dict[Verdict, int] = {"agrees": 0, "agrees as far as run": 0, "differs": 0, "not run": 0}
    for one in first.values():
        counts[one] += 1
    return counts


def as_records(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Outcomes as plain JSON values."""
    return [
        {
            "number": outcome.claim.number, "study": outcome.claim.study, "statement": outcome.claim.statement,
            "scale": outcome.scale, "section": outcome.section, "verdict": outcome.verdict,
            "with_failed_runs": outcome.with_failed, "findings": [dataclasses.asdict(one) for one in outcome.findings],
        }
        for outcome in outcomes
    ]  # fmt: skip
