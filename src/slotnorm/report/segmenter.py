"""One picture in, masks out: what a trained model makes of images of any size, as files that other programs read.

An image is scaled to the square that the model takes, whatever its proportions; the masks are scaled back bilinearly
and the largest wins, so that every pixel of the input belongs to one slot. The slots start from noise that depends on
the seed and the number of slots alone: the same command gives the same files.
"""

import io
import json
import logging
import operator
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from slotnorm import __version__
from slotnorm.config import SLOTS_FACTOR, require_seed
from slotnorm.data.any_picture import to_picture
from slotnorm.data.backbones import FrozenBackbone
from slotnorm.data.image_files import ENDINGS, PICTURES_OF_OTHERS, is_of_system
from slotnorm.data.resize import method_of, resize
from slotnorm.errors import UserError, printable
from slotnorm.evaluation.label_maps import labels_in_tiles, scaled_labels
from slotnorm.evaluation.out_of_distribution import FAR, times_validation
from slotnorm.metrics.object_count import holds_object
from slotnorm.metrics.segmentation import as_maps
from slotnorm.models import SlotModel
from slotnorm.report.safe_names import folder_name
from slotnorm.report.segmentation import Segmentation, count_in_words
from slotnorm.runtime import randomness
from slotnorm.runtime.progress import Progress
from slotnorm.storage import files
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.training.loading import load

_log = logging.getLogger(__name__)

MOST_SLOTS = 256  # a label map has 8 bits
AUTO = "auto"
"""In place of a number of slots: many, of which those that hold no object are the background together."""
BACKGROUND = 0
"""The label of the background with AUTO: objects are 1, 2, ..."""
_LARGE = 1 << 24  # pixels times slots from which label maps are made in tiles
_COMPRESSION = 1  # of 9: photographs get hardly smaller with more, and encoding is nearly all of the time
_RECORD = "slots.json"
_CUT_OUT = re.compile(r"(slot-\d{3}|background)\.png")


class Segmenter:
    """A model that is asked for `num_slots` slots, with noise of `seed`; `backbone` where it takes features.

    `model` is one, or what `load` takes, which is then loaded onto `device`.
    `num_slots` None is the training number; "auto" is three times it, and the slots that hold no object are one, the
    background (`count_objects` says which).
    """

    def __init__(
        self,
        model: str | Path | SlotModel,
        num_slots: int | str | None = None,
        seed: int = 0,
        backbone: FrozenBackbone | None = None,
        *,
        device: str | torch.device = "auto",
    ) -> None:
        if not isinstance(model, SlotModel):
            model = load(model, device)
        self.auto = num_slots == AUTO
        if num_slots is None or self.auto:
            if model.experiment is None:
                raise UserError("the model has no experiment that says its number of slots; give num_slots")
            num_slots = model.experiment.slots
            if self.auto and model.takes(SLOTS_FACTOR * num_slots):
                num_slots = min(SLOTS_FACTOR * num_slots, MOST_SLOTS)
        try:
            num_slots = operator.index(num_slots)  # type: ignore[arg-type]  # NumPy's whole numbers too
        except TypeError:
            raise UserError(f"slots is {num_slots!r}, but must be a whole number or {AUTO!r}") from None
        if not 1 <= num_slots <= MOST_SLOTS:
            raise UserError(f"{num_slots} slots are not possible: a label map of 8 bits takes 1 to {MOST_SLOTS}")
        model.require_slots([num_slots])
        given: Any = seed
        require_seed(given.item() if isinstance(given, np.integer) else given)  # NumPy's whole numbers too
        self.model, self.num_slots, self.seed = model.eval(), num_slots, seed
        self._warned = False
        self.backbone = _checked_backbone(model, backbone)
        if self.backbone:
            self.backbone.to(model.device)
        self.size: int = self.backbone.size if self.backbone else model.input_shape[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What a result depends on besides the image."""
        experiment = self.model.experiment
        return {
            "slotnorm": __version__,
            "weights": fingerprint(self.model.state_dict()),
            "norm": self.model.slot_attention.normalization.name,
            "train_slots": experiment.slots if experiment else None,
            "num_slots": self.num_slots,
            "seed": self.seed,
            "backbone": self.backbone.provenance if self.backbone else None,
        }

    def __call__(self, picture: Any) -> Segmentation:
        """Segment a picture of any size: a path, a PIL image, an array or a tensor (data/any_picture.py)."""
        image = to_picture(picture)
        pixels = torch.from_numpy(self._prepared(image).copy())[None]
        keys: list[tuple[int, ...]] = [(self.num_slots,)]
        noise = randomness.slot_noise(self.seed, "segment", keys, self.num_slots, self.model.slot_attention.dim)
        with torch.inference_mode():
            on_device = torch.from_numpy(noise).to(self.model.device)
            inputs = self._inputs(pixels)
            tokens = self.model.encode(inputs)
            decomposition = self.model.decompose(tokens, noise=on_device, reconstruct=False)
            times = times_validation(self.model, inputs, tokens, self.seed)
            masks = as_maps(decomposition.masks).cpu().float()
            masses = decomposition.attention[0].cpu().double().sum(dim=1)
            objects = holds_object(masks)[0]
            numbers = [[slot] for slot in range(self.num_slots)]
            if self.auto:
                numbers = [(~objects).nonzero()[:, 0].tolist(), *objects.nonzero().tolist()]
            masks = torch.stack([masks[:, members].sum(dim=1) for members in numbers], dim=1)
            labels = _label(masks, image.height, image.width)
        self._warn_of_unfamiliar(times, printable(str(picture)) if isinstance(picture, str | Path) else None)
        return Segmentation(
            image, labels.numpy(), np.array([float(masses[members].sum()) for members in numbers]),
            decomposition.attention.shape[-1], self.size, masks[0].numpy(), int(objects.sum()),
            tuple(map(tuple, numbers)), BACKGROUND if self.auto else None, times,
        )  # fmt: skip

    def _warn_of_unfamiliar(self, times: float | None, name: str | None) -> None:
        """Say of every file, and once of pictures without a name, that it is far from those of training."""
        if times is None or times < FAR or (self._warned and name is None):
            return
        said = f"note: {name or 'a picture'} is rebuilt with {times:.0f} times the error of the model's validation"
        if not self._warned:
            said += (
                ", so it is far from what the model was trained on and its masks may mean little: train on pictures of "
                f"its kind (docs/your-images.md){'' if name else '; this is said once'}"
            )
        self._warned = True
        _log.warning(said)

    def _prepared(self, image: Image.Image) -> NDArray[np.uint8]:
        """The picture as training's were: at the model's size, or as it is where the backbone scales."""
        pixels, experiment = np.asarray(image), self.model.experiment
        dataset, protocol = (experiment.dataset, experiment.recipe.protocol) if experiment else ("folder", "paper")
        method = method_of(dataset, protocol)
        return pixels if self.backbone and method == "bicubic" else resize(pixels, self.size, method)

    def _inputs(self, pixels: Tensor) -> Tensor:
        if self.backbone is None:
            return self.model.prepare(pixels)
        return self.model.prepare(self.backbone(pixels).half())  # stored features have half precision


def _label(masks: Tensor, height: int, width: int) -> Tensor:
    """The slot of every pixel, (height, width) uint8, by masks (1, K, h, w)."""
    if height * width * masks.shape[1] <= _LARGE:
        return scaled_labels(masks, height, width)[0].to(torch.uint8)
    return labels_in_tiles(masks[0], height, width)


def _checked_backbone(model: SlotModel, backbone: FrozenBackbone | None) -> FrozenBackbone | None:
    if model.input == "images":
        if backbone is not None:
            raise UserError("this model takes images themselves: leave out --backbone")
        return None
    wanted = model.input_shape
    if backbone is None:
        raise UserError(
            f"this model takes features, {wanted[0]} x {wanted[1]} per image, and no images: name the network that "
            "makes them, as in --backbone vit_base_patch8_224.dino --weights FILE"
        )
    if (backbone.tokens, backbone.features) != wanted:
        raise UserError(
            f"the backbone gives {backbone.tokens} x {backbone.features} features and the model takes {wanted[0]} x "
            f"{wanted[1]}: name the one it was trained with"
        )
    return backbone


def segment_files(source: str | Path, segmenter: Segmenter, out: str | Path) -> Iterator[str]:
    """Segment an image, or every image of a folder, into OUT/NAME; yields a line on each that is done.

    An image that cannot be read does not keep the others from being done; all such are named at the end.
    """
    source, out = Path(source), Path(out)
    images = _images(source)
    if source.is_file():
        yield _segment_one(source, segmenter, out / _names(images)[0])
        return
    failures = []
    with Progress("images", len(images)) as progress:
        for path, name in zip(images, _names(images), strict=True):
            try:
                yield _segment_one(path, segmenter, out / name)
            except UserError as error:
                failures.append(str(error))
            progress.advance(note=printable(path.name))
    if failures:
        raise UserError(f"{len(failures)} of {len(images)} images could not be segmented: {'; '.join(failures)}")


def _segment_one(path: Path, segmenter: Segmenter, folder: Path) -> str:
    segmentation = segmenter(path)
    save(segmentation, folder, {"image": path.name, **segmenter.settings})
    width, height, side = segmentation.image.width, segmentation.image.height, segmentation.scaled_to
    scaled = "" if (width, height) == (side, side) else f", scaled to {side}x{side} for the model"
    used = len(np.unique(segmentation.labels))
    held = f"{used} of {len(segmentation.masses)} slots hold pixels"
    if segmenter.auto:
        background = len(segmentation.numbers[BACKGROUND])
        held = f"{count_in_words(segmentation.count)}; {background} of {segmenter.num_slots} slots are background"
    return f"{printable(path.name)}: {width}x{height}{scaled}; {held}: {folder}"


def save(segmentation: Segmentation, folder: Path, facts: dict[str, Any]) -> None:
    """Write labels.png, overlay.png, a cut-out of each slot that has pixels, and slots.json, which is the last."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    files.make_subfolder(folder)
    slots, earlier = segmentation.slots(), _earlier(folder)
    labels = Image.fromarray(segmentation.labels)  # a palette makes it show colours; its values stay the slots' numbers
    labels.putpalette(segmentation.palette.tobytes())
    files.write(folder / "labels.png", _png(labels))
    files.write(folder / "overlay.png", _png(segmentation.overlay()))
    for slot in slots:
        if slot["box"] is not None:
            slot["file"] = "background.png" if slot["background"] else f"slot-{slot['slot']:03}.png"
            files.write(folder / slot["file"], _png(_cut_out(segmentation, slot)))
    record = {
        **facts, "width": segmentation.image.width, "height": segmentation.image.height,
        "scaled_to": [segmentation.scaled_to] * 2, "tokens": segmentation.tokens, "objects": segmentation.count,
        "times_validation": segmentation.times_validation, "slots": slots,
    }  # fmt: skip
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    files.write(folder / _RECORD, text.encode(errors="backslashreplace"))  # JSON's own escape, where a name is not text
    for path in earlier:
        if path.name not in {slot.get("file") for slot in slots}:
            path.unlink(missing_ok=True)


def _earlier(folder: Path) -> list[Path]:
    """Cut-outs of an earlier segmentation in the same folder."""
    if not (folder / _RECORD).is_file():
        return []
    return [path for path in folder.iterdir() if _CUT_OUT.fullmatch(path.name)]


def _cut_out(segmentation: Segmentation, slot: dict[str, Any]) -> Image.Image:
    """The slot's pixels inside its box, everything else transparent and black: nothing of it is left in the file."""
    left, top, right, bottom = slot["box"]
    inside = Image.fromarray((segmentation.labels[top:bottom, left:right] == slot["slot"]).astype(np.uint8) * 255)
    cut = Image.new("RGBA", inside.size)
    cut.paste(segmentation.image.crop((left, top, right, bottom)), mask=inside)
    return cut


def _images(source: Path) -> list[Path]:
    if source.is_dir():
        entries = (path for path in source.iterdir() if not is_of_system(path))
        pictures = (*ENDINGS, *PICTURES_OF_OTHERS)  # those that are not read are named with the others that fail
        files = sorted(path for path in entries if path.suffix.lower() in pictures and path.is_file())
        if not files:
            raise UserError(f"{source} holds no image; those that end in {', '.join(ENDINGS)} are read")
        return files
    if not source.exists():
        raise UserError(f"there is no image or folder {source}")
    return [source]


def _names(images: Sequence[Path]) -> list[str]:
    """A folder for each image: its name without the ending, and with it where two would share the folder."""
    stems = [folder_name(path.stem) for path in images]
    shared = Counter(stems)
    names = [stem if shared[stem] == 1 else folder_name(path.name) for stem, path in zip(stems, images, strict=True)]
    taken = Counter(names)
    return [name if taken[name] == 1 else f"{name}-{number}" for number, name in enumerate(names)]


def _png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=_COMPRESSION)
    return content.getvalue()
