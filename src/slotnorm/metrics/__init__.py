"""Scores of segmentations, reconstructions and property predictions.

In come label maps, images or predictions of a whole batch, as tensors; out goes one number per image. Each score is a
pure function, and a `Metric` class around it that says its name, label, direction and what it needs: evaluation,
validation, tables, figures and pages read that, so that a metric of your own is one class (docs/metrics.md).
"""

from slotnorm.metrics.metric import Comparison, CountError, Metric, all_metrics, description
from slotnorm.metrics.object_count import count_objects
from slotnorm.metrics.precision import average_precision
from slotnorm.metrics.reconstruction import squared_error
from slotnorm.metrics.segmentation import (
    adjusted_rand_index,
    foreground_ari,
    labels_from_masks,
    mean_best_overlap,
    mean_iou,
)

__all__ = [
    "Comparison",
    "CountError",
    "Metric",
    "adjusted_rand_index",
    "all_metrics",
    "average_precision",
    "count_objects",
    "description",
    "foreground_ari",
    "labels_from_masks",
    "mean_best_overlap",
    "mean_iou",
    "squared_error",
]
