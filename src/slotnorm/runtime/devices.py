"""Where a model computes: `--device auto|cpu|cuda|mps`, or the same word in Python."""

import re

import torch

from slotnorm.errors import UserError

KINDS = ("auto", "cpu", "cuda", "mps")


def choose_device(asked: str | torch.device = "auto") -> torch.device:
    """The device that is asked for, if it is there; `auto` is a CUDA GPU if there is one, else the CPU.

    Apple's GPU, mps, is taken only when it is asked for: it has no float64, and nobody has measured slotnorm on it.
    """
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if isinstance(asked, str) and not re.fullmatch(r"cpu|cuda(:\d+)?|mps", asked):
        raise UserError(
            f"there is no device {asked!r}; known are: {', '.join(KINDS)}, and cuda:1 for one of several GPUs"
        )
    try:
        torch.zeros(1, device=asked)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = re.split(r"\. |\n", str(error))[0].rstrip(".")  # torch goes on for a page
        raise UserError(f"device {str(asked)!r} cannot be used here ({reason}); give cpu, or auto") from error
    return torch.device(asked)
