"""The public names and the command line, frozen: others rely on them, so a change here is a decision.

python tests/test_frozen.py        # writes tests/frozen.txt anew, after the decision
"""

import contextlib
import io
import os
import re
from pathlib import Path

import slotnorm
from slotnorm.cli.verbs import VERBS, main

FROZEN = Path(__file__).with_name("frozen.txt")
NEEDS_EXPERIMENT = ("train", "sweep", "reproduce")


def options(*verb: str) -> str:
    """The options that a verb's help shows."""
    os.environ["COLUMNS"] = "200"
    words = [*verb, "toy"] if verb[0] in NEEDS_EXPERIMENT else list(verb)
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    shown = re.sub(r"--\[no-\]([a-z-]+)", r"--\1 --no-\1", text.getvalue())
    options = re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*", shown)
    return " ".join(sorted({option.rstrip(".") for option in options} - {"--help"}))


def described() -> str:
    """Names, then verbs with their options, a line each."""
    lines = [f"slotnorm.{name}" for name in sorted(slotnorm.__all__)]
    for name, verb in sorted(VERBS.items()):
        group = {f"{name} {inner}": None for inner in sorted(verb)} if isinstance(verb, dict) else {name: None}
        lines += [f"slotnorm {path}: {options(*path.split())}".rstrip() for path in group]
    return "\n".join(lines) + "\n"


def test_public_names_and_command_line_are_as_frozen():
    assert described() == FROZEN.read_text(), "if the change is meant: python tests/test_frozen.py"


if __name__ == "__main__":
    FROZEN.write_text(described())
