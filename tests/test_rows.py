"""Rows: columns, groups, sealed files and CSV."""

import csv
import io
import math
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotnorm.errors import DamagedFile, UserError
from slotnorm.evaluation.rows import COLUMNS, MISSING, Rows
from slotnorm.storage import archives, seals


def some_rows(num: int = 60, seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(
        run="a", norm=random.choice(["weighted_sum", "batch_norm", "layer <b>norm</b>"], num), dataset="clevr6",
        image=random.integers(0, 9, num), objects=random.integers(3, 7, num), slots=random.integers(3, 6, num),
        source=random.choice(["masks", "attention"], num), metric=random.choice(["f_ari", "l2"], num),
        value=np.where(random.random(num) < 0.2, math.nan, random.normal(size=num)),
    )  # fmt: skip


def test_columns_are_arrays_with_one_entry_a_row_and_what_is_missing_says_so():
    rows = Rows(norm=["b", "a"], slots=3, value=[0.5, math.nan])
    assert len(rows) == 2
    assert rows["norm"].tolist() == ["b", "a"]
    assert rows["slots"].tolist() == [3, 3]
    assert rows["slots"].dtype == np.int64
    assert rows["value"].dtype == np.float64
    assert rows["image"].tolist() == [MISSING, MISSING]
    assert rows["metric"].tolist() == ["", ""]
    assert len(Rows()) == 0
    assert Rows()["norm"].tolist() == []
    assert repr(Rows(metric=["l2", "f_ari", "l2"])) == "Rows(3 rows, metrics l2, f_ari)"


def test_rows_cannot_be_changed():
    rows = some_rows()
    for name in COLUMNS:
        with pytest.raises(ValueError, match="read-only"):
            rows[name][0] = rows[name][1]


def test_where_keeps_the_rows_that_match_one_entry_or_any_of_several():
    rows = some_rows()
    kept = rows.where(norm=["batch_norm", "absent"], slots=range(4, 9), metric="l2")
    expected = (rows["norm"] == "batch_norm") & (rows["slots"] >= 4) & (rows["metric"] == "l2")
    assert 0 < len(kept) == expected.sum()
    for name in COLUMNS:
        assert np.array_equal(kept[name], rows[name][expected], equal_nan=name == "value")
    assert len(rows.where(norm="absent")) == len(rows.where(slots=[])) == len(rows.where(slots=3.5)) == 0


def test_groups_are_what_a_slow_loop_finds():
    rows = some_rows(200)
    slow: dict = {}
    for norm, slots, value in zip(rows["norm"].tolist(), rows["slots"].tolist(), rows["value"].tolist(), strict=True):
        slow.setdefault((norm, slots), []).append(value)
    groups = list(rows.groups("norm", "slots"))
    assert [key for key, _ in groups] == sorted(slow)
    for key, part in groups:
        assert np.array_equal(part["value"], slow[key], equal_nan=True)
    assert [len(part) for _, part in rows.groups()] == [200]
    assert list(Rows().groups("norm")) == []


def test_unique_gives_entries_in_the_order_of_first_appearance():
    assert Rows(norm=["b", "a", "b"], slots=[9, 3, 9]).unique("norm") == ["b", "a"]
    assert Rows(norm=["b", "a", "b"], slots=[9, 3, 9]).unique("slots") == [9, 3]
    assert some_rows().where(norm="batch_norm").unique("norm") == ["batch_norm"]


def test_joined_rows_are_the_parts_one_after_another():
    few, other = some_rows(7, 1), some_rows(9, 2).with_columns(run="<other>", slots=np.arange(9))
    both = Rows.concat([few, Rows(), other], {"is": "joined"})
    assert both.header == {"is": "joined"}
    for name in COLUMNS:
        together = np.concatenate([few[name], other[name]])
        assert np.array_equal(both[name], together, equal_nan=name == "value")
    assert both.take(np.arange(16) < 7).equals(few)
    assert both.take(np.arange(7, 16)).equals(other)
    assert not both.equals(few)
    assert not few.equals(few.with_columns(value=np.nextafter(few["value"], 9)))
    assert len(Rows.concat([])) == 0


def test_a_file_gives_back_rows_and_header_and_numpy_can_read_it_alone(tmp_path):
    rows = some_rows()
    header = {"protocol": "paper", "weights": "ab", "noise_seed": 0, "experiment": None}
    rows.save(tmp_path / "rows.npz", header)
    back = Rows.load(tmp_path / "rows.npz")
    assert back.equals(rows)
    assert back.header == header
    with np.load(tmp_path / "rows.npz", allow_pickle=False) as plain:
        assert np.array_equal(plain["value"], rows["value"], equal_nan=True)
    rows.save(tmp_path / "again.npz", header)
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "rows.npz").read_bytes()
    Rows().save(tmp_path / "empty.npz")
    assert len(Rows.load(tmp_path / "empty.npz")) == 0


def test_rows_that_could_not_be_read_again_are_not_written(tmp_path):
    path = tmp_path / "rows.npz"
    some_rows().save(path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="cannot be read again, as the name of a file or folder that is not text"):
        some_rows().with_columns(run="\udcff").save(path)
    assert path.read_bytes() == before


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_or_lost_end_is_noticed(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped.npz"
    some_rows().save(path)
    written = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, 8 * len(written) - 1))
        written[bit // 8] ^= 1 << bit % 8
    else:
        del written[data.draw(st.integers(0, len(written) - 1)) :]
    path.write_bytes(written)
    with pytest.raises(DamagedFile, match="its seal does not match"):
        Rows.load(path)


def test_a_sealed_file_that_is_not_ours_is_refused(tmp_path):
    path = tmp_path / "rows.npz"
    some_rows().save(path)
    arrays = archives.read_arrays(path)
    for name, change, sentence in (
        ("header", None, "holds no rows"),
        ("value", None, "holds no rows"),
        ("norm", arrays["norm"] + 100, "holds no rows"),
        ("norm_names", archives.as_text([1, 2, 3]), "holds no rows"),
        ("slots", arrays["slots"][:3], "do not fit together"),
        ("header", archives.as_text({"format": 99, "header": {}}), "rows in format 99, this slotnorm reads 1"),
    ):
        altered = {**arrays, name: change} if change is not None else {k: v for k, v in arrays.items() if k != name}
        archives.write_arrays(path, altered)
        with pytest.raises(UserError, match=sentence):
            Rows.load(path)


def test_a_small_sealed_file_cannot_ask_for_much_memory(tmp_path):
    """Deflate packs zeros a thousand times smaller: one megabyte would become a gigabyte, whoever reads it."""
    path, packed = tmp_path / "bomb.npz", io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("value.npy", "w") as member:
            header = {"descr": "|u1", "fortran_order": False, "shape": (100 << 20,)}
            np.lib.format.write_array_header_1_0(member, header)
            for _ in range(100):
                member.write(bytes(1 << 20))
        archive.comment = seals.open_tail()
    path.write_bytes(seals.close_tail(packed.getvalue()))
    assert path.stat().st_size < 200_000
    with pytest.raises(DamagedFile, match=r"would unpack to 1048577\d\d bytes: not a file of slotnorm; delete it"):
        archives.read_arrays(path)


def test_what_packs_too_well_is_written_so_that_it_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_ALWAYS_READ", 1000)
    zeros = np.zeros(100_000)
    archives.write_arrays(tmp_path / "zeros.npz", {"a": zeros})
    assert np.array_equal(archives.read_arrays(tmp_path / "zeros.npz")["a"], zeros)
    archives.pack_tightly(tmp_path / "zeros.npz")
    assert np.array_equal(archives.read_arrays(tmp_path / "zeros.npz")["a"], zeros)


def test_pickles_and_bombs_are_not_opened(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        archives.write_arrays(tmp_path / "object.npz", {"a": np.array([{}], dtype=object)})
    monkeypatch.setattr(archives, "_MOST_BYTES", 1000)
    archives.write_arrays(tmp_path / "large.npz", {"a": np.zeros(5000)})
    with pytest.raises(DamagedFile, match="would unpack to 40128 bytes"):
        archives.read_arrays(tmp_path / "large.npz")
    with zipfile.ZipFile(tmp_path / "large.npz") as archive:
        assert archive.testzip() is None
    with pytest.raises(UserError, match="cannot read"):
        Rows.load(tmp_path / "absent.npz")


@pytest.mark.parametrize(("value", "dtype"), [([0.5, 0.1, math.nan], np.float64), ([0.5, 2.25, math.nan], np.float32)])
def test_values_are_stored_in_single_precision_only_where_that_loses_nothing(tmp_path, value, dtype):
    rows = Rows(value=value)
    rows.save(tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz") as stored:
        assert stored["value"].dtype == dtype
    assert Rows.load(tmp_path / "rows.npz").equals(rows)


def test_csv_reads_back_to_the_same_numbers(tmp_path):
    rows = some_rows().with_columns(image=np.where(np.arange(60) % 5, np.arange(60), MISSING))
    rows.to_csv(tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv", newline="", encoding="utf-8") as file:
        names, *lines = csv.reader(file)
    assert tuple(names) == COLUMNS
    columns = dict(zip(names, zip(*lines, strict=True), strict=True))
    assert np.array_equal([float(cell) for cell in columns["value"]], rows["value"], equal_nan=True)
    assert [int(cell or MISSING) for cell in columns["image"]] == rows["image"].tolist()
    assert columns["image"][0] == columns["seed"][0] == ""
    assert list(columns["norm"]) == rows["norm"].tolist()


def test_what_rows_cannot_hold_is_refused_in_one_sentence():
    with pytest.raises(UserError, match="rows have no column 'slot'; did you mean 'slots'"):
        Rows(slot=3)
    with pytest.raises(UserError, match="rows have no column 'nrom'"):
        some_rows().where(nrom="a")
    with pytest.raises(UserError, match=r"columns of \[2, 3\] rows do not fit together"):
        Rows(slots=[1, 2], value=[1, 2, 3])
    with pytest.raises(UserError, match="the column slots of rows takes integers"):
        Rows(slots=[1.5])
    with pytest.raises(UserError, match="the column slots of rows takes numbers up to 2147483647"):
        Rows(slots=[1 << 40])


def test_a_data_frame_has_the_columns_with_categories_and_what_is_missing():
    pandas = pytest.importorskip("pandas")
    rows = Rows(norm=["b", "a", "b"], slots=[3, 4, 5], image=[0, MISSING, 2], metric="ari", value=[0.5, math.nan, 1.0])
    frame = rows.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["norm"].tolist() == ["b", "a", "b"]
    assert frame["norm"].cat.categories.tolist() == ["a", "b"]
    assert frame["image"].isna().tolist() == [False, True, False]
    assert frame["slots"].tolist() == [3, 4, 5]
    assert frame["value"].isna().tolist() == [False, True, False]
    assert frame.groupby("norm", observed=True)["value"].mean().to_dict() == {
        "a": pytest.approx(math.nan, nan_ok=True),
        "b": 0.75,
    }
    assert len(Rows().to_pandas()) == 0
    assert isinstance(Rows.concat([rows, rows]).to_pandas(), pandas.DataFrame)


def test_without_pandas_a_data_frame_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="^a DataFrame needs pandas: pip install .slotnorm.pandas.., or take rows"):
        Rows().to_pandas()
