"""The verbs of the command line: each a few lines that call the library. Results go to stdout, progress to stderr."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from slotnorm.commands import parse_sweep, parse_training, reads_arguments
from slotnorm.errors import UserError, nearest


def norms() -> None:
    """List the normalizations: name, the paper's label and section, whether the codes keep the mass, formula."""
    from slotnorm.normalization import formula, normalizations

    table = [("name", "label", "where", "keeps mass", "update codes")]
    for name, scheme in normalizations().items():
        table.append((name, scheme.label, scheme.where, "yes" if scheme.keeps_mass else "no", formula(scheme)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


Source = Annotated[Path, tyro.conf.arg(name="from")]  # `from` is a word of Python


def data_folder(source: Source, out: Path, size: int | None = None, crop: str = "none") -> None:
    """Convert a folder of your own images (with masks and properties, if any) into a set of scenes.

    Args:
        source: the folder: images/NAME.png or .jpg, and if you have them masks/NAME.png and properties.json
        out: where the set is built; the same command continues an interrupted one
        size: scale to size x size pixels; needed unless all images have one size
        crop: none, center (the largest centred square) or top:left:height:width in pixels, before scaling
    """
    from slotnorm.data.folder import convert

    print(f"{len(convert(source, out, size, crop))} scenes in {out}")


def data_check(directory: tyro.conf.Positional[Path], sheet: Path | None = None, num: int = 32) -> None:
    """Verify every file of a set of scenes, describe it in a table, and draw a contact sheet with masks.

    Args:
        directory: the set's folder
        sheet: where the contact sheet goes (default: contact-sheet.png in the set's folder)
        num: how many scenes it shows
    """
    from slotnorm.data.check import check

    print(check(directory, sheet, num))


def experiments() -> None:
    """List the experiments: where in the paper, (O, K), steps, seeds, and hours a run."""
    from slotnorm.experiments import listing

    print(listing())


@reads_arguments
def train(arguments: list[str], prog: str) -> None:
    """Start a run, or go on with it: slotnorm train NAME --norm batch_norm --seed 3."""
    asked = parse_training(arguments, prog)
    if asked is None:
        return
    from slotnorm import allocator
    from slotnorm.report.pictures import save_picture
    from slotnorm.training import train

    allocator.keep_freed_memory()
    run = train(asked.experiment, asked.into, data=asked.data, workers=asked.workers, draw=save_picture)
    print(run.summary())


@reads_arguments
def sweep(arguments: list[str], prog: str) -> None:
    """Train an experiment with several normalizations and seeds: plan, skip what is finished, run."""
    asked = parse_sweep(arguments, prog)
    if asked is None:
        return
    from slotnorm.sweep import plan, report, sweep

    jobs = plan(asked.trainings)
    sweep(jobs, asked.jobs)
    print(report(jobs))


VERBS: dict[str, Any] = {
    "norms": norms,
    "experiments": experiments,
    "train": train,
    "sweep": sweep,
    "data": {
        "folder": data_folder,
        "check": data_check,
    },
}


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit: 0, 2 for a user's error, or what `errors.py` and the signals say."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _load_plugins(arguments)
        _dispatch(VERBS, arguments, ["slotnorm"])
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `slotnorm norms | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _fail(sentence: str, exit_code: int) -> None:
    print(f"slotnorm: {sentence}", file=sys.stderr)
    sys.exit(exit_code)


def _dispatch(verbs: dict[str, Any], arguments: list[str], path: list[str]) -> None:
    prog = " ".join(path)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(verbs, prog))
        return
    name, *rest = arguments
    if name not in verbs:
        raise UserError(f"there is no {prog} {name!r}; {nearest(name, verbs)}")
    verb = verbs[name]
    if isinstance(verb, dict):
        _dispatch(verb, rest, [*path, name])
    elif getattr(verb, "reads_arguments", False):
        verb(rest, f"{prog} {name}")
    else:
        tyro.cli(verb, args=rest, prog=f"{prog} {name}")


def _overview(verbs: dict[str, Any], prog: str) -> str:
    """The help of a group: one line a verb, from its docstring."""
    lines = [f"usage: {prog} VERB ...   ({prog} VERB --help tells its options)", ""]
    for name, verb in verbs.items():
        summary = ", ".join(verb) if isinstance(verb, dict) else (verb.__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {name:<12} {summary}")
    return "\n".join(lines)


def _load_plugins(arguments: list[str]) -> None:
    """Take every `--plugin FILE` out of the arguments and run the file: the user's own code, only when asked for."""
    while "--plugin" in arguments:
        at = arguments.index("--plugin")
        if at + 1 == len(arguments):
            raise UserError("--plugin needs a Python file that defines a Normalization, as in --plugin my_norm.py")
        path = Path(arguments[at + 1])
        del arguments[at : at + 2]
        from slotnorm.plugins import load_plugin

        load_plugin(path)
