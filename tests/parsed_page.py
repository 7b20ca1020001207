"""A page as its elements and texts, and what its script would read."""

import base64
import io
import json
import zlib
from html.parser import HTMLParser

import numpy as np
from PIL import Image

EMPTY = {"br", "col", "hr", "img", "input", "link", "meta"}


class Parsed(HTMLParser):
    """Elements in order, with their texts; refuses what is not properly nested."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.inside: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"an attribute twice in <{tag}>"
        self.elements.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self._open.append(tag)
            self.inside.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        for tag in set(self._open):
            self.inside[tag][-1] += data

    def all(self, tag: str, **wanted: str) -> list[dict]:
        return [
            attributes for name, attributes in self.elements
            if name == tag and all(attributes.get(key.rstrip("_")) == value for key, value in wanted.items())
        ]  # fmt: skip

    @property
    def data(self) -> dict:
        return json.loads(self.inside["script"][0])

    @property
    def text(self) -> str:
        """All words that are read, in order."""
        return "".join(self.texts[: self.texts.index(self.inside["script"][0])])


def pixels(address: str) -> np.ndarray:
    """The picture (h, w, 3) of a data URI."""
    assert address.startswith("data:image/png;base64,")
    with Image.open(io.BytesIO(base64.b64decode(address.split(",")[1], validate=True))) as image:
        return np.asarray(image.convert("RGB"))


def unpacked(text: str) -> np.ndarray:
    """The bytes (n,) of a packed array."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8)
