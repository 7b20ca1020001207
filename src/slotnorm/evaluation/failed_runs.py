"""The failed-run rule: whether masks follow what is in the images, told from the masks alone (docs/failed-runs.md).

A model that failed splits every image by place (stripes, blocks), or shares every pixel among all slots. All images are
given the same initial slots, so that nothing but their content can change the masks from one image to the next. Slots
are exchangeable: no statistic looks at a slot's number.
"""

import dataclasses

import torch
from torch import Tensor

from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.evaluation.decomposer import Decomposer, evaluating
from slotnorm.metrics import labels_from_masks
from slotnorm.metrics.segmentation import as_maps
from slotnorm.models import SlotModel
from slotnorm.storage.schemas import LARGEST, require_between

RULE = 1  # of the statistics and thresholds below: raised when any of them changes
SCENES = 128  # how many a run is judged on
FILE = "binding.json"  # beside the rows, as the first version called it

# All fixed before any trained model was looked at.
_OVERLAP = 1 / 3  # IoU of two segments of one size that overlap by half: below, a segment is not at its place
_SMALLEST = 0.01  # share of the image; what is smaller is a boundary's crumb as often as a segment
_SHARPEST = 0.1  # share of the pixels: a set predictor may leave a large background to all slots
_FEWEST_MOVING = 1.0  # segments per image
_MOST_SHARING = 0.5  # of all slots
_LEAST_COHERENCE = 0.25  # of the way from chance to agreement


@dataclasses.dataclass(frozen=True)
class JudgementDocument:
    """What `FILE` says of a run."""

    rule: int
    failed: bool
    reason: str
    moving: float
    sharing: float
    coherence: float
    dataset: str
    num_scenes: int
    slots: int
    weights: str

    def __post_init__(self) -> None:
        require_between("num_scenes", self.num_scenes, 1, LARGEST)
        require_between("slots", self.slots, 1, LARGEST)


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The statistics of a set of masks, and what the rule makes of them."""

    moving: float
    """Segments per image that are not at the same place in other images; 0 for stripes and blocks."""
    sharing: float
    """Effective number of slots at a pixel as a share of all, over each image's sharpest tenth; 1 where all share."""
    coherence: float
    """How much more often neighbouring pixels are in one slot than any two: 0 for noise, 1 at most."""

    @property
    def reason(self) -> str:
        """Why the run failed, in a few words; empty when it did not."""
        if self.sharing > _MOST_SHARING:
            return "shares pixels among all slots"
        if self.coherence < _LEAST_COHERENCE:
            return "noise masks"
        if self.moving < _FEWEST_MOVING:
            return "splits the image by place"
        return ""

    @property
    def failed(self) -> bool:
        return bool(self.reason)


def judge(model: SlotModel, scenes: Scenes, slots: int | None = None, seed: int = 0) -> Judgement:
    """Whether the model's slots follow what is in the scenes, by the failed-run rule (docs/failed-runs.md).

    It sees the first scenes of `scenes.sample`, all with the same initial slots; `slots` None is the training number.
    """
    if slots is None:
        if model.experiment is None:
            raise UserError("the model has no experiment that says its number of slots; give slots")
        slots = model.experiment.slots
    judged = scenes.sample(SCENES)
    decomposer = Decomposer(model, judged)
    labels, effective = [], []
    with evaluating(model):
        noise = decomposer.common_noise(seed, slots)
        for group in decomposer.groups():
            _, tokens = decomposer.encode(group)
            masks = as_maps(decomposer.decompose(tokens, noise, reconstruct=False).masks)[torch.from_numpy(group >= 0)]
            labels.append(labels_from_masks(masks))
            effective.append(effective_slots(masks))
    return judge_labels(torch.cat(labels).cpu(), torch.cat(effective).cpu(), slots)


def judge_masks(masks: Tensor) -> Judgement:
    """The statistics of masks (n, K, H, W) that sum to one over K, of n images that were given the same noise."""
    if masks.dim() != 4:
        raise UserError(f"masks have shape {tuple(masks.shape)}, but (n, K, H, W) is needed")
    return judge_labels(labels_from_masks(masks), effective_slots(masks), masks.shape[1])


def effective_slots(masks: Tensor) -> Tensor:
    """How many slots share each pixel, 1 / Σ_k m_k²: (B, K, ...) -> (B, ...), from 1 to K."""
    return masks.square().sum(dim=1).reciprocal()


def judge_labels(labels: Tensor, effective: Tensor, num_slots: int) -> Judgement:
    """The same from what masks leave behind: labels (n, H, W) and effective numbers of slots (n, H, W)."""
    if len(labels) < 2:
        raise UserError(f"masks are judged from image to image, but there is {len(labels)}; give two scenes or more")
    segments = torch.nn.functional.one_hot(labels.long().flatten(1), num_slots).mT.float()  # (n, K, P)
    return Judgement(
        moving=_count_moving(segments),
        sharing=_measure_sharing(effective, num_slots),
        coherence=_measure_coherence(labels, segments, effective, num_slots),
    )


def bytes_to_judge(num_scenes: int, num_slots: int, places: int) -> int:
    """About the memory of `judge_labels`: one-hot segments, whole and as floats, and the pairs of one image's."""
    return num_scenes * num_slots * (16 * places + 12 * num_slots)


def _count_moving(segments: Tensor) -> float:
    """A segment's recurrence is its best IoU with a segment of another image, averaged over all other images."""
    images, slots, pixels = segments.shape
    area = segments.sum(2)
    others = segments.flatten(0, 1)
    recurrence = torch.empty(images, slots)
    for image, segment in enumerate(segments):  # one at a time: all pairs of segments are many
        common = (segment @ others.mT).unflatten(1, (images, slots))
        union = area[image][:, None, None] + area - common
        best = (common / union.clamp(min=1)).amax(2)
        best[:, image] = 0
        recurrence[image] = best.sum(1) / (images - 1)
    moving = (recurrence < _OVERLAP) & (area.cpu() >= _SMALLEST * pixels)
    return float(moving.sum(1).double().mean())


def _measure_sharing(effective: Tensor, num_slots: int) -> float:
    flat = effective.flatten(1)
    sharpest = flat.topk(max(1, round(_SHARPEST * flat.shape[1])), dim=1, largest=False).values
    return float(sharpest.double().mean() / num_slots)


def _measure_coherence(labels: Tensor, segments: Tensor, effective: Tensor, num_slots: int) -> float:
    """Chance-corrected agreement of neighbours, pixels weighted by how little they are shared.

    A pixel that all slots share has an arbitrary label; it should say nothing. Images that one slot takes whole have no
    chance to correct for; where all are such, nothing is noise: 1.
    """
    sharpness = ((num_slots / effective - 1) / max(num_slots - 1, 1)).double().clamp(min=1e-12)
    agreeing = paired = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    for axis in (1, 2):
        before, after = (slice(None),) * axis + (slice(None, -1),), (slice(None),) * axis + (slice(1, None),)
        weights = sharpness[before] * sharpness[after]
        agreeing = agreeing + (weights * (labels[before] == labels[after])).sum((1, 2))
        paired = paired + weights.sum((1, 2))
    shares = (segments.double() @ sharpness.flatten(1)[..., None])[..., 0]
    chance = (shares / shares.sum(1, keepdim=True)).square().sum(1)
    several = chance < 1 - 1e-9
    if not several.any():
        return 1.0
    agreement = (agreeing / paired.clamp(min=1e-300))[several]
    return float(((agreement - chance[several]) / (1 - chance[several])).mean())
