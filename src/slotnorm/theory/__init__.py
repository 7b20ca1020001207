"""The paper's theory made executable: mixtures on the sphere beside Slot Attention, and Propositions 1 and 2.

In come layers, random or trained, and points on the sphere; out go fitted mixtures, what update codes tell of a slot's
mass, and the residual of every statement.
"""

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
