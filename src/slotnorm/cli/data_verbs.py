"""The verbs that make, convert or verify a dataset: `slotnorm data ...`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from slotnorm.cli.launching import launched, require_launcher
from slotnorm.cli.signatures import POSITIONAL, Argument
from slotnorm.cli.values import read_range
from slotnorm.config import SPLITS, Fit, Protocol, SceneSpec
from slotnorm.errors import UserError, closest
from slotnorm.studies.launchers import RETRIES, Launcher

if TYPE_CHECKING:
    from slotnorm.data.backbones import FrozenBackbone

Source = Annotated[Path, Argument(name="from")]  # `from` is a word of Python
_RANGE = Argument(placeholder="FEWEST:MOST", read=read_range, show=lambda counts: ":".join(map(str, counts)))
Objects = Annotated[tuple[int, int] | None, _RANGE]


def generate(
    out: Path,
    num: int,
    objects: Annotated[tuple[int, int], _RANGE] = (3, 6),
    size: int = 64,
    seed: int = 0,
    style: Literal["clevr", "flat"] = "clevr",
    shapes: tuple[str, ...] | None = None,
    materials: tuple[str, ...] | None = None,
    colors: tuple[str, ...] | None = None,
    radius: tuple[float, float] | None = None,
    margin: float | None = None,
    min_visible: int | None = None,
    jobs: int | None = None,
) -> None:
    """Generate a set of scenes: CLEVR-like or flat, any number of objects, with masks and properties.

    Args:
        out: where the set is built; the same command continues an interrupted one
        num: how many scenes
        objects: in a scene, as 3:6, every number between them equally likely; or one number
        size: side of the picture in pixels
        seed: scenes of different seeds have nothing in common
        style: clevr (ray-traced solids) or flat (discs, squares and triangles on a plain background)
        shapes: the only ones used; unless given, all of the style
        materials: the only ones used; unless given, rubber and metal, or only solid of flat's solid and outlined
        colors: the only ones used; unless given, all of the style
        radius: of small and large solids (0.35 0.7), or least and largest share of the side of flat shapes (0.14 0.2)
        margin: least gap between two objects as a share of the sum of their radii; negative lets flat ones overlap
        min_visible: pixels that each object shows
        jobs: processes; unless given, one per core
    """
    from slotnorm.data.generator import build

    spec = SceneSpec(objects, size, seed, style, shapes, materials, colors, radius, margin, min_visible)
    print(f"{len(build(spec, num, out, jobs))} scenes in {out}")


def folder(
    source: Source,
    out: Path,
    size: int | None = None,
    crop: str = "none",
    fit: Fit = "stretch",
    skip_bad: bool = False,
) -> None:
    """Convert a folder of your own images (with masks and properties, if any) into a set of scenes.

    Args:
        source: the folder of PNG, JPEG, WebP, TIFF and BMP files; with masks/NAME.png and properties.json, if you have
            them, the images are in its folder images
        out: where the set is built; the same command continues an interrupted one
        size: scale to size x size pixels; needed unless all images have one size
        crop: none, center (the largest centred square) or top:left:height:width in pixels, before scaling
        fit: how a picture becomes that square: stretched whatever its proportions, its largest centred square (crop),
            or whole between black bars (pad); the contact sheet shows it
        skip_bad: leave out files that cannot be used, and say which (default: name them all and make nothing)
    """
    from slotnorm.data.check import contact_sheet_beside
    from slotnorm.data.folder import convert

    scenes = convert(source, out, size, crop, fit, skip_bad)
    print(f"{len(scenes)} scenes in {out}")
    print(f"contact sheet: {contact_sheet_beside(scenes)}")


def check(directory: Annotated[Path, POSITIONAL], sheet: Path | None = None, num: int = 32) -> None:
    """Verify every file of a set of scenes, describe it in a table, and draw a contact sheet with masks.

    Args:
        directory: the set's folder
        sheet: where the contact sheet goes (default: contact-sheet.png in the set's folder)
        num: how many scenes it shows
    """
    from slotnorm.data import check

    print(check.check(directory, sheet, num))


def clevr(
    source: Source,
    out: Path | None = None,
    protocol: Protocol = "paper",
    crop: Literal["centre", "slot-attention-2020"] = "centre",
    splits: tuple[int, int, int] = (70_000, 15_000, 15_000),
    workers: int | None = None,
) -> None:
    """Convert CLEVR with masks into sets of scenes train, val and test.

    Args:
        source: clevr_with_masks_train.tfrecords, as published
        out: folder of the three sets (default: data/clevr/PROTOCOL in the cache folder)
        protocol: how images are scaled: bilinear (paper) or nearest (authors); see docs/datasets.md
        crop: window of 192 x 192 pixels: the centre, or five rows lower as in the Slot Attention code of 2020
        splits: scenes of train, val and test, in the order of the file
        workers: threads that parse (default: one per core)
    """
    from slotnorm.data.clevr import convert

    scenes = convert(source, out, protocol, crop, splits, workers)
    for name, size in zip(SPLITS, splits, strict=True):
        if name in scenes:
            print(f"{name}: {len(scenes[name])} scenes in {scenes[name].directory}")
        elif size:
            print(f"{name}: empty, the file ends before it")


def movi(
    source: Source,
    variant: Literal["a", "b", "c", "d", "e"],
    split: Literal["train", "val", "test"],
    out: Path | None = None,
    protocol: Protocol = "paper",
    size: int = 224,
    workers: int | None = None,
) -> None:
    """Convert a split of MOVi-A to MOVi-E into a set of scenes, one per frame.

    Args:
        source: folder of the TFRecord shards, as TensorFlow Datasets publishes them
        variant: the letter of the dataset
        split: which part; val is called validation in the files
        out: folder of the set (default: data/movi-VARIANT/PROTOCOL/SPLIT in the cache folder)
        protocol: whose the set is called; both scale alike, see docs/datasets.md
        size: side of the scaled frames in pixels; 256 leaves the published frames as they are
        workers: processes that decode, 1 is the command itself (default: one per core)
    """
    from slotnorm.data.movi import convert

    scenes = convert(source, variant, split, out, protocol, size, workers)
    print(f"{split}: {len(scenes)} frames in {scenes.directory}")


def download(
    dataset: Annotated[str, POSITIONAL],
    splits: tuple[Literal["train", "val", "test"], ...] = ("train", "val", "test"),
    out: Path | None = None,
    mirror: str | None = None,
) -> None:
    """Download a published dataset over HTTPS; the same command continues a broken download.

    Args:
        dataset: clevr, or movi-a to movi-e (at 256 x 256 pixels)
        splits: which parts of MOVi; CLEVR is one file
        out: folder of the files (default: below downloads in the cache folder)
        mirror: another address in place of https://storage.googleapis.com, with the same folders
    """
    from slotnorm.data.download import CLEVR_FILE, download

    folder = download(dataset, splits, out, mirror)
    print(folder)
    if dataset == "clevr":
        print(f"next: slotnorm data clevr --from {folder / CLEVR_FILE}")
    for split in splits if dataset != "clevr" else ():
        print(f"next: slotnorm data movi --variant {dataset[-1]} --split {split} --from {folder}")


@launched()
def features(
    source: Source,
    backbone: str,
    weights: str | None = None,
    out: Path | None = None,
    norm: Literal["after", "before"] = "after",
    protocol: Protocol | None = None,
    device: str = "auto",
    batch_size: int = 32,
    on_the_fly: bool = False,
    shards: int = 1,
    shard: int | None = None,
    retries: int = RETRIES,
    plan: bool = False,
    launcher: Launcher | None = None,
) -> None:
    """Compute the features of a frozen network for a set of scenes, once, in half precision.

    Args:
        source: folder of a built set of scenes
        backbone: a ViT or CNN of timm by name, as vit_base_patch8_224.dino; or the encoder of a slotnorm model: a
            bundled name, run:FOLDER, a .safetensors file or hub:OWNER/NAME
        weights: a file (.safetensors or .pth) or hub; a slotnorm model has its own
        out: folder of the new set (default: data/NAME-features/... in the cache folder)
        norm: take features after the network's last norm, or before it as the DINOSAUR library; of a slotnorm model's
            encoder, the layer norm of Slot Attention's input
        protocol: scale images before (paper) or after (authors) they are normalised (default: as the set was made)
        device: where it is computed: auto (a GPU if there is one), cpu, cuda or mps
        batch_size: images at once
        on_the_fly: store the network only, and compute features anew whenever training or evaluation reads them
        shards: ranges of scenes that jobs of --on compute side by side; the set has the same bytes
        shard: only compute this range, counted from 0, beside the others
        retries: how often a job of --on that was lost, e.g. with a machine, is submitted again
        plan: only print which jobs --on would submit, and how
    """
    from slotnorm.data.computed_features import write_feature_set
    from slotnorm.data.features import compute, join_shards
    from slotnorm.data.scenes import Scenes
    from slotnorm.runtime.shards import Shard

    part = Shard(shard or 0, shards)
    require_launcher(launcher, shards if shard is None else 1, plan)
    scenes = Scenes.open(source)
    network = open_backbone(backbone, weights, norm, protocol or scenes.manifest["protocol"])
    if on_the_fly:
        print(f"{len(scenes)} scenes with {network.tokens} x {network.features} features on the fly in "
              f"{write_feature_set(scenes, network, out)}")  # fmt: skip
        return
    if launcher is not None:
        from slotnorm.studies.feature_jobs import compute_on, plan_shards
        from slotnorm.studies.jobs import describe_jobs, with_script

        words = [
            "--from", str(source.absolute()), "--backbone", _absolute(backbone), "--norm", norm, "--device", device,
            "--protocol", protocol or scenes.manifest["protocol"], "--batch-size", str(batch_size),
            *(() if weights is None else ("--weights", _absolute(weights))),
        ]  # fmt: skip
        tasks = plan_shards(scenes, words, shards, out, batch_size)
        if plan:
            print(with_script(describe_jobs(tasks), tasks, launcher.for_one_process()))
            return
        compute_on(launcher, tasks, retries)
        features = join_shards(scenes, network, shards, out, batch_size)
    else:
        features = compute(scenes, network, out, device, batch_size, None if shard is None else part)
    print(f"{len(features)} scenes with {network.tokens} x {network.features} features in {features.directory}")


def _absolute(name: str) -> str:
    """A network's or a file's name that means the same in every folder."""
    plain = name.removeprefix("run:")
    return f"{name[: len(name) - len(plain)]}{Path(plain).absolute()}" if Path(plain).exists() else name


def open_backbone(
    backbone: str, weights: str | None, norm: Literal["after", "before"] = "after", protocol: Protocol = "paper"
) -> "FrozenBackbone":
    """The network that `--backbone` and `--weights` name."""
    from slotnorm.data.backbones import encoder_backbone, timm_backbone
    from slotnorm.models.bundled import bundled_names
    from slotnorm.models.pretrained import is_pretrained
    from slotnorm.training.loading import load

    name = backbone.removeprefix("run:")
    if name != backbone or name.endswith(".safetensors") or is_pretrained(name):
        if weights is not None:
            raise UserError(f"--weights {weights} cannot be used with {backbone}, which has its own; leave it out")
        return encoder_backbone(load(name), backbone, protocol, norm)
    if weights is None:
        bundled = closest(backbone, bundled_names())
        suggestion = f"; did you mean {bundled!r}, which has its own?" if bundled else ""
        raise UserError(
            f"the network {backbone} needs --weights: a .safetensors or .pth file, or hub to download them{suggestion}"
        )
    return timm_backbone(backbone, weights, norm, protocol)


DATA_VERBS: dict[str, Any] = {
    "generate": generate,
    "folder": folder,
    "check": check,
    "clevr": clevr,
    "movi": movi,
    "features": features,
    "download": download,
}
