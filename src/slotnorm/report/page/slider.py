"""The slider over K: every variant's decomposition of some scenes at every K, precomputed and embedded in the page.

For each scene and variant all K are one picture, a strip with the smallest K on top: neighbours are alike, and so a
strip is far smaller than its parts. Its script draws the part that the slider asks for.
"""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slotnorm.report.appearance import Look, looks, measure
from slotnorm.report.page.markup import Markup, element
from slotnorm.report.page.panels import css_class, number
from slotnorm.report.pictures import Illustration

MOST_SCENES = 12
EMPTY = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="  # a scene of which nothing can be shown
_MOST_COLORS = 128  # of a strip: what is lost cannot be seen, and the page is half as large

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""normalization -> metric -> K -> the median over runs of the mean over the whole test set."""


@dataclass(frozen=True)
class Slider:
    """An illustration and what is said beside it."""

    illustration: Illustration
    train_slots: int
    scores: Scores

    @property
    def slots(self) -> list[int]:
        return self.illustration.slots

    @property
    def start(self) -> int:
        """Where the slider stands at first: at the training K, or the nearest."""
        return min(range(len(self.slots)), key=lambda place: abs(self.slots[place] - self.train_slots))

    @property
    def reconstructed(self) -> list[int]:
        """The K that some variant has a reconstruction for: of large images few are kept."""
        kept = {k for examples in self.illustration.examples.values() for k in examples.reconstructions}
        return [k for k in self.slots if k in kept]


def encode(slider: Slider) -> dict[str, Any]:
    """All that the script shows: for every scene the originals and for every variant its strips, as data URIs."""
    illustration = slider.illustration
    one, truth = illustration.any, illustration.truth()
    scenes: list[dict[str, Any]] = []
    for place in range(min(MOST_SCENES, len(one.scenes))):
        originals = {} if one.images is None else {"input": png(one.images[place])}
        originals |= {} if truth is None else {"truth": png(truth[place])}
        scenes.append({"words": _described(slider, place), **originals, "variants": []})
    reconstructed = []
    for norm, examples in illustration.examples.items():
        segments = [illustration.segmentation(norm, k) for k in slider.slots]
        rebuilt = [k for k in slider.slots if k in examples.reconstructions]
        reconstructed.append(rebuilt)
        for place, scene in enumerate(scenes):
            strips = {"segmentation": strip(np.stack([pixels[place] for pixels in segments]))}
            if rebuilt:
                strips["reconstruction"] = strip(np.stack([examples.reconstructions[k][place] for k in rebuilt]))
            scene["variants"].append(strips)
    for scene in scenes:
        scene["thumbnail"] = scene.get("input") or scene.get("truth") or EMPTY
    norms = list(illustration.examples)
    scores = [
        {metric: [_score(slider, norm, metric, k) for k in slider.slots] for metric in slider.scores[norm]}
        for norm in norms
    ]
    return {
        "slots": slider.slots, "norms": norms, "scenes": scenes, "scores": scores, "reconstructed": reconstructed,
    }  # fmt: skip


def draw_slider(slider: Slider, name: str, encoded: dict[str, Any], scenes: int, data: dict[str, Any]) -> Markup:
    """The controls and the places of the pictures; the pictures of the first scenes are added to `data` as `name`."""
    kept = encoded["scenes"][:scenes]
    shown = [{key: value for key, value in scene.items() if key != "thumbnail"} for scene in kept]
    data[name] = {**encoded, "scenes": shown}
    start, last = slider.start, len(slider.slots) - 1
    control = element(
        "div", element("label", "Slots K", for_=f"{name}-slots"),
        element(
            "input", type="range", id=f"{name}-slots", min="0", max=last, step="1", value=start, autocomplete="off",
            aria_valuetext=f"{slider.slots[start]} slots",
        ),
        element("output", slider.slots[start], for_=f"{name}-slots"),
        element("small", f"trained with {slider.train_slots}"), class_="control",
    )  # fmt: skip
    appearances = looks(slider.illustration.examples)
    variants = [_variant(slider, place, norm, appearances[norm]) for place, norm in enumerate(encoded["norms"])]
    pictures = element("div", _originals(slider), *variants, class_="tiles")
    words = element("noscript", element("p", "The slider needs JavaScript; curves and tables do not."))
    label = f"Scenes of {slider.illustration.dataset} with more and more slots"
    return element(
        "div", control, _choice(slider, name, kept), pictures, words, class_="slider", id=name, role="group",
        aria_label=label,
    )  # fmt: skip


def _originals(slider: Slider) -> Markup:
    """The input and, where it is known, the truth: beside the variants' reconstructions and segmentations."""
    one = slider.illustration.any
    parts = [_canvas("input", "Input")] if one.images is not None else []
    parts += [_canvas("truth", "True segments")] if one.labels is not None else []
    caption = element("figcaption", element("b", "Input"), " and truth" if one.labels is not None else None)
    return element("figure", element("div", *parts, class_="pair"), caption)


def _variant(slider: Slider, place: int, norm: str, look: Look) -> Markup:
    examples = slider.illustration.examples[norm]
    pair = [_canvas("reconstruction", f"{look.label}: reconstruction")] if examples.reconstructions else []
    pair.append(_canvas("segmentation", f"{look.label}: segmentation"))
    words = [element("b", look.label)]
    words += [element("small", class_="score", data_metric=metric) for metric in slider.scores[norm]]
    parts = element("div", *pair, class_="pair"), element("figcaption", *words)
    return element("figure", *parts, class_=f"variant {css_class(norm)}", data_variant=place)


def _canvas(kind: str, label: str) -> Markup:
    return element("canvas", class_=kind, role="img", aria_label=label, data_label=label, width="1", height="1")


def _choice(slider: Slider, name: str, scenes: list[dict[str, Any]]) -> Markup:
    """A radio button for each scene, with its input as the label."""
    buttons = []
    for place, scene in enumerate(scenes):
        radio = element(
            "input", type="radio", name=f"{name}-scene", value=place, checked=place == 0, autocomplete="off"
        )
        image = element("img", src=scene["thumbnail"], alt=scene["words"], width="44", height="44")
        buttons.append(element("label", radio, image, title=scene["words"]))
    return element("fieldset", element("legend", f"Scene of {slider.illustration.dataset}"), *buttons, class_="scenes")


def _described(slider: Slider, place: int) -> str:
    one = slider.illustration.any
    words = f"Scene {int(one.scenes[place])}"
    if one.labels is None:
        return words
    objects = len(np.setdiff1d(one.labels[place], [0]))
    return f"{words}: {objects} visible object{'s' * (objects != 1)}"


def _score(slider: Slider, norm: str, metric: str, slots: int) -> str:
    value = slider.scores[norm][metric].get(slots, float("nan"))
    return f"{measure(metric).label} {number(value, metric)}"


def strip(pictures: NDArray[np.uint8]) -> str:
    """Pictures (S, h, w, 3) one below the other, as a data URI of at most 128 colours."""
    count, height, width, channels = pictures.shape
    image = Image.fromarray(np.ascontiguousarray(pictures).reshape(count * height, width, channels))
    return _data_uri(image.quantize(_MOST_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE))


def png(pixels: NDArray[np.uint8]) -> str:
    """A picture (h, w, 3) as a data URI, exact."""
    return _data_uri(Image.fromarray(np.ascontiguousarray(pixels)))


def _data_uri(image: Image.Image) -> str:
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
