"""Frozen networks that turn images into features: any ViT or CNN of timm, or the encoder of a slotnorm model.

`FrozenBackbone` is what `features.py` stores the output of, and what training calls to compute features on the fly.
"""

import importlib
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import interpolate

from slotnorm.config import Protocol
from slotnorm.errors import DamagedFile, UserError, nearest
from slotnorm.storage import files
from slotnorm.storage.fingerprints import fingerprint

Norm = Literal["after", "before"]

HUB = "hub"
# what checkpoints hold beside the backbone that timm builds without a classifier
_HEADS = ("head.", "fc.", "classifier.", "fc_norm.", "mask_token", "last_layer.", "projection_head.", "pre_logits.")
_WRAPPERS = ("state_dict", "model", "teacher")  # where training scripts put the weights in a checkpoint
_PREFIXES = ("module.", "backbone.")


class FrozenBackbone(nn.Module):
    """uint8 images (B, H, W, 3) of any size -> features (B, N, F) float32, tokens in row-major order; never trained.

    Images of another size than `size` are scaled bicubically without antialias: under `paper` before they are
    normalised and rounded as stored images are, under `authors` after it. `tokens` is N, `features` F, and
    `provenance` says which network with which weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        provenance: Mapping[str, Any],
        protocol: Protocol = "paper",
    ) -> None:
        super().__init__()
        self.network, self.size, self.protocol = network, size, protocol
        # in the images' own scale of 0 to 255
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1) * 255, persistent=False)
        self.requires_grad_(False)
        self.train(False)
        self.provenance = {
            **provenance,
            "size": size,
            "protocol": protocol,
            "sha256_of_tensors": fingerprint(network.state_dict()),
        }
        _, self.tokens, self.features = self(torch.zeros(1, size, size, 3, dtype=torch.uint8)).shape

    def train(self, mode: bool = True) -> "FrozenBackbone":
        """Stay in evaluation mode, whatever the model around it is told."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            pixels = images.to(self.mean.device).permute(0, 3, 1, 2).float()
            if self.protocol == "paper":
                pixels = (self._scaled(pixels).round().clamp(0, 255) - self.mean) / self.std
            else:
                pixels = self._scaled((pixels - self.mean) / self.std)
            tokens: Tensor = self.network(pixels)
        return tokens.float()

    def _scaled(self, pixels: Tensor) -> Tensor:
        if pixels.shape[2:] == (self.size, self.size):
            return pixels
        return interpolate(pixels, (self.size, self.size), mode="bicubic", align_corners=False, antialias=False)


class _FeatureMap(nn.Module):
    """The last feature map of a timm model as tokens (B, N, F), without class or register tokens."""

    model: Any  # timm's models share these methods but no type that says so

    def __init__(self, model: nn.Module, norm: Norm) -> None:
        super().__init__()
        self.model, self.norm = model, norm

    def forward(self, pixels: Tensor) -> Tensor:
        if hasattr(self.model, "forward_intermediates"):
            (grid,) = self.model.forward_intermediates(
                pixels, indices=1, norm=self.norm == "after", output_fmt="NCHW", intermediates_only=True
            )
        else:
            grid = self.model.forward_features(pixels)
        if grid.ndim != 4:
            raise UserError(f"{type(self.model).__name__} of timm has no map of features; choose a ViT or a CNN")
        tokens: Tensor = grid.flatten(2).mT
        return tokens


def timm_backbone(name: str, weights: str | Path, norm: Norm = "after", protocol: Protocol = "paper") -> FrozenBackbone:
    """A model of timm by name, with weights from a file (.safetensors, or .pth without code) or from the hub.

    Features are taken after the model's last norm, or before it (as the DINOSAUR library does).
    """
    timm = import_timm()
    if not timm.is_model(name):
        stem = name.split(".")[0]
        raise UserError(f"timm has no model {name!r}; {_few(stem, timm.list_models())}")
    described: dict[str, Any] = {"backbone": name, "norm": norm, "weights": str(weights)}
    model: Any
    if str(weights) == HUB:
        model = _from_hub(timm, name)
    else:
        path = Path(weights)
        try:
            model = timm.create_model(name, pretrained=False, num_classes=0)
        except RuntimeError as error:
            raise UserError(f"timm cannot make {name!r} ({error}); timm.list_pretrained() lists names") from error
        _load_weights(model, path, name)
        described |= {"weights": path.name, "sha256_of_file": files.sha256(path)}
    config = model.pretrained_cfg
    _, height, width = config["input_size"]
    if height != width:
        raise UserError(f"{name} takes {height} x {width} pixels, and only square images are made")
    return FrozenBackbone(_FeatureMap(model, norm), height, config["mean"], config["std"], described, protocol)


def encoder_backbone(model: nn.Module, name: str, protocol: Protocol = "paper", norm: Norm = "after") -> FrozenBackbone:
    """The encoder of a slotnorm model that takes images: its tokens (B, N, C) are the features.

    With `norm` "after" they are taken as Slot Attention sees them, after the layer norm of its input: as a ViT's
    features after its last norm.
    """
    encoder, size = getattr(model, "encoder", None), getattr(model, "size", None)
    if not isinstance(encoder, nn.Module) or not isinstance(size, int):
        raise UserError(f"{name} is not a model of images: its encoder cannot make features")
    half = (0.5, 0.5, 0.5)  # our models see images in [-1, 1]
    network: nn.Module = encoder
    described = {"backbone": name}
    if norm == "after":
        network = nn.Sequential(encoder, model.slot_attention.norm_input)  # type: ignore[union-attr,arg-type]
        described["tokens"] = "after the layer norm of Slot Attention's input"
    return FrozenBackbone(network, size, half, half, described, protocol)


def import_timm() -> ModuleType:
    """timm, or how to install it.

    timm imports torchvision, and the published torchvision beside a CPU build of torch lacks operators that its import
    asks for. Features need none of them, so their names are declared.
    """
    try:
        _import_torchvision()
        return importlib.import_module("timm")
    except ImportError as error:
        raise UserError(f"features of a ViT need timm ({error}): pip install 'slotnorm[vit]'") from error


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]  # half-imported
        for operator in ("nms", "qnms"):
            _OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")  # what it declares lasts as long as it does


def _from_hub(timm: ModuleType, name: str) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # of the hub's client: it has its own, and those of the library below it
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"the weights of {name} cannot be had from the hub ({reason}); give --weights FILE") from error
    return model


def _load_weights(model: nn.Module, path: Path, name: str) -> None:
    state = _read_state(path)
    problems = []
    wanted = model.state_dict()
    if missing := [key for key in wanted if key not in state]:
        problems.append(f"lacks {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}")
    unknown = [key for key in state if key not in wanted and not key.startswith(_HEADS)]
    if unknown:
        problems.append(f"has {', '.join(unknown[:3])}{' ...' if len(unknown) > 3 else ''} in excess")
    for key in wanted.keys() & state.keys():
        if wanted[key].shape != state[key].shape:
            problems.append(f"has {key} of shape {tuple(state[key].shape)}, not {tuple(wanted[key].shape)}")
            break
    if problems:
        raise UserError(f"{path} does not fit {name}: it {' and '.join(problems)}; give the weights of that model")
    model.load_state_dict({key: state[key] for key in wanted})


def _read_state(path: Path) -> dict[str, Tensor]:
    """Name -> tensor, from safetensors or from a PyTorch checkpoint that holds nothing but tensors and plain values."""
    if not path.is_file():
        raise UserError(f"there is no file of weights {path}; give a .pth or .safetensors file, or hub")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{path} holds more than weights and is not read, since it could run code ({reason})"
        ) from error
    except Exception as error:  # torch.load of a damaged file raises AssertionError, TypeError, struct.error and others
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DamagedFile(f"{path} cannot be read as weights ({reason}); get it again") from error
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__} and not weights by name")
    state = {}
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, Tensor):
            for prefix in _PREFIXES:
                key = key.removeprefix(prefix)
            state[key] = value
    return state


def _few(name: str, known: list[str]) -> str:
    """As `nearest`, for a list too long to print."""
    first = nearest(name, known).split("known are:")[0]
    return f"{first}timm.list_models() lists all {len(known)}"
