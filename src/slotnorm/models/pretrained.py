"""Trained models by name, by file, or from the Hugging Face hub, and to it; nothing is downloaded unasked."""

import contextlib
import json
import logging
import re
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from slotnorm.errors import UserError, nearest, printable
from slotnorm.models import weights
from slotnorm.models.bundled import bundled_file, bundled_files, bundled_names
from slotnorm.models.parts import SlotModel

_log = logging.getLogger(__name__)

PREFIX = "hub:"
"""What a hub id begins with where paths are taken too: a mistyped path downloads nothing."""
_FILE = "model.safetensors"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_UNREACHABLE = "LocalEntryNotFoundError"  # the client's word for: the hub did not answer, and nothing is kept here
_ABSENT = ("RepositoryNotFoundError", "EntryNotFoundError", "RemoteEntryNotFoundError", "GatedRepoError")


def load_pretrained(source: str | Path) -> SlotModel:
    """The model of a bundled name, of a .safetensors file, or of a hub id, as `owner/name` or `hub:owner/name`."""
    name, path = str(source), Path(source)
    if path.is_file():
        return weights.restore(weights.unpack(path), path)
    if name in bundled_names():
        return load_pretrained(bundled_file(name))
    if is_hub_id(name):
        return load_pretrained(_download(name.removeprefix(PREFIX)))
    raise UserError(
        f"there is no model {name!r}: give a bundled name, a .safetensors file, or a hub id such as owner/name; "
        f"{nearest(name, bundled_names())}"
    )


def is_pretrained(source: str | Path) -> bool:
    """Whether it is a bundled name or a hub id with its prefix: a model that is known by name and not by a path."""
    return str(source) in bundled_names() or str(source).startswith(PREFIX)


def is_hub_id(name: str) -> bool:
    """Whether a text has the form of a hub id, and is not a path that ends in .safetensors."""
    return bool(_ID.fullmatch(name.removeprefix(PREFIX))) and not name.endswith(".safetensors")


def push(model: SlotModel, hub_id: str, private: bool = False) -> str:
    """Upload a model with its card to the hub; returns its address there."""
    if not is_hub_id(hub_id):
        raise UserError(f"{printable(hub_id)!r} is not a hub id; one is owner/name")
    if model.experiment is None:
        raise UserError("the model has no experiment to be rebuilt from; push one that `sn.load` or a run gave")
    hub, hub_id = _hub(), hub_id.removeprefix(PREFIX)
    step, facts = model.trained or (0, {})
    packed = weights.Weights(dict(model.state_dict()), model.experiment, step, facts)
    with tempfile.TemporaryDirectory() as folder:
        weights.export(packed, Path(folder) / _FILE, _card(packed, hub_id))
        (Path(folder) / "model.md").rename(Path(folder) / "README.md")
        try:
            with _without_retries_told():
                hub.create_repo(hub_id, private=private, exist_ok=True)
                hub.upload_folder(repo_id=hub_id, folder_path=folder, commit_message="A slotnorm model")
        except Exception as error:  # of the network, of the hub or of its client: all mean that it is not there
            raise UserError(
                f"{hub_id} could not be pushed to the hub ({_reason(error)}); log in, or try later"
            ) from error
    return f"https://huggingface.co/{hub_id}"


def _download(hub_id: str) -> Path:
    hub = _hub()
    _log.info(f"fetching {hub_id} from the hub, unless it is here already")
    try:
        with _without_retries_told():
            return Path(hub.hf_hub_download(hub_id, _FILE))
    except Exception as error:  # of the network, of the hub or of its client
        kinds = [kind.__name__ for kind in type(error).__mro__]
        if _UNREACHABLE not in kinds and not set(kinds).isdisjoint(_ABSENT):
            raise UserError(f"there is no model {hub_id} with a {_FILE} on the hub that you may read") from error
        raise UserError(
            f"{hub_id} could not be fetched from the hub ({_reason(error.__cause__ or error)}); is there a network? a "
            f"file of yours, or a bundled name, needs none: {', '.join(bundled_names())}"
        ) from error


@contextlib.contextmanager
def _without_retries_told() -> Iterator[None]:
    """The hub's client tries again for half a minute, with two lines each time: one sentence at the end is enough."""
    logger = logging.getLogger("huggingface_hub.utils._http")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _hub() -> Any:
    """The hub's client."""
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise UserError("models on the hub need the package huggingface_hub: pip install 'slotnorm[hub]'") from error


def _card(packed: weights.Weights, hub_id: str) -> str:
    """The model card, with the header that the hub reads."""
    experiment, validation = packed.experiment, packed.facts.get("validation") or {}
    scores = [f"| {name} | {value:.4g} |" for name, value in validation.items() if value is not None]
    return "\n".join([
        "---", "library_name: slotnorm", "tags:", "- slot-attention", "- object-centric-learning", "---", "",
        f"# {experiment.run_name}", "",
        f"The {experiment.recipe.model.kind.replace('_', ' ')} with Slot Attention whose update codes are normalized "
        f"by `{experiment.norm}`, trained for {packed.step} steps on {experiment.dataset}; {experiment.slots} slots.",
        "", "```python", "import slotnorm as sn", f'model = sn.SlotModel.from_pretrained("{hub_id}")', "```", "",
        "| validation during training | |", "|---|---|", *(scores or ["| not known | |"]), "",
        "```json", json.dumps(packed.facts.get("versions", {})), "```", "",
    ])  # fmt: skip


def listing() -> list[tuple[str, ...]]:
    """The bundled models as a table for people: what each was trained on and how, its scores, its licence."""
    head = ("name", "normalization", "trained on", "slots", "F-ARI at K in validation", "MB", "licence")
    table: list[tuple[str, ...]] = [head]
    for path in bundled_files():
        packed = weights.unpack(path)
        experiment, validation = packed.experiment, packed.facts.get("validation") or {}
        by_slots = {int(name.removeprefix("f_ari@")): value for name, value in validation.items() if "f_ari@" in name}
        scores = [f"{value:.3f} at {slots}" for slots, value in sorted(by_slots.items())]
        scenes = experiment.scenes
        trained_on = experiment.dataset
        if scenes:
            shapes = " and ".join(f"{shape}s" for shape in scenes.shapes or ("object",))
            trained_on += f", {scenes.objects[0]} to {scenes.objects[1]} {shapes}, {scenes.size}x{scenes.size}"
        table.append((
            path.stem, experiment.norm, trained_on, str(experiment.slots),
            ", ".join(scores) or "not known", f"{path.stat().st_size / 1e6:.1f}", "MIT",
        ))  # fmt: skip
    return table
