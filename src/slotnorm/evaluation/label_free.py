"""Is it working, where nobody knows the objects: what the failed-run rule measures, and how many slots are in use."""

import math

import numpy as np

from slotnorm.config import Experiment
from slotnorm.data.scenes import Scenes
from slotnorm.evaluation.decomposer import Decomposer
from slotnorm.evaluation.failed_runs import SCENES, Judgement, bytes_to_judge, judge
from slotnorm.evaluation.validation import decompose
from slotnorm.metrics.object_count import needed
from slotnorm.metrics.segmentation import as_maps
from slotnorm.models import SlotModel

_LOOKED_AT = 32  # scenes whose slots in use are counted

ADVICE = {
    "shares pixels among all slots": "train longer, or with a higher --lr",
    "noise masks": "train longer, or with a lower --lr",
    "splits the image by place": "use fewer --slots, smaller pictures (--size), or features (--features)",
}
"""What to try first, by what is wrong; the rest is in docs/failed-runs.md."""


def measure(model: SlotModel, scenes: Scenes, experiment: Experiment) -> tuple[Judgement, float]:
    """The judgement on scenes (two or more), and how many slots are in use, the mean over some of them."""
    looked_at = np.arange(min(_LOOKED_AT, len(scenes)))
    masks = as_maps(decompose(model, scenes, looked_at, experiment, experiment.slots).masks)
    return judge(model, scenes, experiment.slots), float(needed(masks).sum(dim=1).double().mean())


def require_memory(model: SlotModel, scenes: Scenes, slots: int) -> None:
    """Refuse to `measure` with more slots than fit in memory: a file may say any number."""
    places = math.prod(model.input_shape[:-1]) if "masks" in model.sources else model.num_tokens
    kept = bytes_to_judge(min(SCENES, len(scenes)), slots, places)
    Decomposer(model, scenes).require_memory(slots, min(_LOOKED_AT, len(scenes)), kept)


def as_scores(judgement: Judgement, in_use: float, slots: int) -> dict[str, float]:
    """The numbers as validation calls them: moving@K, sharing@K, coherence@K, in_use@K."""
    names = {"moving": judgement.moving, "sharing": judgement.sharing, "coherence": judgement.coherence}
    return {f"{name}@{slots}": value for name, value in {**names, "in_use": in_use}.items()}


def describe(judgement: Judgement, in_use: float, slots: int) -> str:
    """The judgement for people: a verdict, the numbers with what they mean, and what to try."""
    followed = f"do not follow what is in the images: {judgement.reason}"
    lines = [
        f"slots {followed if judgement.failed else 'follow what is in the images'}",
        f"  moving     {judgement.moving:5.2f}  segments per image that move with it (1 or more)",
        f"  sharing    {judgement.sharing:5.2f}  of the slots share a pixel, at its sharpest (1/2 or less)",
        f"  coherence  {judgement.coherence:5.2f}  of the way from noise to whole segments (1/4 or more)",
        f"  in use     {in_use:5.2f}  of {slots} slots",
    ]
    if judgement.failed:
        lines.append(f"try: {ADVICE[judgement.reason]}; more in docs/failed-runs.md")
    return "\n".join(lines)
