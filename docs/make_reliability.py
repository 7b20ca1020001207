"""Write the table of docs/reliability.md from the counts that the fault tests left: python docs/make_reliability.py."""

import json
from pathlib import Path

PAGE = Path(__file__).with_name("reliability.md")
COUNTS = Path(__file__).with_name("reliability.json")
BEGIN, END = "<!-- made by docs/make_reliability.py -->\n", "<!-- end -->\n"


def table() -> str:
    """A line per fault: how often it was tried and survived, and the test."""
    rows: dict[tuple[str, str], list[int]] = {}
    for test, faults in json.loads(COUNTS.read_text()).items():
        file, _, name = test.partition("::")
        for fault, tried, survived in faults:
            numbers = rows.setdefault((fault, f"`{file}`: {name.partition('[')[0].replace('_', ' ')}"), [0, 0])
            numbers[0] += tried
            numbers[1] += survived
    lines = ["| fault | tried | survived | test |", "|---|---|---|---|"]
    for (fault, test), (tried, survived) in sorted(rows.items()):
        lines.append(f"| {fault} | {tried:,} | {survived:,} | {test} |")
    return "\n".join([*lines, ""])


def page() -> str:
    """The page with its table made anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
