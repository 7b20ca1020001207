"""`--on`: which launcher runs a verb's jobs; its fields are options of the verb, for that command."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from slotnorm.cli.parsing import parse
from slotnorm.cli.signatures import Option, of_dataclass, of_function, rebuilt, summary
from slotnorm.errors import UserError
from slotnorm.studies.launchers import Launcher, Local, describe_launchers, find_launcher, launchers

V = TypeVar("V", bound=Callable[..., None])


def launched(default: Callable[[], Launcher] | None = None) -> Callable[[V], V]:
    """Mark a verb whose parameter `launcher` is made from `--on`; None without one, unless a default is given."""

    def mark(verb: V) -> V:
        verb.launched_by = (default,)  # type: ignore[attr-defined]
        return verb

    return mark


def call(verb: Any, words: Sequence[str], prog: str) -> None:
    """Call a verb that was marked, with what the words say of it and of its launcher."""
    (default,) = verb.launched_by
    on, words = take_on(words)
    launcher: Launcher | None = find_launcher(on)() if on else default() if default else None
    own = [option for option in of_function(verb) if option.key != "launcher"]
    options = [*own, *launcher_options(launcher)]
    require_distinct(options, launcher)
    given = parse(options, words, prog, summary(verb.__doc__))
    if launcher is not None:
        launcher = rebuilt(launcher, given)
    names = {option.key for option in own}
    verb(**{name: value for name, value in given.items() if name in names}, launcher=launcher)


def require_launcher(launcher: Launcher | None, shards: int, plan: bool) -> None:
    """Refuse what only jobs can do, where no launcher is named."""
    if launcher is None and shards > 1:
        raise UserError(f"--shards {shards} needs --on, which runs them, or --shard for one of them")
    if launcher is None and plan:
        raise UserError("--plan needs --on, whose jobs it shows")


def device_here(device: str, launcher: Launcher | None) -> str:
    """What this process computes on: what was asked for, if it is there.

    Where jobs run elsewhere, what other machines have is not known, and this one's part is small.
    """
    from slotnorm.runtime.devices import choose_device, require_known_device

    if launcher is None or isinstance(launcher, Local):
        choose_device(device)
        return device
    require_known_device(device)
    return device if device == "cpu" else "auto"


def take_on(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The launcher's name, if one is given, and the other words."""
    return take_value(list(words), "--on", f"a launcher: {', '.join(launchers())}")


def take_value(words: list[str], option: str, needed: str) -> tuple[str | None, list[str]]:
    """The value of an option that decides what the other options are, and the other words; None if it is not given."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            following = words[at + 1 : at + 2] if not equals else [value]
            if not following or not following[0] or following[0].startswith("--"):
                raise UserError(f"{option} needs {needed}")
            others = words[:at] + words[at + (1 if equals else 2) :]
            if any(other.partition("=")[0] == option for other in others):
                raise UserError(f"{option} is given twice, at first with {following[0]!r}; give it once")
            return following[0], others
    return None, words


def launcher_options(launcher: Launcher | None) -> list[Option]:
    """`--on`, and what the launcher itself can be told."""
    on = Option("on", str, f"Where it runs: {describe_launchers()}", None if launcher is None else launcher.name)
    return [on] if launcher is None else [on, *of_dataclass(launcher)]


def require_distinct(options: Sequence[Option], launcher: Launcher | None) -> None:
    """Refuse a launcher with a field that is called as another option is."""
    if launcher is None:
        return
    for option in of_dataclass(launcher):
        if sum(other.key == option.key for other in options) > 1:
            raise UserError(
                f"launcher {launcher.name} has the field {option.key}, but {option.name} is an option of every sweep; "
                "rename the field"
            )
