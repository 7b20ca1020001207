"""One training on several processes, started by torchrun: gloo between CPUs, NCCL between GPUs."""

import contextlib
import datetime
import os
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from slotnorm.errors import UserError

_SILENCE = datetime.timedelta(
    seconds=50
)  # a rank that says nothing for so long is dead: the others end within a minute
_PREPARATION = datetime.timedelta(hours=24)  # while the first rank makes the data set, the others wait


class RankLost(UserError):
    """Another process of this training ended or fell silent."""

    exit_code = 7


class Ranks:
    """This process among those of one training; on its own it is rank 0 of 1 and every exchange is nothing."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device
        self._preparation = dist.new_group(timeout=_PREPARATION, backend="gloo") if world_size > 1 else None

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def wait_for_first(self) -> None:
        """Wait, for hours if need be, until rank 0 has come here too."""
        if self._preparation:
            with lost_rank_named():
                dist.barrier(group=self._preparation)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, in one exchange per dtype."""
        if self.world_size > 1:
            for group in _by_dtype(tensors):
                flat = torch.cat([tensor.reshape(-1) for tensor in group])
                with lost_rank_named():
                    dist.all_reduce(flat)
                _scatter(flat, group)

    def copy_from_first_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by rank 0's."""
        if self.world_size > 1:
            for group in _by_dtype(tensors):
                flat = torch.cat([tensor.to(self.device).reshape(-1) for tensor in group])
                with lost_rank_named():
                    dist.broadcast(flat, src=0)
                _scatter(flat, group)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun started, if it did, and leave them at the end of the block.

    Of CUDA GPUs without a number each process on a machine takes its own.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    on_gpu = device.type == "cuda"
    if world_size > 1 and device.type not in ("cpu", "cuda"):
        raise UserError(f"{world_size} processes cannot train together on {device}; give --device cpu, or start one")
    if on_gpu:
        if str(device) == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.backends.cudnn.deterministic = True  # a resumed run must have the bits of an unbroken one
    if world_size == 1:
        yield Ranks(0, 1, device)
        return
    if on_gpu:
        torch.cuda.set_device(device)
    with lost_rank_named():
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=_SILENCE)
    try:
        yield Ranks(dist.get_rank(), world_size, device)
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def lost_rank_named() -> Iterator[None]:
    """Turn the errors of an exchange that failed because another process is gone into one sentence."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error) and "peer" not in str(error):
            raise
        reason = " ".join(str(error).strip().splitlines()[0].split())
        raise RankLost(
            f"another process of this training ended or fell silent ({reason[:200]}); the last checkpoint stands: "
            "the same command continues, with this or another number of processes"
        ) from error


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


@torch.no_grad()
def _scatter(flat: Tensor, tensors: list[Tensor]) -> None:
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
