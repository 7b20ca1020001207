"""How slots start: one class each.

Slot Attention refines slots that start somewhere. In the paper all slots are drawn from one Gaussian, whose mean and
spread are learned: they are interchangeable, and there may be more or fewer of them than in training. A start that is
learned for each slot gives that up.

An initialization is one class here. It needs torch alone.
"""

import difflib
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

_registry: dict[str, type["Initialization"]] = {}


class UnknownInitialization(ValueError):
    """A name that no initialization has."""


class Initialization:
    """Where the slots of a layer start; subclasses register themselves by `name`.

    It is built as `cls(dim, num_slots)` for slots of width `dim`, `num_slots` being their number in training where that
    is known. Its parameters live on the layer, under their own names: `make_parameters` makes them, `draw` gives them
    their first values, and `start` reads them. The object itself has no state.
    """

    name: ClassVar[str]
    """How it is asked for."""
    label: ClassVar[str]
    """What people call it."""
    where: ClassVar[str]
    """Its section in the paper, or where else it is described."""
    interchangeable: ClassVar[bool]
    """Whether slots differ by their noise alone, so that exchanging the noise exchanges them; a contract test looks."""

    def __init__(self, dim: int, num_slots: int | None = None) -> None:
        self.dim, self.num_slots = dim, num_slots

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for attribute in ("name", "label", "where", "interchangeable"):
            if attribute not in cls.__dict__:
                raise TypeError(
                    f"initialization {cls.__name__} has no {attribute!r}; each says name, label, where, interchangeable"
                )
        if cls.name in _registry:
            taken = _registry[cls.name]
            raise TypeError(
                f"initialization name {cls.name!r} of {cls.__name__} is taken by {taken.__module__}.{taken.__name__}"
            )
        _registry[cls.name] = cls

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim={self.dim}, num_slots={self.num_slots})"

    def make_parameters(self) -> dict[str, nn.Parameter]:
        """The layer's parameters that it needs, by the names they have there; values come from `draw`."""
        return {}

    def draw(self, layer: nn.Module, protocol: str) -> None:
        """Draw the first values of the layer's parameters, under the protocol "paper" or "authors"."""

    def takes(self, num_slots: int) -> bool:
        """Whether the layer can be asked for so many slots."""
        return True

    def start(self, layer: nn.Module, noise: Tensor) -> Tensor:
        """The initial slots (B, K, D), given the layer that has the parameters and standard normal noise (B, K, D)."""
        raise TypeError(f"initialization {type(self).__name__} defines no start(layer, noise)")


class Gaussian(Initialization):
    """slot_k = μ + exp(log σ) ε_k with ε_k standard normal: one learned Gaussian for all slots, any number of them."""

    name, label, where, interchangeable = "gaussian", "Gaussian", "Sec. 2.1", True

    def make_parameters(self) -> dict[str, nn.Parameter]:
        return {name: nn.Parameter(torch.empty(self.dim)) for name in ("slots_mu", "slots_log_sigma")}

    def draw(self, layer: nn.Module, protocol: str) -> None:
        bound = math.sqrt(6 / (self.dim + 1)) if protocol == "paper" else math.sqrt(3 / self.dim)
        for name in ("slots_mu", "slots_log_sigma"):
            nn.init.uniform_(layer.get_parameter(name), -bound, bound)

    def start(self, layer: nn.Module, noise: Tensor) -> Tensor:
        mean: Tensor = layer.slots_mu  # type: ignore[assignment]
        log_spread: Tensor = layer.slots_log_sigma  # type: ignore[assignment]
        return mean + log_spread.exp() * noise


class Learned(Initialization):
    """slot_k = a_k: a learned vector for each slot, and so only as many slots as in training."""

    name, label, where, interchangeable = "learned", "Learned", "not in the paper", False

    def __init__(self, dim: int, num_slots: int | None = None) -> None:
        super().__init__(dim, num_slots)
        if num_slots is None or num_slots < 1:
            given = "is missing" if num_slots is None else f"is {num_slots}"
            raise ValueError(
                f"the number of slots {given}; learned slots have a vector each: give num_slots, at least 1, when the "
                "layer or model is built"
            )

    def make_parameters(self) -> dict[str, nn.Parameter]:
        assert self.num_slots is not None  # see __init__
        return {"slots_initial": nn.Parameter(torch.empty(self.num_slots, self.dim))}

    def draw(self, layer: nn.Module, protocol: str) -> None:
        nn.init.normal_(layer.get_parameter("slots_initial"))  # as apart as draws of the Gaussian with σ = 1

    def takes(self, num_slots: int) -> bool:
        return num_slots == self.num_slots

    def start(self, layer: nn.Module, noise: Tensor) -> Tensor:
        initial: Tensor = layer.slots_initial  # type: ignore[assignment]
        return initial.expand(noise.shape[0], -1, -1)


def initializations() -> dict[str, type[Initialization]]:
    """Every initialization by name: the paper's, then others, then those of plugins."""
    return dict(_registry)


def make_initialization(initialization: str | Initialization, dim: int, num_slots: int | None = None) -> Initialization:
    """The initialization asked for, by name or as an instance, for slots of width `dim`."""
    if isinstance(initialization, Initialization):
        if initialization.dim != dim:
            name, given = initialization.name, initialization.dim
            raise ValueError(f"{name} is built for dim {given}, the slots have {dim}; build it with dim={dim}")
        return initialization
    if not isinstance(initialization, str) or initialization not in _registry:
        close = difflib.get_close_matches(str(initialization), _registry, n=1)
        suggestion = f"did you mean {close[0]!r}? " if close else ""
        raise UnknownInitialization(
            f"there is no initialization {initialization!r}; {suggestion}known are: {', '.join(_registry)}"
        )
    return _registry[initialization](dim, num_slots)


def refusal(initialization: Initialization, num_slots: int) -> str:
    """Why a layer cannot be asked for so many slots, in one sentence; empty where it can."""
    if initialization.takes(num_slots):
        return ""
    return (
        f"num_slots is {num_slots}, but this model has a {initialization.name} start of {initialization.num_slots} "
        f"slots: ask for {initialization.num_slots}, or train with the initialization gaussian, which takes any number"
    )
