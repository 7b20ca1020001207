"""Building a set of scenes: chunk by chunk, resumable, one builder at a time, and accepted only when it is whole.

While building, `building.json` says what is built and how far; files may be longer than it says, never shorter. The
manifest is written last, after every file was read back: only then does `Scenes.open` accept the folder.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import slotnorm
from slotnorm.data import manifest as layout
from slotnorm.data.manifest import HEADER, MANIFEST, STATE, Field, checksum
from slotnorm.data.scenes import Scenes
from slotnorm.errors import DamagedFile, NonFinite, UserError
from slotnorm.runtime.progress import Progress
from slotnorm.storage import seals
from slotnorm.storage.files import open_in_place, open_to_read, write_at
from slotnorm.storage.locks import NAME, Lock
from slotnorm.storage.schemas import LARGEST, check_document, require_between
from slotnorm.storage.seals import canonical, write_sealed

_SECONDS_BETWEEN_FLUSHES = 2.0  # what a killed process may lose; a flush for each small chunk would cost more than it
_SHOW_PROGRESS = 1 << 30  # bytes from which reading back takes seconds


@dataclass(frozen=True)
class _State:
    """How far a build is: scenes written, and by field the checksums of full blocks and of the block just started."""

    done: int
    full: dict[str, list[int]]
    started: dict[str, int]


@dataclass(frozen=True)
class _Document:
    """What building.json says: the request, and the state with checksums in hexadecimal."""

    request: dict[str, Any]
    done: int
    full: dict[str, str]
    started: dict[str, int]

    def __post_init__(self) -> None:
        require_between("done", self.done, 0, LARGEST)
        for crc in self.started.values():
            require_between("a checksum", crc, 0, (1 << 32) - 1)


class Builder:
    """Writes scenes with `fields` (name -> (shape of one scene, dtype)) into `directory`; counts are always a field.

    with Builder(directory, {"images": ((64, 64, 3), "uint8")}, num=1000, provenance={...}) as builder:
        while builder.done < 1000:
            builder.append(images=..., counts=...)      # a chunk of any length, the scenes from builder.done on
        scenes = builder.finish()

    With the same arguments it continues an interrupted build at `done`; when the set is `finished` already, `done` is
    the number of scenes and `finish` only opens it. `num` may be None when it is not known before the end.
    `properties` names the values of coded fields: {"shape": ("cube", ...)}, code 1 is the first. `provenance` is
    anything that JSON can hold, and should identify the content: another provenance is another set.
    """

    def __init__(
        self,
        directory: str | Path,
        fields: Mapping[str, tuple[Sequence[int], str]],
        num: int | None = None,
        provenance: Mapping[str, Any] | None = None,
        protocol: str = "paper",
        properties: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise UserError(f"{directory} is a file, and a set of scenes is a folder; name another")
        self._fields = [Field(name, tuple(shape), dtype) for name, (shape, dtype) in fields.items() if name != "counts"]
        self._fields.append(layout.COUNTS)
        shapes = {field.name: field.shape for field in self._fields}
        if "images" in shapes and shapes.get("labels", shapes["images"][:2]) != shapes["images"][:2]:
            raise UserError(f"labels {shapes['labels']} and images {shapes['images']} of a scene differ in size")
        if num is not None and num < 1:
            raise UserError(f"a set needs at least one scene, not {num}")
        request = {
            "fields": {field.name: [field.shape, field.dtype] for field in self._fields},
            "num": num, "provenance": provenance or {}, "protocol": protocol, "properties": properties or {},
        }  # fmt: skip
        self._request: dict[str, Any] = json.loads(canonical(request))  # as it will compare with what is read
        self._descriptors: dict[str, int] = {}
        self._lock: Lock | None = None
        self._flushed = time.monotonic()
        self._state = _State(0, {field.name: [] for field in self._fields}, {field.name: 0 for field in self._fields})
        self.finished = self._take_finished()
        if not self.finished:
            self._take_folder()

    @property
    def done(self) -> int:
        """How many scenes are written."""
        return self._state.done

    def append(self, **chunk: ArrayLike) -> None:
        """Write the next scenes: every field as (m, ...), counts (m,) among them."""
        if not self._descriptors:
            raise ValueError(
                f"{self.directory} is {'finished' if self.finished else 'closed'}: nothing can be appended"
            )
        if differing := {field.name for field in self._fields} ^ set(chunk):
            raise ValueError(f"append takes all fields of the set and no others; see {', '.join(sorted(differing))}")
        arrays = {field.name: _stored(field, chunk[field.name], self.done) for field in self._fields}
        lengths = {len(array) for array in arrays.values()}
        num = self._request["num"]
        if len(lengths) != 1 or (num is not None and self.done + max(lengths) > num):
            raise ValueError(f"a chunk of lengths {sorted(lengths)} does not fit after {self.done} of {num} scenes")
        with self._writing():
            for field in self._fields:
                self._write(field, arrays[field.name])
        # one assignment: an interrupt leaves either the old state or the new one
        self._state = _advance(self._state, self._fields, arrays)
        if time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
            self.flush()

    def flush(self) -> None:
        """Make what was appended survive the end of this process, and of the machine's power."""
        with self._writing():
            if self._lock is not None:
                self._lock.check(thoroughly=True)
            for descriptor in self._descriptors.values():
                os.fsync(descriptor)
            state = self._state
            full = {name: layout.pack(checksums) for name, checksums in state.full.items()}
            content = {"request": self._request, "done": state.done, "full": full, "started": state.started}
            write_sealed(self.directory / STATE, content, seals.MANIFEST)
        self._flushed = time.monotonic()

    def finish(self) -> Scenes:
        """Read everything back, write the manifest, and open the set."""
        if not self.finished:
            num = self._request["num"]
            if self.done == 0 or (num is not None and self.done != num):
                raise UserError(f"{self.directory} has {self.done} of {num or 'at least 1'} scenes: it is not finished")
            self.flush()
            with self._writing():
                write_sealed(self.directory / MANIFEST, self._manifest(), seals.MANIFEST)
            self.finished = True
            self._let_go()
            (self.directory / STATE).unlink(missing_ok=True)
        return Scenes.open(self.directory)

    def close(self) -> None:
        """Keep what was appended and let go of the folder; a second call does nothing."""
        try:
            if self._descriptors and not self.finished:
                self.flush()
        finally:
            self._let_go()

    def __enter__(self) -> "Builder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _let_go(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}
        if self._lock is not None:
            self._lock.release()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A failing write is one sentence; the scenes of the last flush stay for the next attempt."""
        try:
            yield
        except (OSError, UserError) as error:
            self._let_go()
            if isinstance(error, UserError):
                raise
            reason = error.strerror or error
            raise UserError(
                f"cannot write to {self.directory}: {reason}; run the same command again to continue"
            ) from error

    def _take_finished(self) -> bool:
        """Whether the folder already holds the set that was asked for; a finished one of another kind is refused."""
        if not (self.directory / MANIFEST).exists():
            return False
        manifest, fields = layout.load_manifest(self.directory)
        known = {key: manifest[key] for key in ("provenance", "protocol", "properties")}
        known |= {"num": manifest.get("requested"), "fields": {f.name: [list(f.shape), f.dtype] for f in fields}}
        self._refuse_other(known, "already holds a set")
        self._state = _State(manifest["scenes"], {}, {})
        if (self.directory / STATE).exists() and self._lock is None:  # its process died right after the manifest
            with contextlib.suppress(OSError, UserError):
                lock = Lock(self.directory)
                (self.directory / STATE).unlink()
                lock.release()
        return True

    def _take_folder(self) -> None:
        """Lock the folder and take up what is in it: a half-built set, or nothing."""
        with self._writing():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.directory)
            self.finished = self._take_finished()  # by the process that held the lock a moment ago
            if self.finished:
                self._let_go()
                return
            for stray in self.directory.glob(".*.tmp"):  # left by a process that was killed while writing
                if not stray.is_dir() or stray.is_symlink():  # a folder is not ours
                    stray.unlink(missing_ok=True)
            if (self.directory / STATE).exists():
                self._resume()
            else:
                self._refuse_foreign_folder()
                self.flush()  # from here on the folder is known to be ours
            for field in self._fields:
                path, length = self.directory / field.file, HEADER + self.done * field.row_bytes
                self._descriptors[field.name] = open_in_place(path)
                if self.done and path.stat().st_size < length:
                    raise DamagedFile(
                        f"{path} is shorter than {STATE} says; delete {self.directory} and build it again"
                    )
                os.ftruncate(self._descriptors[field.name], length)

    def _refuse_foreign_folder(self) -> None:
        others = sorted(path.name for path in self.directory.iterdir() if not path.name.startswith(NAME))
        if others:
            raise UserError(f"{self.directory} is not empty (it holds {others[0]}); choose a new or an empty folder")
        num = self._request["num"] or 0
        needed, free = num * sum(f.row_bytes for f in self._fields), shutil.disk_usage(self.directory).free
        if needed > free:
            raise UserError(f"{num} scenes need {needed / 1e9:.1f} GB; {self.directory} has {free / 1e9:.1f} GB free")

    def _resume(self) -> None:
        path = self.directory / STATE
        problem = DamagedFile(f"{path} is not what was written; delete {self.directory} and build the set again")
        try:
            content = check_document(_Document, layout.read_manifest(path), path, "the state of a build")
            known = {key: content.request[key] for key in self._request}
            full = {name: layout.unpack(text).tolist() for name, text in content.full.items()}
        except (KeyError, ValueError) as error:
            raise problem from error
        state = _State(content.done, full, content.started)
        self._refuse_other(known, "holds a half-built set")
        for field in self._fields:
            blocks = len(full[field.name]) if field.name in full and field.name in state.started else -1
            if state.done < 0 or blocks != state.done // field.rows_per_block:
                raise problem
        self._state = state

    def _refuse_other(self, known: Mapping[str, Any], holds: str) -> None:
        for key, wanted in self._request.items():
            if known[key] != wanted:
                was, now = (json.dumps(value)[:100] for value in _difference(known[key], wanted))
                way_out = "choose another folder or delete this one"
                raise UserError(f"{self.directory} {holds} with {key} {was}, not {now}; {way_out}")

    def _write(self, field: Field, array: NDArray[Any]) -> None:
        content = memoryview(array.reshape(-1).view(np.uint8).data)
        write_at(self._descriptors[field.name], content, HEADER + self.done * field.row_bytes)

    def _manifest(self) -> dict[str, Any]:
        """Complete the files' headers, read every file back, and describe them."""
        num = self.done
        for field in self._fields:
            os.pwrite(self._descriptors[field.name], field.header(num), 0)
            os.fsync(self._descriptors[field.name])
        entries = {field.name: self._entry(field, num) for field in self._fields}
        counts = np.memmap(
            self.directory / layout.COUNTS.file, mode="r", offset=HEADER, shape=(num,), dtype=layout.COUNTS.dtype
        )
        numbers, scenes = np.unique(counts, return_counts=True)
        counted = "labels" in entries or bool(numbers.any())
        objects = {str(number): many for number, many in zip(numbers.tolist(), scenes.tolist(), strict=True)}
        return {
            "format": layout.FORMAT, "library": f"slotnorm {slotnorm.__version__}",
            **{key: self._request[key] for key in ("protocol", "provenance", "properties")},
            "requested": self._request["num"], "scenes": num, "objects": objects if counted else {}, "files": entries,
        }  # fmt: skip

    def _entry(self, field: Field, num: int) -> dict[str, Any]:
        """One file's entry in the manifest; its blocks must read back as they were appended."""
        path = self.directory / field.file
        expected = [*self._state.full[field.name], self._state.started[field.name]][: field.num_blocks(num)]
        digest = hashlib.sha256(field.header(num))
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open_to_read(path))
            large = num * field.row_bytes >= _SHOW_PROGRESS
            progress = stack.enter_context(Progress(f"reading back {path.name}", num)) if large else None
            file.seek(HEADER)
            for block, wanted in enumerate(expected):
                rows = min(field.rows_per_block, num - block * field.rows_per_block)
                content = file.read(rows * field.row_bytes)
                if checksum(content) != wanted:
                    problem = f"block {block} of {path} does not read back as it was written"
                    raise DamagedFile(f"{problem}; delete {self.directory} and build it again")
                digest.update(content)
                if progress:
                    progress.advance(rows)
        return {
            "file": field.file, "shape": [num, *field.shape], "dtype": field.dtype, "sha256": digest.hexdigest(),
            "scenes_per_block": field.rows_per_block, "checksums": layout.pack(expected),
        }  # fmt: skip


def _advance(state: _State, fields: Sequence[Field], arrays: Mapping[str, NDArray[Any]]) -> _State:
    """The state after these arrays were written."""
    full = {name: list(checksums) for name, checksums in state.full.items()}
    started = dict(state.started)
    length = 0
    for field in fields:
        array = arrays[field.name]
        length, row = len(array), 0
        while row < length:
            room = field.rows_per_block - (state.done + row) % field.rows_per_block
            part = array[row : row + room]
            started[field.name] = checksum(part, started[field.name])
            row += len(part)
            if len(part) == room:
                full[field.name].append(started[field.name])
                started[field.name] = 0
    return _State(state.done + length, full, started)


def _stored(field: Field, value: ArrayLike, done: int) -> NDArray[Any]:
    """The array as it goes to disk; what the dtype cannot hold is refused, and what is not finite."""
    array = np.asarray(value)
    if array.ndim == 0 or array.shape[1:] != field.shape:
        raise ValueError(f"{field.name} of a chunk have shape {array.shape}, not (m, *{field.shape})")
    dtype = np.dtype(field.dtype)
    if dtype.kind != "f" and array.dtype != dtype and array.size:
        limits = np.iinfo(dtype)
        if array.dtype.kind not in "iub" or array.min() < limits.min or array.max() > limits.max:
            raise ValueError(f"{field.name} of a chunk ({array.dtype}) do not fit into {dtype}")
    with np.errstate(over="ignore"):  # a float32 beyond float16's range becomes infinite, and is refused below
        array = np.ascontiguousarray(array, dtype=dtype)
    if dtype.kind == "f" and not (finite := np.isfinite(array).reshape(len(array), -1).all(axis=1)).all():
        raise NonFinite(f"{field.name} of scene {done + int(np.argmin(finite))} are not finite; they cannot be stored")
    return array


def _difference(known: Any, wanted: Any) -> tuple[Any, Any]:
    """The entries in which two requests differ, or all of them when they are not objects."""
    if not (isinstance(known, dict) and isinstance(wanted, dict)):
        return known, wanted
    keys = [key for key in sorted({*known, *wanted}) if known.get(key) != wanted.get(key)]
    return {key: known.get(key) for key in keys}, {key: wanted.get(key) for key in keys}
