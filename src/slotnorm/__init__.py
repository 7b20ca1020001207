"""Slot Attention that keeps working when the number of slots and objects changes.

The rooms of this package, in the order in which data flows through them. A room imports only from rooms above it or
from itself; a test reads this list and the imports, and docs/architecture.md is made from it.

- `errors`: what goes wrong becomes one sentence and an exit code
- `runtime`: what a process needs: progress, signals, ranks, randomness by key, the allocator, plugins
- `storage`: files that are whole or not there: atomic writes, locks, seals, archives, JSON of dataclasses
- `config`: what an experiment is
- `experiments`: the paper's experiments and small ones of their kind, by name
- `normalization`: how update codes are normalized, one class each: the page the paper is about
- `initialization`: how slots start, one class each
- `slot_attention`: tokens become slots; the layer itself
- `metrics`: masks, reconstructions and predictions become scores; a metric is one class
- `theory`: the layer beside mixtures on the sphere, and Propositions 1 and 2
- `data`: files, or nothing but a seed, become scenes, and scenes become batches
- `models`: batches become decompositions: three models around the layer, and their weights in files
- `evaluation`: decompositions become rows: one number per image, number of slots and metric
- `training`: an experiment becomes a run: a folder with metrics and checkpoints
- `studies`: many runs: trained side by side, and each one's rows made
- `report`: runs, rows and models become tables, curves, pictures, claims and pages
- `cli`: the verbs; each a few lines that call the rooms above
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 - from a checkout; pip refuses by itself
    raise ImportError(f"slotnorm needs Python 3.11 or newer, this is {sys.version.split()[0]}: python3.11 -m venv")

if TYPE_CHECKING:
    from slotnorm import data as data
    from slotnorm import models as models
    from slotnorm import theory as theory
    from slotnorm.config import Experiment as Experiment
    from slotnorm.config import Recipe as Recipe
    from slotnorm.evaluation.failed_runs import judge as judge
    from slotnorm.evaluation.rows import Rows as Rows
    from slotnorm.evaluation.scoring import score as score
    from slotnorm.initialization import Initialization as Initialization
    from slotnorm.initialization import initializations as initializations
    from slotnorm.metrics import adjusted_rand_index as adjusted_rand_index
    from slotnorm.metrics import average_precision as average_precision
    from slotnorm.metrics import count_objects as count_objects
    from slotnorm.metrics import foreground_ari as foreground_ari
    from slotnorm.metrics import labels_from_masks as labels_from_masks
    from slotnorm.metrics import mean_best_overlap as mean_best_overlap
    from slotnorm.metrics import mean_iou as mean_iou
    from slotnorm.models.parts import SlotModel as SlotModel
    from slotnorm.normalization import Aggregate as Aggregate
    from slotnorm.normalization import Normalization as Normalization
    from slotnorm.normalization import normalizations as normalizations
    from slotnorm.report.segmenter import Segmenter as Segmenter
    from slotnorm.report.segmenting import segment as segment
    from slotnorm.slot_attention import SlotAttention as SlotAttention
    from slotnorm.studies.options import experiment as experiment
    from slotnorm.training.loading import load as load
    from slotnorm.training.loop import train as train
    from slotnorm.training.runs import Run as Run

__version__ = "0.2.0"

# public name -> the module that holds it; nothing is imported before it is asked for: `--help` never waits for torch
_HOME = {
    "SlotAttention": "slotnorm.slot_attention",
    "Aggregate": "slotnorm.normalization",
    "Normalization": "slotnorm.normalization",
    "normalizations": "slotnorm.normalization",
    "Initialization": "slotnorm.initialization",
    "initializations": "slotnorm.initialization",
    "adjusted_rand_index": "slotnorm.metrics",
    "average_precision": "slotnorm.metrics",
    "count_objects": "slotnorm.metrics",
    "foreground_ari": "slotnorm.metrics",
    "labels_from_masks": "slotnorm.metrics",
    "mean_best_overlap": "slotnorm.metrics",
    "mean_iou": "slotnorm.metrics",
    "Experiment": "slotnorm.config",
    "Recipe": "slotnorm.config",
    "experiment": "slotnorm.studies.options",
    "SlotModel": "slotnorm.models.parts",
    "load": "slotnorm.training.loading",
    "train": "slotnorm.training.loop",
    "Run": "slotnorm.training.runs",
    "score": "slotnorm.evaluation.scoring",
    "judge": "slotnorm.evaluation.failed_runs",
    "Rows": "slotnorm.evaluation.rows",
    "Segmenter": "slotnorm.report.segmenter",
    "segment": "slotnorm.report.segmenting",
}
_MODULES = ("data", "models", "theory")

__all__ = ["__version__", *_HOME, *_MODULES]


if not TYPE_CHECKING:  # a type checker that saw this would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        if name in _MODULES:
            return importlib.import_module(f"slotnorm.{name}")
        raise AttributeError(f"module 'slotnorm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
