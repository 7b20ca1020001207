"""Draw docs/images/scenes.png, the contact sheet of docs/data.md: python docs/make_scenes.py."""

from pathlib import Path

import numpy as np
from PIL import Image

from slotnorm.config import SceneSpec
from slotnorm.data.flat import COLORS
from slotnorm.data.generator import render

TILE, GAP, COLUMNS = 128, 4, 7
DISCS = SceneSpec((2, 4), 16, seed=1, style="flat", shapes=("disc",), min_visible=6)
ROWS = [
    (SceneSpec((3, 6), 128, seed=7), "images"),
    (SceneSpec((3, 6), 128, seed=7), "labels"),
    (SceneSpec((20, 25), 128, seed=7), "images"),
    (SceneSpec((3, 10), 64, seed=1), "images"),
    (SceneSpec((1, 3), 32, seed=1), "images"),
    (SceneSpec((3, 6), 64, seed=1, style="flat", materials=("solid", "outlined")), "images"),
    (DISCS, "images"),
]
PALETTE = np.array([(40, 40, 44), *COLORS.values()], np.uint8)


def main() -> None:
    sheet = np.full((len(ROWS) * (TILE + GAP) + GAP, COLUMNS * (TILE + GAP) + GAP, 3), 255, np.uint8)
    for row, (spec, field) in enumerate(ROWS):
        pictures = render(spec, range(COLUMNS))[field]
        for column, picture in enumerate(PALETTE[pictures] if field == "labels" else pictures):
            top, left = GAP + row * (TILE + GAP), GAP + column * (TILE + GAP)
            zoomed = picture.repeat(TILE // spec.size, axis=0).repeat(TILE // spec.size, axis=1)
            sheet[top : top + TILE, left : left + TILE] = zoomed
    folder = Path(__file__).parent / "images"
    folder.mkdir(exist_ok=True)
    Image.fromarray(sheet).save(folder / "scenes.png", optimize=True)


if __name__ == "__main__":
    main()
