"""Rows: one number of one image, number of slots and metric each; what evaluation writes and reports read.

In memory -1 stands for an integer that a row does not have (`image` and `objects` of a metric of a whole set, training
factors of a model without an experiment); in CSV such a cell is empty. A value that is not defined (F-ARI of an image
without foreground) is NaN. Texts are held as numbers with a list of the texts beside them: millions of rows fit.

Files are sealed: see `archives.py`.
"""

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slotnorm.errors import DamagedFile, UserError, nearest
from slotnorm.evaluation.row_header import check_header
from slotnorm.storage import archives, files
from slotnorm.storage.archives import frozen

if TYPE_CHECKING:
    import pandas

MISSING = -1
COLUMNS = (
    "run", "norm", "train_objects", "train_slots", "seed", "dataset", "protocol", "image", "objects", "slots",
    "iterations", "source", "metric", "value",
)  # fmt: skip
_TEXTS = ("run", "norm", "dataset", "protocol", "source", "metric")
_INTEGERS: dict[str, Any] = {
    "train_objects": np.int32, "train_slots": np.int32, "seed": np.int64, "image": np.int32, "objects": np.int32,
    "slots": np.int32, "iterations": np.int32,
}  # fmt: skip

_OF_IMAGE, _OF_SCORE = COLUMNS[:9], COLUMNS[9:13]  # neighbours that are the same in many rows
_LINES_AT_ONCE = 1 << 17

_FORMAT = 1


class Rows:
    """Columns of equal length, immutable: `Rows(norm="batch_norm", slots=[3, 4], value=[0.5, 0.6], ...)`.

    Every column of COLUMNS may be given, as an array or as one value for all rows; texts default to "", integers to -1,
    values to NaN. `header` says where the rows come from: protocol, hashes of weights and scenes, versions, noise seed.
    """

    def __init__(self, header: Mapping[str, Any] | None = None, **columns: Any) -> None:
        for name in columns:
            _require_column(name)
        lengths = {len(value) for value in columns.values() if isinstance(value, _Texts) or np.ndim(value)}
        if len(lengths) > 1:
            raise UserError(f"columns of {sorted(lengths)} rows do not fit together; give each the same number")
        self._length = lengths.pop() if lengths else int(bool(columns))
        self._columns = {name: _column(name, columns.get(name), self._length) for name in COLUMNS}
        self.header = dict(header or {})

    @classmethod
    def _of(cls, header: Mapping[str, Any] | None, columns: dict[str, Any]) -> "Rows":
        """Rows of columns that come from other rows and need not be looked at again."""
        rows = cls.__new__(cls)
        rows._columns, rows._length, rows.header = columns, len(columns["value"]), dict(header or {})
        return rows

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"Rows({len(self)} rows, metrics {', '.join(self.unique('metric'))})"

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One column as an array (n,): texts as str, integers as int64, values as float64."""
        column = self._columns[_require_column(name)]
        if isinstance(column, _Texts):
            return column.array()
        return column if name == "value" else frozen(column.astype(np.int64))

    def codes(self, name: str) -> NDArray[Any]:
        """One column as numbers (n,) that are equal where the column is: for grouping without making texts."""
        column = self._columns[_require_column(name)]
        return column.codes if isinstance(column, _Texts) else column

    def named(self, name: str, codes: NDArray[Any]) -> list[str] | NDArray[Any]:
        """The entries of a column that have these codes: of texts a list of them, of integers the codes themselves."""
        column = self._columns[_require_column(name)]
        return [column.names[code] for code in codes.tolist()] if isinstance(column, _Texts) else codes

    def unique(self, name: str) -> list[Any]:
        """The different entries of a column, in the order of first appearance."""
        codes = self.codes(name)
        if len(codes) and (codes == codes[0]).all():
            ordered = codes[:1]
        else:
            entries, first = np.unique(codes, return_index=True)
            ordered = entries[np.argsort(first)]
        named = self.named(name, ordered)
        return named if isinstance(named, list) else list(named.tolist())

    def places(self, name: str) -> tuple[list[str] | NDArray[Any], NDArray[Any]]:
        """The different entries of a column, by code, and for each row the place of its own among them."""
        entries, places = _places(self.codes(name))
        return self.named(name, entries), places

    def where(self, **wanted: Any) -> "Rows":
        """The rows with these entries, each one or a collection: where(norm="batch_norm", slots=range(3, 8))."""
        kept = np.ones(len(self), dtype=bool)
        for name, entries in wanted.items():
            column = self._columns[_require_column(name)]
            alone = isinstance(entries, str) or not isinstance(entries, (Collection, np.ndarray))
            several = [entries] if alone else list(entries)
            if isinstance(column, _Texts):
                chosen = [code for code, text in enumerate(column.names) if text in several]
                kept &= np.isin(column.codes, chosen)
            else:
                kept &= np.isin(column, several)
        return self.take(kept)

    def take(self, rows: ArrayLike) -> "Rows":
        """The rows at these positions, or where this mask is true."""
        chosen = np.asarray(rows)
        return Rows._of(self.header, {name: _chosen(column, chosen) for name, column in self._columns.items()})

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], "Rows"]]:
        """Each combination of entries of these columns that occurs, with its rows in their order; sorted by entry."""
        if not len(self):
            return
        keys = [_ordered_codes(self._columns[_require_column(name)]) for name in names]
        order = np.lexsort(keys[::-1]) if keys else np.arange(len(self))
        changes = np.zeros(len(self), dtype=bool)
        for key in keys:
            changes[1:] |= np.diff(key[order]) != 0
        for rows in np.split(order, np.flatnonzero(changes)):
            yield tuple(self._entry(name, int(rows[0])) for name in names), self.take(rows)

    def with_columns(self, **columns: Any) -> "Rows":
        """The same rows with some columns replaced."""
        for name in columns:
            _require_column(name)
        return Rows(self.header, **{**self._columns, **columns})

    def with_header(self, header: Mapping[str, Any]) -> "Rows":
        """The same rows with another header."""
        return Rows._of(header, self._columns)

    @staticmethod
    def concat(parts: Iterable["Rows"], header: Mapping[str, Any] | None = None) -> "Rows":
        """All rows of the parts, one after another."""
        several = list(parts)
        if not several:
            return Rows(header)
        return Rows._of(header, {name: _joined([part._columns[name] for part in several]) for name in COLUMNS})

    def equals(self, other: "Rows") -> bool:
        """Whether both hold the same rows in the same order, values to the last bit (NaN equals NaN)."""
        return len(self) == len(other) and all(
            np.array_equal(self[name].view(np.int64), other[name].view(np.int64))
            if name == "value"
            else np.array_equal(self[name], other[name])
            for name in COLUMNS
        )

    def save(self, path: str | Path, header: Mapping[str, Any] | None = None) -> None:
        """Write the rows, whole or not at all; `header` (default: the rows' own) must be plain JSON values."""
        content = {"format": _FORMAT, "header": dict(self.header if header is None else header)}
        arrays: dict[str, NDArray[Any]] = {"header": archives.as_text(content)}
        for name, column in self._columns.items():
            if isinstance(column, _Texts):
                arrays[f"{name}_names"] = archives.as_text(column.names)
                arrays[name] = column.codes
            else:
                arrays[name] = _shortest(column) if name == "value" else column
        archives.write_arrays(Path(path), arrays)

    @staticmethod
    def load(path: str | Path) -> "Rows":
        """Read a file of `save`; anything else than what was written is a DamagedFile."""
        path = Path(path)
        arrays = archives.read_arrays(path)
        try:
            content = archives.from_text(arrays["header"], path)
            if content["format"] != _FORMAT:
                raise UserError(
                    f"{path} has rows in format {str(content['format'])[:40]}, this slotnorm reads {_FORMAT}; install "
                    "a newer one, or evaluate anew"
                )
            check_header(content["header"], path)
            columns: dict[str, Any] = {name: arrays[name] for name in COLUMNS}
            for name in _TEXTS:
                columns[name] = _Texts(arrays[name], archives.from_text(arrays[f"{name}_names"], path))
            return Rows(content["header"], **columns)
        except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            if isinstance(error, UserError) and str(path) in str(error):
                raise
            raise DamagedFile(f"{path} is sealed but holds no rows ({error}); evaluate the run again") from error

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas.DataFrame with these columns; a text is a category, and what a row does not have is missing."""
        try:
            import pandas
        except ImportError as error:
            raise UserError(
                "a DataFrame needs pandas: pip install 'slotnorm[pandas]', or take rows['value'], a NumPy array"
            ) from error
        columns: dict[str, Any] = {}
        for name, column in self._columns.items():
            if isinstance(column, _Texts):
                names, codes = np.unique(np.asarray(column.names, dtype=str), return_inverse=True)
                texts = codes.reshape(-1)[column.codes] if len(column.names) else column.codes
                columns[name] = pandas.Categorical.from_codes(texts, names.tolist())
            elif name == "value":
                columns[name] = column.copy()
            else:
                columns[name] = pandas.arrays.IntegerArray(column.astype(np.int64), column == MISSING)
        return pandas.DataFrame(columns)

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as CSV with a line of names; numbers so that they read back to the same bits."""
        with (
            files.replacing(Path(path)) as temporary,
            open(temporary, "w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            self.write_csv(file)

    def write_csv(self, file: TextIO, names: bool = True) -> None:
        """Write the rows to an open file as `to_csv` does, with or without the line of names."""
        if names:
            file.write(",".join(COLUMNS) + "\n")
        for start in range(0, len(self), _LINES_AT_ONCE):
            some = slice(start, start + _LINES_AT_ONCE)
            bits = self._columns["value"][some].view(np.int64)  # by which -0.0 is not 0.0
            values, place = np.unique(bits, return_inverse=True)
            lines = np.empty((len(place), 3), dtype=object)  # to join pieces takes half the time of a text per line
            lines[:, 0] = self._csv_texts(_OF_IMAGE, some)
            lines[:, 1] = self._csv_texts(_OF_SCORE, some)
            lines[:, 2] = _objects(f"{value!r}\n" for value in values.view(np.float64).tolist())[place.reshape(-1)]
            file.write("".join(lines.reshape(-1).tolist()))

    def _csv_texts(self, columns: tuple[str, ...], some: slice) -> NDArray[Any]:
        """These neighbouring columns as CSV, a text per row; rows with the same entries share theirs."""
        codes = [_places(self.codes(name)[some]) for name in columns]
        shape = [len(entries) for entries, _ in codes]
        kinds, kind = _places(np.ravel_multi_index([places for _, places in codes], shape))
        places = np.unravel_index(kinds, shape)
        cells = [
            [_csv_cell(entry) for entry in self.named(name, entries)]
            for name, (entries, _) in zip(columns, codes, strict=True)
        ]
        texts = _objects(
            "".join(f"{column[place]}," for column, place in zip(cells, row, strict=True))
            for row in zip(*(place.tolist() for place in places), strict=True)
        )
        return np.asarray(texts[kind])

    def _entry(self, name: str, row: int) -> Any:
        column = self._columns[name]
        return column.names[column.codes[row]] if isinstance(column, _Texts) else column[row].item()


class _Texts:
    """A column of texts: for each row the number of its text."""

    def __init__(self, codes: NDArray[Any], names: list[str]) -> None:
        if codes.ndim != 1 or codes.dtype.kind not in "iu":
            raise ValueError("text codes are not a column of integers")
        if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(names):
            raise ValueError("a text code has no text")
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a text is not a string")
        self.names = names
        self.codes = frozen(codes.astype(np.int16 if len(names) < 1 << 15 else np.int32, copy=False))

    @classmethod
    def of(cls, texts: Any) -> "_Texts":
        names: dict[str, int] = {}
        codes = [names.setdefault(str(text), len(names)) for text in texts]
        return cls(np.asarray(codes, dtype=np.int64), list(names))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: NDArray[Any]) -> "_Texts":
        return _Texts(self.codes[rows], self.names)

    def array(self) -> NDArray[Any]:
        texts: NDArray[Any] = np.asarray(self.names or [""], dtype=str)[self.codes]
        return frozen(texts)


def _objects(texts: Iterable[str]) -> NDArray[Any]:
    """Texts as an array, of which many are taken at once."""
    return np.array([*texts, None], dtype=object)[:-1]


def _require_column(name: str) -> str:
    if name not in COLUMNS:
        raise UserError(f"rows have no column {name!r}; {nearest(name, COLUMNS)}")
    return name


def _column(name: str, given: Any, length: int) -> Any:
    if name in _TEXTS:
        if isinstance(given, _Texts):
            return given
        if given is None or isinstance(given, str):
            return _Texts(np.zeros(length, dtype=np.int64), [given or ""])
        return _Texts.of(np.asarray(given).tolist())
    dtype = np.float64 if name == "value" else _INTEGERS[name]
    missing = np.nan if name == "value" else MISSING
    array = np.asarray(missing if given is None else given)
    if array.ndim > 1 or (array.size and array.dtype.kind not in ("iufb" if name == "value" else "iu")):
        kind = "numbers" if name == "value" else "integers"
        raise UserError(f"the column {name} of rows takes {kind}, got {given!r:.60}")
    converted = array.astype(dtype)
    if name != "value" and not np.array_equal(converted, array):
        most = np.iinfo(_INTEGERS[name]).max
        raise UserError(f"the column {name} of rows takes numbers up to {most}, got {given!r:.60}")
    return frozen(np.broadcast_to(converted, (length,)) if not array.ndim else converted)


def _chosen(column: Any, rows: NDArray[Any]) -> Any:
    return column[rows] if isinstance(column, _Texts) else frozen(column[rows])


def _joined(columns: list[Any]) -> Any:
    if not isinstance(columns[0], _Texts):
        return frozen(np.concatenate(columns))
    names: dict[str, int] = {}
    parts = []
    for column in columns:
        numbers = np.asarray([names.setdefault(name, len(names)) for name in column.names], dtype=np.int32)
        parts.append(numbers[column.codes] if len(numbers) else column.codes.astype(np.int32))
    return _Texts(np.concatenate(parts), list(names))


def _places(codes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """As np.unique with return_inverse, without sorting where the codes are close together."""
    codes = codes.astype(np.int64)  # a difference of short integers could overflow
    least = int(codes.min()) if len(codes) else 0
    span = int(codes.max()) - least if len(codes) else 0
    if span == 0:
        return codes[:1], np.zeros(len(codes), dtype=np.int64)
    if span > 8 * len(codes):
        entries, places = np.unique(codes, return_inverse=True)
        return entries, places.reshape(-1)
    there = np.zeros(span + 1, dtype=bool)
    there[codes - least] = True
    return np.flatnonzero(there) + least, (np.cumsum(there) - 1)[codes - least]


def _ordered_codes(column: Any) -> NDArray[Any]:
    """Numbers in the order of the entries: texts by the alphabet."""
    if not isinstance(column, _Texts):
        return np.asarray(np.unique(column, return_inverse=True)[1])
    ranks: NDArray[Any] = np.empty(len(column.names), dtype=np.int64)
    ranks[np.argsort(np.asarray(column.names, dtype=str), kind="stable")] = np.arange(len(column.names))
    return np.asarray(ranks[column.codes])


def _shortest(values: NDArray[np.float64]) -> NDArray[Any]:
    """As float32 where that loses nothing, which takes half the room."""
    short = values.astype(np.float32)
    return short if np.array_equal(short, values, equal_nan=True) else values


def _csv_cell(entry: Any) -> str:
    """An entry as CSV: texts quoted where they must be, no number for MISSING."""
    if not isinstance(entry, str):
        return "" if entry == MISSING else str(entry)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow([entry])
    return "" if entry == "" else buffer.getvalue()
