"""The paper's theory made executable: mixtures on the sphere beside Slot Attention, and Propositions 1 and 2."""

from slotnorm.theory.em import (
    ExpectationStep,
    MaximizationStep,
    expectation_step,
    implied_mixture_weights,
    maximization_step,
    mixture_layer,
)
from slotnorm.theory.mass import (
    AffineHull,
    Counterexample,
    affine_hull,
    counterexample,
    recover_direction,
    recover_mass,
    recover_weighted_mean,
    update_bound,
    with_normalization,
)
from slotnorm.theory.vmf import VonMisesFisherMixture

__all__ = [
    "AffineHull",
    "Counterexample",
    "ExpectationStep",
    "MaximizationStep",
    "VonMisesFisherMixture",
    "affine_hull",
    "counterexample",
    "expectation_step",
    "implied_mixture_weights",
    "maximization_step",
    "mixture_layer",
    "recover_direction",
    "recover_mass",
    "recover_weighted_mean",
    "update_bound",
    "with_normalization",
]
