"""What rich shows on stdout, which a reader may close at any line."""

from rich.console import Console


class Screen(Console):
    """A console on stdout that says so when its reader has left (`slotnorm theory | head`), where rich would exit."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
