"""Seals: how every file of ours carries its own SHA-256, so that any altered bit is found before it is used.

A document (JSON) has the hash as its last entry, an archive as its last bytes, a description inside another format's
metadata beside it. All three hash with `sha256` or `digest`; what does not match is a `DamagedFile`.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotnorm.errors import DamagedFile, UserError
from slotnorm.storage import files


def canonical(content: Any) -> bytes:
    """The one way a document is written for hashing: sorted keys, no spaces, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(content: Any) -> str:
    """SHA-256 of a document, in hexadecimal."""
    return hashlib.sha256(canonical(content)).hexdigest()


@dataclass(frozen=True)
class Seal:
    """How a kind of document is sealed: the hash's name, the indentation, and the most bytes that one has."""

    key: str
    indent: int
    most_bytes: int

    def close(self, content: dict[str, Any]) -> bytes:
        """The document's bytes with its seal."""
        return json.dumps({**content, self.key: digest(content)}, indent=self.indent, allow_nan=False).encode() + b"\n"

    def open(self, written: bytes, path: Path) -> dict[str, Any]:
        """The content of `close`'s bytes, exactly as they were written; `path` is named in the refusal."""
        content = parse_json(written, path)
        try:
            intact = (
                isinstance(content, dict) and content.pop(self.key, None) is not None and self.close(content) == written
            )
        except (ValueError, RecursionError):  # e.g. 1e999, which JSON reads as infinity: nothing that we wrote
            intact = False
        if not intact:
            raise DamagedFile(f"{path} is not what was written: its seal does not match")
        sealed: dict[str, Any] = content
        return sealed


RECORD = Seal("sha256_of_this", indent=2, most_bytes=1 << 22)  # ours are a few kilobytes
MANIFEST = Seal("checksum", indent=1, most_bytes=1 << 26)  # 64 MiB of checksums describe more than 8 TiB of scenes


def write_sealed(path: Path, content: dict[str, Any], seal: Seal = RECORD, make_folder: bool = True) -> None:
    """Write a document with its own SHA-256 inside, atomically; one that could not be read again is refused."""
    written = seal.close(content)
    require_readable(written, path)
    files.write(path, written, make_folder)


def require_readable(written: bytes, what: Path | str) -> None:
    """Refuse to write JSON that `parse_json` would refuse to read; `what` cannot be written then."""
    if _UNUSUAL.search(written.decode()):
        try:
            parse_json(written, what)
        except DamagedFile as error:
            raise UserError(
                f"cannot write {what}: what it would say cannot be read again, as the name of a file or folder that is "
                f"not text; rename that ({error})"
            ) from error


def read_sealed(path: Path, seal: Seal = RECORD) -> dict[str, Any]:
    """Read a document of `write_sealed`; anything else than what was written is a `DamagedFile`."""
    try:
        if not path.is_file():
            raise DamagedFile(f"{path} is missing")
    except OSError as error:  # nobody may look into its folder
        raise files.unreadable(path, error) from error
    return seal.open(read_bounded(path, seal.most_bytes), path)


def read_json(path: Path, most_bytes: int) -> Any:
    """Read JSON that anyone may have written: too large, too deep or no JSON at all is one sentence."""
    return parse_json(read_bounded(path, most_bytes), path)


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file, never more than `most_bytes`."""
    try:
        with files.open_to_read(path) as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise files.unreadable(path, error) from error
    if len(content) > most_bytes:
        raise DamagedFile(f"{path} is larger than {most_bytes} bytes: not a document of slotnorm, and not read")
    return content


# what may be a half of a surrogate pair, or a number beyond all floats; texts without it need no second look
_UNUSUAL = re.compile(r"\\u[dD][89a-fA-F]|[eE]\+?[0-9]{3}|[0-9]{300}")


def parse_json(written: bytes, path: Path | str) -> Any:
    """JSON as the standard has it, of numbers that are finite as floats, and texts that can be written down again."""
    try:
        text = written.decode(json.detect_encoding(written))
        if not _UNUSUAL.search(text):
            return json.loads(text, parse_constant=_finite)
        content = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_finite)
        json.dumps(content, ensure_ascii=False).encode()
        return content
    except (ValueError, OverflowError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]
        raise DamagedFile(f"{path} is not valid JSON ({reason})") from None


def _finite(number: str) -> float:
    """A number as JSON writes it, the kind of which its letters say."""
    value = int(number) if re.fullmatch("-?[0-9]+", number) else float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:40]} is not a number")
    return value


_TAIL = b"sha256:"
TAIL_LENGTH = 64  # hexadecimal digits after the mark
TAIL_BYTES = len(_TAIL) + TAIL_LENGTH


def open_tail() -> bytes:
    """What an archive ends with before its hash is known: as long as the closed one."""
    return _TAIL + b"0" * TAIL_LENGTH


def close_tail(content: bytes) -> bytes:
    """Bytes that end in `open_tail`, with the hash of all that precedes it."""
    body = content[:-TAIL_LENGTH]
    return body + hashlib.sha256(body).hexdigest().encode()


def is_tail(end: bytes) -> bool:
    """Whether these bytes, a file's last, could be what `close_tail` made."""
    return re.fullmatch(_TAIL + rb"[0-9a-f]{%d}" % TAIL_LENGTH, end) is not None


def has_tail(written: bytes) -> bool:
    """Whether these bytes are as `close_tail` made them."""
    return written[:-TAIL_LENGTH].endswith(_TAIL) and close_tail(written) == written


def seal_description(name: str, description: dict[str, Any]) -> dict[str, str]:
    """A document as metadata of another format: its text under `name`, and its hash."""
    return {name: canonical(description).decode(), "sha256_of_description": digest(description)}


def open_description(name: str, metadata: dict[str, str], path: Path) -> dict[str, Any]:
    """The document of `seal_description`."""
    description = parse_json(metadata[name].encode(), path)
    try:
        intact = isinstance(description, dict) and metadata.items() >= seal_description(name, description).items()
    except RecursionError:  # nested so deeply that it could just be read
        intact = False
    if not intact:
        raise DamagedFile(f"{path} is damaged: its description is not what was written; get it again")
    sealed: dict[str, Any] = description
    return sealed
