"""The paper's theory made executable: mixtures on the sphere beside Slot Attention, and Propositions 1 and 2."""

from slotnorm.theory.vmf import VonMisesFisherMixture

__all__ = ["VonMisesFisherMixture"]
