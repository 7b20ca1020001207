"""Devices: which one is chosen, and that every path computes on it, shown on one that is not there."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import slotnorm as sn
import tiny
from other_device import DEVICE, OtherTensor, other_device
from slotnorm.cli import verbs
from slotnorm.cli.launching import device_here
from slotnorm.cli.reproduction import Reproduction
from slotnorm.cli.training_options import parse_sweep
from slotnorm.data.backbones import FrozenBackbone, encoder_backbone, import_timm, timm_backbone
from slotnorm.data.computed_features import write_feature_set
from slotnorm.data.features import compute
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.evaluation.rows import Rows
from slotnorm.models import SlotModel, build
from slotnorm.models.bundled import HASHES, bundled_files
from slotnorm.report.demo import run_demo
from slotnorm.report.segmenter import Segmenter
from slotnorm.report.writing import write_report
from slotnorm.runtime.devices import choose_device
from slotnorm.runtime.ranks import joined
from slotnorm.storage.files import sha256
from slotnorm.studies.launchers import Local
from slotnorm.studies.options import Training, words
from slotnorm.studies.run_evaluation import plan_evaluations, read_judgement
from slotnorm.studies.slurm import Slurm
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.loop import train
from slotnorm.training.runs import Run

BROADCAST = dataclasses.replace(tiny.IMAGES, decoder="broadcast", decoder_strides=(2, 1))
MODELS = {"dense": tiny.IMAGES, "broadcast": BROADCAST, "features": tiny.FEATURES, "properties": tiny.PROPERTIES}
# every kind is evaluated on the device in any case; in training matching leaves it, which properties alone have
TRAINED = [pytest.param(kind, marks=[] if kind in ("dense", "properties") else pytest.mark.slow) for kind in MODELS]
REPORTED = [pytest.param(kind, marks=[] if kind == "dense" else pytest.mark.slow) for kind in MODELS]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return tiny.build_scenes(tmp_path_factory.mktemp("data") / "set", 24)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """Scenes of the test set toy7."""
    return tiny.build_scenes(tmp_path_factory.mktemp("data") / "many", 24, seed=1, crowded=True)


@contextlib.contextmanager
def watched_device() -> Iterator[list[str]]:
    """The other device is there; the names of models that ran on it are collected, and one that does not is refused."""
    ran: list[str] = []
    encode = SlotModel.encode

    def watched(self: SlotModel, inputs: torch.Tensor) -> torch.Tensor:
        assert isinstance(inputs, OtherTensor), "the model's input is not on the device"
        assert all(isinstance(tensor, OtherTensor) for tensor in self.state_dict().values()), "nor are its weights"
        ran.append(type(self).__name__)
        return encode(self, inputs)

    with pytest.MonkeyPatch.context() as patch, other_device():
        patch.setattr(SlotModel, "encode", watched)
        yield ran


def test_tensors_of_two_devices_do_not_meet() -> None:
    with other_device():
        there, here = torch.zeros(3, device=DEVICE), torch.zeros(3)
        assert there.device == (there + 1).device == torch.zeros_like(there).device == DEVICE
        for meet in (lambda: there + here, lambda: torch.stack([there, here]), lambda: here[there.long()]):
            with pytest.raises(RuntimeError, match="all tensors must be on one device"):
                meet()
        for take in (there.numpy, lambda: np.asarray(there), lambda: there.untyped_storage()):
            with pytest.raises(TypeError, match="copy it to the CPU first"):
                take()
        for widen in (there.double, lambda: there.to("cpu", torch.float64), lambda: here.double().to(DEVICE)):
            with pytest.raises(TypeError, match="no float64"):
                widen()
        assert type(there.cpu()) is type(there.to(here)) is torch.Tensor
        assert there.copy_(here) is there
        assert torch.equal((there.to(here) + 2).to(there).cpu(), torch.full((3,), 2.0))


def experiment_of(kind: str, **changes: Any) -> sn.Experiment:
    flip = {} if kind in ("dense", "broadcast") else {"flip": False}
    return tiny.experiment("batch_norm", model=MODELS[kind], **{"steps": 4, "validate_every": 2, **flip, **changes})


@pytest.fixture(scope="module")
def on_cpu(scenes: Scenes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of each kind of model that were trained on the CPU."""
    folder = tmp_path_factory.mktemp("cpu")
    return {
        kind: train(experiment_of(kind), folder / kind, data=scenes.directory, device="cpu", observers=("pictures",))
        for kind in MODELS
    }


@pytest.mark.parametrize("kind", TRAINED)
def test_training_is_on_the_device_and_gives_what_the_cpu_gives(
    kind: str, scenes: Scenes, on_cpu: dict[str, Run], tmp_path: Path
) -> None:
    how: dict[str, Any] = {"data": scenes.directory, "device": str(DEVICE), "observers": ("pictures",)}
    with watched_device() as ran:
        run = train(experiment_of(kind), tmp_path, **how)
    assert ran
    assert run.record().device == DEVICE.type
    assert sorted(path.name for path in (run.path / "pictures").iterdir()) == ["step-2.png", "step-4.png"]
    assert all(type(tensor) is torch.Tensor for tensor in run.weights().tensors.values())
    losses, expected = ([row["loss"] for row in of.metrics() if "loss" in row] for of in (run, on_cpu[kind]))
    assert losses == pytest.approx(expected, rel=1e-2)
    for metric, value in on_cpu[kind].validation().items():
        assert run.validation()[metric] == pytest.approx(value, abs=0.05), metric
    with watched_device():
        train(experiment_of(kind, steps=5), tmp_path, **how)  # from its checkpoint
    assert Run.open(run.path).step == 5


def evaluated(run: Run, crowd: Scenes, folder: Path, device: str) -> Rows:
    """The rows of a copy of a run."""
    copied = shutil.copytree(run.path, folder / device / run.name)
    how: dict[str, Any] = {"slots": (3, 5), "data": crowd.directory, "scenes": 8, "device": device}
    (evaluation,) = plan_evaluations([copied], "toy7", **how)
    return evaluation.evaluate()


@pytest.mark.parametrize("kind", MODELS)
def test_evaluation_is_on_the_device_and_scores_as_the_cpu(
    kind: str, crowd: Scenes, on_cpu: dict[str, Run], tmp_path: Path
) -> None:
    expected = evaluated(on_cpu[kind], crowd, tmp_path, "cpu")
    with watched_device() as ran:
        rows = evaluated(on_cpu[kind], crowd, tmp_path, str(DEVICE))
    assert ran
    assert rows.header["device"] == DEVICE.type
    assert rows.header["identity"] == expected.header["identity"]
    np.testing.assert_allclose(rows["value"], expected["value"], atol=0.1)
    both = (
        read_judgement(tmp_path / str(DEVICE) / on_cpu[kind].name),
        read_judgement(tmp_path / "cpu" / on_cpu[kind].name),
    )
    assert both[0] is not None
    assert both[1] is not None
    for name in ("moving", "sharing", "coherence"):
        assert both[0][name] == pytest.approx(both[1][name], abs=1e-3), name


@pytest.mark.parametrize("kind", REPORTED)
def test_a_report_runs_its_models_on_the_device(
    kind: str, crowd: Scenes, on_cpu: dict[str, Run], tmp_path: Path
) -> None:
    evaluated(on_cpu[kind], crowd, tmp_path, "cpu")
    with watched_device() as ran:
        report = write_report([tmp_path / "cpu"], tmp_path / "report", data=crowd.directory, device=str(DEVICE))
    assert ran
    text = (tmp_path / "report" / "report.md").read_text()
    assert "No diagnostics" not in text
    assert "No pictures" not in text
    assert len(report.runs) == 1
    assert (tmp_path / "cpu" / on_cpu[kind].name / "diagnosis" / "toy7.npz").is_file()


def test_segmentation_is_on_the_device_and_finds_what_the_cpu_finds(on_cpu: dict[str, Run], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    for kind in ("dense", "broadcast", "properties"):
        command = ["segment", str(tmp_path / "photo.png"), "--run", str(on_cpu[kind].path), "--slots", "6"]
        verbs.main([*command, "--out", str(tmp_path / kind / "cpu"), "--device", "cpu"])
        with watched_device() as ran:
            verbs.main([*command, "--out", str(tmp_path / kind / "there"), "--device", str(DEVICE)])
        assert ran
        here, there = (
            np.asarray(Image.open(tmp_path / kind / name / "photo" / "labels.png")) for name in ("cpu", "there")
        )
        assert (here == there).mean() > 0.99


def test_a_model_of_features_segments_with_its_backbone_on_the_device(tmp_path: Path) -> None:
    encoder = build(tiny.experiment())
    model = build(tiny.experiment(model=dataclasses.replace(tiny.FEATURES, tokens=64, features=8), flip=False))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8))
    expected = Segmenter(model, 3, backbone=encoder_backbone(encoder, "run:x"))(image)
    with watched_device() as ran:
        segmenter = Segmenter(model.to(DEVICE), 3, backbone=encoder_backbone(encoder, "run:x"))
        labels = segmenter(image).labels
        assert segmenter.backbone is not None
        assert segmenter.backbone.mean.device == DEVICE
    assert "FeatureAutoencoder" in ran
    assert (labels == expected.labels).mean() > 0.95


def test_features_are_computed_on_the_device(scenes: Scenes, tmp_path: Path) -> None:
    expected = compute(scenes, encoder_backbone(build(tiny.experiment()), "run:x"), tmp_path / "cpu", "cpu")
    with other_device():
        backbone = encoder_backbone(build(tiny.experiment()), "run:x")
        computed = compute(scenes, backbone, tmp_path / "there", DEVICE)
        assert backbone.mean.device == DEVICE
    assert computed.features is not None
    assert expected.features is not None
    np.testing.assert_allclose(computed.features[:], expected.features[:], atol=2e-3)


def test_features_on_the_fly_are_computed_on_the_device_of_training_and_evaluation(
    scenes: Scenes, crowd: Scenes, tmp_path: Path
) -> None:
    network = import_timm().create_model("test_vit", pretrained=False, num_classes=0)
    save_file(network.state_dict(), tmp_path / "vit.safetensors")
    for name, images in (("few", scenes), ("many", crowd)):
        write_feature_set(images, timm_backbone("test_vit", tmp_path / "vit.safetensors"), tmp_path / name)
    model = dataclasses.replace(tiny.FEATURES, tokens=100, features=64)
    experiment = tiny.experiment(model=model, flip=False, steps=2, validate_every=2, validation_scenes=2)
    devices = set()
    forward = FrozenBackbone.forward

    def watched(self: FrozenBackbone, images: torch.Tensor) -> torch.Tensor:
        devices.add(self.mean.device)
        return forward(self, images)

    with watched_device(), pytest.MonkeyPatch.context() as patch:
        # opened before anyone watches: a new backbone runs once on the CPU to see its sizes
        opened = {name: Scenes.open(tmp_path / name) for name in ("few", "many")}
        patch.setattr(Scenes, "open", lambda folder: opened[Path(folder).name])
        patch.setattr(FrozenBackbone, "forward", watched)
        run = train(experiment, tmp_path, data=tmp_path / "few", device=str(DEVICE))
        assert devices == {DEVICE}
        devices.clear()
        (evaluation,) = plan_evaluations(
            [run.path], "toy7", slots=[3], data=tmp_path / "many", scenes=2, device=str(DEVICE)
        )
        evaluation.evaluate()
        assert devices == {DEVICE}
    devices.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)  # where auto would be another device
        patch.setattr(FrozenBackbone, "forward", watched)
        train(experiment, tmp_path / "cpu", data=tmp_path / "few", device="cpu")
    assert devices == {torch.device("cpu")}


def test_the_demo_runs_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotnorm.report.demo._FEWEST_SLOTS", 4)
    monkeypatch.setattr("slotnorm.report.demo.SLOTS_FACTOR", 1)  # 4 and 5 slots: their number is not the question
    (file,) = (path for path in bundled_files() if path.stem == "toy-weighted_sum")
    shutil.copy(file, tmp_path)
    (tmp_path / HASHES).write_text(json.dumps({file.name: sha256(file)}))
    with watched_device() as ran:
        run_demo(2, tmp_path, device=str(DEVICE))
    assert ran


def test_the_command_line_takes_a_device(crowd: Scenes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path / "tiny.json", experiment_of("dense", steps=2))
    data = ["--data", str(crowd.directory), "--device", str(DEVICE)]
    with watched_device() as ran:
        verbs.main(["train", "--experiment", str(tmp_path / "tiny.json"), "--into", str(tmp_path / "runs"), *data])
        trained = len(ran)
        verbs.main(["eval", str(tmp_path / "runs"), "--dataset", "toy7", "--slots", "3,5", "--scenes", "4", *data])
        evaluated_too = len(ran)
        verbs.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report"), *data])
    assert 0 < trained < evaluated_too < len(ran)
    assert "step 2 of 2" in capsys.readouterr().out


def test_auto_is_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        (
            "cuda",
            "device 'cuda' cannot be used here (",
        ),  # a CUDA build without a GPU has another reason than a CPU build
        ("cuda:3", "device 'cuda:3' cannot be used here"),
        ("mps", "device 'mps' is not on this machine; give cpu, or auto"),
        ("gpu", "there is no device 'gpu'; known are: auto, cpu, cuda, mps, and cuda:1 for one of several GPUs"),
        ("cuda:x", "there is no device 'cuda:x'; known are: "),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence_before_anything_is_done(
    device: str, sentence: str, tmp_path: Path, on_cpu: dict[str, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("a GPU is there")
    run = str(on_cpu["dense"].path)
    commands = [
        ["train", "toy", "--into", str(tmp_path)], ["eval", run], ["report", run, "--out", str(tmp_path / "report")],
        ["segment", "x.png", "--run", run], ["demo", "--out", str(tmp_path / "demo")],
        ["reproduce", "toy", "--out", str(tmp_path / "all")],
    ]  # fmt: skip
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            verbs.main([*command, "--device", device])
        assert ended.value.code == 2, command
        printed = capsys.readouterr().err
        assert printed.startswith("slotnorm: ")
        assert sentence in printed
        assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", [None, 0, torch.device("meta"), "meta", "cpu:0", "CPU", ""])
def test_what_is_not_a_device_of_ours_is_one_sentence(device: Any) -> None:
    shown = str(device) if isinstance(device, torch.device) else device
    with pytest.raises(UserError, match=f"^there is no device {shown!r}; known are: auto, cpu, cuda, mps, and cuda:1"):
        choose_device(device)
    assert choose_device(torch.device("cpu")) == torch.device("cpu")


def test_a_sweep_on_this_machine_needs_the_device_here_and_one_elsewhere_its_name() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    with pytest.raises(UserError, match="device 'cuda' cannot be used here"):
        parse_sweep(["toy", "--device", "cuda"], "slotnorm sweep")
    with pytest.raises(UserError, match="there is no device 'gpu'"):
        parse_sweep(["toy", "--on", "slurm", "--device", "gpu"], "slotnorm sweep")
    swept = parse_sweep(["toy", "--on", "slurm", "--device", "cuda"], "slotnorm sweep")
    assert swept is not None
    assert {training.device for training in swept.trainings} == {"cuda"}
    assert [device_here(device, Slurm()) for device in ("cuda", "cpu")] == ["auto", "cpu"]
    with pytest.raises(UserError, match="device 'cuda' cannot be used here"):
        device_here("cuda", Local())
    with pytest.raises(UserError, match="device 'cuda' cannot be used here"):
        Reproduction("toy", Path("out"), device="cuda").check()
    Reproduction("toy", Path("out"), device="cuda", launcher=Slurm()).check()


def test_a_sweep_gives_its_device_to_each_run() -> None:
    training = Training(tiny.experiment(), device="cuda:1")
    assert words(training, Path("x.json"))[-2:] == ["--device", "cuda:1"]
    assert "--device" not in words(Training(tiny.experiment()), Path("x.json"))


def test_each_process_has_its_own_gpu_and_several_cannot_share_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    with joined(torch.device("cuda")) as ranks:
        assert ranks.device == torch.device("cuda", 2)
    with joined(torch.device("cuda:5")) as ranks:
        assert ranks.device == torch.device("cuda", 5)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes cannot train together on mps"), joined(torch.device("mps")):
        pass
