"""Slot Attention, with the number of slots and of iterations as arguments of the call.

In come tokens (B, N, D_in) and a number of slots; out go slots (B, K, D) and attention (B, K, N). `layer` is the order
of things; what makes it fast, and exact all the same, is in `iteration`. Beside torch this folder needs
`normalization.py`, `initialization.py` and `runtime/torch_internals.py` alone: anyone can carry them away.
"""

from slotnorm.slot_attention.layer import Iteration as Iteration
from slotnorm.slot_attention.layer import SlotAttention as SlotAttention

__all__ = ["Iteration", "SlotAttention"]
