"""Classes from a file of the user's own: the one way code is loaded, and only when the user asks."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from slotnorm.errors import UserError, describe, place_of


def load_plugin(path: Path) -> None:
    """Run the Python file at `path`, once for each file; the normalizations, metrics ... in it register themselves."""
    resolved = path.resolve()
    if resolved in loaded_plugins():
        return
    if not resolved.exists():
        raise UserError(f"there is no file {path}, which --plugin names; give the path of a Python file")
    if resolved.suffix != ".py" or not resolved.is_file():
        raise UserError(f"--plugin {path} is not a Python file; give the path of one, as in --plugin my_norm.py")
    module_name = f"slotnorm_plugin_{resolved.stem}"
    while module_name in sys.modules:  # a file of the same name in another folder
        module_name += "_"
    spec = importlib.util.spec_from_file_location(module_name, resolved)
    if spec is None or spec.loader is None:
        raise UserError(f"--plugin {path} cannot be loaded as a Python module; rename it to a plain identifier")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # before it runs, so that its classes can be pickled
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise UserError(f"--plugin {path} fails with {describe(error)}{place_of(error)}") from error


def plugin_words(paths: Iterable[str | Path]) -> list[str]:
    """The words of a command that load these files."""
    return [word for path in paths for word in ("--plugin", str(path))]


def loaded_plugins() -> list[Path]:
    """The files that `load_plugin` has run, to be given to other processes."""
    modules = [module for name, module in sys.modules.items() if name.startswith("slotnorm_plugin_")]
    return [Path(module.__file__) for module in modules if module.__file__]
