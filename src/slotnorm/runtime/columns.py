"""Rows of text as a table of aligned columns, for people."""

from collections.abc import Sequence
from itertools import accumulate

_GAP = "  "


def in_columns(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """A line per row; the first `left` columns (None: all) are aligned to the left, the others to the right."""
    widths = _widths(rows)
    left = len(widths) if left is None else left

    def aligned(at: int, cell: str) -> str:
        return cell.ljust(widths[at]) if at < left else cell.rjust(widths[at])

    return [_GAP.join(aligned(at, cell) for at, cell in enumerate(row)).rstrip() for row in rows]


def num_fitting(rows: Sequence[Sequence[str]], room: int) -> int:
    """How many of the first columns a line of so many letters has room for; two at least, a name and what it names."""
    ends = accumulate(_widths(rows), lambda end, width: end + len(_GAP) + width)
    return max(2, sum(end <= room for end in ends))


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]
