"""The normalizations of Slot Attention's update codes: the page the paper is about.

One iteration of Slot Attention gathers, for every slot k, the unnormalised update code ũ_k = Σ_n γ_nk v_n. What is done
to ũ_k before it updates the slot decides whether the slot can know how much of the input it was given, its mass
Σ_n γ_nk, and with that whether a trained model keeps working when the number of slots changes.

A normalization is one class here. It needs torch alone.
"""

import difflib
import inspect
import sys
import warnings
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

ENTRY_POINTS = "slotnorm.normalizations"
_HALF = (torch.float16, torch.bfloat16)


class Aggregate(NamedTuple):
    """What one iteration gathered: all that a normalization may see."""

    sums: Tensor
    """(B, K, D): the unnormalised update codes ũ."""
    mass: Tensor
    """(B, K, 1): the attention's sum over tokens."""
    num_tokens: int | Tensor
    """N, or (B, 1, 1) where a token mask leaves each image its own N."""
    total: Tensor
    """(B, 1, D): the sum of all values, Σ_n v_n = Σ_k ũ_k."""


class UnknownNormalization(ValueError):
    """A name that no normalization has."""


class BrokenContract(TypeError):
    """A normalization's forward does not return what the layer goes on with."""


_registry: dict[str, type["Normalization"]] = {}


class Normalization(nn.Module):
    """A scheme `forward(aggregate, carry) -> (updates, carry)`; subclasses register themselves by `name`.

    `carry` is None in the first iteration and hands what that iteration measured to the later ones. A forward pass is
    re-entrant: nothing but running averages may change in the module, and those only in training when `carry` is None.
    """

    name: ClassVar[str]
    """How it is asked for."""
    label: ClassVar[str]
    """What the paper's figures call it."""
    where: ClassVar[str]
    """Its section in the paper, or where else it is described."""
    keeps_mass: ClassVar[bool]
    """Whether Σ_n γ_nk can be told from the update codes (Propositions 1 and 2); a contract test holds it to that."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for attribute in ("name", "label", "where", "keeps_mass"):
            if attribute not in cls.__dict__:
                raise TypeError(
                    f"normalization {cls.__name__} has no {attribute!r}; each says name, label, where, keeps_mass"
                )
        stripped = sys.flags.optimize >= 2  # python -OO: nobody has docstrings, and lists show no formulas
        if not stripped and not (cls.__dict__.get("__doc__") or "").strip():
            raise TypeError(
                f"normalization {cls.__name__} has no docstring; its first line is the formula shown in lists and docs"
            )
        try:
            inspect.signature(cls.forward).bind(None, None, None)
        except TypeError:
            raise TypeError(
                f"{cls.__name__}.forward takes {inspect.signature(cls.forward)}; it must take (self, aggregate, carry)"
            ) from None
        if cls.name in _registry:
            taken = _registry[cls.name]
            raise TypeError(
                f"normalization name {cls.name!r} of {cls.__name__} is taken by {taken.__module__}.{taken.__name__}"
            )
        _registry[cls.name] = cls

    def forward(self, aggregate: Aggregate, carry: Any) -> tuple[Tensor, Any]:
        """The update codes u (B, K, D), and the carry for the next iteration."""
        raise TypeError(f"normalization {type(self).__name__} defines no forward(aggregate, carry)")


class WeightedMean(Normalization):
    """u_k = ũ_k / Σ_n γ_nk: the mean of the values, weighted by attention; forgets how many tokens a slot holds."""

    name, label, where, keeps_mass = "weighted_mean", "Baseline", "Sec. 2.1", False
    eps = 1e-8  # added to every weight, as in the paper's pseudocode; keeps an empty slot finite

    def forward(self, aggregate: Aggregate, carry: None) -> tuple[Tensor, None]:
        weights = aggregate.mass + self.eps * aggregate.num_tokens
        return (aggregate.sums + self.eps * aggregate.total) / weights, None


class LayerNorm(Normalization):
    """u_k = LayerNorm(ũ_k): over channels, with learned scale and shift shared by the slots."""

    name, label, where, keeps_mass = "layer_norm", "Layer Norm", "Sec. 2.1", False
    eps = 1e-5

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, aggregate: Aggregate, carry: None) -> tuple[Tensor, None]:
        return nn.functional.layer_norm(aggregate.sums, (self.dim,), self.weight, self.bias, self.eps), None


class WeightedSum(Normalization):
    """u_k = ũ_k / C with C = N unless given: fixed scaling, so that |u_kd| <= max_n |v_nd| and the mass stays."""

    name, label, where, keeps_mass = "weighted_sum", "Weighted Sum", "Sec. 4.1", True

    def __init__(self, dim: int, scale: float | None = None) -> None:
        super().__init__(dim)
        if scale is not None and not 0 < scale < float("inf"):
            raise ValueError(
                f"scale of weighted_sum is {scale}; it must be positive and finite, or None for the number of tokens"
            )
        self.scale = scale

    def forward(self, aggregate: Aggregate, carry: None) -> tuple[Tensor, None]:
        return aggregate.sums / (aggregate.num_tokens if self.scale is None else self.scale), None

    def extra_repr(self) -> str:
        return f"scale={'N' if self.scale is None else self.scale}"


class BatchNorm(Normalization):
    """u = α (ũ - m) / √(v + ε) + β: m, v over batch, slots, channels of the first iteration; running in evaluation."""

    name, label, where, keeps_mass = "batch_norm", "Batch Norm", "Sec. 4.2", True
    eps = 1e-5
    momentum = 0.1  # new = 0.1 batch + 0.9 old
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))
        self.register_buffer("running_mean", torch.zeros(1))
        self.register_buffer("running_var", torch.ones(1))

    def forward(
        self, aggregate: Aggregate, carry: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if carry is not None:
            mean, var = carry
        elif self.training:
            mean, var = batch_statistics(aggregate.sums)
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        scale = self.weight * (var + self.eps).rsqrt()
        return (aggregate.sums - mean) * scale + self.bias, (mean, var)

    def _apply(self, fn: Any, recurse: bool = True) -> "BatchNorm":
        # sums over 16,384 tokens have a variance beyond fp16's range: `module.half()` leaves the running averages wide
        wide = {name: getattr(self, name) for name in ("running_mean", "running_var")}
        super()._apply(fn, recurse)
        for name, buffer in wide.items():
            applied = getattr(self, name)
            if applied.dtype in _HALF:
                setattr(self, name, buffer.to(applied.device))
        return self


class Unnormalized(Normalization):
    """u_k = ũ_k: the weighted sum with C = 1."""

    name, label, where, keeps_mass = "unnormalized", "Unnormalized", "App. J", True

    def forward(self, aggregate: Aggregate, carry: None) -> tuple[Tensor, None]:
        return aggregate.sums, None


class KDLayerNorm(Normalization):
    """u = α (ũ - m) / √(v + ε) + β: m and v over slots and channels of each image, in every iteration anew."""

    name, label, where, keeps_mass = "kd_layer_norm", "K-D-Layer Norm", "App. J", False
    eps = 1e-5

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, aggregate: Aggregate, carry: None) -> tuple[Tensor, None]:
        var, mean = torch.var_mean(aggregate.sums, dim=(1, 2), correction=0, keepdim=True)
        return (aggregate.sums - mean) * (self.weight * (var + self.eps).rsqrt()) + self.bias, None


def normalizations() -> dict[str, type[Normalization]]:
    """Every normalization by name, in the paper's order, then those of installed packages and plugins."""
    _load_entry_points()
    return dict(_registry)


@cache
def _load_entry_points() -> None:
    """Import, once, what installed packages name under `ENTRY_POINTS`; their classes register themselves."""
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:  # somebody else's package must not take ours down, nor be dropped in silence
            warnings.warn(f"the normalization plugin {point.value!r} does not load: {error!r}", stacklevel=3)


def make_normalization(normalization: str | Normalization, dim: int) -> Normalization:
    """The normalization asked for, by name or as an instance, for slots of width `dim`."""
    if isinstance(normalization, Normalization):
        if normalization.dim != dim:
            name, given = normalization.name, normalization.dim
            raise ValueError(f"{name} is built for dim {given}, the slots have {dim}; build it with dim={dim}")
        return normalization
    known = normalizations()
    if not isinstance(normalization, str) or normalization not in known:
        close = difflib.get_close_matches(str(normalization), known, n=1)
        suggestion = f"did you mean {close[0]!r}? " if close else ""
        raise UnknownNormalization(
            f"there is no normalization {normalization!r}; {suggestion}known are: {', '.join(known)}"
        )
    return known[normalization](dim)


def normalize(normalization: Normalization, aggregate: Aggregate, carry: Any) -> tuple[Tensor, Any]:
    """What its forward returns, refused in one sentence where the layer cannot go on with it."""
    returned, sums = normalization(aggregate, carry), aggregate.sums
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise BrokenContract(f"{_rule(normalization, sums)}; it returned {_outline(returned)}")
    codes, carry = returned
    if not isinstance(codes, Tensor) or codes.shape != sums.shape or codes.dtype != sums.dtype:
        raise BrokenContract(f"{_rule(normalization, sums)}; the codes it returned are {_outline(codes)}")
    return codes, carry


def _rule(normalization: Normalization, sums: Tensor) -> str:
    return f"{type(normalization).__name__}.forward must return (codes, carry), the codes being {_outline(sums)}"


def _outline(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return repr(value) if value is None else f"an object of the type {type(value).__name__}"


def formula(normalization: type[Normalization]) -> str:
    """The first line of its docstring; empty under python -OO, which strips it."""
    return inspect.cleandoc(normalization.__doc__ or "").partition("\n")[0]


def batch_statistics(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance, both (1,), over all axes and over all ranks, with gradients through both.

    A result must not depend on the number of ranks, so ranks with unequal batches weigh by what they hold.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        if not sums.numel():
            raise ValueError("batch_norm has no statistics of an empty batch; leave it out, or call eval()")
        var, mean = torch.var_mean(sums, correction=0)
        return mean.reshape(1), var.reshape(1)
    local = torch.stack([sums.sum(), sums.new_tensor(float(sums.numel()))])
    total, count = _SumOverRanks.apply(local)
    mean = total / count
    var = _SumOverRanks.apply((sums - mean).square().sum()) / count
    return mean.reshape(1), var.reshape(1)


class _SumOverRanks(torch.autograd.Function):
    """Sum a tensor over ranks; every rank's loss depends on the sum, so the gradient is summed over ranks too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _SumOverRanks.apply(gradient.contiguous())  # type: ignore[no-any-return]
