"""The words behind a verb become values by its options; help; and one style of refusal: a sentence, never a box."""

import collections
import re
import shutil
import sys
import textwrap
from collections.abc import Container, Iterable, Sequence
from typing import Any

from slotnorm.cli import values
from slotnorm.cli.signatures import REQUIRED, Option
from slotnorm.errors import UserError, closest

_DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2212"  # what word processors make of hyphens, too
_WIDEST = 110  # columns of help; longer lines are hard to read
_LEFT = 30  # columns of help for names; a longer one has a line of its own
_NARROWEST = 30  # columns of help for text; where there are fewer beside the names, it goes below them
_INDENT = 6


def wants_help(words: Sequence[str]) -> bool:
    """Whether `-h` or `--help` is among the words that are not another's value."""
    before = words[: words.index("--")] if "--" in words else words
    return any(word in ("-h", "--help") for word in before)


def parse(options: Sequence[Option], words: Sequence[str], prog: str, summary: str) -> dict[str, Any]:
    """The values of the options that are given, by key; help, when it is asked for, is printed and ends the program."""
    if wants_help(words):
        print(help_text(options, prog, summary))
        sys.exit(0)
    given = _split(options, words, prog)
    _require_all(options, given, prog)
    by_key = {option.key: option for option in options}
    return {key: by_key[key].read(words, name) for key, (name, words) in given.items()}


def _split(options: Sequence[Option], words: Sequence[str], prog: str) -> dict[str, tuple[str, list[str]]]:
    """By key, the name that an option was given by, and the words that belong to it; True or False for a flag."""
    named = _by_name(options)
    given: dict[str, tuple[str, list[str]]] = {}
    loose: list[str] = []
    left = collections.deque(words)
    needed = sum(1 for option in options if option.argument.positional and not option.is_list)
    while left:
        word = left.popleft()
        if word == "--":
            loose += left
            break
        if not re.match("-+[A-Za-z]", word):
            loose.append(word)
            continue
        name, equals, value = word.partition("=")
        option, is_on = named.get(name.replace("_", "-"), (None, True))
        if option is None:
            raise unknown_option(name, named, prog)
        if option.is_flag:
            if equals:
                raise UserError(f"{name} is a switch and takes no value; leave out {equals}{value}")
            given[option.key] = name, [str(is_on)]
            continue
        taken = [value] if equals else _take(option, left)
        if not left and option.is_list and len(loose) < needed < len(loose) + len(taken):
            loose += [taken.pop() for _ in range(needed - len(loose))]  # `--seeds 1 2 toy`: the name comes last
        if not taken and not (option.is_list and option.default == ()):
            raise UserError(f"{name} needs a value: {name} {_placeholder(option)}")
        given[option.key] = name, taken
    return given | _positional(options, loose, prog)


def _by_name(options: Iterable[Option]) -> dict[str, tuple[Option, bool]]:
    """Each name that can be typed: its option, and whether it switches a flag on."""
    named: dict[str, tuple[Option, bool]] = {}
    for option in options:
        if option.argument.positional:
            continue
        for name in option.names:
            named[name] = (option, True)
            if option.is_flag:
                named[f"--no-{name.removeprefix('--')}"] = (option, False)
    return named


def _take(option: Option, left: collections.deque[str]) -> list[str]:
    """The words behind an option's name that are its value."""
    taken: list[str] = []
    while left and not re.match("--|-[A-Za-z]", left[0]):
        more = option.is_list or (option.argument.more and re.fullmatch(option.argument.more, left[0]))
        if taken and not more:
            break
        taken.append(left.popleft())
    return taken


def _positional(options: Sequence[Option], loose: list[str], prog: str) -> dict[str, tuple[str, list[str]]]:
    """The words without a name, given to the options without one, in order."""
    given: dict[str, tuple[str, list[str]]] = {}
    for option in options:
        if option.argument.positional and loose:
            taken, loose = (loose, []) if option.is_list else (loose[:1], loose[1:])
            given[option.key] = option.name, taken
    if loose and loose[0][:1] in _DASHES[1:]:
        raise unknown_option(loose[0], _by_name(options), prog)
    if loose:
        raise UserError(f"{prog} has no use for {loose[0]!r}; {prog} --help lists what it takes")
    return given


def unknown_option(name: str, known: Iterable[str], prog: str) -> UserError:
    """The refusal of an option that does not exist: with the nearest one that does."""
    plain = {option.lstrip("-"): option for option in known}  # hyphens, which all have, make nothing alike
    typed = name.lstrip(_DASHES)
    inside = [option for bare, option in plain.items() if bare.endswith(f".{typed}")]
    near = inside[0] if inside else plain.get(closest(typed, plain) or "")
    suggestion = f"did you mean {near!r}? " if near else ""
    return UserError(f"{prog} has no option {name}; {suggestion}{prog} --help lists them")


def _require_all(options: Sequence[Option], given: Container[str], prog: str) -> None:
    missing = [option for option in options if option.default is REQUIRED and option.key not in given]
    if missing:
        named = " and ".join(f"{option.name} ({option.help})" if option.help else option.name for option in missing)
        raise UserError(f"{prog} needs {named}")


def help_text(options: Sequence[Option], prog: str, summary: str) -> str:
    """How a verb is called, what it does, and its options with their defaults, laid out for the terminal."""
    positional = [option for option in options if option.argument.positional]
    calls = [prog, *(f"{option.name} ..." if option.is_list else option.name for option in positional)]
    if len(positional) < len(options):
        calls.append("[OPTIONS]")
    lines = [f"usage: {' '.join(calls)}", "", textwrap.fill(summary, max(_width(), _NARROWEST)), ""]
    for group, members in _grouped(options).items():
        lines += [f"{group}:", *(line for option in members for line in describe(option)), ""]
    return "\n".join(lines[:-1])


def _grouped(options: Iterable[Option]) -> dict[str, list[Option]]:
    """Options by the title of their group; those of none come first."""
    groups: dict[str, list[Option]] = {}
    for option in sorted(options, key=lambda option: (not option.argument.positional, option.group != "")):
        title = "arguments" if option.argument.positional else f"{option.group} options".strip()
        groups.setdefault(title, []).append(option)
    return groups


def describe(option: Option, default: bool = True) -> list[str]:
    """An option's lines in help."""
    names = ", ".join(option.names)
    if option.is_flag:
        names = names.replace("--", "--[no-]")
    elif not option.argument.positional:
        names += f" {_placeholder(option)}"
    return entry(names, option.help + (_default(option) if default else ""))


def entry(names: str, text: str, left: int = _LEFT) -> list[str]:
    """A name in the left column, what it is in the right one."""
    if _width() - left < _NARROWEST:
        left = _INDENT
    wrapped = textwrap.wrap(text, max(_width() - left, _NARROWEST), break_on_hyphens=False) or [""]
    if len(names) + 4 <= left:
        return [f"  {names:<{left - 2}}{wrapped[0]}".rstrip(), *(" " * left + line for line in wrapped[1:])]
    return [f"  {names}", *(" " * left + line for line in wrapped)]


def _default(option: Option) -> str:
    """What holds when the option is not given, unless its help says so itself."""
    if option.is_flag or "(default" in option.help or option.default == ():
        return ""
    if option.default is REQUIRED:
        return "" if option.argument.positional else " (required)"
    if option.default is None and not option.group:
        return ""
    return f" (default: {option.argument.show(option.default)})"


def _placeholder(option: Option) -> str:
    return option.argument.placeholder or values.placeholder(option.kind, with_none=bool(option.group))


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)
