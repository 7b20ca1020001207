"""Write docs/normalizations.md from the registry: python docs/make_normalizations.py."""

from pathlib import Path

from slotnorm.normalization import formula, normalizations

PAGE = Path(__file__).with_name("normalizations.md")


def page() -> str:
    """The page's text."""
    lines = [
        "# The normalizations",
        "",
        "For those who choose a normalization: the six schemes of the paper, with their formulas.",
        "",
        "In them ũ_k = Σ_n γ_nk v_n is the unnormalised update code of slot k: the sum of the values v_n of all",
        "tokens, weighted by the slot's attention γ_nk. Σ_n γ_nk is its mass, N the number of tokens, and C a",
        "constant. A scheme keeps the mass when the mass can be computed from the codes (Propositions 1 and 2); a",
        "contract test checks this for each scheme.",
        "",
        "Made from the registry by `python docs/make_normalizations.py`; `slotnorm norms` prints the same list.",
        "",
        "| name | label | where | keeps mass | update codes | parameters and buffers |",
        "|---|---|---|---|---|---|",
    ]
    for name, scheme in normalizations().items():
        state = ", ".join(f"`{key}` {tuple(value.shape)}" for key, value in scheme(8).state_dict().items())
        keeps = "yes" if scheme.keeps_mass else "no"
        cells = (
            f"`{name}`",
            scheme.label,
            scheme.where,
            keeps,
            formula(scheme),
            state.replace("(8,)", "(D,)") or "none",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += [
        "",
        "`weighted_sum` is the default of the layer and of all models: it has no state, is the same in training and",
        "evaluation, and is within 0.012 F-ARI of `batch_norm`, the best of the paper's MOVi-D table.",
        "",
        "Read next: [write your own](own-normalization.md), [the idea](idea.md), [theory](theory.md).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
