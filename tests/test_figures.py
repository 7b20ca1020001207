"""Figures for papers: real text, embedded fonts, styles, widths, what is chosen, what is noise, LaTeX."""

import csv
import dataclasses
import io
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties
from PIL import Image

from made_up_page import made_up_report
from made_up_rows import made_up, save
from slotnorm.errors import UserError
from slotnorm.evaluation.rows import Rows
from slotnorm.report.contents import Report
from slotnorm.report.curves import Figure, Panel, figures, gathered
from slotnorm.report.drawing import fonts, png
from slotnorm.report.drawing.axes import Scale, plain_number
from slotnorm.report.drawing.choice import Choice, is_flat, shows_only_noise
from slotnorm.report.drawing.curve_figures import draw
from slotnorm.report.drawing.forest_figure import draw_forest, forests
from slotnorm.report.drawing.layout import Format, _side_by_side
from slotnorm.report.drawing.sheet import Sheet
from slotnorm.report.drawing.style import STYLES, contrast
from slotnorm.report.safe_names import latex as escaped
from slotnorm.report.scores import summarize
from slotnorm.report.sections import divide
from slotnorm.report.writing import write_report

pytestmark = pytest.mark.usefixtures("few_resamples")

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def rows() -> Rows:
    return made_up("toy", seeds=(1, 2, 3), slots=(3, 5, 10, 15), images=12)


@pytest.fixture(scope="module")
def figure(rows: Rows) -> Figure:
    return figures(divide(summarize(rows))[0])[0]


@pytest.fixture(scope="module")
def report() -> Report:
    return made_up_report()


@pytest.fixture(scope="module")
def runs(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in rows.unique("run"):
        save(rows.where(run=name), folder / str(name))
    return folder


def words_of_pdf(file: bytes) -> list[str]:
    """Every text of the page, read as a reader of PDF does: by each font's own table of letters."""
    objects = dict(re.findall(rb"(\d+) 0 obj\n(.*?)\nendobj", file, flags=re.DOTALL))
    streams = {
        number: zlib.decompress(body.split(b"stream\n", 1)[1].rsplit(b"\nendstream", 1)[0]).decode("latin-1")
        for number, body in objects.items()
        if b"stream\n" in body
    }
    page = next(body for body in objects.values() if b"/Type /Page " in body)
    letters = {}
    for name, number in re.findall(rb"/(F\d) (\d+) 0 R", page):
        table = streams[re.search(rb"/ToUnicode (\d+) 0 R", objects[number])[1]]  # type: ignore[index]
        pairs = re.findall(r"<([0-9a-f]{4})> <([0-9a-f]+)>\n", table.split("endcodespacerange")[1])
        letters[name.decode()] = {code: bytes.fromhex(text).decode("utf-16-be") for code, text in pairs}
    content = streams[re.search(rb"/Contents (\d+) 0 R", page)[1]]  # type: ignore[index]
    return [
        "".join(letters[font][code] for code in re.findall("....", codes))
        for font, codes in re.findall(r"/(F\d) \S+ Tf .*? <([0-9a-f]*)> Tj", content)
    ]


def test_svg_and_pdf_say_the_same_in_real_text_with_fonts_inside(figure: Figure) -> None:
    files = draw(figure)
    texts = [element.text for element in ElementTree.fromstring(files["svg"]).iter(f"{SVG}text")]
    assert texts == words_of_pdf(files["pdf"])
    assert "F-ARI (↑) on toy4" in texts
    assert files["svg"].count(b"@font-face") == files["pdf"].count(b"/FontFile2") == 2  # regular and bold
    assert b"/Subtype /Type3" not in files["pdf"]  # which journals refuse


@pytest.mark.skipif(shutil.which("pdffonts") is None, reason="needs poppler-utils")
def test_another_reader_finds_words_and_embedded_fonts_in_the_pdf(figure: Figure, tmp_path: Path) -> None:
    path = tmp_path / "figure.pdf"
    path.write_bytes(draw(figure)["pdf"])
    listed = subprocess.run(["pdffonts", path], capture_output=True, text=True, check=True).stdout.splitlines()[2:]
    assert [line.split()[-5:-2] for line in listed] == [["yes", "yes", "yes"]] * 2  # embedded, subset, unicode
    text = subprocess.run(["pdftotext", path, "-"], capture_output=True, text=True, check=True).stdout
    assert "slots K in evaluation" in text


def test_letters_that_are_rare_are_in_the_font_too(figure: Figure) -> None:
    files = draw(dataclasses.replace(figure, title="Ψ <žluť> $x_1$ 😀"))
    words = words_of_pdf(files["pdf"])
    assert "Ψ <žluť> $x_1$" in words[0]
    assert "Ψ" not in fonts._ALWAYS
    ElementTree.fromstring(files["svg"])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("width", "inches"), [("page", (6.75, 12)), ("column", (3.25, 6))])
def test_styles_and_widths_are_what_they_say(
    figure: Figure, style: str, width: str, inches: tuple[float, float]
) -> None:
    choice = Choice(style, width)  # type: ignore[arg-type]
    files = draw(figure, choice.form)
    root = ElementTree.fromstring(files["svg"])
    assert float(root.get("width", "").removesuffix("pt")) / 72 == pytest.approx(inches[style != "paper"])
    smallest = min(float(text.get("font-size", "0")) for text in root.iter(f"{SVG}text"))
    assert smallest >= 0.79 * STYLES[style].text  # also where a panel is of three sets
    with Image.open(io.BytesIO(files["png"])) as image:
        assert image.mode == "RGB"
        corner, dots = image.getpixel((0, 0)), image.info["dpi"]
        assert image.width / dots[0] == pytest.approx(inches[style != "paper"], abs=0.01)
    assert corner == tuple(int(STYLES[choice.style].background[place : place + 2], 16) for place in (1, 3, 5))


def test_a_title_that_is_too_wide_has_two_lines_and_room_for_them(figure: Figure) -> None:
    def words(title: str) -> dict[str, tuple[float, float]]:
        """Every text of the figure with this one panel -> the place of its line, and its size."""
        panel = dataclasses.replace(figure.rows[0][0], datasets=(title,))
        svg = draw(dataclasses.replace(figure, rows=((panel,),)), Format(width="column"))["svg"]
        texts = ElementTree.fromstring(svg).iter(f"{SVG}text")
        return {str(text.text): (float(text.get("y", "0")), float(text.get("font-size", "0"))) for text in texts}

    short, long = words("toy4"), words("a set of scenes, and beside it another one with smaller objects")
    (upper, size), (lower, other) = (
        long["F-ARI (↑) on a set of scenes, and beside"],
        long["it another one with smaller objects"],
    )
    assert size == other == STYLES["paper"].text
    assert upper == short["F-ARI (↑) on toy4"][0]
    assert lower - upper == pytest.approx(1.2 * size)
    below = "slots K in evaluation"
    assert long[below][0] - short[below][0] == pytest.approx(lower - upper, abs=0.02)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("width", ["page", "column"])
def test_the_forest_plot_names_its_metrics_in_one_piece_and_nothing_lies_on_its_title(
    report: Report, style: str, width: str
) -> None:
    (forest, *_) = forests(report.effects)
    svg = draw_forest(forest, Choice(style, width).form)["svg"]  # type: ignore[arg-type]
    texts = [
        (str(text.text), float(text.get("y", "0"))) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")
    ]  # fmt: skip
    assert {"change of F-ARI", "change of ARI"} <= {words for words, _ in texts}
    (title,) = (y for words, y in texts if words == forest.title)
    assert min(y for words, y in texts if words != forest.title) > title
    assert not [words for words, _ in texts if len(words) == 1 and words.isalpha()]


def test_short_rows_of_panels_stand_side_by_side_and_the_marks_of_paths_are_as_thick_as_lines(report: Report) -> None:
    assert _side_by_side([["a", "b", "c"], ["d", "e"], ["f"]], 3) == [["a", "b", "c"], ["d", "e", "f"]]
    assert _side_by_side([["a", "b"], ["c", "d"]], 2) == [["a", "b"], ["c", "d"]]
    background = report.sections[0].results.background
    assert background is not None
    for style in ("paper", "slides"):
        svg = draw(background.figure, Choice(style, "page").form)["svg"].decode()
        widest = max(float(width) for width in re.findall(r'stroke-width="([\d.]+)"', svg))
        assert widest <= STYLES[style].line  # type: ignore[index]


def test_on_a_dark_background_every_colour_can_be_told_from_it(figure: Figure) -> None:
    dark = STYLES["dark"]
    for color in ("#000000", "#0072B2", "#D55E00", dark.quiet):
        assert contrast(dark.color(color), dark.background) >= 4
    assert STYLES["paper"].color("#0072b2") == "#0072b2"


def test_a_single_run_is_light_and_opaque_and_medians_lie_over_all_of_them(figure: Figure) -> None:
    svg = draw(figure)["svg"].decode()
    assert "opacity" not in svg
    first = svg[svg.index('<g clip-path="url(#cut0)">') :].split("</g>\n<")[0]
    widths = [float(width) for width in re.findall(r'stroke-width="([\d.]+)" stroke-linejoin', first)]
    light, strong = min(widths), max(widths)
    last_light = max(place for place, width in enumerate(widths) if width == light)
    assert widths.count(light) == 12  # three runs of four normalizations
    assert all(width == strong for width in widths[last_light + 1 :])


def test_gaps_interrupt_lines_and_numbers_have_no_minus_before_zero() -> None:
    assert plain_number(-0.0) == "0"
    assert plain_number(-0.25) == "−0.25"
    assert [tick.words for tick in Scale(0.04, 12, logarithmic=True).ticks(5)] == [
        "0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10",
    ]  # fmt: skip


def panel_of(*values: list[list[float]]) -> Panel:
    """A panel against K 5 and 10: of each normalization the values of its runs."""
    norms = ("weighted_mean", "batch_norm")
    curves = {
        norm: gathered([5, 10], {f"{norm}-{seed}": own for seed, own in enumerate(runs)})
        for norm, runs in zip(norms, values, strict=False)
    }
    return Panel("f_ari", "masks", "slots", ("toy4",), None, curves, 5, 4)


FLAT = [[0.2, 0.3], [0.3, 0.2], [0.25, 0.25]]


def test_a_panel_of_overlapping_runs_without_a_change_is_noise_and_others_are_not() -> None:
    assert shows_only_noise(panel_of(FLAT, FLAT))
    higher = [[value + 0.2 for value in own] for own in FLAT]
    assert not shows_only_noise(panel_of(FLAT, higher))  # two normalizations can be told apart
    falling = [[0.3, 0.1], [0.35, 0.05], [0.25, 0.12]]
    assert not shows_only_noise(panel_of(FLAT, falling))  # a curve changes
    assert not shows_only_noise(panel_of(FLAT[:2], FLAT))  # two runs do not tell what is noise
    assert shows_only_noise(panel_of(FLAT, [[0.2, np.nan], [0.3, np.nan], [0.25, np.nan]]))


def test_a_score_that_is_the_same_to_two_decimals_shows_nothing() -> None:
    zero = [[0.0, 0.001], [0.0, 0.004], [0.002, 0.0]]
    rising = [[0.0, 0.01], [0.0, 0.02], [0.002, 0.03]]
    assert is_flat(panel_of(zero, zero))
    assert shows_only_noise(panel_of(zero[:1], zero[:1]))  # whatever the number of runs
    assert not is_flat(panel_of(zero, rising))
    assert not is_flat(dataclasses.replace(panel_of(zero, zero), metric="l2"))  # an error has no scale of its own


def test_words_of_a_png_stand_where_matplotlib_puts_them() -> None:
    sheet = Sheet(120, 40, "#ffffff", "")
    sheet.words(13.3, 21.7, "F-ARI jÅg 0.5", 7.5, "#202020")
    ours = np.asarray(Image.open(io.BytesIO(png.to_png(sheet, 1.0))).convert("L"), dtype=float)
    scale = 240 / 72
    renderer = RendererAgg(round(120 * scale), round(40 * scale), 240)
    context = renderer.new_gc()
    context.set_foreground("#202020")
    letters = FontProperties(fname=str(fonts.file_of()), size=7.5)
    renderer.draw_text(context, round(13.3 * scale), round(21.7 * scale), "F-ARI jÅg 0.5", letters, 0)
    theirs = 255 - np.asarray(renderer.buffer_rgba())[:, :, 3].astype(float) * (255 - 0x20) / 255
    assert (ours < 128).sum() > 200
    assert np.abs(ours - theirs).max() <= 2
    for left, y in ((-200, 20), (300, 20), (10, -50), (10, 90)):
        sheet.words(left, y, "beyond the sheet", 7.5, "#202020")
    beyond = np.asarray(Image.open(io.BytesIO(png.to_png(sheet, 1.0))).convert("L"), dtype=float)
    np.testing.assert_array_equal(beyond, ours)


def test_panels_of_noise_are_left_out_and_said(figure: Figure) -> None:
    noise = panel_of(FLAT, FLAT)
    mixed = dataclasses.replace(figure, rows=((figure.rows[0][0], noise),))
    chosen = Choice().of(mixed)
    assert chosen.figure is not None
    assert chosen.figure.rows == ((figure.rows[0][0],),)
    assert chosen.left_out.endswith("beyond the range of the runs: F-ARI (↑) on toy4.")
    assert Choice().of(dataclasses.replace(figure, rows=((noise,),))).figure is None


def test_norms_and_metrics_are_chosen_for_figures_alone(runs: Path, tmp_path: Path) -> None:
    choice = Choice(norms=("batch_norm", "weighted_mean"), metrics=("f_ari",))
    write_report([runs], tmp_path / "report", models=False, rows=False, choice=choice)
    with open(tmp_path / "report" / "figures" / "toy-segmentation.csv") as file:
        lines = list(csv.DictReader(file))
    assert {line["norm"] for line in lines} == {"weighted_mean", "batch_norm"}
    assert {line["metric"] for line in lines} == {"f_ari"}
    assert not (tmp_path / "report" / "figures" / "toy-reconstruction.svg").exists()
    with open(tmp_path / "report" / "figures" / "effect.csv") as file:
        assert {line["metric"] for line in csv.DictReader(file)} == {"f_ari"}
    assert "Layer Norm" in (tmp_path / "report" / "tables" / "toy.md").read_text()
    page = (tmp_path / "report" / "report.md").read_text()
    assert all((tmp_path / "report" / name).is_file() for name in re.findall(r"\]\((figures/[^)]+)\)", page))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice(norms=("batchnorm",)), "--norms has 'batchnorm', but the runs have none of it; .*batch_norm"),
        (Choice(metrics=("fari",)), "--metrics has 'fari', but the runs have none of it; .*f_ari"),
    ],
)
def test_what_no_run_has_cannot_be_chosen(runs: Path, tmp_path: Path, choice: Choice, words: str) -> None:
    with pytest.raises(UserError, match=words):
        write_report([runs], tmp_path / "report", models=False, rows=False, choice=choice)
    assert not (tmp_path / "report").exists()


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "report"
    write_report([runs], out, models=False, rows=False)
    return out


def test_every_figure_has_its_pictures_its_data_and_its_latex(written: Path) -> None:
    names = {path.stem for path in (written / "figures").iterdir()}
    assert {"effect", "effect-differences", "toy-segmentation", "toy-background"} <= names
    for name in names:
        endings = {path.suffix for path in (written / "figures").glob(f"{name}.*")}
        assert endings == {".svg", ".pdf", ".png", ".csv", ".tex"}, name
        assert rf"\label{{fig:{name}}}" in (written / "figures" / f"{name}.tex").read_text()


def document(written: Path, packages: str) -> str:
    parts = [f"\\input{{{path.relative_to(written)}}}" for path in sorted(written.rglob("*.tex"))]
    letters = escaped("".join(map(chr, range(0x20, 0x250))) + "±÷×²ℓ∞−→↑↓–…“”’😀")
    head = rf"\documentclass{{article}}\usepackage[T1]{{fontenc}}\usepackage{{{packages}}}\extrafloats{{100}}"
    body = "\n".join([*parts, r"\clearpage"])
    return f"{head}\\begin{{document}}\n{letters}\n\n{body}\n\\end{{document}}\n"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs a TeX: apt-get install texlive-latex-recommended")
@pytest.mark.parametrize("packages", ["graphicx", "booktabs,graphicx"])
def test_the_latex_of_every_table_and_figure_compiles(written: Path, tmp_path: Path, packages: str) -> None:
    if "booktabs" in packages and not subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).stdout:
        pytest.skip("this TeX has no booktabs: apt-get install texlive-latex-recommended")
    copy = Path(shutil.copytree(written, tmp_path / "report"))
    (copy / "all.tex").write_text(document(written, packages), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined" not in done.stdout
    assert "Missing character" not in (copy / "all.log").read_text(errors="replace")


def test_the_latex_of_every_table_and_figure_is_balanced(written: Path) -> None:
    for path in written.rglob("*.tex"):
        text = path.read_text(encoding="utf-8")
        assert text.isascii(), path
        opened, closed = (re.findall(rf"\\{kind}\{{([^}}]+)\}}", text) for kind in ("begin", "end"))
        assert sorted(opened) == sorted(closed)
        bare = text.replace(r"\{", "").replace(r"\}", "").replace(r"\$", "")
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        assert text.count(r"\label{") == text.count(r"\caption{") == 1


def test_a_form_is_a_style_and_a_width() -> None:
    assert Format().points == 6.75 * 72
