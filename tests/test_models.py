"""The three models: the authors' numbers, the paper's tables, initial values, the facade, what is refused."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import slotnorm as sn
import tiny
from slotnorm.errors import UserError
from slotnorm.models import FeatureAutoencoder, ImageAutoencoder, SetPredictor, SlotModel, matching_loss
from slotnorm.models.building import outline
from slotnorm.models.parts import PositionEmbedding

GOLDEN = Path(__file__).parent / "golden"

# what was found to train at 16x16 in minutes, and its larger relatives
SIXTEEN = {
    "size": 16, "channels": 32, "dim": 32, "hidden": 64, "kernel": 3, "strides": (1, 1), "positions": "fourier",
    "position_scale": 0.5, "decoder": "dense", "decoder_hidden": (256, 256),
}  # fmt: skip
FAMILY = {
    "16x16 dense": SIXTEEN,
    "32x32": {"size": 32, "channels": 16, "dim": 32, "hidden": 64, "strides": (1, 1), "decoder_strides": (2, 2)},
    "64x64 strided": {"size": 64, "channels": 8, "dim": 8, "strides": (2, 1), "decoder_strides": (2, 2, 2, 1)},
    "odd size": {"size": 20, "channels": 8, "dim": 6, "kernel": 3, "strides": (2, 2), "decoder_strides": (2, 2)},
}


def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights under our names, and everything else."""
    with np.load(GOLDEN / f"{name}.npz") as stored:
        arrays = {key: torch.as_tensor(stored[key]) for key in stored if stored[key].dtype.kind == "f"}
    weights = {
        key[2:].replace("norm_update", "normalization"): value for key, value in arrays.items() if key[:2] == "w/"
    }
    return weights, {key: value for key, value in arrays.items() if key[:2] != "w/"}


def load(model: SlotModel, weights: dict[str, Tensor]) -> SlotModel:
    model = model.double().eval()
    assert set(model.state_dict()) == set(weights), "the state dict's names are a contract"
    model.load_state_dict(weights)
    return model


def near(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize("way", ["kept", "recomputed", "evaluated"])
def test_image_autoencoder_gives_the_authors_numbers(way):
    weights, stored = golden("image_autoencoder")
    model = load(
        ImageAutoencoder(channels=6, dim=6, normalization="weighted_mean", recompute=way == "recomputed"), weights
    )
    with torch.set_grad_enabled(way != "evaluated"):
        decomposition = model(stored["image"], slots=stored["slots_init"])
    near(decomposition.slots, stored["slots"])
    near(decomposition.masks[..., ::8, ::8], stored["masks"])
    near(decomposition.reconstruction[..., ::8, ::8], stored["reconstruction"])
    near(mse_loss(decomposition.reconstruction, stored["image"].double()), stored["loss"])


@pytest.mark.parametrize("way", ["kept", "recomputed", "evaluated"])
def test_feature_autoencoder_gives_the_authors_numbers(way):
    weights, stored = golden("feature_autoencoder")
    model = load(FeatureAutoencoder(49, 24, 16, 32, 64, recompute=way == "recomputed"), weights)
    with torch.set_grad_enabled(way != "evaluated"):
        decomposition = model(stored["features"], slots=stored["slots_init"])
    near(decomposition.slots, stored["slots"])
    near(decomposition.masks, stored["masks"])
    near(decomposition.reconstruction, stored["reconstruction"])
    near(mse_loss(decomposition.reconstruction, stored["features"]), stored["loss"])


def test_set_predictor_gives_the_authors_numbers():
    weights, stored = golden("set_predictor")
    model = load(SetPredictor(channels=8, dim=8), weights)
    decomposition = model(stored["image"], slots=stored["slots_init"])
    near(decomposition.predictions, stored["predictions"])
    near(decomposition.attention, stored["attention"], 1e-7)  # stored in float32
    near(matching_loss(decomposition.predictions, stored["targets"]), stored["loss"])
    assert decomposition.masks.shape == (2, 10, 32, 32)
    assert torch.equal(decomposition.masks.flatten(2), decomposition.attention)
    assert decomposition.reconstruction is None


def test_the_defaults_are_the_papers_tables():
    images = {name: tuple(value.shape) for name, value in ImageAutoencoder().state_dict().items()}
    for layer in (2, 4, 6):
        assert images[f"encoder.cnn.{layer}.weight"] == (64, 64, 5, 5)
    assert images["encoder.cnn.0.weight"] == (64, 3, 5, 5)
    assert images["encoder.mlp.2.weight"] == images["encoder.mlp.0.weight"] == (64, 64)
    assert images["slot_attention.mlp.0.weight"] == (128, 64)
    assert [images[f"decoder.cnn.{layer}.weight"] for layer in (0, 2, 4, 6, 8)] == [(64, 64, 5, 5)] * 5
    assert images["decoder.cnn.10.weight"] == (64, 4, 3, 3)
    features = {name: tuple(value.shape) for name, value in FeatureAutoencoder().state_dict().items()}
    assert features["encoder.mlp.0.weight"] == (768, 768)
    assert features["encoder.mlp.2.weight"] == (128, 768)
    assert features["slot_attention.mlp.0.weight"] == (512, 128)
    assert features["decoder.position"] == (784, 128)
    widths = [features[f"decoder.mlp.{layer}.weight"] for layer in (0, 2, 4, 6)]
    assert widths == [(1024, 128), (1024, 1024), (1024, 1024), (769, 1024)]
    properties = {name: tuple(value.shape) for name, value in SetPredictor().state_dict().items()}
    assert properties["encoder.cnn.6.weight"] == (64, 64, 5, 5)
    assert properties["head.0.weight"] == (64, 64)
    assert properties["head.2.weight"] == (19, 64)
    assert SetPredictor().encoder.grid == 32


def test_image_models_start_as_glorot_with_zero_biases():
    torch.manual_seed(0)
    for model in (ImageAutoencoder(size=32, decoder_strides=(2, 2)), SetPredictor(size=32)):
        for name, value in model.named_parameters():
            if name.startswith("slot_attention") or ".norm." in name:
                continue
            if name.endswith("bias"):
                assert not value.any(), name
            else:
                outputs, inputs, *kernel = value.shape
                bound = math.sqrt(6 / ((inputs + outputs) * math.prod(kernel)))
                assert value.abs().max() <= bound, name
                assert value.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15), name


def test_the_feature_model_starts_as_pytorch_does_with_normal_positions():
    torch.manual_seed(0)
    model = FeatureAutoencoder(tokens=196, features=64, dim=64, decoder=128)
    assert model.decoder.position.std().item() == pytest.approx(1, rel=0.05)
    for layer in (model.encoder.mlp[0], model.decoder.mlp[2]):
        bound = 1 / math.sqrt(layer.in_features)
        assert 0.9 * bound < layer.bias.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("make", [
    lambda protocol: ImageAutoencoder(size=16, dim=500, protocol=protocol),
    lambda protocol: FeatureAutoencoder(4, 8, dim=500, decoder=8, protocol=protocol),
    lambda protocol: SetPredictor(size=16, dim=500, protocol=protocol),
])  # fmt: skip
def test_the_protocol_chooses_the_spread_of_the_initial_slots(make):
    for protocol, bound in (("paper", math.sqrt(6 / 501)), ("authors", math.sqrt(3 / 500))):
        spread = make(protocol).slot_attention.slots_mu.abs().max()
        assert 0.95 * bound < spread <= bound
    with pytest.raises(ValueError, match="protocol is 'published'"):
        make("published")


@pytest.mark.parametrize("arguments", FAMILY.values(), ids=FAMILY)
def test_the_family_trains_at_other_sizes(arguments):
    torch.manual_seed(0)
    model = ImageAutoencoder(**arguments)
    size = arguments["size"]
    images = torch.rand(4, 3, size, size) * 2 - 1
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    noise = torch.randn(4, 5, arguments["dim"])
    gradients = []
    for _ in range(12):
        decomposition = model(images, noise=noise)
        loss = mse_loss(decomposition.reconstruction, images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gradients.append(loss.item())
    assert decomposition.masks.shape == (4, 5, size, size)
    assert decomposition.reconstruction.shape == images.shape
    assert gradients[-1] < gradients[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_sixteen_pixel_recipe_has_its_layers():
    shapes = {name: tuple(value.shape) for name, value in ImageAutoencoder(**SIXTEEN).state_dict().items()}
    assert [shapes[f"encoder.cnn.{layer}.weight"] for layer in (0, 2)] == [(32, 3, 3, 3), (32, 32, 3, 3)]
    assert [shapes[f"decoder.mlp.{layer}.weight"] for layer in (0, 2, 4)] == [(256, 32), (256, 256), (1024, 256)]
    assert "decoder.cnn.0.weight" not in shapes


def test_ramps_are_rows_columns_and_their_reverses_in_the_weights_precision():
    embedding = PositionEmbedding(5, 4).double()
    torch.nn.init.eye_(embedding.weight)
    points = embedding()
    ramp = torch.linspace(0, 1, 5, dtype=torch.float64)
    assert torch.equal(points[0], ramp[:, None].expand(5, 5))
    assert torch.equal(points[1], ramp.expand(5, 5))
    assert torch.equal(points[2:], 1 - points[:2])


def test_positions_follow_the_weights_from_type_to_type_and_out_of_inference_mode():
    embedding = PositionEmbedding(7, 4)
    torch.nn.init.eye_(embedding.weight)
    with torch.inference_mode():
        embedding()
    embedding().sum().backward()
    exact = embedding.double()()[0, :, 0]
    assert torch.equal(exact, torch.linspace(0, 1, 7, dtype=torch.float64)), (
        "float32 ramps cast to float64 are not exact"
    )
    assert "_points" not in embedding.state_dict()


@pytest.mark.parametrize("size", [1, 8, 16, 33])
def test_fourier_positions_are_standardised_and_start_at_the_given_scale(size):
    torch.manual_seed(0)
    embedding = PositionEmbedding(size, 400, "fourier", scale=0.25)
    points = embedding()
    assert torch.isfinite(points).all()
    if size > 1:
        assert points.mean((1, 2)).abs().max() < 1e-5
        # the standard deviation over grid and channels; channels differ, their mean square is the scale's
        assert points.square().mean().sqrt().item() == pytest.approx(0.25, rel=0.15)
        assert len(points.flatten(1).t().unique(dim=0)) == size**2, "every place has its own embedding"


@pytest.mark.parametrize("name", sn.normalizations())
def test_every_normalization_serves_every_model(name):
    images = torch.rand(2, 3, 16, 16)
    for model, inputs in (
        (ImageAutoencoder(16, 8, 8, 16, name, strides=(1,), decoder_strides=(2, 2)), images),
        (SetPredictor(16, 8, 8, 5, 16, name, strides=(1, 2)), images),
        (FeatureAutoencoder(9, 12, 8, 16, 16, name), torch.randn(2, 9, 12)),
    ):
        decomposition = model(inputs, num_slots=4)
        assert decomposition.slots.shape == (2, 4, 8)
        torch.testing.assert_close(decomposition.masks.sum(1), torch.ones_like(decomposition.masks[:, 0]))


def small_models() -> list[tuple[SlotModel, Tensor]]:
    torch.manual_seed(0)
    return [
        (ImageAutoencoder(16, 8, 6, 16, strides=(1,), decoder_strides=(2, 2)), torch.rand(3, 3, 16, 16)),
        (ImageAutoencoder(8, 8, 6, 16, strides=(1,), decoder="dense", decoder_hidden=(8,)), torch.rand(3, 3, 8, 8)),
        (FeatureAutoencoder(9, 12, 6, 16, 16), torch.randn(3, 9, 12)),
        (SetPredictor(16, 8, 6, 5, 16, strides=(1, 2)), torch.rand(3, 3, 16, 16)),
    ]


def test_encoding_once_and_decomposing_often_is_the_call():
    for model, inputs in small_models():
        with torch.no_grad():
            tokens = model.encode(inputs)
            for num_slots in (1, 3, 90):  # one slot, and more than there are tokens of nine features
                noise = torch.randn(3, num_slots, 6)
                whole, parts = (
                    model(inputs, noise=noise, iterations=2),
                    model.decompose(tokens, noise=noise, iterations=2),
                )
                alone = model.decompose(tokens, noise=noise, iterations=2, reconstruct=False)
                for left, right in zip(whole, parts, strict=True):
                    assert left is right is None or torch.equal(left, right)
                torch.testing.assert_close(alone.masks, whole.masks)
                assert torch.isfinite(whole.masks).all()
                torch.testing.assert_close(whole.masks.sum(1), torch.ones_like(whole.masks[:, 0]))
                assert alone.reconstruction is None


def test_images_of_a_batch_do_not_touch_each_other():
    for model, inputs in small_models():
        noise = torch.randn(3, 4, 6)
        with torch.no_grad():
            together, alone = model(inputs, noise=noise), model(inputs[1:2], noise=noise[1:2])
        torch.testing.assert_close(together.masks[1:2], alone.masks, rtol=1e-4, atol=1e-5)


def test_models_work_in_bfloat16_and_take_half_precision_features():
    for model, inputs in small_models():
        noise = torch.randn(3, 4, 6)
        exact = model(inputs.half(), noise=noise)
        torch.testing.assert_close(exact.masks, model(inputs, noise=noise).masks, rtol=0, atol=5e-3)
        half = model.bfloat16()(inputs, noise=noise)
        assert half.masks.dtype == torch.bfloat16
        assert (half.masks.float() - exact.masks).abs().max() < 0.1


def test_weights_are_found_by_functional_call():
    """A model called with other weights than its own: none of the fast ways may look at its own."""
    for model, inputs in small_models():
        model, inputs = model.double(), inputs.double()
        other = {name: value.detach() + 0.05 for name, value in model.named_parameters()}
        for value in other.values():
            value.requires_grad_()
        noise = torch.randn(3, 4, 6).double()
        losses = []
        for recompute in (False, True):
            model.recompute = recompute
            outputs = torch.func.functional_call(model, other, (inputs,), {"noise": noise})
            loss = sum(
                output.square().sum() for output in (outputs.masks, outputs.reconstruction) if output is not None
            )
            losses.append(torch.autograd.grad(loss, list(other.values()), allow_unused=True))
        assert all(parameter.grad is None for parameter in model.parameters())
        for left, right in zip(*losses, strict=True):
            if left is not None:
                torch.testing.assert_close(left, right, rtol=0, atol=1e-9)


def test_exported_models_keep_batch_and_slots_free():
    torch.manual_seed(0)
    model = ImageAutoencoder(32, 8, 6, 16, strides=(2,), decoder_strides=(2, 2)).eval()
    inputs, noise = torch.rand(2, 3, 32, 32), torch.randn(2, 4, 6)
    batch, slots = torch.export.Dim("batch", max=2048), torch.export.Dim("slots", max=64)

    class MasksAndReconstruction(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
            return self.model(inputs, noise=noise)[2:4]

    shapes = ({0: batch}, {0: batch, 1: slots})
    exported = torch.export.export(MasksAndReconstruction(), (inputs, noise), dynamic_shapes=shapes).module()
    inputs, noise = torch.rand(3, 3, 32, 32), torch.randn(3, 7, 6)
    with torch.no_grad():
        for result, expected in zip(exported(inputs, noise), model(inputs, noise=noise)[2:4], strict=True):
            torch.testing.assert_close(result, expected)


REFUSED = {
    "another size": (torch.rand(2, 3, 32, 32), r"\(2, 3, 32, 32\); this model takes \(batch, 3, 16, 16\): .*build"),
    "grey": (torch.rand(2, 1, 16, 16), r"\(2, 1, 16, 16\)"),
    "no batch axis": (torch.rand(3, 16, 16), r"\(3, 16, 16\)"),
    "empty batch": (torch.rand(0, 3, 16, 16), r"\(0, 3, 16, 16\)"),
    "bytes": (torch.zeros(2, 3, 16, 16, dtype=torch.uint8), r"torch.uint8; this model takes floating point: convert"),
}


@pytest.mark.parametrize(("images", "sentence"), REFUSED.values(), ids=REFUSED)
def test_images_that_do_not_fit_are_refused(images, sentence):
    for model in (small_models()[0][0], small_models()[3][0]):
        with pytest.raises(UserError, match=f"^images (have shape|are) {sentence}"):
            model(images, num_slots=3)


@pytest.mark.parametrize("shape", [(2, 10, 12), (2, 9, 11), (9, 12)])
def test_features_that_do_not_fit_are_refused(shape):
    with pytest.raises(UserError, match=r"^features have shape .*; this model takes \(batch, 9, 12\): build the model"):
        small_models()[2][0](torch.randn(shape), num_slots=3)


BAD_ARGUMENTS = {
    "size": ({"size": 0}, "size is 0; it must be at least 1"),
    "channels": ({"channels": -1}, "channels is -1"),
    "even kernel": ({"kernel": 4}, "kernel is 4; it must be odd"),
    "even decoder kernel": ({"decoder_kernel": 2}, "decoder_kernel is 2; it must be odd"),
    "no strides": ({"strides": ()}, r"strides are \(\); there must be at least one"),
    "stride": ({"decoder_strides": (3, 1)}, r"decoder_strides are \(3, 1\); there must be .* 1 or 2"),
    "unreachable": ({"size": 20}, r"size is 20, which decoder_strides \(2, 2, 2, 2, 1\) cannot reach; .* product 16"),
    "decoder": ({"decoder": "broadcst"}, "there is no decoder 'broadcst'; did you mean 'broadcast'"),
    "dense width": ({"decoder": "dense", "decoder_hidden": (0,)}, r"decoder_hidden\[0\] is 0"),
    "positions": ({"positions": "ramp"}, "there are no positions 'ramp'; did you mean 'ramps'"),
    "position scale": ({"position_scale": -1.0}, "position_scale is -1.0; it must be"),
    "decoder channels": ({"decoder_channels": 0}, "decoder_channels is 0"),
}


@pytest.mark.parametrize(("arguments", "sentence"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_arguments_that_cannot_be_meant_are_refused(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        ImageAutoencoder(**{"size": 16, "channels": 8, "dim": 8, **arguments})


def test_widths_of_the_other_models_are_refused_by_name():
    with pytest.raises(UserError, match="tokens is 0; it must be at least 1"):
        FeatureAutoencoder(tokens=0)
    with pytest.raises(UserError, match="outputs is 0"):
        SetPredictor(outputs=0)
    with pytest.raises(ValueError, match="there is no normalization 'weighted'"):
        FeatureAutoencoder(4, 4, 4, 4, normalization="weighted")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            ImageAutoencoder(size=16, channels=4, dim=8, hidden=8, strides=(2, 1), decoder_strides=(2,)),
            ("images", "reconstruction", (16, 16, 3), 64, ("images",), ("masks", "attention")),
        ),
        (
            FeatureAutoencoder(9, 5, 8, 16, 8),
            ("features", "reconstruction", (9, 5), 9, ("features",), ("masks", "attention")),
        ),
        (
            SetPredictor(size=16, channels=4, dim=8, hidden=8, strides=(2, 2)),
            ("images", "properties", (16, 16, 3), 16, ("images", "properties"), ("attention",)),
        ),
    ],
)
def test_a_model_says_what_it_takes_and_what_it_gives(model, says):
    assert (model.input, model.predicts, model.input_shape, model.num_tokens, model.fields, model.sources) == says
    stored = torch.rand(2, *model.input_shape)
    stored = (stored * 255).to(torch.uint8) if model.input == "images" else stored.half()
    inputs = model.prepare(stored)
    assert model.encode(inputs).shape[:2] == (2, model.num_tokens)
    decomposition = model(inputs, num_slots=3)
    given = {"reconstruction": decomposition.reconstruction, "properties": decomposition.predictions}
    assert {name for name, tensor in given.items() if tensor is not None} == {model.predicts}
    assert decomposition.reconstruction is None or decomposition.reconstruction.shape == inputs.shape
    places = model.input_shape[:-1] if "masks" in model.sources else (4, 4)
    assert decomposition.masks.shape == (2, 3, *places)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"strides": (1,) * 65}, "model.strides has 65 entries, but a model has at most 64"),
        ({"dim": 1 << 25}, "model.dim is 33554432, but must be at most 16,777,216"),
        ({"size": 2049}, "model.size is 2049, but must be at most 2,048"),
        ({"channels": 1 << 24, "kernel": (1 << 24) - 1}, "no machine holds a model of these sizes: "),
    ],
)
def test_sizes_that_no_model_has_are_refused_before_it_is_built(sizes, sentence):
    with pytest.raises(UserError, match=sentence):
        outline(tiny.experiment(model=dataclasses.replace(tiny.IMAGES, **sizes)))


def test_the_loss_is_the_squared_error_of_a_reconstruction_or_the_matching_loss_of_predictions():
    model = FeatureAutoencoder(9, 5, 8, 16, 8)
    features = torch.randn(2, 9, 5)
    decomposition = model(features, num_slots=3)
    torch.testing.assert_close(
        model.loss(decomposition, features, {}), (decomposition.reconstruction - features).square().mean()
    )
    names = ("shape", "size", "material", "color", "x", "y", "z")
    properties = {name: torch.ones(2, 2, dtype=torch.uint8) for name in names}
    for protocol, height in (("paper", 4 / 6), ("authors", 0.65 / 0.35)):
        predictor = SetPredictor(size=16, channels=4, dim=8, hidden=8, strides=(2, 2), protocol=protocol)
        images = torch.rand(2, 3, 16, 16)
        decomposition = predictor(images, num_slots=3)
        targets = predictor.targets(properties, at_least=3)
        assert targets.shape == (2, 3, 19)
        assert targets[0, 0, 17].item() == pytest.approx(height)
        assert predictor.loss(decomposition, images, properties) == matching_loss(decomposition.predictions, targets)
    with pytest.raises(TypeError, match="FeatureAutoencoder predicts reconstruction and has no targets"):
        model.targets(properties)


@pytest.fixture
def float64_by_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: ImageAutoencoder(size=16, channels=4, dim=8, hidden=8, decoder_strides=(2, 2)), (3, 16, 16)),
        (lambda: ImageAutoencoder(size=16, channels=4, dim=8, hidden=8, decoder="dense"), (3, 16, 16)),
        (lambda: FeatureAutoencoder(9, 5, 8, 16, 8), (9, 5)),
        (lambda: SetPredictor(size=16, channels=4, dim=8, hidden=8), (3, 16, 16)),
    ],
)
def test_a_model_that_is_built_in_double_precision_works_in_it(make, shape):
    model = make()
    inputs = torch.randn(2, *shape)
    decomposition = model(inputs, num_slots=3)
    assert decomposition.masks.dtype == torch.float64
    result = decomposition.reconstruction if decomposition.predictions is None else decomposition.predictions
    result.square().mean().backward()
    assert all(parameter.grad is None or parameter.grad.dtype == torch.float64 for parameter in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(
            model(inputs, slots=decomposition.slots).masks.sum(1), torch.ones_like(decomposition.masks[:, 0])
        )
