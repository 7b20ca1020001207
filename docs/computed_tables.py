"""What the makers of the pages' computed tables share: published models, a table, and its place in a page.

A computed table stands between `<!-- computed: NAME -->` and `<!-- end -->`; it needs the weights, and minutes, where
the tables that `make_results.py` makes need the rows alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from slotnorm.models import SlotModel
from slotnorm.training.loading import load

ROOT = Path(__file__).resolve().parents[1]


def published_runs(study: str, norm: str) -> list[Path]:
    """The folders of all published runs of a normalization."""
    return sorted((ROOT / "results" / study).glob(f"{study}-{norm}-*"))


def published_models(study: str, norm: str) -> list[SlotModel]:
    return [load(run) for run in published_runs(study, norm)]


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def put(page: Path, tables: Mapping[str, str]) -> None:
    """Write tables into their places in a page."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- computed: {name} -->\n", "\n<!-- end -->"
        before, rest = text.split(begin)
        text = before + begin + table + end + rest.split(end, 1)[1]
    page.write_text(text, encoding="utf-8")
