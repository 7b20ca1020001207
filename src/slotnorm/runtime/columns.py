"""Rows of text as a table of aligned columns, for people."""

from collections.abc import Sequence


def in_columns(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """A line per row; the first `left` columns (None: all) are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) if left is None else left

    def aligned(at: int, cell: str) -> str:
        return cell.ljust(widths[at]) if at < left else cell.rjust(widths[at])

    return ["  ".join(aligned(at, cell) for at, cell in enumerate(row)).rstrip() for row in rows]
