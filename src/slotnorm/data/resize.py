"""Scaling of images and label maps, with half-pixel centres: one definition for datasets, folders and `segment`.

Pixel i of `size` lies at (i + 1/2) * length / size - 1/2 of the original. `nearest` takes the pixel whose area it falls
into, `bilinear` the two around it, `bicubic` the four around it with Keys' kernel at a = -3/4 (as PyTorch and OpenCV);
what lies outside is the border pixel. Results are rounded, halves to the even number, and clipped to 0..255.
`antialiased` is bilinear with a kernel as wide as an output pixel: every input pixel counts, as photos want (Pillow's).
"""

from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Method = Literal["nearest", "bilinear", "bicubic", "antialiased"]


def method_of(dataset: str, protocol: str) -> Method:
    """How the images of a dataset are scaled, when its set is built and when another picture is prepared like them.

    CLEVR and MOVi are scaled as their protocols say; folders, and what was never scaled, as photos want.
    """
    if dataset == "clevr":
        return "bilinear" if protocol == "paper" else "nearest"
    return "bicubic" if dataset.startswith("movi-") else "antialiased"


def nearest_positions(length: int, size: int) -> NDArray[np.intp]:
    """(size,) the pixel of `length` that each of `size` pixels takes; in whole numbers, so exact for any lengths."""
    return ((2 * np.arange(size) + 1) * length) // (2 * size)


def resize(image: NDArray[np.uint8], size: int, method: Method) -> NDArray[np.uint8]:
    """An image (H, W, C), or a label map (H, W) by `nearest`, as (size, size, ...)."""
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    if method == "nearest":  # rows first: five times as fast as both at once
        return image[nearest_positions(height, size)][:, nearest_positions(width, size)]
    if method == "antialiased":
        from PIL import Image

        return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
    channels = image.shape[2]
    # rows, then columns; each output pixel is a few multiples of input pixels, so the matrices are nearly empty
    by_rows = _weights(height, size, method)
    if len(used := np.unique(by_rows.indices)) < height // 2:  # of a photo most rows do not count
        by_rows, image = by_rows[:, used], image[used]
    scaled = by_rows @ image.reshape(len(image), width * channels).astype(np.float32)
    scaled = _weights(width, size, method, channels) @ np.ascontiguousarray(scaled.T)
    rounded = np.clip(np.rint(scaled, out=scaled), 0, 255, out=scaled).astype(np.uint8)
    return np.ascontiguousarray(rounded.T).reshape(size, size, channels)


@lru_cache(maxsize=16)
def _weights(length: int, size: int, method: Method, channels: int = 1) -> Any:
    """Sparse float32 (size * channels, length * channels): what inputs contribute to outputs along one axis."""
    places = (np.arange(size) + 0.5) * length / size - 0.5
    if method == "bilinear":
        places = np.clip(places, 0, length - 1)
    first = np.floor(places)
    offsets = np.arange(0, 2) if method == "bilinear" else np.arange(-1, 3)
    distances = np.abs(places[:, None] - first[:, None] - offsets)
    values = 1 - distances if method == "bilinear" else _keys_kernel(distances)
    columns = np.clip(first[:, None] + offsets, 0, length - 1).astype(np.intp)
    rows = np.broadcast_to(np.arange(size)[:, None], columns.shape)
    entries = (values.astype(np.float32).ravel(), (rows.ravel(), columns.ravel()))
    weights = sparse.coo_array(entries, shape=(size, length))
    return sparse.csr_array(sparse.kron(weights, sparse.eye_array(channels, dtype=np.float32)))


def _keys_kernel(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    a = -0.75
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    far = a * (distance**3 - 5 * distance**2 + 8 * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
