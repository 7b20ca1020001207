"""A folder of pictures as anyone has one: several formats and sizes, names in other scripts, files of systems."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

ENDINGS = ("jpg", "png", "webp", "tiff", "bmp")


def draw(number: int, size: tuple[int, int] = (48, 40)) -> tuple[Image.Image, Image.Image]:
    """A picture of two or three discs, and its mask."""
    random = np.random.default_rng(number)
    picture, mask = Image.new("RGB", size, (20, 20, 30)), Image.new("L", size)
    for label in range(1, int(random.integers(2, 4)) + 1):
        left, top = (int(random.integers(0, length - 14)) for length in size)
        color = tuple(int(value) for value in random.integers(90, 256, 3))
        ImageDraw.Draw(picture).ellipse((left, top, left + 13, top + 13), fill=color)
        ImageDraw.Draw(mask).ellipse((left, top, left + 13, top + 13), fill=label)
    return picture, mask


def write_pictures(folder: Path, num: int = 12) -> Path:
    """A folder of loose pictures without masks, with what systems leave in folders."""
    folder.mkdir(parents=True)
    for number in range(num):
        picture, _ = draw(number, (48 + number % 3, 40))
        picture.save(folder / f"Foto {number:02} 中国.{ENDINGS[number % len(ENDINGS)]}")
    (folder / ".DS_Store").write_bytes(b"macOS")
    (folder / "Thumbs.db").write_bytes(b"Windows")
    (folder / "notes.txt").write_text("not an image")
    return folder


def write_masked(folder: Path, num: int = 12) -> Path:
    """A folder of images with masks."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(num):
        picture, mask = draw(number)
        picture.save(folder / "images" / f"{number:02}.png")
        mask.save(folder / "masks" / f"{number:02}.png")
    return folder
