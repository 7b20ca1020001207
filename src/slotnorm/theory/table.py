"""The theory's measurements on the screen: a coloured table on a terminal, aligned plain text elsewhere."""

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from slotnorm.runtime.columns import in_columns
from slotnorm.runtime.screen import Screen
from slotnorm.theory.checks import Check, EqualSlots

_STYLES = {"holds": "green", "FAILS": "bold red", "undefined": "yellow"}


def show(checks: list[Check], equal: EqualSlots, refusals: dict[str, str], trained: str) -> None:
    """Print all of it; `trained` says what the trained layer is."""
    console = Screen(highlight=False)
    console.soft_wrap = not console.is_terminal  # a pipe gets whole lines
    console.print("[bold]The paper's statements, measured in float64[/bold]")
    console.print(escape(f"random: the worst of several layers with every parameter drawn; trained: {trained}"))
    rows = [_row(check) for check in checks]
    _print(console, ["where", "statement", "random", "trained", "limit", "verdict"], rows, left=2)
    for note in dict.fromkeys(check.note for check in checks if check.note):
        console.print(escape(f"undefined for the trained layer: {note}"))

    console.print("\n[bold]K equal slots share one image (trained layer): whose code notices?[/bold]")
    curves = [["mass of a slot", *_numbers(equal.mass)]]
    curves += [[f"|u|, {label}", *_numbers(lengths)] for label, lengths in equal.lengths.items()]
    if equal.recovered:
        curves.append(["mass read off the Weighted Sum", *_numbers(equal.recovered)])
    _print(console, ["|u| relative to K = 1", *(f"K = {count}" for count in equal.slots)], curves, left=1)

    console.print("\n[bold]Where the mass cannot be read off, it is not made up[/bold]")
    for case, sentence in refusals.items():
        console.print(escape(f"{case}: {sentence or 'NOT REFUSED'}"))


def _row(check: Check) -> list[str]:
    trained = "undefined" if check.note else "" if check.trained is None else check.form.format(check.trained)
    verdict = "holds" if check.holds else "FAILS"
    return [check.where, check.statement, check.form.format(check.random), trained, f"{check.limit:g}", verdict]


def _numbers(values: list[float]) -> list[str]:
    return [f"{value:.3f}" for value in values]


def _print(console: Screen, header: list[str], rows: list[list[str]], left: int) -> None:
    """A table whose first `left` columns are aligned to the left and the others to the right."""
    if console.is_terminal:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for number, name in enumerate(header):
            table.add_column(escape(name), justify="left" if number < left else "right", no_wrap=number != left - 1)
        for row in rows:
            cells = ((escape(cell), _STYLES.get(cell, "")) for cell in row)
            table.add_row(*(f"[{style}]{cell}[/{style}]" if style else cell for cell, style in cells))
        console.print(table)
        return
    for line in in_columns([header, *rows], left):
        console.print(escape(line))
