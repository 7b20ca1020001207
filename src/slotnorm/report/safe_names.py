"""Names made harmless: a run may be called anything, and what it is called must not become markup or a path."""

import hashlib
import re
import unicodedata

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~])")
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"\textpm{}", "÷": r"$\div$", "×": r"$\times$", "²": "$^2$",
    "ℓ": r"$\ell$", "∞": r"$\infty$", "−": "$-$", "→": r"$\rightarrow$", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
    "–": "--", "…": r"\ldots{}", "“": "``", "”": "''", "’": "'",
}  # fmt: skip
_LONGEST = 80  # of a part of a file's name: two of them, a kind and an ending fit into the 255 letters of most disks
_LAST_LATIN, _NOT_IN_LATEX = "ž", "ĦħĸĿŀŉŦŧ"  # LaTeX's T1 fonts have letters up to it but these


def markdown(text: object) -> str:
    """A text that shows as it is in Markdown, also inside a table: no markup, no HTML, no line break."""
    escaped = _MARKDOWN.sub(r"\\\1", one_line(text).replace("&", "&amp;"))
    return escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;")


def latex(text: object) -> str:
    """A text that shows as it is in LaTeX; characters its usual fonts lack as their number, [U+1F600]."""
    letters = (
        _LATEX.get(
            letter, letter if letter <= _LAST_LATIN and letter not in _NOT_IN_LATEX else f"[U+{ord(letter):04X}]"
        )
        for letter in one_line(text)
    )
    return "".join(letters).replace(r"$\ell$$^2$", r"$\ell^2$")


def file_name(text: object) -> str:
    """A name of letters, digits, '.', '_' and '-' that is safe as a file's on any system; never empty or hidden.

    One that is too long is cut, and a hash of the whole keeps it apart from others that begin alike.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(text)).strip(".-") or "unnamed"
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST]}-{hashlib.sha256(str(text).encode(errors='replace')).hexdigest()[:8]}"


def folder_name(text: object) -> str:
    """As `file_name`, with the letters and digits of every script kept: a picture's own name for its folder."""
    kept = (letter if _is_of_word(letter) else "-" for letter in unicodedata.normalize("NFC", str(text)))
    return re.sub("-+", "-", "".join(kept)).strip(".-") or "unnamed"


def _is_of_word(letter: str) -> bool:
    """Letters, digits, and the marks that some scripts write on them."""
    return letter.isalnum() or letter in "._-" or unicodedata.category(letter).startswith("M")


def one_line(text: object) -> str:
    """A text without line breaks and other characters that cannot be printed."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))
