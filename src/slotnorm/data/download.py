"""Downloads of the published files over HTTPS: resumed where they broke off, and whole when they have their name.

A file grows as NAME.part, beside NAME.part.json which says which version of the file it is (length, ETag, checksum).
It gets its own name when its length and, where the server publishes one, its CRC32C are right.
"""

import base64
import http.client
import json
import logging
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import google_crc32c

from slotnorm.data.cache import cache_folder
from slotnorm.data.conversion import check_space
from slotnorm.data.movi import MAX_DESCRIPTION, PUBLISHED_SPLITS, shard_lengths
from slotnorm.data.tfrecord import begins_like_records
from slotnorm.data.web import (
    BLOCK,
    LEAST_RATE,
    asking,
    content_range,
    open_address,
    read_answer,
    safe_etag,
    whole_number,
)
from slotnorm.errors import DamagedFile, UserError, nearest, way_out_of_writing
from slotnorm.runtime.progress import Progress
from slotnorm.storage import files
from slotnorm.storage.locks import Lock
from slotnorm.storage.seals import read_bounded

_log = logging.getLogger(__name__)

_BUCKETS = "https://storage.googleapis.com/"
# name -> folder in the buckets; MOVi's shards are listed by the dataset_info.json beside them
FOLDERS = {
    "clevr": "multi-object-datasets/clevr_with_masks/",
    **{f"movi-{letter}": f"kubric-public/tfds/movi_{letter}/256x256/1.0.0/" for letter in "abcde"},
}
CLEVR_FILE = "clevr_with_masks_train.tfrecords"
_MEGABYTE = 1_000_000  # the unit of the bar
_ATTEMPTS = 5  # in a row without a single byte; each waits twice as long as the one before
_FIRST_WAIT = 1.0


@dataclass(frozen=True)
class Remote:
    """A version of a file on the server."""

    url: str
    length: int
    etag: str
    crc32c: str  # in hexadecimal, or empty where none is published

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def download(
    name: str,
    splits: tuple[str, ...] = ("train", "val", "test"),
    out: str | Path | None = None,
    mirror: str | None = None,
) -> Path:
    """Fetch a dataset's files into `out` (default: below `downloads` in the cache folder) and return the folder.

    `splits` choose among MOVi's parts; CLEVR is one file. `mirror` replaces https://storage.googleapis.com.
    """
    if name not in FOLDERS:
        raise UserError(f"there is no dataset {name!r} to download; {nearest(name, FOLDERS)}")
    for split in splits:
        if split not in PUBLISHED_SPLITS:
            raise UserError(f"there is no split {split!r}; {nearest(split, PUBLISHED_SPLITS)}")
    if mirror is not None and not re.match(r"https?://[^/\s]", mirror):
        raise UserError(f"{mirror!r} is not the address of a mirror; it begins with https://")
    base = (mirror or _BUCKETS).rstrip("/") + "/" + FOLDERS[name]
    folder = cache_folder() / "downloads" / FOLDERS[name] if out is None else Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    with Lock(folder):
        wanted, total = ([CLEVR_FILE], 0) if name == "clevr" else _movi_files(base, folder, name, splits)
        total = total or sum(describe(base + file).length for file in wanted)
        present = sum(_present_bytes(folder / file) for file in wanted)
        what = wanted[0] if len(wanted) == 1 else f"{len(wanted)} files of {name}"
        there = f" ({present / 1e9:.2f} GB are there)" if present else ""
        _log.info(f"{what}: {total / 1e9:.2f} GB{there} from {base} to {folder}")
        check_space(folder, total - present)
        with Progress("MB", total // _MEGABYTE, done=present // _MEGABYTE) as progress:
            for file in wanted:
                fetch(describe(base + file), folder, progress)
    return folder


def describe(url: str) -> Remote:
    """Ask the server for a file's length, version and checksum."""
    with asking(url), open_address(url, "HEAD") as answer:
        length = whole_number(answer.headers.get("Content-Length", ""))
        if length is None:
            raise UserError(f"{url} does not say its length, so a download could not be told whole; try a --mirror")
        hashes = answer.headers.get_all("x-goog-hash") or []
        crc32c = re.search(r"crc32c=([A-Za-z0-9+/]{6}==)", ",".join(hashes))
        checksum = base64.b64decode(crc32c[1]).hex() if crc32c else ""
        return Remote(url, length, safe_etag(answer.headers.get("ETag", "")), checksum)


def fetch(remote: Remote, folder: Path, progress: Progress) -> Path:
    """Bring one file into `folder`, going on with its .part if that is of the same version."""
    path, part, about = (folder / (remote.name + suffix) for suffix in ("", ".part", ".part.json"))
    if path.exists():
        if path.stat().st_size != remote.length:
            raise UserError(
                f"{path} has {path.stat().st_size} bytes, not the published {remote.length}; delete it first"
            )
        return path
    if not remote.length:
        raise UserError(f"{remote.url} has no content; try again later, or a --mirror")
    version = json.dumps(asdict(remote)).encode()
    if not about.exists() or read_bounded(about, 1 << 16) != version:
        part.unlink(missing_ok=True)
        files.write(about, version)
    silent = furthest = 0
    while (done := _length(part, remote.length)) < remote.length:
        began, furthest = time.monotonic(), max(furthest, done)
        try:
            _receive(remote, part, done, progress)
        except (OSError, http.client.HTTPException) as error:
            there = _length(part, remote.length)
            came = there - furthest  # what was there before, and is sent again, is not progress
            silent = 0 if came > LEAST_RATE * (time.monotonic() - began) else silent + 1
            if silent >= _ATTEMPTS:
                reason = getattr(error, "reason", None) or error
                sentence = f"{remote.url} broke off after {there} of {remote.length} bytes ({reason})"
                raise UserError(f"{sentence}; the same command continues from there") from error
            time.sleep(_FIRST_WAIT * 2**silent)
    _accept(remote, part, path)
    about.unlink()
    return path


def _length(part: Path, most: int) -> int:
    """How many bytes of a file are there; more than it has are none of it, and go."""
    length = part.stat().st_size if part.exists() else 0
    if length > most:
        part.unlink()
        return 0
    return length


def _receive(remote: Remote, part: Path, done: int, progress: Progress) -> None:
    """One connection: append what comes from byte `done` on; a broken one raises, and what came stays.

    No byte beyond the announced length is written, and none from another place than was asked for.
    """
    asked = {"Range": f"bytes={done}-"} if done else {}
    if done and remote.etag:
        asked["If-Range"] = remote.etag
    with open_address(remote.url, headers=asked) as answer:
        start = _start_of(answer, remote, done)
        descriptor = files.open_in_place(part, os.O_WRONLY | (os.O_APPEND if start else os.O_TRUNC))
        with open(descriptor, "ab" if start else "wb") as file:
            for block in read_answer(answer, remote.length - start + 1):
                if file.tell() + len(block) > remote.length:
                    part.unlink()
                    raise UserError(
                        f"{remote.url} sends more than the {remote.length} bytes it announced; try a --mirror"
                    )
                _write(file, block, part)
                progress.advance((file.tell() // _MEGABYTE) - (file.tell() - len(block)) // _MEGABYTE)
    if part.stat().st_size < remote.length:
        raise ConnectionError("the connection was cut")


def _start_of(answer: Any, remote: Remote, done: int) -> int:
    """The place in the file from which the server sends: where it was asked to go on, or the beginning."""
    start = 0
    if answer.status == 206:
        sent, start = answer.headers.get("Content-Range", ""), done
        if content_range(sent) != (done, remote.length - 1, remote.length):
            raise UserError(f"{remote.url} was asked for the bytes from {done} on and sends {sent!r}; try a --mirror")
    length = answer.headers.get("Content-Length", "")
    if whole_number(length) != remote.length - start:
        expected = remote.length - start
        raise UserError(f"{remote.url} now has another length ({length}, not {expected}); run the command again")
    return start


def _accept(remote: Remote, part: Path, path: Path) -> None:
    """Give a complete part its name, if it is what the server published."""
    crc = google_crc32c.Checksum()
    with files.open_to_read(part) as file:
        beginning = file.read(64)
        file.seek(0)
        while block := file.read(BLOCK):
            crc.update(block)
    # a record may begin with < too, since its length comes first: so that is looked at before anything is guessed
    if not begins_like_records(beginning) and beginning.lstrip()[:1] == b"<":
        part.unlink()
        raise UserError(f"{remote.url} is a web page and not data; try again later, or a --mirror")
    if remote.crc32c and crc.digest().hex() != remote.crc32c:
        part.unlink()
        raise DamagedFile(f"{path} does not have the published checksum and was removed; run the command again")
    files.sync_file(part)
    os.replace(part, path)
    files.sync_folder(path.parent)


def _write(file: IO[bytes], block: bytes, part: Path) -> None:
    try:
        file.write(block)
        file.flush()
    except OSError as error:
        sentence = f"cannot write {part}: {error.strerror or error}"
        raise UserError(f"{sentence}; {way_out_of_writing(error)}, the same command continues from there") from error


def _movi_files(base: str, folder: Path, name: str, splits: tuple[str, ...]) -> tuple[list[str], int]:
    """The shards of these splits and their bytes, by the description that TensorFlow Datasets publishes beside them."""
    url = base + "dataset_info.json"
    with asking(url), open_address(url) as answer:
        content = b"".join(read_answer(answer, MAX_DESCRIPTION))
    try:
        description = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{url} is not the JSON it should be ({error}); try a --mirror") from error
    lengths = shard_lengths(description, url)
    wanted, total = [], 0
    for split in splits:
        published = PUBLISHED_SPLITS[split]
        shards = len(lengths.get(published, []))
        if not 0 < shards < 100_000:
            raise UserError(f"{url} lists no shards of {published}; known are: {', '.join(lengths)[:200]}")
        stem = f"{name.replace('-', '_')}-{published}.tfrecord"
        wanted += [f"{stem}-{number:05}-of-{shards:05}" for number in range(shards)]
        total += _published_bytes(description, published)
    files.write(folder / "dataset_info.json", content)
    return wanted, total


def _published_bytes(description: Any, split: str) -> int:
    """What a split takes according to its description; 0 where that is not said."""
    sizes = [entry.get("numBytes") for entry in description["splits"] if entry["name"] == split]
    return whole_number(sizes[-1]) or 0


def _present_bytes(path: Path) -> int:
    """What is there of a file already."""
    present = [candidate for candidate in (path, path.with_name(path.name + ".part")) if candidate.exists()]
    return present[0].stat().st_size if present else 0
