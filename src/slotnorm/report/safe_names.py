"""Names made harmless: a run may be called anything, and what it is called must not become markup or a path."""

import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~])")
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}",
}  # fmt: skip
_LAST_LATIN = 0x24F  # beyond it LaTeX's usual fonts have no letters: the character's number is shown


def markdown(text: object) -> str:
    """A text that shows as it is in Markdown, also inside a table: no markup, no HTML, no line break."""
    escaped = _MARKDOWN.sub(r"\\\1", one_line(text).replace("&", "&amp;"))
    return escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;")


def latex(text: object) -> str:
    """A text that shows as it is in LaTeX; characters its usual fonts lack as their number, [U+1F600]."""
    return "".join(
        _LATEX.get(letter, letter if ord(letter) <= _LAST_LATIN else f"[U+{ord(letter):04X}]")
        for letter in one_line(text)
    )


def plain(text: object) -> str:
    """A text for a figure: one line, and no `$` that would start a formula."""
    return one_line(text).replace("$", r"\$")


def file_name(text: object) -> str:
    """A name of letters, digits, '.', '_' and '-' that is safe as a file's on any system; never empty or hidden."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(text)).strip(".-") or "unnamed"


def one_line(text: object) -> str:
    """A text without line breaks and other characters that cannot be printed."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))
