"""Frozen dataclasses as JSON values and back, strictly."""

import dataclasses
import functools
import math
import types
import typing
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from slotnorm.errors import NewerFile, UserError, nearest

T = TypeVar("T")


_NEWER = "newer than the first format"
_LONGEST_SHOWN = 80  # letters of a value in a sentence


def newer(default: Any) -> Any:
    """A dataclass field that documents of the first format do not have; `default` is what they meant, for ever.

    At its default it is left out of documents: it takes no part in identities, and an older program reads them.
    """
    return dataclasses.field(default=default, metadata={_NEWER: True})


def to_document(value: Any, complete: bool = False) -> Any:
    """A frozen dataclass as plain JSON values; one that has a `kind` says it, so that a union can be told apart.

    Fields that are `newer` are left out at their default, unless the document shall be `complete`.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        document = {
            field.name: to_document(getattr(value, field.name), complete)
            for field in dataclasses.fields(value)
            if complete or _NEWER not in field.metadata or getattr(value, field.name) != field.default
        }
        return {"kind": value.kind, **document} if hasattr(value, "kind") else document
    if isinstance(value, tuple):
        return [to_document(entry, complete) for entry in value]
    if isinstance(value, dict):
        return {name: to_document(entry, complete) for name, entry in value.items()}
    return value


def from_document(kind: type[T], document: Any, where: str = "") -> T:
    """The dataclass `kind` from `to_document`'s output; a `newer` field that is missing has its default.

    An unknown or mistyped field, or one of the first format that is missing, is refused by name.
    """
    name = kind.__name__.strip("_").lower().removesuffix("document")
    return typing.cast(T, _read(kind, document, where or name))


def _read(kind: Any, document: Any, where: str) -> Any:
    if _is_plain(kind, document):
        return document
    origin = get_origin(kind)
    if origin is Literal:
        if document not in get_args(kind) or isinstance(document, bool):
            raise UserError(f"{where} is {_shown(document)}; {nearest(_shown(document), map(str, get_args(kind)))}")
        return document
    if origin in (Union, types.UnionType):
        return _read_union(kind, document, where)
    if origin is tuple:
        return _read_tuple(kind, document, where)
    if origin is dict:
        return _read_dictionary(kind, document, where)
    if kind is Any:  # what nothing depends on
        return document
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, document, where)
    if kind is float and isinstance(document, int) and not isinstance(document, bool) and abs(document) < 1 << 1023:
        return float(document)
    if type(document) is not kind or (kind is float and not math.isfinite(document)):
        must = f"a {'finite ' * (kind is float)}{kind.__name__}"
        raise UserError(f"{where} is {_shown(document)}, but it must be {must}")
    return document


def _is_plain(kind: Any, document: Any) -> bool:
    """Whether it is a number or a text as it should be, as nearly all are, of thousands."""
    return type(document) is kind and (kind is str or (kind is float and math.isfinite(document)))


def _shown(document: Any) -> str:
    """A value for people, who need not see all of it."""
    try:
        text = repr(document)
    except RecursionError:  # nested so deeply that it could just be read
        text = f"a {type(document).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _read_union(kind: Any, document: Any, where: str) -> Any:
    members = [member for member in get_args(kind) if member is not type(None)]
    if document is None and len(members) < len(get_args(kind)):
        return None
    if len(members) == 1:
        return _read(members[0], document, where)
    kinds = {member.kind: member for member in members}
    name = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise UserError(f"{where}.kind is {_shown(name)}; {nearest(_shown(name), kinds)}")
    return _read(kinds[name], document, where)


def _read_dictionary(kind: Any, document: Any, where: str) -> Any:
    _, values = get_args(kind)
    if not isinstance(document, dict):
        raise UserError(f"{where} is {_shown(document)}, but it must be an object")
    return {name: _read(values, value, f"{where}[{name[:40]!r}]") for name, value in document.items()}


def _read_tuple(kind: Any, document: Any, where: str) -> Any:
    members = get_args(kind)
    if not isinstance(document, list):
        raise UserError(f"{where} is {_shown(document)}, but it must be a list")
    if members[-1] is Ellipsis:
        members = (members[0],) * len(document)
    if len(members) != len(document):
        raise UserError(f"{where} has {len(document)} entries, but it must have {len(members)}")
    return tuple(
        entry if _is_plain(member, entry) else _read(member, entry, f"{where}[{i}]")
        for i, (member, entry) in enumerate(zip(members, document, strict=True))
    )


def _read_dataclass(kind: Any, document: Any, where: str) -> Any:
    if not isinstance(document, dict):
        raise UserError(f"{where} is {_shown(document)}, but it must be an object with named fields")
    given = dict(document)
    if hasattr(kind, "kind") and (name := given.pop("kind", None)) != kind.kind:
        raise UserError(f"{where}.kind is {_shown(name)}, but it must be {kind.kind!r}")
    known = {field.name: field for field in dataclasses.fields(kind)}
    for name in given:
        if name not in known:
            raise NewerFile(
                f"{where} has no field {_shown(name)}; {nearest(name[:80], known)}; if a newer slotnorm wrote it, "
                "install that one"
            )
    if missing := [name for name, field in known.items() if name not in given and _NEWER not in field.metadata]:
        raise UserError(f"{where} lacks the field {missing[0]!r}")
    hints = _hints(kind)
    return kind(**{name: _read(hints[name], value, f"{where}.{name}") for name, value in given.items()})


_hints = functools.cache(typing.get_type_hints)  # of few classes, for thousands of documents


def differences(old: Any, new: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """Where two documents differ: (dotted field name, old value, new value)."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        fields = [differences(old.get(name), new.get(name), f"{where}.{name}".lstrip(".")) for name in names]
        return [difference for field in fields for difference in field]
    return [] if old == new else [(where, old, new)]
