"""A device that is not there: tensors that claim to be on it compute on the CPU and refuse to meet others.

    with other_device():
        torch.zeros(3, device=DEVICE) + torch.zeros(3)       # RuntimeError, as on a GPU

So code that forgets a `.to(device)`, or takes a tensor for NumPy without `.cpu()`, fails on a machine without a GPU.
The device claims to be Apple's, and has no float64, as that has none.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("mps")
_FROM_OR_TO = {torch.ops.aten.copy_.default}  # the one operation between devices, besides `.to`
# whose indices may come from the CPU
_BY_INDEX = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}


class OtherTensor(Tensor):
    """A tensor on the other device: `payload` holds its values on the CPU."""

    payload: Tensor

    @staticmethod
    def __new__(cls, payload: Tensor) -> "OtherTensor":
        if payload.dtype == torch.float64:
            raise TypeError("the other device has no float64")
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, payload.size(), strides=payload.stride(), storage_offset=payload.storage_offset(),
            dtype=payload.dtype, layout=payload.layout, requires_grad=payload.requires_grad,
        )  # fmt: skip
        made.payload = payload.detach()
        return made  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OtherTensor({self.payload})"

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        checked = (args[0], args[2:]) if function in _BY_INDEX else (args, kwargs)
        for tensor in tree_flatten(checked)[0]:
            plain = isinstance(tensor, Tensor) and not isinstance(tensor, OtherTensor)
            if plain and tensor.dim() > 0 and function not in _FROM_OR_TO:
                raise RuntimeError(f"{function}: all tensors must be on one device, found {DEVICE} and cpu")
        made = function(*tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
        if function in _FROM_OR_TO or str(function).split(".")[1].endswith("_"):
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        return tree_map(_wrapped, made)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.payload if isinstance(value, OtherTensor) else value


def _wrapped(value: Any) -> Any:
    return OtherTensor(value) if isinstance(value, Tensor) else value


class _Claims(TorchFunctionMode):
    """Sees what is asked of devices: makes tensors on the other one, and moves them there and back."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        owner = args[0] if args and isinstance(args[0], Tensor) else None
        if function is Tensor.to and owner is not None:
            return _moved(owner, args[1:], kwargs)
        if function is Tensor.cpu and isinstance(owner, OtherTensor):
            return _moved(owner, ("cpu",), {})
        if isinstance(owner, OtherTensor):
            if function in (Tensor.numpy, Tensor.__array__, Tensor.data_ptr, Tensor.untyped_storage):
                raise TypeError(f"{function.__name__} of a tensor on {DEVICE}: copy it to the CPU first")
            if function is Tensor.tolist:
                return owner.payload.tolist()
            if function is Tensor.new_tensor:
                return OtherTensor(owner.payload.new_tensor(*args[1:], **kwargs))
        device = kwargs.get("device")
        if device is not None and _is_other(device):
            return OtherTensor(function(*args, **{**kwargs, "device": "cpu"}))
        return function(*args, **kwargs)


def _is_other(device: Any) -> bool:
    return isinstance(device, str | torch.device) and torch.device(device).type == DEVICE.type


def _moved(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`tensor.to(...)` in all its forms: by device, type, both, or like another tensor."""
    given = [*args, kwargs.get("device"), kwargs.get("dtype")]
    like = next((value for value in given if isinstance(value, Tensor)), None)
    named = None if like is None else like.device
    device = next((value for value in given if isinstance(value, str | torch.device)), named)
    dtype = next((value for value in given if isinstance(value, torch.dtype)), (tensor if like is None else like).dtype)
    form = {"memory_format": kwargs["memory_format"]} if "memory_format" in kwargs else {}
    is_there = isinstance(tensor, OtherTensor)
    goes_there = is_there if device is None else _is_other(device)
    if is_there == goes_there:
        return Tensor.to(tensor, dtype, **form)
    assert not (tensor.requires_grad and torch.is_grad_enabled()), "no gradient passes between the devices"
    payload = tensor.payload if isinstance(tensor, OtherTensor) else tensor.detach()
    changed = payload.to(dtype, **form)
    if is_there:
        OtherTensor(changed)  # the type changes where the tensor is, if that can be
    return OtherTensor(changed.clone()) if goes_there else changed.clone()


@contextlib.contextmanager
def other_device() -> Iterator[torch.device]:
    """The other device, while the block runs."""
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a plain parameter cannot become one from there
    try:
        with pytest.MonkeyPatch.context() as patch, _Claims():
            patch.setattr(torch, "inference_mode", _without_gradients)  # tensors made in it cannot be wrapped
            yield DEVICE
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)


def _without_gradients(mode: bool = True) -> contextlib.AbstractContextManager[None]:
    return torch.no_grad() if mode else contextlib.nullcontext()
