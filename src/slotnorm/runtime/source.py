"""Which commit of slotnorm's own source is running: what a run says of the program that began it."""

import subprocess
from pathlib import Path

import slotnorm

_SECONDS = 10.0  # git answers in milliseconds; a repository on a hanging disk must not keep a training from starting


def source_commit(folder: Path | None = None) -> str | None:
    """The commit that the package (or `folder`) was checked out at, with a + when files were changed since.

    None when it was installed without its repository, or git cannot tell.
    """
    folder = Path(slotnorm.__file__).parents[2] if folder is None else folder
    if not (folder / ".git").exists():
        return None
    answers = []
    for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=_SECONDS
            )
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(done.stdout.strip())
    return answers[0] + "+" * bool(answers[1])
