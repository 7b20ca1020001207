"""Write docs/architecture.md from the package's own docstrings: python docs/make_architecture.py."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "slotnorm"
PAGE = Path(__file__).with_name("architecture.md")

HEAD = """# The modules

For those who read or change the code. Made from the package's own docstrings by `python docs/make_architecture.py`.

Data flows down this page. Each heading is a *room*, the name used here for a file or folder at the top level of
`src/slotnorm`. A module imports only from its own room or from rooms above it, which a test checks. Start with
`normalization.py` and `slot_attention/`: together with `initialization.py` and `runtime/torch_internals.py` they need
nothing but torch.
"""

# The way data takes through a command: a module for each station, none in a room above the one before.
WALKS = {
    "slotnorm reproduce toy": [
        ("experiments.py", "the study by name: an experiment for every normalization and seed"),
        ("data/generator.py", "scenes from the experiment's seed, made once and cached"),
        ("data/batches.py", "batches in an order that the seed determines"),
        ("models/image_autoencoder.py", "a batch becomes slots, masks and a reconstruction"),
        ("evaluation/validation.py", "from time to time, masks of validation scenes become scores"),
        ("training/learner.py", "the loss becomes a step"),
        ("training/checkpoints.py", "the weights become a checkpoint of the run"),
        ("studies/sweep.py", "all this for several runs side by side"),
        ("studies/run_evaluation.py", "every finished run becomes rows, for each test set and number of slots"),
        ("report/reading.py", "runs and rows are read, and what cannot be used is named"),
        ("report/contents.py", "scores become curves, tables and claims: all that is shown, as plain data"),
        ("report/writing.py", "the contents become files and the page"),
        ("cli/verbs.py", "the command says where they are"),
    ],
    "slotnorm segment photo.png --run RUN": [
        ("data/image_files.py", "the file becomes pixels, upright and 8 bits deep"),
        ("data/resize.py", "scaled to the model's size, exactly as in training"),
        ("models/image_autoencoder.py", "the run's model, which was loaded before, makes slots and masks of it"),
        ("evaluation/label_maps.py", "masks become a label for every pixel of the photo"),
        ("report/segmentation.py", "labels become colours, and an overlay over the photo"),
        ("report/segmenter.py", "they become files: label map, overlay, cut-outs, JSON"),
        ("cli/verbs.py", "the command says where they are"),
    ],
}


def docstring(path: Path) -> str:
    """What a module says it is."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def rooms() -> dict[str, str]:
    """Each room with the sentence of the way that data takes, in order, from the package's docstring."""
    entries = re.findall(r"^- `(\w+)`: (.+(?:\n  .+)*)", docstring(SOURCE / "__init__.py"), flags=re.MULTILINE)
    return {name: " ".join(sentence.split()) for name, sentence in entries}


def listed(path: Path) -> str:
    """A module as a row of the table."""
    shown, first = path.relative_to(SOURCE).as_posix(), docstring(path).partition("\n")[0]
    return f"| [`{shown}`](../src/slotnorm/{shown}) | {first.replace('|', chr(92) + '|')} |"


def described(folder: Path) -> Iterator[str]:
    """What lives in a folder, and the folders in it."""
    yield from (docstring(folder / "__init__.py"), "", "| module | what it is |", "|---|---|")
    inner = sorted(path for path in folder.glob("*/__init__.py"))
    for path in [*(path for path in sorted(folder.glob("*.py")) if path.stem != "__init__"), *inner]:
        yield listed(path)
    yield ""
    for path in inner:
        if len(list(path.parent.glob("*.py"))) > 1:
            yield from (f"### `{path.parent.relative_to(SOURCE).as_posix()}`", "")
            yield from described(path.parent)


def walked() -> Iterator[str]:
    """The walks, station by station."""
    for command, stations in WALKS.items():
        yield from (f"`{command}`, station by station:", "")
        for number, (module, sentence) in enumerate(stations, start=1):
            yield f"{number}. [`{module}`](../src/slotnorm/{module}): {sentence}"
        yield ""


def page() -> str:
    """The page's text."""
    lines = [HEAD, *walked()]
    for name, sentence in rooms().items():
        lines += [f"## `{name}`", "", f"{sentence[0].upper()}{sentence[1:]}.", ""]
        if (SOURCE / name).is_dir():
            lines += described(SOURCE / name)
        else:
            lines += ["| module | what it is |", "|---|---|", listed(SOURCE / f"{name}.py"), ""]
    lines.append("Read next: [dependencies](dependencies.md), [how a release is made](releasing.md).\n")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
