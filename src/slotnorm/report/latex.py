r"""Tables and figures for LaTeX; they need \usepackage[T1]{fontenc} and graphicx, and take the rules of booktabs."""

from slotnorm.report.appearance import fixed, measure
from slotnorm.report.safe_names import latex as escaped
from slotnorm.report.tables import Cell, Table, brackets, decimals_of, with_paper

# where a paper does not load booktabs
_RULES = [rf"    \providecommand{{\{rule}}}{{\hline}}" for rule in ("toprule", "midrule", "bottomrule")]
_ARROWS = {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}


def table(name: str, content: Table) -> str:
    r"""A table with \label{tab:...} after its file: "tables/toy" is tab:toy."""
    columns = len(content.metrics)
    heads = [f"{escaped(measure(metric).label)} ({_ARROWS[measure(metric).arrow]})" for metric in content.metrics]
    lines = [
        r"\begin{table}",
        r"    \centering",
        rf"    \caption{{{escaped(content.caption + brackets(content))}}}",
        rf"    \label{{tab:{_stem(name)}}}",
        *_RULES,
        rf"    \begin{{tabular}}{{ll{'c' * columns}}}",
        r"        \toprule",
        rf"        & runs & {' & '.join(heads)} \\",
    ]
    for part in content.parts:
        lines += [r"        \midrule", rf"        \multicolumn{{{2 + columns}}}{{l}}{{{escaped(part.title)}}} \\"]
        for line in part.lines:
            cells = [_cell(cell, decimals_of(content, column)) for column, cell in enumerate(line.cells)]
            lines.append(rf"        {escaped(line.label)} & {line.runs} & {' & '.join(cells)} \\")
    return "\n".join([*lines, r"        \bottomrule", r"    \end{tabular}", r"\end{table}"]) + "\n"


def _cell(cell: Cell, decimals: int) -> str:
    if not cell.spread.runs:
        return with_paper("--", cell, escaped)
    median = escaped(fixed(cell.spread.median, decimals))
    median = rf"\textbf{{{median}}}" if cell.best_of_all else median
    text = rf"{median} \textpm{{}} {cell.spread.deviation:.{decimals}f}" if cell.spread.runs > 1 else median
    return with_paper(rf"\underline{{{text}}}" if cell.best_in_section else text, cell, escaped)


def figure(name: str, caption: str, whole_page: bool) -> str:
    r"""A float with \label{fig:...} after its file, over the whole page or in a column."""
    kind = "figure*" if whole_page else "figure"
    return "\n".join([
        rf"\begin{{{kind}}}",
        r"    \centering",
        rf"    \includegraphics[width=\linewidth]{{{name}.pdf}}",
        rf"    \caption{{{escaped(caption)}}}",
        rf"    \label{{fig:{_stem(name)}}}",
        rf"\end{{{kind}}}",
        "",
    ])  # fmt: skip


def _stem(name: str) -> str:
    return name.rpartition("/")[2]
