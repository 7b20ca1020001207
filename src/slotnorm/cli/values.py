"""Words of a command line become values: every kind that an option can have, and one sentence for a word that errs."""

import math
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from slotnorm.errors import UserError, nearest

_MOST_NUMBERS = 10_000  # of a range or list; more is a typing error, and would only fill the memory
_PLACEHOLDERS: dict[Any, str] = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: "True|False"}


def without_none(kind: Any) -> Any:
    """`X | None` -> X; another kind as it is."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    (member,) = [member for member in get_args(kind) if member is not type(None)]
    return member


def is_list(kind: Any) -> bool:
    """Whether an option of this kind takes several words."""
    return get_origin(without_none(kind)) is tuple


def placeholder(kind: Any, with_none: bool) -> str:
    """What help shows in place of a value: INT, PATH ..., paper|authors; `with_none` where None can be asked for."""
    plain = without_none(kind)
    if get_origin(plain) is Literal:
        shown = "|".join(map(str, get_args(plain)))
    elif get_origin(plain) is tuple:
        members = get_args(plain)
        one_each = [placeholder(member, False) for member in members if member is not Ellipsis]
        shown = f"{one_each[0]} ..." if members[-1] is Ellipsis else " ".join(one_each)
    else:
        shown = _PLACEHOLDERS[plain]
    return f"{shown}|None" if with_none and plain is not kind else shown


def read_words(kind: Any, words: Sequence[str], name: str) -> Any:
    """The value that `words` say, for an option called `name`; None is said as None, where it is a value."""
    plain = without_none(kind)
    if plain is not kind and list(words) == ["None"]:
        return None
    if get_origin(plain) is not tuple:
        return _read_word(plain, words[-1], name)
    members = get_args(plain)
    if members[-1] is Ellipsis:
        return tuple(value for word in words for value in _read_several(members[0], word, name))
    if members == (int, int) and len(words) == 1:
        return read_range(words[0], name)
    if len(words) != len(members):
        number = "1 value" if len(words) == 1 else f"{len(words)} values"
        raise UserError(f"{name} has {number}, but needs {len(members)}: {name} {placeholder(plain, False)}")
    return tuple(_read_word(member, word, name) for member, word in zip(members, words, strict=True))


def _read_several(kind: Any, word: str, name: str) -> Sequence[Any]:
    """One word of a list: numbers and names may also be joined by commas, and numbers be a range.

    What follows a `=` is another program's, commas and all, as in `--sbatch exclude=n1,n2`.
    """
    if kind is int and re.search("[,:]", word):
        return read_numbers(word, name)
    words = word.split(",") if kind is str and "=" not in word else [word]
    return [_read_word(kind, part, name) for part in words]


def _read_word(kind: Any, word: str, name: str) -> Any:
    if get_origin(kind) is Literal:
        if word not in get_args(kind):
            raise UserError(f"{name} is {word!r}; {nearest(word, get_args(kind))}")
        return word
    if kind is bool:
        if word.lower() not in ("true", "false"):
            raise UserError(f"{name} is {word!r}, but must be True or False")
        return word.lower() == "true"
    if kind is int:
        return _whole_number(word, name)
    if kind is float:
        return _number(word, name)
    if not word:
        raise UserError(f"{name} is empty, but needs a value")
    return kind(word)


def _whole_number(word: str, name: str) -> int:
    try:
        return int(word)
    except ValueError:
        if several := re.fullmatch(r"(\d+)[,:][\d,:]*", word):
            raise UserError(f"{name} is {word!r}, but one number is meant: write {name} {several[1]}") from None
        raise UserError(f"{name} is {word!r}, but must be a whole number") from None


def _number(word: str, name: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise UserError(f"{name} is {word!r}, but must be a number") from None
    if not math.isfinite(value):
        raise UserError(f"{name} is {word!r}, but must be a finite number")
    return value


def read_numbers(text: str, name: str) -> tuple[int, ...]:
    """`3:24` (both included), `5,10,15`, `7`, or several of these joined by commas; ascending, each once."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", part)
        if match is None:
            raise UserError(
                f"{name} is {text!r}, which is not numbers: write FIRST:LAST (both included), as 3:24, a list, as "
                "5,10,15, or one number"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        _require_ascending(first, last, text, name)
        if last - first + len(numbers) >= _MOST_NUMBERS:
            raise UserError(f"{name} is {text!r}, which is more than {_MOST_NUMBERS:,} numbers; ask for fewer")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def read_range(text: str, name: str) -> tuple[int, int]:
    """`3:6` or `5` as (fewest, most), both included."""
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text)
    if match is None:
        listed = ", a list where a range is meant" if "," in text else ", which is not a range"
        raise UserError(f"{name} is {text!r}{listed}: write FEWEST:MOST (both included), as 3:6, or one number")
    fewest, most = int(match[1]), int(match[2] or match[1])
    _require_ascending(fewest, most, text, name)
    return fewest, most


def read_slots(text: str, name: str) -> int | str:
    """A number of slots, or `auto`."""
    if text == "auto":
        return text
    if re.search("[A-Za-z]", text):
        raise UserError(f"{name} is {text!r}, but must be a whole number, or auto")
    if re.search("[,:]", text):
        raise UserError(f"{name} is {text!r}, but an image is segmented once: give one number, or auto, which counts")
    return _whole_number(text, name)


def _require_ascending(first: int, last: int, text: str, name: str) -> None:
    if last < first:
        raise UserError(f"{name} is {text!r}, but {first} is more than {last}: write {last}:{first}")


def shown(value: Any) -> str:
    """A default as help shows it, in the words that would give it."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


Reader = typing.Callable[[str, str], Any]
