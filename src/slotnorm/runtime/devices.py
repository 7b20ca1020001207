"""Where a model computes: `--device auto|cpu|cuda|mps`, or the same word in Python."""

import re

import torch

from slotnorm.errors import UserError

KINDS = ("auto", "cpu", "cuda", "mps")


def choose_device(asked: str | torch.device = "auto") -> torch.device:
    """The device that is asked for, if it is there; `auto` is a CUDA GPU if there is one, else the CPU.

    Apple's GPU, mps, is taken only when it is asked for: it has no float64, and nobody has measured slotnorm on it.
    """
    require_known_device(asked)
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=asked)
    except NotImplementedError as error:  # its words are about operators
        raise UserError(f"device {str(asked)!r} is not on this machine; give cpu, or auto") from error
    except (RuntimeError, AssertionError) as error:
        reason = re.split(r"\. |\n", str(error))[0].rstrip(".")  # torch goes on for a page
        raise UserError(f"device {str(asked)!r} cannot be used here ({reason}); give cpu, or auto") from error
    return torch.device(asked)


def require_known_device(asked: str | torch.device) -> None:
    """Refuse what is not a device on any machine: another one may have what this one has not."""
    is_known = isinstance(asked, torch.device) and asked.type in KINDS
    if not (is_known or (isinstance(asked, str) and re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", asked))):
        named = str(asked) if isinstance(asked, torch.device) else asked
        raise UserError(
            f"there is no device {named!r}; known are: {', '.join(KINDS)}, and cuda:1 for one of several GPUs"
        )
