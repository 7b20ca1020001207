"""Every statement of the theory measured on random and on trained parameters: what `slotnorm theory` prints."""

import contextlib
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slotnorm.errors import UserError
from slotnorm.normalization import BatchNorm, normalizations
from slotnorm.runtime.randomness import generator
from slotnorm.slot_attention import SlotAttention
from slotnorm.theory.em import expectation_step, maximization_step, mixture_layer
from slotnorm.theory.layers import DIM, TOKENS, random_layer, random_tokens
from slotnorm.theory.mass import (
    counterexample,
    recover_direction,
    recover_mass,
    recover_weighted_mean,
    update_bound,
    value_offset,
    with_normalization,
)
from slotnorm.theory.sphere import sample
from slotnorm.theory.vmf import VonMisesFisherMixture, expectation, maximization

Measure = Callable[[SlotAttention, Tensor], float]

_RANDOM_LAYERS = 4
_SLOTS = (1, 2, 7, 24)
_ROUNDING = 1e-9  # what float64 leaves of an exact identity, with room for badly conditioned parameters
_EPS = 1e-5  # what LayerNorm's own eps leaves of one


@dataclass(frozen=True)
class Check:
    """One statement, measured: it holds when every number stays within the limit."""

    where: str
    statement: str
    random: float
    trained: float | None
    limit: float
    form: str = "{:.1e}"
    note: str = ""
    """Why there is no number for the trained layer, where it is to have one."""

    @property
    def holds(self) -> bool:
        return self.random <= self.limit and (self.trained is None or self.trained <= self.limit)


@dataclass(frozen=True)
class EqualSlots:
    """K equal slots on one image: what each normalization's code does while the mass of a slot falls as 1/K."""

    slots: tuple[int, ...]
    mass: list[float]
    lengths: dict[str, list[float]]
    """Label -> |u| relative to K = 1."""
    recovered: list[float]
    """The mass read off the weighted-sum codes; empty where it cannot be."""


@torch.no_grad()
def check_theory(trained: SlotAttention | None = None, seed: int = 0) -> list[Check]:
    """All statements: those about a layer on random ones (the worst of several), and on `trained` if given."""
    trained = None if trained is None else copy.deepcopy(trained).double().eval()
    randoms = [random_layer(DIM, seed + index) for index in range(_RANDOM_LAYERS)]
    tokens = random_tokens(DIM, seed)

    def on_both(where: str, statement: str, measure: Measure, limit: float = _ROUNDING, form: str = "{:.1e}") -> Check:
        worst = _worst(measure(layer, tokens) for layer in randoms)
        if trained is None:
            return Check(where, statement, worst, None, limit, form)
        try:
            return Check(where, statement, worst, measure(trained, random_tokens(trained.dim_in, seed)), limit, form)
        except UserError as error:  # parameters of the set of measure zero that the propositions leave out
            return Check(where, statement, worst, None, limit, form, note=str(error))

    return [
        on_both("Sec. 3.1", "attention is an E-step with mixture weights exp(aᵀq_k / √D)", _e_step),
        on_both("Prop. 1", "Baseline: 1 and 2 zero slots have equal codes, mass 1 and 1/2", _equal("weighted_mean")),
        on_both("Prop. 1", "Layer Norm: the same, up to its eps", _equal("layer_norm"), _EPS),
        on_both("App. J", "K-D-Layer Norm: the same, up to its eps", _equal("kd_layer_norm"), _EPS),
        on_both("Lemma 2", "values lie in a + V: aᵀv_n = |a|² for every token", _offset),
        on_both("Prop. 2", "Weighted Sum: the code tells the mass, f(u) = C aᵀu / (N |a|²)", _mass("weighted_sum")),
        on_both("Prop. 2", "Unnormalized: the same with C = 1", _mass("unnormalized")),
        on_both("Sec. 4.2", "Batch Norm in evaluation: the same after an affine map", _mass("batch_norm")),
        on_both("Sec. 3.2", "Baseline's codes follow from those of Weighted Sum", _weighted_mean),
        on_both("Sec. 3.2", "the M-step's directions and weights follow from them too", _m_step),
        on_both("Sec. 4.1", "C = N: the largest |u_kd| / max_n |v_nd| is at most 1", _bound, 1.0, "{:.3f}"),
        Check("Sec. 3.1", "identity maps, τ = 1: an iteration is one of EM", _identity_maps(seed), None, _ROUNDING),
        *_mixture(seed),
    ]


@torch.no_grad()
def compare_equal_slots(trained: SlotAttention, seed: int = 0, slots: tuple[int, ...] = (1, 2, 4, 8, 16)) -> EqualSlots:
    """The point of the paper on one image: K zero slots for growing K, under every normalization there is."""
    trained = copy.deepcopy(trained).double().eval()
    tokens = random_tokens(trained.dim_in, seed)[:1]
    lengths: dict[str, list[float]] = {}
    mass: list[float] = []
    recovered: list[float] = []
    for name, scheme in normalizations().items():
        layer = _settle(with_normalization(trained, name), tokens)
        codes = []
        for count in slots:
            (step,) = layer.trace(tokens, slots=tokens.new_zeros(1, count, layer.dim), iterations=1)
            codes.append(float(step.updates[0, 0].norm()))
            if name == "weighted_sum":
                mass.append(float(step.attention[0, 0].mean()))
                with contextlib.suppress(UserError):
                    recovered.append(float(recover_mass(layer, step.updates, tokens.shape[1])[0, 0]) / tokens.shape[1])
        lengths[scheme.label] = [code / codes[0] for code in codes]
    return EqualSlots(slots, mass, lengths, recovered)


def _trace(layer: SlotAttention, tokens: Tensor) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Slots before, attention and codes of every iteration for several K, from slots that make attention uneven."""
    for count in _SLOTS:
        draws = generator(count, "theory slots")
        slots = torch.from_numpy(3 * draws.standard_normal((len(tokens), count, layer.dim)))
        for step in layer.trace(tokens, slots=slots, iterations=2):
            yield step.slots, step.attention, step.updates


def _distance(measured: Tensor, expected: Tensor) -> float:
    return float((measured - expected).abs().max())


def _worst(values: Iterable[float]) -> float:
    """The largest, and NaN when one of them is: Python's max would pass over it."""
    return float(np.max(list(values)))


def _e_step(layer: SlotAttention, tokens: Tensor) -> float:
    steps = ((expectation_step(layer, tokens, slots), attention) for slots, attention, _ in _trace(layer, tokens))
    return _worst(_distance(step.attention, attention) for step, attention in steps)


def _equal(name: str) -> Measure:
    def measure(layer: SlotAttention, tokens: Tensor) -> float:
        example = counterexample(with_normalization(layer, name), tokens)
        alone, shared = example.mass
        return _worst([example.difference, _distance(alone, torch.ones_like(alone)), _distance(2 * shared, alone)])

    return measure


def _offset(layer: SlotAttention, tokens: Tensor) -> float:
    offset = value_offset(layer)
    values = layer.value(layer.norm_input(tokens))
    return float((values @ offset / offset.square().sum() - 1).abs().max())


def _mass(name: str) -> Measure:
    def measure(layer: SlotAttention, tokens: Tensor) -> float:
        layer, count = _settle(with_normalization(layer, name), tokens), tokens.shape[1]
        pairs = ((recover_mass(layer, codes, count), a.sum(dim=-1)) for _, a, codes in _trace(layer, tokens))
        return _worst(_distance(recovered, mass) / count for recovered, mass in pairs)

    return measure


def _weighted_mean(layer: SlotAttention, tokens: Tensor) -> float:
    layer, count = with_normalization(layer, "weighted_sum"), tokens.shape[1]
    baseline = with_normalization(layer, "weighted_mean")
    distances = []
    for slots, _, codes in _trace(layer, tokens):
        (step,) = baseline.trace(tokens, slots=slots, iterations=1)
        distances.append(_distance(recover_weighted_mean(layer, codes, count), step.updates))
    return _worst(distances)


def _m_step(layer: SlotAttention, tokens: Tensor) -> float:
    layer, count = with_normalization(layer, "weighted_sum"), tokens.shape[1]
    distances = []
    for _, attention, codes in _trace(layer, tokens):
        step = maximization_step(layer, tokens, attention)
        distances.append(_distance(recover_direction(layer, codes, count), step.directions))
        distances.append(_distance(recover_mass(layer, codes, count) / count, step.weights))
    return _worst(distances)


def _bound(layer: SlotAttention, tokens: Tensor) -> float:
    layer = with_normalization(layer, "weighted_sum")
    bound = update_bound(layer, tokens)[:, None]
    return _worst(float((codes.abs() / bound).max()) for _, _, codes in _trace(layer, tokens))


def _settle(layer: SlotAttention, tokens: Tensor) -> SlotAttention:
    """Give batch_norm running statistics and scalars as training would; the others have none."""
    if isinstance(layer.normalization, BatchNorm):
        layer.train()
        for _ in _trace(layer, tokens):
            pass
        with torch.no_grad():
            layer.normalization.weight.fill_(1.3)
            layer.normalization.bias.fill_(-0.2)
    return layer.eval()


def _identity_maps(seed: int) -> float:
    """One iteration of `mixture_layer` against an E-step and an M-step of the mixture."""
    draws = generator(seed, "theory mixture")
    layer = mixture_layer(DIM)
    tokens, slots = (torch.from_numpy(draws.standard_normal((1, count, DIM))) for count in (TOKENS, 5))
    (step,) = layer.trace(tokens, slots=slots, iterations=1)
    points, means = layer.norm_input(tokens)[0].numpy(), layer.norm_slots(slots)[0].numpy()
    attention, _ = expectation(points, np.full(5, 0.2), means, np.ones(5))
    weights, directions, _ = maximization(points, attention)
    pairs = [
        (step.attention[0], attention.T),
        (step.attention[0].mean(dim=-1), weights),
        (recover_direction(layer, step.updates, TOKENS)[0], directions),
    ]
    return _worst(_distance(ours, torch.from_numpy(theirs)) for ours, theirs in pairs)


def _mixture(seed: int) -> list[Check]:
    """Expectation maximization on planted components: its likelihood and what it finds."""
    draws = generator(seed, "theory planted")
    means = np.linalg.qr(draws.standard_normal((DIM, 3)))[0].T
    points = np.concatenate(
        [sample(mean, 60.0, count, draws) for mean, count in zip(means, (200, 400, 600), strict=True)]
    )
    mixture = VonMisesFisherMixture(3, random_state=draws).fit(points)
    largest_fall = max(0.0, -float(np.diff(mixture.lower_bounds_).min()))
    degrees = float(np.degrees(np.arccos(np.clip((means @ mixture.means_.T).max(axis=1), -1, 1))).max())
    return [
        Check("Sec. 2.2", "vMF mixture: the largest fall of the likelihood in EM", largest_fall, None, 1e-12),
        Check("Sec. 2.2", "vMF mixture: planted directions are found, error in degrees", degrees, None, 5.0, "{:.1f}"),
    ]


def refusals(seed: int = 0) -> dict[str, str]:
    """What is said where Proposition 2 has its exceptions (empty: the mass was made up)."""
    untrained = random_layer(DIM, seed)
    with torch.no_grad():
        untrained.norm_input.bias.zero_()
    cases = {"before training": untrained, "D_input > D": random_layer(DIM, seed, dim_in=DIM + 4)}
    return {name: _refusal(layer) for name, layer in cases.items()}


def _refusal(layer: SlotAttention) -> str:
    try:
        recover_mass(layer, torch.ones(1, 1, layer.dim, dtype=torch.float64), 1)
    except UserError as error:
        return str(error)
    return ""
