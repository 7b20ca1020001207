"""Write the table of docs/metrics.md from the registry: python docs/make_metrics.py."""

import re
from pathlib import Path

from slotnorm.metrics import all_metrics, description

PAGE = Path(__file__).with_name("metrics.md")


def page() -> str:
    """The page's text, its table made anew."""
    lines = ["| name | label | better | bounds | of | needs | says |", "|---|---|---|---|---|---|---|"]
    for name, metric in all_metrics().items():
        low, high = (f"{bound:g}".replace("inf", "∞").replace("-", "−") for bound in metric.bounds)
        cells = (f"`{name}`", metric.label, metric.direction, f"{low} to {high}", metric.of, metric.needs)
        lines.append("| " + " | ".join((*cells, description(metric))) + " |")
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(r"(?<=<!-- made by docs/make_metrics.py -->\n\n)(\|.*\n)*", "\n".join(lines) + "\n", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
