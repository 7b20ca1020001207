"""Building a set of scenes: chunk by chunk, resumable, one builder at a time, and accepted only when it is whole.

While building, `building.json` says what is built and how far; files may be longer than it says, never shorter. The
manifest is written last, after every file was read back: only then does `Scenes.open` accept the folder.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import slotnorm
from slotnorm import files
from slotnorm.data.manifest import (
    COUNTS, FORMAT, HEADER, MANIFEST, Field, checksum, load_json, load_manifest, pack, seal, unpack,
)  # fmt: skip
from slotnorm.data.scenes import Scenes
from slotnorm.errors import DamagedFile, NonFinite, UserError
from slotnorm.progress import Progress

_STATE = "building.json"
_SECONDS_BETWEEN_FLUSHES = 2.0  # what a killed process may lose; flushing every small chunk would cost more than the writing
_SHOW_PROGRESS = 1 << 30  # bytes from which reading back takes seconds


@dataclass(frozen=True)
class _State:
    """How far a build is: scenes written, the checksums of full blocks, and of the started block, by field."""

    done: int
    full: dict[str, list[int]]
    started: dict[str, int]


class Builder:
    """Writes the scenes of `fields` (name -> (shape of one scene, dtype)) into `directory`; counts are always among them.

    with Builder(directory, {"images": ((64, 64, 3), "uint8")}, num=1000, provenance={...}) as builder:
        while builder.done < 1000:
            builder.append(images=..., counts=...)      # a chunk of any length, the scenes from builder.done on
        scenes = builder.finish()

    Called again after an interruption with the same arguments it continues at `done`; after the end, `done` is the number
    of scenes and `finish` only opens the set. `num` may be None when it is not known before the end. `properties` names
    the values of coded fields: {"shape": ("cube", ...)}, code 1 is the first. `provenance` is anything that JSON can
    hold, and should identify the content: another provenance is another set.
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
        self._fields = [Field(name, tuple(shape), dtype) for name, (shape, dtype) in fields.items() if name != "counts"]
        self._fields.append(Field(*COUNTS))
        if num is not None and num < 1:
            raise UserError(f"a set needs at least one scene, not {num}")
        self._request = json.loads(json.dumps({
            "fields": {f.name: [list(f.shape), f.dtype] for f in self._fields},
            "num": num, "provenance": provenance or {}, "protocol": protocol, "properties": properties or {},
        }))  # fmt: skip
        self._descriptors: dict[str, int] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {self.directory}: {error.strerror or error}") from error
        self._lock = files.Lock(self.directory)
        try:
            self._state = self._begin()
        except BaseException:
            self.close(flush=False)
            raise

    @property
    def done(self) -> int:
        """How many scenes are written."""
        return self._state.done

    def append(self, **chunk: ArrayLike) -> None:
        """Write the next scenes: every field as (m, ...), counts (m,) among them."""
        if self.finished:
            raise ValueError(f"{self.directory} is finished: nothing can be appended")
        if missing := {field.name for field in self._fields} ^ set(chunk):
            raise ValueError(f"append needs exactly the fields of the set; missing or unknown: {', '.join(sorted(missing))}")
        arrays = {field.name: _stored(field, chunk[field.name], self.done) for field in self._fields}
        lengths = {len(array) for array in arrays.values()}
        num = self._request["num"]
        if len(lengths) != 1 or (num is not None and self.done + max(lengths) > num):
            raise ValueError(f"a chunk of lengths {sorted(lengths)} does not fit after {self.done} of {num} scenes")
        try:
            for field in self._fields:
                self._write(field, arrays[field.name], HEADER + self.done * field.row_bytes)
        except OSError as error:
            self.close(flush=False)
            raise self._cannot_write(error) from error
        # one assignment: an interrupt leaves either the old state or the new one
        self._state = _advance(self._state, self._fields, arrays)
        if time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
            self.flush()

    def flush(self) -> None:
        """Make what was appended survive the end of this process, and of the machine's power."""
        if self.finished:
            return
        try:
            for descriptor in self._descriptors.values():
                os.fsync(descriptor)
        except OSError as error:
            self.close(flush=False)
            raise self._cannot_write(error) from error
        state = self._state
        content = {
            "format": FORMAT, "request": self._request, "done": state.done, "started": state.started,
            "full": {name: pack(checksums) for name, checksums in state.full.items()},
        }  # fmt: skip
        files.write(self.directory / _STATE, seal(content))
        self._flushed = time.monotonic()

    def finish(self) -> Scenes:
        """Read everything back, write the manifest, and open the set."""
        if not self.finished:
            num = self._request["num"]
            if self.done == 0 or (num is not None and self.done != num):
                raise UserError(f"{self.directory} has {self.done} of {num or 'at least 1'} scenes: it is not finished")
            self.flush()
            try:
                manifest = self._manifest()
            except OSError as error:
                raise self._cannot_write(error) from error
            files.write(self.directory / MANIFEST, seal(manifest))
            self.finished = True
        (self.directory / _STATE).unlink(missing_ok=True)
        self.close()
        return Scenes.open(self.directory)

    def close(self, flush: bool = True) -> None:
        """Keep what was appended and let go of the folder."""
        try:
            if flush and self._descriptors:
                self.flush()
        finally:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors = {}
            self._lock.release()

    def __enter__(self) -> "Builder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begin(self) -> _State:
        """Take up what is in the folder: a finished set, a half-built one, or nothing."""
        self.finished = (self.directory / MANIFEST).exists()
        self._flushed = time.monotonic()
        for stray in self.directory.glob(".*.tmp"):  # left by a process that was killed while writing
            stray.unlink(missing_ok=True)
        if self.finished:
            manifest, fields = load_manifest(self.directory)
            known = {key: manifest[key] for key in ("provenance", "protocol", "properties")}
            known |= {"num": manifest.get("requested"), "fields": {f.name: [list(f.shape), f.dtype] for f in fields}}
            self._refuse_other(known, "already holds")
            return _State(manifest["scenes"], {}, {})
        state = self._resumed() if (self.directory / _STATE).exists() else self._fresh()
        for field in self._fields:
            path = self.directory / field.file
            self._descriptors[field.name] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            length = HEADER + state.done * field.row_bytes
            if state.done and path.stat().st_size < length:
                raise DamagedFile(f"{path} is shorter than {_STATE} says; delete {self.directory} and build it again")
            os.ftruncate(self._descriptors[field.name], length if state.done else 0)
        return state

    def _fresh(self) -> _State:
        others = [path.name for path in self.directory.iterdir() if path.name != ".lock"]
        if others:
            raise UserError(f"{self.directory} is not empty (it holds {sorted(others)[0]}); choose a new or an empty folder")
        num = self._request["num"]
        needed = (num or 0) * sum(field.row_bytes for field in self._fields)
        if needed > (free := shutil.disk_usage(self.directory).free):
            raise UserError(f"{num} scenes need {needed / 1e9:.1f} GB and {self.directory} has {free / 1e9:.1f} GB free")
        state = _State(0, {f.name: [] for f in self._fields}, {f.name: 0 for f in self._fields})
        self._state = state
        self.flush()  # from here on the folder is known to be ours
        return state

    def _resumed(self) -> _State:
        path = self.directory / _STATE
        content = load_json(path)
        problem = DamagedFile(f"{path} was changed after it was written; delete {self.directory} and build it again")
        if not isinstance(content, dict) or json.loads(seal(content)) != content:
            raise problem
        self._refuse_other(content["request"], "holds a half-built set with")
        full = {name: unpack(text).tolist() for name, text in content["full"].items()}
        return _State(content["done"], full, content["started"])

    def _refuse_other(self, known: Mapping[str, Any], holds: str) -> None:
        for key, wanted in self._request.items():
            if known[key] != wanted:
                was, now = (json.dumps(value)[:100] for value in _difference(known[key], wanted))
                raise UserError(f"{self.directory} {holds} {key} {was}, not {now}; choose another folder or delete this one")

    def _write(self, field: Field, array: NDArray[Any], offset: int) -> None:
        rest = memoryview(array.reshape(-1).view(np.uint8))
        while len(rest):
            written = os.pwrite(self._descriptors[field.name], rest, offset)
            rest, offset = rest[written:], offset + written

    def _cannot_write(self, error: OSError) -> UserError:
        return UserError(
            f"cannot write to {self.directory}: {error.strerror or error}; "
            f"{self.done} scenes are kept: free some space and run the same command again"
        )

    def _manifest(self) -> dict[str, Any]:
        """Complete the files' headers, read every file back, and describe them."""
        num = self.done
        for field in self._fields:
            os.pwrite(self._descriptors[field.name], field.header(num), 0)
            os.fsync(self._descriptors[field.name])
        entries = {field.name: self._entry(field, num) for field in self._fields}
        rows = np.memmap(self.directory / "counts.npy", mode="r", offset=HEADER, shape=(num,), dtype=COUNTS[2])
        numbers, scenes = np.unique(rows, return_counts=True)
        counted = "labels" in entries or bool(numbers.any())
        return {
            "format": FORMAT, "library": f"slotnorm {slotnorm.__version__}", "protocol": self._request["protocol"],
            "provenance": self._request["provenance"], "properties": self._request["properties"],
            "requested": self._request["num"], "scenes": num,
            "objects": {str(k): int(v) for k, v in zip(numbers, scenes, strict=True)} if counted else {},
            "files": entries,
        }  # fmt: skip

    def _entry(self, field: Field, num: int) -> dict[str, Any]:
        """One file's entry in the manifest; its blocks must read back as they were appended."""
        path = self.directory / field.file
        expected = [*self._state.full[field.name], self._state.started[field.name]][: field.num_blocks(num)]
        digest = hashlib.sha256(field.header(num))
        total = num * field.row_bytes
        with open(path, "rb") as file, _readback(path.name, total) as progress:
            file.seek(HEADER)
            for block, wanted in enumerate(expected):
                content = file.read(min(field.rows_per_block, num - block * field.rows_per_block) * field.row_bytes)
                if checksum(content) != wanted:
                    raise DamagedFile(f"{path} does not read back as written in block {block}; delete {self.directory} and build again")
                digest.update(content)
                progress.advance(len(content) >> 20)
        return {
            "file": field.file, "shape": [num, *field.shape], "dtype": field.dtype, "sha256": digest.hexdigest(),
            "scenes_per_block": field.rows_per_block, "checksums": pack(expected),
        }  # fmt: skip


class _Silent:
    """Stands in for a progress bar where there is nothing to wait for."""

    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, count: int = 1) -> None:
        pass


def _readback(name: str, total: int) -> Progress | _Silent:
    return Progress(f"reading back {name}, MiB", total >> 20) if total >= _SHOW_PROGRESS else _Silent()


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
    """The array as it goes to disk; what the dtype cannot hold is refused, also what is not finite."""
    array = np.asarray(value)
    if array.shape[1:] != field.shape or array.ndim == 0:
        raise ValueError(f"{field.name} of a chunk have shape {array.shape}, not (m, *{field.shape})")
    dtype = np.dtype(field.dtype)
    if dtype.kind != "f" and array.dtype != dtype and array.size:
        limits = np.iinfo(dtype)
        if array.dtype.kind not in "iub" or array.min() < limits.min or array.max() > limits.max:
            raise ValueError(f"{field.name} of a chunk ({array.dtype}) do not fit into {dtype}")
    with np.errstate(over="ignore"):  # a float32 beyond float16's range becomes infinite, and is refused below
        array = np.ascontiguousarray(array, dtype=dtype)
    if dtype.kind == "f" and not (finite := np.isfinite(array).reshape(len(array), -1).all(axis=1)).all():
        raise NonFinite(f"{field.name} of scene {done + int(np.argmin(finite))} are not finite; nothing of this chunk was written")
    return array


def _difference(known: Any, wanted: Any) -> tuple[Any, Any]:
    """The entries in which two requests differ, or all of them when they are not objects."""
    if not (isinstance(known, dict) and isinstance(wanted, dict)):
        return known, wanted
    keys = [key for key in sorted({*known, *wanted}) if known.get(key) != wanted.get(key)]
    return {key: known.get(key) for key in keys}, {key: wanted.get(key) for key in keys}
