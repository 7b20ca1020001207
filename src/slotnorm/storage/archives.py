"""Arrays in a sealed file: an ordinary compressed .npz without pickles, which NumPy alone can open.

Its zip comment is the seal, so that any altered bit is found before anything is parsed.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotnorm.errors import DamagedFile, UserError
from slotnorm.storage import files, seals

_MOST_BYTES = 1 << 31  # of a file once unpacked; more is not a file of ours


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays under their names, whole or not at all; the same arrays give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
        archive.comment = seals.open_tail()
    files.write(path, seals.close_tail(buffer.getvalue()))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read a file of `write_arrays`; anything else than what was written is a DamagedFile."""
    try:
        written = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if not seals.has_tail(written):
        raise DamagedFile(f"{path} is not what was written: its seal does not match; delete it and make it again")
    try:
        with zipfile.ZipFile(io.BytesIO(written)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size <= _MOST_BYTES:
            with np.load(io.BytesIO(written), allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise DamagedFile(f"{path} is sealed but holds no arrays ({error}); delete it and make it again") from error
    raise DamagedFile(f"{path} would unpack to {size} bytes: not a file of slotnorm; delete it")


def as_text(content: Any) -> NDArray[np.uint8]:
    """Plain JSON values as an array of bytes, for `write_arrays`."""
    return np.frombuffer(json.dumps(content, sort_keys=True, allow_nan=False).encode(), dtype=np.uint8)


def from_text(array: NDArray[Any]) -> Any:
    """The JSON values of `as_text`."""
    return json.loads(array.tobytes())


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array, which cannot be changed by this name."""
    array = array.view()
    array.flags.writeable = False
    return array
