"""Write docs/architecture.md from the modules' own first lines: python docs/make_architecture.py."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "slotnorm"
PAGE = Path(__file__).with_name("architecture.md")

sys.path.insert(0, str(ROOT / "tests"))
from test_project import ROOMS  # noqa: E402

HEAD = """# The house

Made from the modules' own first lines by `python docs/make_architecture.py`.

Data flows down this page, and a module imports only from rooms above its own or from its own room; a test reads the
imports.
`normalization.py` and `slot_attention.py` need torch alone. Start with those two.
"""


def first_line(path: Path) -> str:
    """What a module says it is."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return docstring.splitlines()[0] if docstring else ""


def page() -> str:
    """The page's text."""
    lines = [HEAD]
    for number, room in enumerate(ROOMS, 1):
        lines += [f"## Room {number}", "", "| module | what it is |", "|---|---|"]
        for name in room.split():
            folder = SOURCE / name
            paths = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
            for path in paths:
                if path.is_file() and (line := first_line(path)):
                    shown = path.relative_to(SOURCE).as_posix()
                    lines.append(f"| [`{shown}`](../src/slotnorm/{shown}) | {line.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
