"""Slot Attention that keeps working when the number of slots and objects changes."""

import importlib
from typing import Any

__version__ = "0.1.0"

# public name -> the module that holds it; nothing is imported before it is asked for: `--help` never waits for torch
_HOME = {
    "SlotAttention": "slotnorm.slot_attention",
    "Aggregate": "slotnorm.normalization",
    "Normalization": "slotnorm.normalization",
    "normalizations": "slotnorm.normalization",
    "adjusted_rand_index": "slotnorm.metrics",
    "average_precision": "slotnorm.metrics",
    "labels_from_masks": "slotnorm.metrics",
    "mean_best_overlap": "slotnorm.metrics",
    "mean_iou": "slotnorm.metrics",
    "Experiment": "slotnorm.config",
    "Recipe": "slotnorm.config",
    "experiment": "slotnorm.experiments",
    "train": "slotnorm.training",
    "Run": "slotnorm.runs",
    "load": "slotnorm.weights",
    "score": "slotnorm.evaluation",
    "Rows": "slotnorm.rows",
}
_MODULES = ("data", "models", "theory")

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"slotnorm.{name}")
    raise AttributeError(f"module 'slotnorm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
