"""Features of frozen networks: timm's own numbers, from weights in a file that can run no code, once and resumable."""

import os
import pickle
import shutil
import sys
import types

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn.functional import interpolate

from slotnorm.cli.verbs import main
from slotnorm.config import Experiment, FeatureModel, ImageModel, Recipe
from slotnorm.data import backbones, features
from slotnorm.data.backbones import encoder_backbone, import_timm, timm_backbone
from slotnorm.data.batches import batches, to_images
from slotnorm.data.check import check
from slotnorm.data.computed_features import attach_features, write_feature_set
from slotnorm.data.scenes import Scenes
from slotnorm.errors import DamagedFile, NonFinite, UserError
from slotnorm.models import build as build_model
from slotnorm.models.weights import Weights, pack
from slotnorm.storage.files import sha256
from slotnorm.training.loop import train
from small_sets import build, random_arrays

VIT, CNN = "test_vit", "test_resnet"  # timm's smallest: 306,240 weights; both take 160 x 160 pixels


def new_model(name, seed=0):
    timm = import_timm()
    torch.manual_seed(seed)
    model = timm.create_model(name, pretrained=False, num_classes=0)
    with torch.no_grad():  # fresh norms do nothing: make them matter
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="module")
def vit():
    return new_model(VIT)


@pytest.fixture(scope="module")
def weights(vit, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    safetensors.torch.save_file(vit.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def images():
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 160, 160, 3), dtype=np.uint8))


@pytest.fixture
def small_set(tmp_path):
    return build(tmp_path / "scenes", random_arrays(num=10, size=16))


def normalised(images, model):
    mean, std = (torch.tensor(model.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    return (images.permute(0, 3, 1, 2).float() / 255 - mean) / std


def test_features_are_timms_patch_tokens_after_the_norm(vit, weights, images):
    backbone = timm_backbone(VIT, weights)
    with torch.no_grad():
        expected = vit.forward_features(normalised(images, vit))[:, vit.num_prefix_tokens :]
    assert vit.num_prefix_tokens == 1
    assert (backbone.tokens, backbone.features, backbone.size) == (100, 64, 160)
    torch.testing.assert_close(backbone(images), expected, atol=1e-5, rtol=1e-5)


def test_features_before_the_norm_are_what_the_norm_is_given(vit, weights, images):
    before = timm_backbone(VIT, weights, norm="before")(images)
    after = timm_backbone(VIT, weights)(images)
    assert not torch.allclose(before, after, atol=0.1)
    with torch.no_grad():
        torch.testing.assert_close(vit.norm(before), after, atol=1e-5, rtol=1e-5)


def test_a_cnn_gives_its_last_map_in_row_major_order(tmp_path, images):
    model = new_model(CNN)
    torch.save(model.state_dict(), tmp_path / "cnn.pth")
    backbone = timm_backbone(CNN, tmp_path / "cnn.pth")
    with torch.no_grad():
        grid = model.forward_features(normalised(images, model))
    tokens = backbone(images)
    assert grid.shape[2:] == (5, 5)
    torch.testing.assert_close(tokens[:, 7], grid[:, :, 1, 2], atol=1e-4, rtol=1e-4)
    assert tokens.shape == (3, 25, grid.shape[1])


def test_a_model_without_intermediate_maps_gives_its_features_too(tmp_path, images, monkeypatch):
    model = new_model("test_nfnet")
    monkeypatch.delattr(type(model), "forward_intermediates", raising=False)  # a later timm has it everywhere
    assert not hasattr(model, "forward_intermediates")
    torch.save(model.state_dict(), tmp_path / "other.pth")
    tokens = timm_backbone("test_nfnet", tmp_path / "other.pth")(images)
    with torch.no_grad():
        grid = model.forward_features(normalised(images, model))
    torch.testing.assert_close(tokens, grid.flatten(2).mT, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("protocol", ["paper", "authors"])
def test_images_of_another_size_are_scaled_before_or_after_they_are_normalised(vit, weights, protocol):
    """Where the kernel overshoots, rounding and clipping tell the two apart."""
    small = torch.from_numpy(np.random.default_rng(1).choice([0, 255], (2, 48, 48, 3)).astype(np.uint8))
    backbone = timm_backbone(VIT, weights, protocol=protocol)
    scale = {"size": (160, 160), "mode": "bicubic", "align_corners": False, "antialias": False}
    if protocol == "paper":
        scaled = interpolate(small.permute(0, 3, 1, 2).float(), **scale).round().clamp(0, 255)
        pixels = normalised(scaled.permute(0, 2, 3, 1), vit)
    else:
        pixels = interpolate(normalised(small, vit), **scale)
    with torch.no_grad():
        expected = vit.forward_features(pixels)[:, 1:]
    torch.testing.assert_close(backbone(small), expected, atol=1e-4, rtol=1e-4)
    other = timm_backbone(VIT, weights, protocol="authors" if protocol == "paper" else "paper")
    assert not torch.allclose(backbone(small), other(small), atol=1e-2)


def test_a_backbone_is_frozen_whatever_is_around_it(weights, images):
    backbone = timm_backbone(VIT, weights)
    model = torch.nn.Sequential(backbone).train()
    assert not any(module.training for module in backbone.modules())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    tokens = model(images)
    learned = torch.nn.Linear(64, 2)
    learned(tokens).sum().backward()  # on the fly: what is learned from features can be trained
    assert learned.weight.grad is not None


def test_weights_come_from_pth_safetensors_and_wrapped_checkpoints_alike(vit, weights, images, tmp_path):
    expected = timm_backbone(VIT, weights)(images)
    state = vit.state_dict()
    torch.save(state, tmp_path / "plain.pth")
    torch.save(
        {"teacher": {f"module.backbone.{key}": value for key, value in state.items()}, "epoch": 3},
        tmp_path / "dino.pth",
    )
    torch.save({**state, "head.weight": torch.zeros(3, 64), "head.bias": torch.zeros(3)}, tmp_path / "with_head.pth")
    for name in ("plain.pth", "dino.pth", "with_head.pth"):
        assert torch.equal(timm_backbone(VIT, tmp_path / name)(images), expected)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_weights_that_could_run_code_are_refused_and_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Malicious()}, "bad.pth")
    with open("worse.pth", "wb") as file:
        pickle.dump(Malicious(), file, protocol=2)
    for name in ("bad.pth", "worse.pth"):
        with pytest.raises(UserError, match="is not read, since it could run code"):
            timm_backbone(VIT, name)
    assert not (tmp_path / "executed").exists()


def test_weights_that_do_not_fit_are_told_by_what_differs(vit, tmp_path):
    def refused(state, sentence):
        torch.save(state, tmp_path / "other.pth")
        with pytest.raises(UserError, match=sentence):
            timm_backbone(VIT, tmp_path / "other.pth")

    state = vit.state_dict()
    refused({key: value for key, value in state.items() if key != "norm.weight"}, "it lacks norm.weight; give")
    refused({**state, "blocks.99.x": torch.zeros(1)}, "it has blocks.99.x in excess")
    refused({**state, "norm.weight": torch.zeros(7)}, r"it has norm.weight of shape \(7,\), not \(64,\)")
    refused(new_model(CNN).state_dict(), r"it lacks .* and has .* \.\.\. in excess")
    refused([torch.zeros(3)], "holds a list and not weights by name")


def test_weights_that_cannot_be_read_are_one_sentence(tmp_path, weights):
    content = weights.read_bytes()
    for name, damaged in (
        ("short.safetensors", content[:-100]),
        ("noise.safetensors", b"\xff" * 64),
        ("empty.pth", b""),
        ("cut.zip.pth", b"PK\x03\x04" + bytes(100)),
        ("text.pth", b"<!doctype html>"),
    ):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{name} (cannot be read as weights|holds more than weights)"):
            timm_backbone(VIT, tmp_path / name)
    with pytest.raises(DamagedFile):
        timm_backbone(VIT, tmp_path / "short.safetensors")
    with pytest.raises(UserError, match="there is no file of weights .*; give a .pth or .safetensors file, or hub"):
        timm_backbone(VIT, tmp_path / "nowhere.pth")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("new_format", [True, False])
def test_damaged_weights_give_our_own_exception_or_are_read(tmp_path, new_format):
    path = tmp_path / "damaged.pth"
    torch.save({"a": torch.zeros(3), "b": torch.ones(2)}, path, _use_new_zipfile_serialization=new_format)
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        damaged = bytearray(content)
        damaged[generator.integers(len(content))] ^= int(generator.integers(1, 256))
        path.write_bytes(damaged[: generator.integers(len(content) // 2, len(content) + 1)])
        try:
            backbones._read_state(path)
        except UserError:
            refused += 1
    assert refused > 100


class Pooled(torch.nn.Module):
    """A network that gives one vector per image."""

    def __init__(self):
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3}

    def forward_features(self, pixels):
        return pixels.mean(dim=(2, 3))


def test_unknown_models_and_a_missing_network_are_one_sentence(weights, monkeypatch):
    with pytest.raises(
        UserError, match=r"timm has no model 'vit_base_patch8_244.dino'; did you mean 'vit_base_patch8_224'"
    ):
        timm_backbone("vit_base_patch8_244.dino", weights)
    with pytest.raises(UserError, match=r"timm cannot make 'test_vit.nobody' \(Invalid pretrained tag"):
        timm_backbone("test_vit.nobody", weights)
    timm = import_timm()

    def unreachable(*_, **__):
        raise ConnectionError("Name or service not known\nand much more")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(UserError, match=r"of test_vit cannot be had from the hub \(Name or service not known\); give"):
        timm_backbone(VIT, "hub")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (types.SimpleNamespace(pretrained_cfg={"input_size": (3, 4, 8)}), "pixels, and only square images are made"),
        (Pooled(), "Pooled of timm has no map of features; choose a ViT or a CNN"),
    ],
)
def test_a_network_without_a_square_map_is_one_sentence(monkeypatch, model, sentence):
    monkeypatch.setattr(import_timm(), "create_model", lambda *_, **__: model)
    with pytest.raises(UserError, match=sentence):
        timm_backbone(VIT, "hub")


def test_hub_asks_timm_for_its_published_weights(monkeypatch, vit, images):
    timm = import_timm()
    asked = []

    def published(name, pretrained, num_classes):
        asked.append((name, pretrained, num_classes))
        return vit

    monkeypatch.setattr(timm, "create_model", published)
    backbone = timm_backbone(VIT, "hub")
    assert asked == [(VIT, True, 0)]
    assert backbone.provenance["weights"] == "hub"
    assert len(backbone.provenance["sha256_of_tensors"]) == 64


def test_a_missing_timm_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"need timm .*: pip install 'slotnorm\[vit\]'"):
        import_timm()


def test_a_set_of_features_is_built_once_with_labels_counts_and_properties(small_set, weights, tmp_path, caplog):
    backbone = timm_backbone(VIT, weights)
    computed = features.compute(small_set, backbone, tmp_path / "out", batch_size=4)
    assert "features of 10 scenes, 100 x 64 float16 each: 0.00 GB in" in caplog.text
    expected = backbone(torch.from_numpy(small_set.images[:]))
    assert computed.features.dtype == np.float16
    np.testing.assert_allclose(computed.features[:], expected.numpy(), atol=2e-3, rtol=2e-3)
    assert computed.images.shape == (10, 160, 160, 3)
    assert np.array_equal(computed.labels[:, ::10, ::10], small_set.labels[:])  # 160 = 10 x 16
    assert np.array_equal(computed.counts, small_set.counts)
    for name, values in small_set.properties.items():
        assert np.array_equal(computed.properties[name], values)
    provenance = computed.manifest["provenance"]
    assert provenance["sha256_of_file"] == sha256(weights)
    assert provenance["source"]["scenes"] == small_set.fingerprint
    assert (provenance["backbone"], provenance["norm"], provenance["size"]) == (VIT, "after", 160)


def test_an_interrupted_computation_continues_to_the_same_bytes(small_set, weights, tmp_path):
    backbone = timm_backbone(VIT, weights)
    whole = features.compute(small_set, backbone, tmp_path / "whole", batch_size=3)
    calls = []

    class Stopped(Exception):
        pass

    def stop(module, inputs):
        calls.append(len(inputs[0]))
        if len(calls) == 3:
            raise Stopped

    handle = backbone.register_forward_pre_hook(stop)
    with pytest.raises(Stopped):
        features.compute(small_set, backbone, tmp_path / "stopped", batch_size=3)
    handle.remove()
    calls.clear()
    counting = backbone.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    resumed = features.compute(small_set, backbone, tmp_path / "stopped", batch_size=3)
    counting.remove()
    assert calls == [3, 1]  # the last four of ten
    assert resumed.fingerprint == whole.fingerprint


# every job imports what its network needs, and timm is slow to import
@pytest.mark.usefixtures("quick_jobs")
@pytest.mark.parametrize("network", ["bundled", pytest.param("timm", marks=pytest.mark.slow)])
def test_shards_on_a_launcher_make_the_bytes_of_one_process_and_a_damaged_one_is_named(
    small_set, weights, tmp_path, capsys, network
):
    backbone = ["toy-weighted_sum"] if network == "bundled" else [VIT, "--weights", str(weights)]
    words = ["data", "features", "--from", str(small_set.directory), "--backbone", *backbone, "--batch-size", "2"]
    main([*words, "--out", str(tmp_path / "one")])
    sharded = [*words, "--out", str(tmp_path / "many"), "--shards", "2"]
    main([*sharded, "--shard", "1"])
    manifest = tmp_path / "many.shards" / "shard-0001-of-0002" / "set" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    with pytest.raises(SystemExit, match="1"):
        main([*sharded, "--on", "local", "--jobs", "2"])
    refused = capsys.readouterr().err.splitlines()[-1]
    assert refused.startswith("slotnorm: 1 of 2 shards failed")
    assert f"{manifest} is not valid JSON" in refused
    assert f"delete {manifest.parent} and build the set again" in refused
    shutil.rmtree(manifest.parent)
    main([*sharded, "--on", "local", "--plan"])
    assert capsys.readouterr().out.endswith("shard-0001-of-0002: to make\n1 of 2 jobs to submit\n")
    assert not (tmp_path / "many").exists()
    main([*sharded, "--on", "local", "--jobs", "2"])
    files = sorted(path.name for path in (tmp_path / "one").glob("*.npy"))
    assert files
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes() for name in files)
    assert Scenes.open(tmp_path / "one").fingerprint == Scenes.open(tmp_path / "many").fingerprint
    assert not (tmp_path / "many.shards").exists()
    main([*sharded, "--on", "local"])  # is there already
    for more, sentence in (
        (["--shards", "3"], "--shards 3 needs --on, which runs them, or --shard for one of them"),
        (["--plan"], "--plan needs --on, whose jobs it shows"),
        (["--shards", "0", "--on", "local"], "--shards is 0, but must be at least 1"),
        (["--shards", "3", "--shard", "3"], "--shard is 3, but the 3 shards are counted from 0"),
        (["--shards", "99", "--on", "local"], "--shards is 99, but "),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--out", str(tmp_path / "other"), *more])
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err


def test_other_weights_are_another_set(small_set, weights, tmp_path):
    features.compute(small_set, timm_backbone(VIT, weights), tmp_path / "out")
    torch.save(new_model(VIT, seed=1).state_dict(), tmp_path / "other.pth")
    with pytest.raises(UserError, match="already holds a set with provenance"):
        features.compute(small_set, timm_backbone(VIT, tmp_path / "other.pth"), tmp_path / "out")


def test_a_part_of_a_set_is_another_set_than_the_whole(small_set, weights, tmp_path):
    backbone = timm_backbone(VIT, weights)
    features.compute(small_set[:3], backbone, tmp_path / "out")
    with pytest.raises(UserError, match="already holds a set with provenance"):
        features.compute(small_set[3:6], backbone, tmp_path / "out")


@pytest.mark.parametrize(
    ("device", "words"),
    [("cuda:99", "device 'cuda:99' cannot be used"), ("mps", "device 'mps' is not on this machine")],
)
def test_a_device_that_is_not_there_is_one_sentence(small_set, weights, tmp_path, device, words):
    with pytest.raises(UserError, match=words):
        features.compute(small_set, timm_backbone(VIT, weights), tmp_path / "out", device=device)
    assert not (tmp_path / "out").exists()


def test_features_beyond_half_precision_are_refused(small_set, vit, tmp_path):
    state = {key: value * (1e6 if key == "norm.weight" else 1) for key, value in vit.state_dict().items()}
    torch.save(state, tmp_path / "large.pth")
    with pytest.raises(NonFinite, match="features of scene 0 are not finite"):
        features.compute(small_set, timm_backbone(VIT, tmp_path / "large.pth"), tmp_path / "out")
    with pytest.raises(NonFinite, match="not finite in half precision"):
        attach_features(small_set, timm_backbone(VIT, tmp_path / "large.pth")).features[:2]


def test_the_estimate_is_the_papers_280_gigabytes():
    fields = {"features": ((784, 768), "float16")}
    assert features.estimate(9737 * 24, fields) == "features of 233688 scenes, 784 x 768 float16 each: 281.41 GB"


def test_what_cannot_be_computed_is_one_sentence(small_set, weights, tmp_path):
    backbone = timm_backbone(VIT, weights)
    computed = features.compute(small_set, backbone, tmp_path / "out")
    with pytest.raises(UserError, match="does not lie in the cache folder: say with --out"):
        features.compute(small_set, backbone)
    with pytest.raises(UserError, match="batch size 0 must be positive"):
        features.compute(small_set, backbone, tmp_path / "none", batch_size=0)
    arrays = {"features": np.asarray(computed.features), "counts": computed.counts}
    only = build(tmp_path / "only", arrays)
    for way in (attach_features, lambda *arguments: features.compute(*arguments, tmp_path / "none")):
        with pytest.raises(UserError, match="holds no images"):
            way(only, backbone)


def test_features_on_the_fly_are_the_stored_ones(small_set, weights, tmp_path):
    backbone = timm_backbone(VIT, weights)
    stored = features.compute(small_set, backbone, tmp_path / "out", batch_size=4)
    flying = attach_features(small_set, backbone)
    assert flying.features.shape == (10, 100, 64)
    np.testing.assert_allclose(flying[2:5].features[:], stored.features[2:5], atol=2e-3, rtol=2e-3)
    for name in ("images", "labels"):
        assert np.array_equal(flying.read(name, [1, 7]), stored.read(name, [1, 7]))
    options = {"seed": 1, "batch_size": 4, "stop": 3, "fields": ("features",)}
    for computed, other in zip(batches(flying, workers=1, **options), batches(stored, **options), strict=True):
        assert computed.scene.tolist() == other.scene.tolist()
        torch.testing.assert_close(computed.features, other.features, atol=2e-3, rtol=2e-3)
    assert flying.fingerprint != small_set.fingerprint
    assert flying.fingerprint == attach_features(small_set, timm_backbone(VIT, weights)).fingerprint
    assert len(flying.filter(max_objects=3)) == (small_set.counts <= 3).sum()


def test_a_set_on_the_fly_is_opened_like_any_other(small_set, weights, tmp_path):
    backbone = timm_backbone(VIT, weights)
    folder = write_feature_set(small_set, backbone, tmp_path / "flying")
    opened = Scenes.open(folder)
    assert np.array_equal(opened.features[3], attach_features(small_set, backbone).features[3])
    assert write_feature_set(small_set, backbone, folder) == folder
    again = Scenes.open(write_feature_set(small_set, backbone, tmp_path / "again"))
    assert opened.fingerprint == again.fingerprint
    before = timm_backbone(VIT, weights, norm="before")
    assert Scenes.open(write_feature_set(small_set, before, tmp_path / "before")).fingerprint != opened.fingerprint
    assert "features" in check(folder, tmp_path / "sheet.png", 2)
    with pytest.raises(UserError, match="already holds another set"):
        write_feature_set(small_set, before, folder)


def test_a_set_on_the_fly_that_was_changed_is_noticed(small_set, weights, tmp_path):
    folder = tmp_path / "flying"
    write_feature_set(small_set, timm_backbone(VIT, weights), folder)
    network, manifest = (folder / "backbone.safetensors").read_bytes(), (folder / "manifest.json").read_bytes()
    (folder / "backbone.safetensors").write_bytes(network[:-1] + bytes([network[-1] ^ 1]))
    with pytest.raises(DamagedFile, match=r"backbone\.safetensors was changed after it was written"):
        Scenes.open(folder)
    (folder / "backbone.safetensors").write_bytes(network)
    (folder / "manifest.json").write_bytes(manifest.replace(b'"after"', b'"before"'))
    with pytest.raises(DamagedFile, match=r"manifest\.json is not what was written"):
        Scenes.open(folder)
    (folder / "manifest.json").write_bytes(manifest)
    shutil.rmtree(small_set.directory)
    build(small_set.directory, random_arrays(num=10, size=16, seed=5))
    with pytest.raises(DamagedFile, match="is not the set that .* was made for"):
        Scenes.open(folder)


def test_training_on_features_on_the_fly_needs_nothing_else(small_set, weights, tmp_path):
    write_feature_set(small_set, timm_backbone(VIT, weights), tmp_path / "flying")
    recipe = Recipe(FeatureModel(tokens=100, features=64, dim=8, decoder=16, hidden=8), steps=2, batch_size=2,
                    validation_scenes=2, checkpoint_every=2)  # fmt: skip
    run = train(Experiment("flying", "flying", 3, recipe), tmp_path / "runs", data=tmp_path / "flying")
    assert run.finished


def small_experiment(model):
    return Experiment("small", "toy", 3, Recipe(model, steps=1))


def test_the_encoder_of_a_slotnorm_model_is_a_backbone(small_set):
    model = build_model(small_experiment(ImageModel(size=16, channels=8, dim=8, hidden=8, decoder="dense"))).eval()
    pictures = torch.from_numpy(small_set.images[:3])
    with torch.no_grad():
        before = model.encoder(to_images(pictures))
        after = model.slot_attention.norm_input(before)
    for backbone, expected in ((encoder_backbone(model, "run:small", norm="before"), before),
                               (encoder_backbone(model, "run:small"), after)):  # fmt: skip
        assert (backbone.tokens, backbone.features) == (256, 8)
        torch.testing.assert_close(backbone(pictures), expected, atol=1e-4, rtol=1e-4)


def test_a_model_of_features_has_no_encoder_of_images():
    model = build_model(small_experiment(FeatureModel(tokens=4, features=8, dim=8, decoder=8, hidden=8)))
    with pytest.raises(UserError, match="run:x is not a model of images"):
        encoder_backbone(model, "run:x")


def test_the_command_makes_features_with_timm_and_with_our_own_models(weights, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    source = tmp_path / "data" / "toy" / "paper" / "test"
    build(source, random_arrays(num=4, size=16))
    command = ["data", "features", "--from", str(source), "--backbone"]
    main([*command, VIT, "--weights", str(weights), "--device", "cpu"])
    folder = tmp_path / "data" / "toy-features" / "paper" / "test"
    assert capsys.readouterr().out == f"4 scenes with 100 x 64 features in {folder}\n"
    assert Scenes.open(folder).features.shape == (4, 100, 64)

    experiment = small_experiment(ImageModel(size=16, channels=8, dim=8, hidden=8, decoder="dense"))
    exported = tmp_path / "model.safetensors"
    exported.write_bytes(pack(Weights(build_model(experiment).state_dict(), experiment, 1, {})))
    for norm in ("after", "before"):
        main([*command, str(exported), "--out", str(tmp_path / norm), "--norm", norm])
    after, before = (np.asarray(Scenes.open(tmp_path / norm).features, np.float32) for norm in ("after", "before"))
    assert after.shape == before.shape == (4, 256, 8)
    np.testing.assert_allclose(after.mean(-1), 0, atol=0.01)  # a fresh layer norm
    assert abs(before.mean(-1)).max() > 0.05
    main([*command, VIT, "--weights", str(weights), "--out", str(tmp_path / "flying"), "--on-the-fly"])
    assert capsys.readouterr().out.endswith(f"4 scenes with 100 x 64 features on the fly in {tmp_path / 'flying'}\n")
    assert Scenes.open(tmp_path / "flying").features.shape == (4, 100, 64)
    for arguments, sentence in (
        ([str(exported), "--on-the-fly"], "needs a model of timm"),
        ([VIT], "needs --weights"),
        ([str(exported), "--weights", "hub"], "which has its own"),
        (["run:nowhere"], "nowhere"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*command, *arguments])
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err
