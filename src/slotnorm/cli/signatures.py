"""Options made from what is there anyway: a function's parameters and docstring, a dataclass's fields and theirs."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

from slotnorm.cli import values

REQUIRED: Any = inspect.Parameter.empty

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Argument:
    """What a parameter's type does not say: `slots: Annotated[tuple[int, ...], Argument(read=read_numbers)]`."""

    name: str | None = None
    """On the command line, where Python's name cannot be it (`from`)."""
    positional: bool = False
    """Given without a name."""
    placeholder: str | None = None
    """What help shows in place of the value."""
    read: values.Reader | None = None
    """Makes the value from one word and the option's name."""
    show: Callable[[Any], str] = values.shown
    """The word that a default would be given by."""
    more: str | None = None
    """A pattern: words behind the first that match it belong to the value, too, as if joined by commas."""


POSITIONAL = Argument(positional=True)


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a verb: what it is called, what it takes, what it is for."""

    key: str
    """The parameter, or the field with the fields it is in: recipe.steps."""
    kind: Any
    help: str = ""
    default: Any = REQUIRED
    group: str = ""
    """The dataclass it belongs to, as help names it."""
    argument: Argument = Argument()
    short: str | None = None
    """Another name, for those that are typed often."""

    @property
    def name(self) -> str:
        """As it is typed: --recipe.batch-size; a positional one as help calls it: RUNS."""
        plain = self.argument.name or self.key
        return plain.upper() if self.argument.positional else f"--{plain.replace('_', '-')}"

    @property
    def names(self) -> tuple[str, ...]:
        """All that it can be called, as typed; the last is its full name."""
        return (self.name,) if self.short is None else (self.short, self.name)

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value: booleans, except fields of a recipe, which say True or False."""
        return self.kind is bool and "." not in self.key

    @property
    def is_list(self) -> bool:
        """Whether it takes all words up to the next option."""
        return self.argument.read is None and values.is_list(self.kind)

    def read(self, words: list[str], name: str) -> Any:
        """Its value from the words that were given for it under one of its names."""
        if self.argument.read is None:
            return values.read_words(self.kind, words, name)
        return self.argument.read(",".join(words), name)


def of_function(verb: Callable[..., Any]) -> list[Option]:
    """An option per parameter; its help is the parameter's line in the docstring."""
    hints, explained = typing.get_type_hints(verb, include_extras=True), _explained(inspect.getdoc(verb) or "")
    options = []
    for name, parameter in inspect.signature(verb).parameters.items():
        kind, argument = _unpacked(hints[name])
        options.append(Option(name, kind, explained.get(name, ""), parameter.default, argument=argument))
    return options


def of_dataclass(value: Any, prefix: str = "", group: str = "") -> list[Option]:
    """An option per field, with the value it has as default; a dataclass inside gives options of its own.

    A field called `experiment` adds no name to those inside it. Fields inside that are None stay so.
    """
    plain: list[Option] = []
    inside: list[Option] = []
    hints, explained = typing.get_type_hints(type(value), include_extras=True), _field_help(value.__class__)
    for field in dataclasses.fields(value):
        inner, key = getattr(value, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(inner):
            inside += of_dataclass(inner, "" if field.name == "experiment" else f"{key}.", key)
        elif not any(dataclasses.is_dataclass(member) for member in get_args(hints[field.name])):
            kind, argument = _unpacked(hints[field.name])
            plain.append(Option(key, kind, explained.get(field.name, ""), inner, group, argument))
    return plain + inside


def rebuilt(value: T, changes: Mapping[str, Any], prefix: str = "") -> T:
    """The dataclass with other values of the options that `of_dataclass` makes of it."""
    inside: dict[str, Any] = {}
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        inner, key = getattr(value, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(inner) and not isinstance(inner, type):
            inside[field.name] = rebuilt(inner, changes, "" if field.name == "experiment" else f"{key}.")
        elif key in changes:
            inside[field.name] = changes[key]
    return dataclasses.replace(value, **inside)  # type: ignore[type-var]


def _unpacked(hint: Any) -> tuple[Any, Argument]:
    """A type and what `Annotated` says beside it."""
    if get_origin(hint) is not Annotated:
        return hint, Argument()
    kind, *annotations = get_args(hint)
    return kind, next((entry for entry in annotations if isinstance(entry, Argument)), Argument())


def summary(docstring: str | None) -> str:
    """The first paragraph, as one line."""
    return " ".join(inspect.cleandoc(docstring or "").partition("\n\n")[0].split())


def _explained(docstring: str) -> dict[str, str]:
    """What the section `Args:` says of each parameter."""
    section = docstring.partition("\nArgs:\n")[2]
    entries = re.findall(r"^    (\w+): (.+(?:\n     .+)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


@functools.cache  # help asks for the same classes once per experiment
def _field_help(kind: type) -> Mapping[str, str]:
    """What the string below each field says, without its last full stop; a class also has what it is derived from."""
    explained: dict[str, str] = {}
    for owner in reversed([base for base in kind.__mro__ if dataclasses.is_dataclass(base)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for statements in itertools.pairwise(definition.body):
            match statements:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    explained[name] = " ".join(text.split()).removesuffix(".")
    return explained
