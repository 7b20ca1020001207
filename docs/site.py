"""What mkdocs does not do by itself: reference pages from docstrings and --help, links to modules, the demo's page.

mkdocs.yml names this file as a hook. Nothing it makes is written into docs/.
"""

import contextlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import slotnorm
from slotnorm.cli.verbs import VERBS, main
from slotnorm.report.demo import prepare, run_demo, write_demo_page

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "slotnorm"
SCENES = int(os.environ.get("SLOTNORM_DOCS_SCENES", "64"))  # of each set in the demo; a dozen of them are shown


# names are described here and on their module's page, which is where links to them lead
_NOT_ITS_ONLY_PLACE = ("    options:", "      skip_local_inventory: true")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    pages = {"reference/index.md": public_names(), "reference/command-line.md": command_line()}
    pages |= {f"reference/modules/{name}.md": module_page(name) for name in modules()}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links to source files lead to the module's page of the reference."""
    up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)

    def lead(match: re.Match[str]) -> str:
        return f"]({up}reference/modules/{module_name(Path(match[1]))}.md)"

    return re.sub(r"\]\((?:\.\./)+src/(slotnorm/[\w/]+\.py)\)", lead, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the demo's page beside the site's, which the landing page shows."""
    out = Path(config.site_dir) / "demo"
    prepare(out)
    write_demo_page(run_demo(SCENES), out)


def module_name(path: Path) -> str:
    """slotnorm/data/scenes.py -> slotnorm.data.scenes; a folder's __init__.py is the folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> list[str]:
    """Every module, those of scripts aside."""
    paths = (path.relative_to(SOURCE.parent) for path in sorted(SOURCE.rglob("*.py")) if path.stem != "__main__")
    return [module_name(path) for path in paths]


def module_page(name: str) -> str:
    """All of one module; a search names it after the pages that explain."""
    lines = [
        "---",
        "search: {boost: 0.2}",
        "---",
        f"# `{name}`",
        "",
        "For those who read or change the code.",
        "",
        f"::: {name}",
        "    options:",
        "      show_root_heading: false",
        "",
        "Read next: [all modules](../../architecture.md).",
        "",
    ]
    return "\n".join(lines)


def public_names() -> str:
    """What `import slotnorm as sn` offers, by name, with docstrings."""
    lines = [
        "# Public names",
        "",
        "For those who write `import slotnorm as sn`: every name that stays where it is, from its docstring.",
        "",
    ]
    for prefix, holder in (("sn", slotnorm), *((f"sn.{name}", getattr(slotnorm, name)) for name in submodules())):
        lines += [f"## `{prefix}`", ""]
        for name in holder.__all__:
            thing = getattr(holder, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                lines += [f"::: {thing.__module__}.{thing.__qualname__}", *_NOT_ITS_ONLY_PLACE, ""]
    return "\n".join([*lines, "Read next: [the command line](command-line.md), [all modules](../architecture.md).", ""])


def submodules() -> list[str]:
    """The public names that are modules."""
    return [name for name in slotnorm.__all__ if inspect.ismodule(getattr(slotnorm, name))]


def command_line() -> str:
    """Every verb's --help."""
    lines = [
        "# Command line",
        "",
        "For those who type `slotnorm`: every verb with all of its options, as `--help` prints them.",
        "",
    ]
    for words in [[], *verbs(VERBS)]:
        lines += [f"## `{' '.join(['slotnorm', *words])}`", "", "```text", help_of(words).rstrip(), "```", ""]
    return "\n".join([*lines, "Read next: [training](../training.md), [evaluation](../evaluation.md).", ""])


def verbs(group: dict[str, Any]) -> Iterator[list[str]]:
    """The words of every verb, in order."""
    for name, verb in group.items():
        if isinstance(verb, dict):
            yield from ([name, *words] for words in verbs(verb))
        else:
            yield [name]


def help_of(words: list[str]) -> str:
    """What a verb prints when asked for --help."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue()
