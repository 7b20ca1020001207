"""Decoding a user's image files into defined arrays, refusing what claims too much or is damaged.

Images become 8-bit RGB: grey is repeated, transparent parts lie on white, of 16 bits the upper 8 count, and an EXIF
rotation is applied. Masks become 8-bit labels: palette indices or grey values as they are, 0 is background.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import DamagedFile, UserError
from slotnorm.storage.files import open_to_read, unreadable

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 64_000_000  # more than a phone's camera takes; decoded it is 192 MB
_MAX_BYTES = 1 << 29  # an uncompressed 16-bit file of that many pixels
_PNG_OR_JPEG = ("PNG", "JPEG")  # these two are often called by each other's name
_FORMATS = {
    ".png": _PNG_OR_JPEG, ".jpg": _PNG_OR_JPEG, ".jpeg": _PNG_OR_JPEG, ".webp": ("WEBP",), ".tif": ("TIFF",),
    ".tiff": ("TIFF",), ".bmp": ("BMP",),
}  # fmt: skip
ENDINGS = tuple(_FORMATS)
"""Of the files that are read as images, in small letters."""
PICTURES_OF_OTHERS = (".gif", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".raw", ".dng", ".cr2", ".nef")
"""Endings of images that are not read: in a folder of pictures they are named, not passed over."""
_OF_SYSTEMS = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx")  # what Windows and macOS leave in folders
_WIDE_GREY = ("I", "I;16", "I;16B", "I;16L")  # the decoder's names for grey of 16 bits


def is_of_system(path: Path) -> bool:
    """Whether it is hidden or left by a system, and no file of the user's: .DS_Store, Thumbs.db."""
    return path.name.startswith(".") or path.name.lower() in _OF_SYSTEMS


def read_image(path: str | Path) -> "Image.Image":
    """An 8-bit RGB image, upright."""
    suffix = Path(path).suffix.lower()
    if suffix in PICTURES_OF_OTHERS:
        frames = " (of an animation, the frame that is meant)" if suffix == ".gif" else ""
        raise UserError(f"{path} is a {suffix[1:].upper()} file, which is not read; save it as PNG or JPEG{frames}")
    image, _ = _open(Path(path), _FORMATS.get(suffix, _PNG_OR_JPEG))
    return to_rgb(image, path)


def to_rgb(image: "Image.Image", name: str | Path = "the image") -> "Image.Image":
    """An image of any mode as 8-bit RGB."""
    from PIL import Image

    with _decoding(name):
        if image.mode == "F":
            raise UserError(f"{name} has real numbers, whose range nobody knows; save it with 8 or 16 bits")
        if image.mode in _WIDE_GREY:
            image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
        if "A" in image.getbands() or "transparency" in image.info:
            opaque = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
        return image.convert("RGB")


def upright(image: "Image.Image", name: str | Path = "the image", kinds: str = "an image") -> "Image.Image":
    """The decoded image, turned as its EXIF says; as it is where that cannot be read."""
    from PIL import ImageOps

    with _decoding(name, kinds):
        image.load()
        with contextlib.suppress(Exception):  # of a note beside the pixels, which are whole
            return ImageOps.exif_transpose(image)
        return image.copy()


@contextlib.contextmanager
def _decoding(name: str | Path, kinds: str = "an image") -> Iterator[None]:
    """Where the decoder meets a picture of somebody's: whatever it raises is a `UserError` that names the picture."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and about large sizes, which we refuse ourselves
            yield
    except Image.DecompressionBombError:
        raise UserError(f"{name} claims more than {MAX_PIXELS} pixels and is not decoded; scale it down") from None
    except UserError:
        raise
    except Exception as error:  # decoders fail in many ways, from OSError to struct.error: all of them mean a bad file
        others = ": WebP, TIFF and BMP need endings of their own" if kinds == " or ".join(_PNG_OR_JPEG) else ""
        of_another_kind = isinstance(error, UnidentifiedImageError)
        reason = f"cut short or of another kind{others}" if of_another_kind else str(error)[:100]
        raise DamagedFile(f"{name} cannot be decoded as {kinds} ({reason}); replace or remove it") from error


def read_mask(path: str | Path) -> NDArray[np.uint8]:
    """Labels (H, W) uint8 of a palette or grey PNG."""
    image, packing = _open(Path(path), ("PNG",))
    if image.mode not in ("1", "L", "P", *_WIDE_GREY):
        raise UserError(f"{path} is {image.mode}; a mask holds one label per pixel: save it with a palette or as grey")
    # the decoder spreads 2 or 4 bits of grey over 0..255: the labels are the bits themselves
    labels: NDArray[np.int64] = np.asarray(image).astype(np.int64) // {"L;2": 85, "L;4": 17}.get(packing, 1)
    if (largest := labels.max()) > 255:
        raise UserError(f"{path} has label {largest}; a scene has at most 255 objects, with labels 1 to 255")
    return labels.astype(np.uint8)


def _open(path: Path, formats: tuple[str, ...]) -> tuple["Image.Image", str]:
    """The decoded image, upright, and how its pixels were packed in the file.

    Its size is refused by what the header claims, before anything is decoded, and all checksums of a PNG are verified.
    """
    from PIL import Image

    try:
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise UserError(f"{path} has {size} bytes; at most {_MAX_BYTES} are read")
        with open_to_read(path) as file:
            content = file.read()
    except OSError as error:
        raise unreadable(path, error) from error
    kinds = " or ".join(formats)
    with _decoding(path, kinds):
        with Image.open(io.BytesIO(content), formats=formats) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise Image.DecompressionBombError
            packing = str(image.tile[0][3]) if image.tile else ""
            # a JPEG may hold a preview beside itself, as phones write them: the first picture is meant
            frames = getattr(image, "n_frames", 1) if image.format in ("WEBP", "TIFF") else 1
            image.verify()
        if frames > 1:
            raise UserError(f"{path} holds {frames} pictures; save the one that is meant as a file of its own")
        with Image.open(io.BytesIO(content), formats=formats) as image:
            return upright(image, path, kinds), packing
