"""Small sets of scenes for tests: random pixels and labels, a coded and a real property."""

from pathlib import Path
from typing import Any

import numpy as np

from slotnorm.data import Builder, Scenes

OBJECTS = 6


def random_arrays(num: int = 40, size: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    counts = random.integers(1, OBJECTS + 1, num)
    real = np.arange(OBJECTS) < counts[:, None]
    return {
        "images": random.integers(0, 256, (num, size, size, 3), dtype=np.uint8),
        "labels": random.integers(0, counts[:, None, None] + 1, (num, size, size)).astype(np.uint8),
        "counts": counts,
        "shape": (random.integers(1, 4, (num, OBJECTS)) * real).astype(np.uint8),
        "x": (random.normal(size=(num, OBJECTS)) * real).astype(np.float32),
    }


def fields_of(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: (array.shape[1:], str(array.dtype)) for name, array in arrays.items() if name != "counts"}


def open_builder(directory: Path, arrays: dict[str, np.ndarray], **changes: Any) -> Builder:
    request: dict[str, Any] = {"num": len(arrays["counts"]), "provenance": {"made": "at random"}, **changes}
    return Builder(directory, fields_of(arrays), **request)


def append(builder: Builder, arrays: dict[str, np.ndarray], stop: int, chunk: int = 7) -> None:
    while builder.done < stop:
        rows = slice(builder.done, min(builder.done + chunk, stop))
        builder.append(**{name: array[rows] for name, array in arrays.items()})


def build(directory: Path, arrays: dict[str, np.ndarray] | None = None, chunk: int = 7, **changes: Any) -> Scenes:
    arrays = random_arrays() if arrays is None else arrays
    with open_builder(directory, arrays, **changes) as builder:
        append(builder, arrays, len(arrays["counts"]), chunk)
        return builder.finish()
