"""What happens inside a trained model as the number of slots grows: codes, occupancy, mass, background. As rows.

Rows of `source` "diagnosis", one per image and K:

- `update_norm`: mean over slots of |u_k|, the length of the update codes in the last iteration; `update_norm_ratio` the
  same divided by the set's mean at the training K;
- `occupied`: slots whose mass (sum of attention over tokens, last iteration) is at least OCCUPIED of the tokens, and
  `occupancy` their share of all K;
- `mass_error`: the largest error of a slot's mass read off the codes of the last iteration (Proposition 2), as a share
  of the tokens; undefined where the codes cannot tell;

at the training K and at three times it alone, where the scenes have masks, since something must be decoded:

- `visible`: how many objects can be seen, as in evaluation;
- `background_share`, `foreground_taken`, `f_ari/1`, `f_ari/2`, ...: who holds the background, see background.py;

and one per set and K:

- `sums_mean`, `sums_variance`: of the unnormalised codes ũ in the first iteration, over images, slots and channels;
- `variance_drift`: that variance divided by the one the model normalizes with (batch_norm's running one; for others the
  measured one at the training K, since they normalize with none), and `mean_drift`: the mean less that mean, in its
  standard deviations.

The header's "mass" holds pairs of true and read-off masses for a scatter plot. The codes of normalizations that lose
the mass are read by the same formula, as if they were weighted sums: what comes out is not the mass, and that is shown.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotnorm.config import SLOTS_FACTOR
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.evaluation.background import measure_background
from slotnorm.evaluation.decomposer import Decomposer, evaluating
from slotnorm.evaluation.label_maps import comparable_labels, count_visible
from slotnorm.evaluation.measurement import VISIBLE
from slotnorm.evaluation.rows import Rows
from slotnorm.models import SlotModel
from slotnorm.normalization import BatchNorm
from slotnorm.slot_attention import SlotAttention
from slotnorm.theory.mass import recover_mass, value_offset

SOURCE = "diagnosis"
VERSION = 2  # of what is measured, in the header: raised when that changes, so that what was kept is made anew
OCCUPIED = 0.01  # of the tokens: a small object of CLEVR at 128x128 covers about half a percent, a large one 5
_PER_IMAGE = ("update_norm", "occupied", "mass_error")
RATIO, OCCUPANCY = "update_norm_ratio", "occupancy"  # told by the other rows: a published file leaves them out
_PAIRS = 64  # pairs of masses kept for each K


class _Measured(NamedTuple):
    """What is measured of some images at one K."""

    update_norm: Tensor
    occupied: Tensor
    mass_error: Tensor
    """(B,), NaN where codes cannot tell."""
    true: Tensor
    """(B, K): masses as shares of the tokens."""
    read: Tensor | None
    """(B, K): what the codes say, or None where the formula does not apply."""
    sums: Tensor
    """Of ũ in the first iteration: number, sum, sum of squares."""


def diagnose(
    model: SlotModel,
    scenes: Scenes,
    slots: Iterable[int],
    train_slots: int,
    iterations: int | None = None,
    **factors: Any,
) -> Rows:
    """Rows of a model on scenes for each K of `slots`, and for the training K, which the others are compared with.

    `factors` are the columns that say which run and set this is: run, norm, seed, dataset, ...
    """
    decomposer, layer = Decomposer(model, scenes, iterations), _layer_on_cpu(model)
    images, pairs, statistics, decoded = {}, {}, {}, {}
    with evaluating(model):
        groups = decomposer.groups()
        for k in sorted({*slots, train_slots}):
            measured = [_measure(decomposer, layer, group, k) for group in groups]
            images[k] = _in_order({name: [getattr(part, name) for part in measured] for name in _PER_IMAGE}, groups)
            pairs[str(k)] = _pairs(measured)
            statistics[k] = _moments(torch.stack([part.sums for part in measured]).sum(0))
        many = SLOTS_FACTOR * train_slots
        for k in (train_slots, *([many] * model.takes(many))) if scenes.labels is not None else ():
            decomposer.require_memory(k)
            parts = [_decode(decomposer, group, k) for group in groups]
            decoded[k] = _in_order({name: [part[name] for part in parts] for name in parts[0]}, groups)
        refused = _refusal(layer)
    factors |= {"iterations": decomposer.iterations, "train_slots": train_slots}
    reference = _reference(model, statistics[train_slots])
    of_slots = [rows for k in images for rows in _rows({**factors, "slots": k}, scenes, images[k])]
    of_slots += [rows for k in decoded for rows in _rows({**factors, "slots": k}, scenes, decoded[k])]
    of_slots += [_set_rows({**factors, "slots": k}, statistics[k], reference) for k in statistics]
    keeps = bool(model.slot_attention.normalization.keeps_mass)
    mass = {"keeps": keeps, "pairs": pairs, "refused": refused}
    return with_ratios(Rows.concat(of_slots, {"version": VERSION, "mass": mass}))


def with_ratios(rows: Rows) -> Rows:
    """The rows of a diagnosis with those that the others tell, where these are not among them."""
    if RATIO in (known := rows.unique("metric")) or "update_norm" not in known:
        return rows
    norms, occupied = rows.where(metric="update_norm"), rows.where(metric="occupied")
    at_training = norms.take(norms["slots"] == norms["train_slots"])["value"].mean()
    ratios = norms.with_columns(metric=RATIO, value=norms["value"] / at_training)
    shares = occupied.with_columns(metric=OCCUPANCY, value=occupied["value"] / occupied["slots"])
    return Rows.concat([rows, ratios, shares], rows.header)


def _layer_on_cpu(model: SlotModel) -> SlotAttention:
    """The model's layer for what is made of its codes in float64, which not every device has."""
    layer = model.slot_attention
    return layer if model.device.type == "cpu" else copy.deepcopy(layer).cpu()


def _measure(decomposer: Decomposer, layer: SlotAttention, group: NDArray[np.int64], slots: int) -> _Measured:
    """What the slot attention does to a group of scenes, blanks left out; nothing is decoded."""
    present = torch.from_numpy(group >= 0)
    _, tokens = decomposer.encode(group)
    noise = decomposer.scene_noise(0, group, slots)
    attend = decomposer.model.slot_attention
    trace = attend.trace(tokens[present], noise=noise[present], iterations=decomposer.iterations)
    first, last = trace[0].aggregate.sums.cpu().double(), trace[-1]
    share, updates = last.attention.cpu().double().mean(dim=-1), last.updates.cpu()
    read = _read_mass(layer, updates, tokens.shape[1])
    error = torch.full((len(share),), torch.nan, dtype=torch.float64)
    if read is not None and layer.normalization.keeps_mass:
        error = (read - share).abs().amax(dim=1)
    moments = torch.stack([first.new_tensor(float(first.numel())), first.sum(), first.square().sum()])
    norms, occupied = updates.norm(dim=-1).mean(dim=-1).double(), (share >= OCCUPIED).sum(dim=-1).double()
    return _Measured(norms, occupied, error, share, read, moments)


def _decode(decomposer: Decomposer, group: NDArray[np.int64], slots: int) -> dict[str, Tensor]:
    """Who holds the background in a group of scenes, blanks left out, by the model's masks."""
    present = torch.from_numpy(group >= 0)
    _, tokens = decomposer.encode(group)
    decomposition = decomposer.decompose(tokens, decomposer.scene_noise(0, group, slots), reconstruct=False)
    masks, true = decomposition.masks[present].cpu(), decomposer.read("labels", group)[present]
    return {VISIBLE: count_visible(comparable_labels(masks, true)[0]), **measure_background(masks, true)}


def _in_order(
    parts: Mapping[str, Sequence[Tensor]], groups: Sequence[NDArray[np.int64]]
) -> dict[str, NDArray[np.float64]]:
    """Each image's values by name, (n,) in the order of the scenes, from those of the groups, blanks left out."""
    positions = np.concatenate([group[group >= 0] for group in groups])
    values = {}
    for name, some in parts.items():
        values[name] = np.empty(len(positions))
        values[name][positions] = torch.cat(list(some)).numpy()
    return values


def _read_mass(layer: SlotAttention, updates: Tensor, num_tokens: int) -> Tensor | None:
    """Masses as shares of the tokens read off the codes; of codes that lose it, as if they were weighted sums."""
    try:
        if layer.normalization.keeps_mass:
            return recover_mass(layer, updates.double(), num_tokens) / num_tokens
        offset = value_offset(layer)
        return updates.double() @ offset / offset.square().sum()
    except UserError:  # a plugin's codes, or parameters that Proposition 2 leaves out: `_refusal` says which
        return None


def _refusal(layer: SlotAttention) -> str:
    """Why the mass cannot be read off at all; empty when it can."""
    try:
        value_offset(layer)
        if layer.normalization.keeps_mass:
            recover_mass(layer, torch.zeros(1, 1, layer.dim, dtype=torch.float64), 1)
    except UserError as error:
        return str(error)
    return ""


def _pairs(measured: Sequence[_Measured]) -> list[list[float]]:
    """Some (true, read) masses, evenly over all slots of all images."""
    readable = [part for part in measured if part.read is not None]
    if not readable:
        return []
    true = torch.cat([part.true.flatten() for part in readable])
    read = torch.cat([part.read.flatten() for part in readable if part.read is not None])
    chosen = torch.linspace(0, len(true) - 1, min(_PAIRS, len(true))).round().long()
    return [[round(float(value), 6) for value in pair] for pair in zip(true[chosen], read[chosen], strict=True)]


def _moments(sums: Tensor) -> tuple[float, float]:
    number, total, squares = sums.tolist()
    mean = total / number
    return mean, max(squares / number - mean * mean, 0.0)


def _reference(model: SlotModel, at_training: tuple[float, float]) -> tuple[float, float]:
    """Mean and variance that the model normalizes with, or those measured at the training K."""
    scheme = model.slot_attention.normalization
    if isinstance(scheme, BatchNorm):
        return float(scheme.running_mean), float(scheme.running_var)
    return at_training


def _rows(factors: Mapping[str, Any], scenes: Scenes, values: Mapping[str, Any]) -> Iterable[Rows]:
    for metric, value in values.items():
        yield Rows(**factors, image=scenes.index, objects=scenes.counts, source=SOURCE, metric=metric, value=value)


def _set_rows(factors: Mapping[str, Any], measured: tuple[float, float], reference: tuple[float, float]) -> Rows:
    mean, variance = measured
    tiny = np.finfo(np.float64).tiny
    values = {
        "sums_mean": mean,
        "sums_variance": variance,
        "mean_drift": (mean - reference[0]) / max(reference[1], tiny) ** 0.5,
        "variance_drift": variance / max(reference[1], tiny),
    }
    return Rows(**factors, source=SOURCE, metric=list(values), value=list(values.values()))
