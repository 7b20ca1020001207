"""The slider over K: every normalization's decomposition of some scenes at every K, made beforehand.

For each scene and normalization all K are one sprite, the smallest K on top; the script draws the part that is asked
for. At the training K and at three times it the masks themselves are there too, so that slots can be looked at alone
and pairs of pixels counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slotnorm.evaluation.examples import Examples
from slotnorm.evaluation.label_maps import scaled_labels
from slotnorm.report.contents import SectionContents
from slotnorm.report.page.markup import Markup, element
from slotnorm.report.page.pixels import Sprites, data_uri, hexadecimal, levels, packed, png, sprite
from slotnorm.report.page.words import set_in_words
from slotnorm.report.pictures import Illustration, slots_table
from slotnorm.report.scores import RunScores
from slotnorm.report.sections import Section
from slotnorm.report.tables import at_slots

MOST_SCENES = 12
SCORES = ("f_ari", "ari", "l2")  # beside the pictures
NAME = "explorer"
_PICTURES = ("input", "truth", "labels", "segmentation", "reconstruction", "masks")  # of a scene or variant, as numbers
LARGEST_MASK = 40  # pixels a side of a mask that is looked at alone


@dataclass(frozen=True)
class Slider:
    """The pictures of one study and what is said beside them."""

    contents: SectionContents
    illustration: Illustration

    @property
    def section(self) -> Section:
        return self.contents.section

    @cached_property
    def slots(self) -> list[int]:
        return self.illustration.slots

    @cached_property
    def start(self) -> int:
        """Where the slider stands at first: at three times the training K, or the nearest."""
        high = self.section.high_slots
        return min(range(len(self.slots)), key=lambda place: abs(self.slots[place] - high))

    @cached_property
    def looked_into(self) -> list[int]:
        """The K whose masks are kept: the training K and the high one, as far as there are pictures of them."""
        return sorted({self.section.train_slots, self.slots[self.start]} & set(self.slots))

    @cached_property
    def runs(self) -> Mapping[str, RunScores]:
        """The run that is shown of each normalization, where it is among those of the report."""
        by_name = {run.name: run for run in self.section.all_runs}
        shown = {norm: by_name.get(examples.run) for norm, examples in self.illustration.examples.items()}
        return {norm: run for norm, run in shown.items() if run is not None}

    @cached_property
    def pictured(self) -> range:
        """Places of the scenes that are shown."""
        return range(min(MOST_SCENES, len(self.illustration.any.scenes)))

    def here(self, norm: str, metric: str, slots: int, place: int) -> float:
        """The score of one picture, as its row says; NaN where there is none."""
        return self._scores[norm, metric][self.slots.index(slots)][place]

    @cached_property
    def _scores(self) -> Mapping[tuple[str, str], Sequence[Sequence[float]]]:
        """Normalization and metric -> the scores of every K and picture."""
        return {
            (norm, metric): self._scores_of(norm, metric) for norm in self.illustration.examples for metric in SCORES
        }

    def _scores_of(self, norm: str, metric: str) -> list[list[float]]:
        images = self.illustration.any.scenes.tolist()
        run, key = self.runs.get(norm), (self.illustration.dataset, self.section.source(metric), metric)
        if run is None or key not in run.scenes:
            return [[float("nan")] * len(images) for _ in self.slots]
        scores = run.scenes[key].load()
        places = {image: place for place, image in enumerate(scores.images.tolist())}
        return [
            [float(values[places[image]]) if image in places else float("nan") for image in images]
            for values in map(scores.at, self.slots)
        ]

    def mean(self, norm: str, metric: str, slots: int) -> float:
        """Over all scenes of the pictured set, the median over runs."""
        return at_slots(self.section, norm, metric, self.illustration.dataset, slots).median

    @cached_property
    def typical(self) -> int:
        """The scene whose F-ARI, with as many slots as are shown at first, is nearest to the means over all scenes."""
        slots = self.slots[self.start]
        means = {norm: self.mean(norm, "f_ari", slots) for norm in self.illustration.examples}
        known = {norm: mean for norm, mean in means.items() if mean == mean}

        def distance(place: int) -> float:
            away = [abs(self.here(norm, "f_ari", slots, place) - mean) for norm, mean in known.items()]
            return sum(away) if away and all(value == value for value in away) else float("inf")

        return min(self.pictured, key=distance)


def slider_of(contents: SectionContents) -> Slider | None:
    """None where there is not one picture."""
    illustration = contents.illustration
    if illustration is None or not illustration.slots or not len(illustration.any.scenes):
        return None
    return Slider(contents, illustration)


def encode(slider: Slider, sprites: Sprites) -> dict[str, Any]:
    """All that the script shows of a study; its pictures are added to `sprites` and told by their numbers."""
    illustration, section = slider.illustration, slider.section
    metrics = [metric for metric in SCORES if metric in section.metrics()]
    norms = list(illustration.examples)
    segments = {norm: [illustration.segmentation(norm, k) for k in slider.slots] for norm in norms}
    compared = _compared(slider)
    return {
        "stem": slider.contents.stem, "title": section.title, "set": illustration.dataset,
        "words": set_in_words(section, illustration.dataset), "slots": slider.slots, "trained": section.train_slots,
        "start": slider.start, "first": slider.typical, "norms": norms,
        "means": [
            {metric: [_number(slider.mean(norm, metric, k)) for k in slider.slots] for metric in metrics}
            for norm in norms
        ],
        "reconstructed": [
            [k for k in slider.slots if k in illustration.examples[norm].reconstructions] for norm in norms
        ],
        "looked_into": slider.looked_into, "grid": list(compared.grid),
        "scenes": [_scene(slider, place, segments, metrics, compared, sprites) for place in slider.pictured],
    }  # fmt: skip


def _scene(
    slider: Slider,
    place: int,
    segments: Mapping[str, Sequence[NDArray[np.uint8]]],
    metrics: Sequence[str],
    compared: "_Compared",
    sprites: Sprites,
) -> dict[str, Any]:
    illustration = slider.illustration
    shown, truth = illustration.any, illustration.truth()
    scene: dict[str, Any] = {
        "words": _described(shown, place), "variants": [],
        "palette": [hexadecimal(color) for color in illustration.palettes[place]],
    }  # fmt: skip
    if shown.images is not None:
        scene["input"] = sprites.add(png(shown.images[place]))
    if truth is not None and compared.true is not None:
        scene["truth"] = sprites.add(png(truth[place]))
        scene["labels"] = sprites.add(packed(compared.true[place]))
    for norm, examples in illustration.examples.items():
        numbers = [illustration.colors[norm][k][place] for k in slider.looked_into]
        orders = [np.argsort(of_slots, kind="stable") for of_slots in numbers]
        kept = list(zip(slider.looked_into, orders, strict=True))
        variant: dict[str, Any] = {
            "segmentation": sprites.add(sprite(np.stack([pictures[place] for pictures in segments[norm]]))),
            "here": {
                metric: [_number(slider.here(norm, metric, k, place)) for k in slider.slots] for metric in metrics
            },
            "size": list(_small(examples.masks[slider.slots[0]][place]).shape[-2:]),
            "colors": [of_slots[order].tolist() for of_slots, order in zip(numbers, orders, strict=True)],
            "masks": sprites.add(packed(
                *(np.argsort(order)[compared.labels[norm][k][place]].astype(np.uint8) for k, order in kept),
                *(levels(_small(examples.masks[k][place][order])) for k, order in kept),
            )),
        }  # fmt: skip
        rebuilt = [examples.reconstructions[k][place] for k in slider.slots if k in examples.reconstructions]
        if rebuilt:
            variant["reconstruction"] = sprites.add(sprite(np.stack(rebuilt)))
        scene["variants"].append(variant)
    return scene


def numbers_in(scene: Mapping[str, Any]) -> list[int]:
    """The numbers of all pictures of an encoded scene."""
    return [part[name] for part in (scene, *scene["variants"]) for name in _PICTURES if name in part]


def _small(masks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Masks (K, h, w) of one scene with sides of at most LARGEST_MASK, by the mean over what falls together."""
    factor = -(-max(masks.shape[1:]) // LARGEST_MASK)
    if factor == 1:
        return masks
    slots, height, width = masks.shape[0], masks.shape[1] // factor, masks.shape[2] // factor
    blocks = masks[:, : height * factor, : width * factor].reshape(slots, height, factor, width, factor)
    means: NDArray[np.uint8] = np.rint(blocks.mean(axis=(2, 4))).astype(np.uint8)
    return means


@dataclass(frozen=True)
class _Compared:
    """True and largest slots on one grid, as in scoring."""

    grid: tuple[int, int]
    true: NDArray[np.uint8] | None
    """(n, h, w)."""
    labels: Mapping[str, Mapping[int, NDArray[np.uint8]]]
    """Normalization -> K -> (n, h, w)."""


def _compared(slider: Slider) -> _Compared:
    """Masks are scaled to the true labels; of an attention's truth every so-many-th pixel is taken (see label_maps)."""
    shown = slider.illustration.any
    height, width = shown.masks[slider.slots[0]].shape[-2:]
    true = shown.labels
    if true is not None and slider.section.source("f_ari") == "attention":
        true = true[:, :: max(1, true.shape[1] // height), :: max(1, true.shape[2] // width)][:, :height, :width]
    grid = (height, width) if true is None else (int(true.shape[1]), int(true.shape[2]))
    labels = {
        norm: {
            k: scaled_labels(torch.from_numpy(examples.masks[k].astype(np.float32)), *grid).numpy().astype(np.uint8)
            for k in slider.looked_into
        }
        for norm, examples in slider.illustration.examples.items()
    }
    return _Compared(grid, true, labels)


def draw_explorer(sliders: Sequence[Slider]) -> Markup:
    """The place of the pictures and their controls, which the script fills; without one a picture of a scene."""
    first = sliders[0]
    slots = first.slots[first.start]
    study = None
    if len(sliders) > 1:
        options = [element("option", slider.section.title, value=slider.contents.stem) for slider in sliders]
        chosen = element("select", *options, id=f"{NAME}-study", autocomplete="off")
        study = element("p", element("label", "Study", for_=f"{NAME}-study"), " ", chosen, class_="study")
    control = element(
        "div", element("button", "Play", type="button", class_="play"),
        element("label", "Number of slots", for_=f"{NAME}-slots"),
        element(
            "div",
            element(
                "input", type="range", id=f"{NAME}-slots", min="0", max=len(first.slots) - 1, step="1",
                value=first.start, autocomplete="off", aria_valuetext=f"{slots} slots",
            ),
            element("span", class_="trained-at", aria_hidden="true"), class_="track",
        ),
        element("output", slots, for_=f"{NAME}-slots"), class_="control",
    )  # fmt: skip
    strip = element("fieldset", element("legend", "Scene"), element("div", class_="strip"), class_="scenes")
    about = element("p", class_="about quiet")
    return element(
        "div", study, control, element("div", class_="tiles"), strip, about, _without_script(first),
        class_="explorer", id=NAME, role="group", aria_label="One scene with more and more slots",
    )  # fmt: skip


def _without_script(slider: Slider) -> Markup:
    """One scene as a picture, for readers whose browser runs no script."""
    sheet = slots_table(slider.illustration, slider.looked_into, slider.typical)
    words = f"Segmentations of one scene with {' and '.join(map(str, slider.looked_into))} slots"
    return element("noscript", element("img", src=data_uri(sheet), alt=words))


def _described(examples: Examples, place: int) -> str:
    words = f"scene {int(examples.scenes[place])}"
    if examples.labels is None:
        return words
    objects = len(np.setdiff1d(examples.labels[place], [0]))
    return f"{words}, {objects} visible object{'s' * (objects != 1)}"


def _number(value: float) -> float | None:
    return None if value != value else round(value, 6)
