"""Tables from hand-written rows, with medians, deviations and marks computed by hand."""

import csv
import io
from typing import Any

import numpy as np
import pytest

from slotnorm.evaluation.rows import Rows
from slotnorm.experiments import MAIN, transfers
from slotnorm.report import latex
from slotnorm.report.appearance import fixed
from slotnorm.report.paper_numbers import printed
from slotnorm.report.scores import spread, summarize
from slotnorm.report.sections import Section, divide
from slotnorm.report.tables import decimals_of, study_table, to_csv, to_markdown, zero_shot

MOVI_D = transfers()["movi-d"]
FACTORS = {"movi-10-11": (10, 11), "movi-6-11": (6, 11), "movi-6-7": (6, 7)}


def rows_of(study: str, norm: str, seed: int, values: dict[str, list[float]], **changes: Any) -> Rows:
    """One run on MOVi-D with 24 slots; the values of its images by metric."""
    most, slots = FACTORS[study]
    parts = [
        Rows(**{
            "run": f"{study}-{norm}-{seed}", "norm": norm, "seed": seed, "train_objects": most, "train_slots": slots,
            "dataset": "movi-d", "protocol": "paper", "image": np.arange(len(images)), "objects": 12, "slots": 24,
            "iterations": 3, "source": "masks", "metric": metric, "value": images, **changes,
        })
        for metric, images in values.items()
    ]  # fmt: skip
    return Rows.concat(parts)


def sections(*parts: Rows, failed: tuple[str, ...] = ()) -> list[Section]:
    import dataclasses

    runs = summarize(Rows.concat(parts))
    return divide(dataclasses.replace(run, failed=run.name in failed) for run in runs)


@pytest.fixture(scope="module")
def small() -> list[Section]:
    """Two sections, two normalizations, three seeds; each run has two images whose mean is the middle number."""

    def run(study: str, norm: str, seed: int, f_ari: float, l2: float, ari: float) -> Rows:
        return rows_of(
            study, norm, seed, {"f_ari": [f_ari - 0.1, f_ari + 0.1], "l2": [l2, l2], "ari": [ari - 0.2, ari + 0.2]}
        )

    return sections(
        run("movi-10-11", "weighted_mean", 1, 0.60, 2.10, 0.30),
        run("movi-10-11", "weighted_mean", 2, 0.64, 2.20, 0.31),
        run("movi-10-11", "weighted_mean", 3, 0.61, 2.12, 0.50),
        run("movi-10-11", "batch_norm", 1, 0.70, 2.30, 0.25),
        run("movi-10-11", "batch_norm", 2, 0.72, 2.31, 0.26),
        run("movi-10-11", "batch_norm", 3, 0.75, 2.32, 0.29),
        run("movi-6-7", "weighted_mean", 1, 0.80, 2.05, 0.26),
        run("movi-6-7", "weighted_mean", 2, 0.90, 2.06, 0.26),
        run("movi-6-7", "batch_norm", 1, 0.85, 2.00, 0.20),
        run("movi-6-7", "batch_norm", 2, 0.86, 2.00, 0.40),
    )


def test_medians_and_maximal_deviations_are_those_computed_by_hand(small: list[Section]) -> None:
    table = zero_shot(small, MOVI_D)
    assert table is not None
    assert [part.title for part in table.parts] == ["movi-10-11 (10, 11)", "movi-6-7 (6, 7)"]
    cells = {
        (part.title[:10], line.norm, metric): (round(cell.spread.median, 6), round(cell.spread.deviation, 6))
        for part in table.parts
        for line in part.lines
        for metric, cell in zip(table.metrics, line.cells, strict=True)
    }
    assert cells == {
        ("movi-10-11", "weighted_mean", "f_ari"): (0.61, 0.03),
        ("movi-10-11", "weighted_mean", "l2"): (2.12, 0.08),
        ("movi-10-11", "weighted_mean", "ari"): (0.31, 0.19),
        ("movi-10-11", "batch_norm", "f_ari"): (0.72, 0.03),
        ("movi-10-11", "batch_norm", "l2"): (2.31, 0.01),
        ("movi-10-11", "batch_norm", "ari"): (0.26, 0.03),
        ("movi-6-7 (", "weighted_mean", "f_ari"): (0.85, 0.05),
        ("movi-6-7 (", "weighted_mean", "l2"): (2.055, 0.005),
        ("movi-6-7 (", "weighted_mean", "ari"): (0.26, 0.0),
        ("movi-6-7 (", "batch_norm", "f_ari"): (0.855, 0.005),
        ("movi-6-7 (", "batch_norm", "l2"): (2.0, 0.0),
        ("movi-6-7 (", "batch_norm", "ari"): (0.3, 0.1),
    }


def test_the_best_of_a_section_is_underlined_and_the_best_of_all_bold_and_l2_is_better_when_lower(
    small: list[Section],
) -> None:
    table = zero_shot(small, MOVI_D)
    assert table is not None
    marks = {
        (part.title[:10], line.norm): [(cell.best_in_section, cell.best_of_all) for cell in line.cells]
        for part in table.parts
        for line in part.lines
    }
    assert marks == {
        ("movi-10-11", "weighted_mean"): [(False, False), (True, False), (True, True)],
        ("movi-10-11", "batch_norm"): [(True, False), (False, False), (False, False)],
        ("movi-6-7 (", "weighted_mean"): [(False, False), (False, False), (False, False)],
        ("movi-6-7 (", "batch_norm"): [(True, True), (True, True), (True, False)],
    }


def test_markdown_latex_and_csv_say_the_same(small: list[Section]) -> None:
    table = zero_shot(small, MOVI_D)
    assert table is not None
    markdown, tex = to_markdown(table), latex.table("tables/movi-d-zero-shot", table)
    line = next(line for line in markdown.splitlines() if line.startswith("| Batch Norm") and "0.855" in line)
    assert line == (
        "| Batch Norm | 2 runs | <u>**0.855** ± 0.005</u> (0.809 ± 0.005) | <u>**2.000** ± 0.000</u> (2.374 ± 0.002) | "
        "<u>0.300 ± 0.100</u> (0.297 ± 0.030) |"
    )
    assert r"Batch Norm & 2 runs & \underline{\textbf{0.855} \textpm{} 0.005} (0.809 \textpm{} 0.005) &" in tex
    assert r"Median \textpm{} maximal deviation" in tex
    assert r"\label{tab:movi-d-zero-shot}" in tex
    assert tex.count("        \\midrule") == 2
    assert r"$\ell^2$ loss ($\downarrow$)" in tex
    assert tex.count("{") == tex.count("}")
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(lines) == 12
    first = lines[0]
    assert (first["norm"], first["metric"], float(first["median"])) == ("weighted_mean", "f_ari", pytest.approx(0.61))
    assert (first["paper_median"], first["best_in_section"]) == ("0.647", "0")


def test_failed_runs_are_counted_and_left_out_when_asked() -> None:
    parts = [rows_of("movi-6-7", "batch_norm", seed, {"f_ari": [value]}) for seed, value in enumerate([0.8, 0.1, 0.7])]
    every_section = sections(*parts, failed=("movi-6-7-batch_norm-1",))
    with_all, without = zero_shot(every_section, MOVI_D), zero_shot(every_section, MOVI_D, leave_out_failed=True)
    assert with_all is not None
    assert without is not None
    line, kept = with_all.parts[0].lines[0], without.parts[0].lines[0]
    assert (line.runs, line.cells[0].spread.median, line.cells[0].spread.runs) == ("3 runs", 0.7, 3)
    assert (kept.runs, kept.cells[0].spread.median, kept.cells[0].spread.runs) == ("2 of 3 runs", 0.75, 2)


def test_a_cell_without_runs_is_a_dash_and_is_never_best() -> None:
    every_section = sections(
        rows_of("movi-6-7", "batch_norm", 1, {"f_ari": [0.5]}),
        rows_of("movi-6-7", "weighted_sum", 1, {"f_ari": [0.9]}),
        failed=("movi-6-7-weighted_sum-1",),
    )
    table = zero_shot(every_section, MOVI_D, leave_out_failed=True)
    assert table is not None
    weighted_sum, batch_norm = table.parts[0].lines
    assert weighted_sum.runs == "0 of 1 runs"
    assert not weighted_sum.cells[0].best_in_section
    assert batch_norm.cells[0].best_of_all
    assert "| Weighted Sum | 0 of 1 runs | – (0.797 ± 0.023) | – (2.475 ± 0.038) | – (0.242 ± 0.156) |" in to_markdown(
        table
    )


def test_undefined_scores_are_left_out_of_the_mean_and_counted() -> None:
    (run,) = summarize(rows_of("movi-6-7", "batch_norm", 1, {"f_ari": [0.5, np.nan, 0.7]}))
    assert run.mean("movi-d", "f_ari", 24) == (pytest.approx(0.6), 2, 1)
    assert run.mean("movi-d", "f_ari", 23).scored == 0
    assert np.isnan(run.mean("movi-d", "ari", 24).value)


def test_scenes_with_fewer_than_two_visible_objects_stand_apart() -> None:
    rows = rows_of("movi-6-7", "batch_norm", 1, {"f_ari": [1.0, 0.4, 0.8], "visible": [1, 2, 3]})
    (run,) = summarize(rows)
    assert run.mean("movi-d", "f_ari", 24) == (pytest.approx(0.6), 2, 0)
    assert run.mean("movi-d", "f_ari", 24, few=True) == (1.0, 1, 0)
    assert ("movi-d", "masks", "visible") not in run.tallies


def test_without_a_count_of_visible_objects_the_objects_are_counted() -> None:
    rows = rows_of("movi-6-7", "batch_norm", 1, {"l2": [3.0, 1.0]}, objects=[1, 2])
    (run,) = summarize(rows)
    assert run.mean("movi-d", "l2", 24).value == 1.0
    (unlabelled,) = summarize(rows_of("movi-6-7", "batch_norm", 1, {"l2": [3.0, 1.0]}, objects=[0, 0]))
    assert unlabelled.mean("movi-d", "l2", 24).value == 2.0


def test_the_spread_of_runs() -> None:
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 1.0, 3.0, 3)
    assert spread([1.0, 4.0]) == (2.5, 1.5, 1.0, 4.0, 2)
    assert spread([5.0, float("nan")]) == (5.0, 0.0, 5.0, 5.0, 1)
    assert spread([]).runs == 0
    assert np.isnan(spread([float("nan")]).median)


def test_the_papers_own_numbers_get_the_papers_marks() -> None:
    parts = []
    for study in MOVI_D.studies:
        for norm in MAIN:
            values = {metric: printed("movi-d", study, norm, metric) for metric in ("f_ari", "l2", "ari")}
            parts.append(rows_of(study, norm, 1, {name: [number.median] for name, number in values.items() if number}))
    table = zero_shot(sections(*parts), MOVI_D)
    assert table is not None
    bold = {
        metric: (part.title, line.norm)
        for part in table.parts
        for line in part.lines
        for metric, cell in zip(table.metrics, line.cells, strict=True)
        if cell.best_of_all
    }
    assert bold == {
        "f_ari": ("movi-6-7 (6, 7)", "batch_norm"),
        "l2": ("movi-10-11 (10, 11)", "weighted_mean"),
        "ari": ("movi-6-7 (6, 7)", "batch_norm"),
    }
    underlined = [[line.norm for line in part.lines if line.cells[0].best_in_section] for part in table.parts]
    assert underlined == [["batch_norm"], ["batch_norm"], ["batch_norm"]]


def test_there_is_no_table_of_a_transfer_that_nobody_evaluated(small: list[Section]) -> None:
    other = [rows_of("movi-6-7", "batch_norm", 1, {"f_ari": [0.5]}, dataset="movi-c6")]
    assert zero_shot(sections(*other), MOVI_D) is None
    assert printed("movi-d", "movi-6-7", "unnormalized", "f_ari") is None
    assert printed("clevr", "movi-6-7", "batch_norm", "f_ari") is None


def test_numbers_that_look_the_same_are_marked_alike() -> None:
    every_section = sections(
        rows_of("movi-6-7", "batch_norm", 1, {"f_ari": [0.50001]}),
        rows_of("movi-6-7", "layer_norm", 1, {"f_ari": [0.5]}),
    )
    table = zero_shot(every_section, MOVI_D)
    assert table is not None
    assert [line.cells[0].best_of_all for line in table.parts[0].lines] == [True, True]


def test_small_losses_keep_their_digits() -> None:
    rows = rows_of("movi-6-7", "batch_norm", 1, {"f_ari": [0.5], "l2": [0.00213]}, dataset="movi-c10")
    table = study_table(sections(rows.with_columns(slots=7))[0])
    assert table is not None
    assert table.metrics == ("f_ari", "l2")
    assert decimals_of(table, 1) == 5
    assert "| 1 run | 0.500 | 0.00213 |" in to_markdown(table)  # one run has no deviation, and one alone is no best
    assert "**" not in to_markdown(table)  # a study's parts are not compared with each other


def test_names_with_markup_are_harmless_in_every_format() -> None:
    name = "<script>_|&$%😀"
    rows = rows_of("movi-6-7", "batch_norm", 1, {"f_ari": [0.5]}, dataset=name, run="movi-6-7-batch_norm-1", slots=7)
    table = study_table(sections(rows)[0])
    assert table is not None
    assert r"&lt;script&gt;\_\|&amp;$%😀" in to_markdown(table)
    assert "<script>" not in to_markdown(table)
    assert r"\textless{}script\textgreater{}\_\textbar{}\&\$\%[U+1F600], 7 slots" in latex.table("x", table)


def test_an_unknown_normalization_is_shown_last_under_its_own_name() -> None:
    every_section = sections(
        rows_of("movi-6-7", "my_norm", 1, {"f_ari": [0.9]}), rows_of("movi-6-7", "batch_norm", 1, {"f_ari": [0.5]})
    )
    table = zero_shot(every_section, MOVI_D)
    assert table is not None
    assert [(line.label, line.cells[0].best_of_all) for line in table.parts[0].lines] == [
        ("Batch Norm", False),
        ("my_norm", True),
    ]


def test_numbers_below_zero_are_written_alike_everywhere_and_zero_has_no_minus() -> None:
    assert [fixed(value) for value in (-0.0004, 0.0, -0.0, -0.0006, 0.12345)] == [
        "0.000", "0.000", "0.000", "−0.001", "0.123",
    ]  # fmt: skip
    table = study_table(
        sections(
            rows_of("movi-6-7", "batch_norm", 1, {"ari": [-0.0001]}, dataset="mine", slots=7),
            rows_of("movi-6-7", "my_norm", 1, {"ari": [-0.2]}, dataset="mine", slots=7),
        )[0]
    )
    assert table is not None
    written = to_markdown(table), latex.table("x", table)
    assert all("-0.000" not in text and "−0.000" not in text for text in written)
    assert "| −0.200 |" in written[0]
    assert "& $-$0.200 " in written[1]
