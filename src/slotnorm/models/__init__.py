"""The paper's three models, and `build`, which makes an experiment's. Nothing is imported before it is asked for.

In come batches of images or features and a number of slots; out go decompositions: slots, attention, masks, and a
reconstruction or predictions. Weights come from files and go to files together with their experiment.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotnorm.models.building import build as build
    from slotnorm.models.feature_autoencoder import FeatureAutoencoder as FeatureAutoencoder
    from slotnorm.models.image_autoencoder import ImageAutoencoder as ImageAutoencoder
    from slotnorm.models.importing import carry_over as carry_over
    from slotnorm.models.onnx_export import export_onnx as export_onnx
    from slotnorm.models.parts import Decomposition as Decomposition
    from slotnorm.models.parts import SlotModel as SlotModel
    from slotnorm.models.set_predictor import SetPredictor as SetPredictor
    from slotnorm.models.set_predictor import matching_loss as matching_loss

_HOME = {
    "build": "slotnorm.models.building",
    "Decomposition": "slotnorm.models.parts",
    "SlotModel": "slotnorm.models.parts",
    "ImageAutoencoder": "slotnorm.models.image_autoencoder",
    "FeatureAutoencoder": "slotnorm.models.feature_autoencoder",
    "SetPredictor": "slotnorm.models.set_predictor",
    "carry_over": "slotnorm.models.importing",
    "export_onnx": "slotnorm.models.onnx_export",
    "matching_loss": "slotnorm.models.set_predictor",
}

__all__ = [*_HOME]


if not TYPE_CHECKING:  # a type checker that saw this would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module 'slotnorm.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
