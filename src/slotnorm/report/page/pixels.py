"""Pictures and masks as texts inside the page: sprites for the eye, packed bytes for the script to count in."""

import base64
import io
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LEVELS = 51  # of a mask's share: those that examples are kept with
_STEP = 255 // LEVELS
_PACKED = 7  # of zlib's levels: a quarter of the time of the highest, for one percent more
_MOST_COLORS = 128  # of a sprite: the page is half as large, and 98 of 100 pixels are off by less than a tenth


class Sprites:
    """The texts of all pictures, each once however many studies show it; a picture is told by its number."""

    def __init__(self) -> None:
        self.texts = [""]  # number 0 is not a picture
        self._numbers: dict[str, int] = {}

    def add(self, text: str) -> int:
        """The number of a picture's text."""
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


def sprite(pictures: NDArray[np.uint8]) -> str:
    """Pictures (S, h, w, 3) one below the other, as a data URI of at most 128 colours.

    Neighbours are alike, and so they are far smaller together than apart.
    """
    count, height, width, channels = pictures.shape
    image = Image.fromarray(np.ascontiguousarray(pictures).reshape(count * height, width, channels))
    return _saved(image.quantize(_MOST_COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))


def png(pixels: NDArray[np.uint8]) -> str:
    """A picture (h, w, 3) as a data URI, exact."""
    return _saved(Image.fromarray(np.ascontiguousarray(pixels)))


def packed(*arrays: NDArray[np.uint8]) -> str:
    """Bytes one after another, deflated, as base64."""
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return base64.b64encode(zlib.compress(content, _PACKED)).decode()


def levels(masks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Shares in 255ths as whole numbers up to LEVELS."""
    shares: NDArray[np.uint8] = np.rint(masks / _STEP).astype(np.uint8)
    return shares


def hexadecimal(color: NDArray[np.float64]) -> str:
    """A colour (3,) in [0, 1] as "#1d2126"."""
    return "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in color)


def data_uri(content: bytes) -> str:
    """A PNG's bytes as an address."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _saved(image: Image.Image) -> str:
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return data_uri(content.getvalue())
