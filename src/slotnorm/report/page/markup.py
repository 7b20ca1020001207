"""HTML that cannot be broken by a name: whatever is not already `Markup` is escaped when it is put into an element."""

import html
import json
from collections.abc import Iterable
from typing import Any

from slotnorm.report.safe_names import one_line

_EMPTY = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})  # elements without an end


class Markup(str):
    """HTML that is ready to be shown; `element` and `joined` make it, and nothing else should."""


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """One element with its children; texts and attributes are escaped, None and False ones are left out.

    `class_` is written class, `aria_label` aria-label.
    """
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        words.append(name if value is True else f'{name}="{_escaped(value)}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if tag in _EMPTY else f"{start}{joined(children)}</{tag}>")


def joined(children: Iterable[object]) -> Markup:
    """Children one after another; None is nothing."""
    return Markup(
        "".join(child if isinstance(child, Markup) else _escaped(child) for child in children if child is not None)
    )


def embedded(data: Any) -> Markup:
    """Plain values as JSON that may stand in a script element: no character of it can end the element."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e"))


def _escaped(value: object) -> str:
    return html.escape(one_line(value), quote=True)
