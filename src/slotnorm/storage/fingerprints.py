"""What identifies tensors: the same names, types, shapes and values have the same fingerprint, anywhere."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of names."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        sha256.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha256.hexdigest()
