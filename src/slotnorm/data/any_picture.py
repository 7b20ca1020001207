"""Whatever holds a picture in Python as one 8-bit RGB image: a path, a PIL image, an array or a tensor."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.data.image_files import read_image, to_rgb, upright
from slotnorm.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

_KINDS = "a path, a PIL image, an array (H, W, 3), a tensor (3, H, W), or a list of them"


def to_picture(value: Any) -> "Image.Image":
    """An 8-bit RGB image of a path, a PIL image, an array or a tensor.

    Arrays and tensors are (H, W), (H, W, 3) or (3, H, W), also with one channel or four; bytes, or floats in [0, 1], or
    in [-1, 1] where any is negative.
    """
    from PIL import Image

    if isinstance(value, str | Path):
        return read_image(value)
    if isinstance(value, Image.Image):
        return to_rgb(upright(value))
    if hasattr(value, "detach"):  # a tensor, without importing torch for those who have none
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray):
        raise UserError(f"{type(value).__name__} is not a picture: give {_KINDS}")
    return to_rgb(Image.fromarray(_bytes(_channels_last(value))))


def is_batch(value: Any) -> bool:
    """Whether an array or tensor holds several pictures: (B, H, W, 3) or (B, 3, H, W)."""
    return hasattr(value, "ndim") and value.ndim == 4


def _channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """(H, W), (H, W, 3) or (H, W, 4)."""
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.size == 0 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise UserError(f"an array of shape {array.shape} is not a picture: give (H, W), (H, W, 3) or (3, H, W)")
    return array


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * 255
    if array.dtype.kind != "f":
        raise UserError(f"a picture of {array.dtype} has no known range: give uint8 from 0 to 255, or floats in [0, 1]")
    least, most = float(array.min()), float(array.max())
    if not (least >= -1 and most <= 1):  # also where there are NaN
        raise UserError(
            f"a picture of floats goes from {least:g} to {most:g}, but must lie in [0, 1] or [-1, 1]: divide it by "
            "its largest value, or give uint8"
        )
    shares = (array + 1) / 2 if least < 0 else array
    return np.rint(shares * 255).astype(np.uint8)
