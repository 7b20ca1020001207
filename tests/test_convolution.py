"""Convolutions by tiled Fourier transforms, with channels last and of constant maps, against the usual ones."""

import pytest
import torch

from slotnorm.models import convolution


@pytest.mark.parametrize(("layer", "reference"), [
    (convolution.Convolution, torch.nn.Conv2d), (convolution.TransposedConvolution, torch.nn.ConvTranspose2d)
])  # fmt: skip
def test_the_fast_convolution_rounds_no_worse_than_float32_and_is_repeatable(layer, reference):
    torch.manual_seed(0)
    fast, exact = layer(16, 24, 5), reference(16, 24, 5, padding=2).double()
    exact.load_state_dict(fast.state_dict())
    images = torch.randn(3, 16, 21, 21, requires_grad=True)
    assert convolution._is_fast(images, fast.weight) == torch.backends.nnpack.is_available()
    wide = images.detach().double().requires_grad_()
    values, expected = fast(images), exact(wide)
    cotangent = torch.randn_like(values)
    gradients = torch.autograd.grad(values, (images, fast.weight, fast.bias), cotangent, retain_graph=True)
    wanted = torch.autograd.grad(expected, (wide, exact.weight, exact.bias), cotangent.double())
    for value, reference_value in ((values, expected), *zip(gradients, wanted, strict=True)):
        assert (value - reference_value).abs().max() < 3e-6 * reference_value.abs().max()
    again = torch.autograd.grad(values, (images, fast.weight, fast.bias), cotangent)
    assert torch.equal(fast(images), values)
    assert all(torch.equal(left, right) for left, right in zip(gradients, again, strict=True))


def test_the_fast_convolution_can_be_differentiated_twice():
    torch.manual_seed(0)
    fast, exact = convolution.Convolution(8, 8, 5), torch.nn.Conv2d(8, 8, 5, padding=2).double()
    exact.load_state_dict(fast.state_dict())
    pairs = []
    for layer, images in ((fast, torch.randn(1, 8, 9, 9)), (exact, None)):
        images = pairs[0][0].detach().double() if images is None else images
        images.requires_grad_()
        (first,) = torch.autograd.grad(layer(images).square().sum(), images, create_graph=True)
        pairs.append((images, torch.autograd.grad(first.square().sum(), layer.weight)[0]))
    assert (pairs[0][1] - pairs[1][1]).abs().max() < 1e-5 * pairs[1][1].abs().max()


def test_without_nnpack_the_usual_convolution_is_taken(monkeypatch):
    layer, images = convolution.Convolution(8, 8, 5), torch.randn(1, 8, 9, 9)
    fast = layer(images)
    monkeypatch.setattr(convolution, "nnpack_is_there", lambda: False)
    torch.testing.assert_close(layer(images), fast, rtol=1e-5, atol=1e-6)
    assert torch.equal(layer(images), torch.nn.functional.conv2d(images, layer.weight, layer.bias, padding=2))


@pytest.mark.parametrize("width", [8, 9])
@pytest.mark.parametrize(
    ("channels_out", "kernel", "stride"), [(24, 5, 2), (16, 3, 2), (4, 3, 1), (1, 3, 1), (3, 5, 1)]
)
def test_a_transposed_convolution_with_channels_last_rounds_no_worse_than_float32(channels_out, kernel, stride, width):
    torch.manual_seed(0)
    fast = convolution.TransposedConvolution(16, channels_out, kernel, stride)
    exact = torch.nn.ConvTranspose2d(16, channels_out, kernel, stride, kernel // 2, stride - 1).double()
    exact.load_state_dict(fast.state_dict())
    images = torch.randn(3, 16, 9, width).contiguous(memory_format=torch.channels_last).requires_grad_()
    assert convolution._has_channels_last(images)
    wide = images.detach().double().contiguous().requires_grad_()
    values, expected = fast(images), exact(wide)
    assert values.is_contiguous(memory_format=torch.channels_last)
    cotangent = torch.randn_like(values)
    gradients = torch.autograd.grad(values, (images, fast.weight, fast.bias), cotangent)
    wanted = torch.autograd.grad(expected, (wide, exact.weight, exact.bias), cotangent.double())
    with torch.no_grad():
        evaluated = fast(images)
    for value, reference in ((values, expected), (evaluated, expected), *zip(gradients, wanted, strict=True)):
        assert (value - reference).abs().max() < 3e-6 * reference.abs().max()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
def test_a_constant_map_is_spread_as_the_layer_does(kernel, stride, size):
    torch.manual_seed(0)
    layer = convolution.TransposedConvolution(6, 4, kernel, stride).double()
    vectors = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    reach = convolution.reach_of_taps(size, kernel, stride).double()
    values = convolution.spread(vectors, layer.weight, reach)
    expected = layer(vectors[:, :, None, None].expand(-1, -1, size, size)) - layer.bias[:, None, None]
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-12)
    cotangent = torch.randn_like(expected)
    for gradients in zip(
        *(torch.autograd.grad(made, (vectors, layer.weight), cotangent) for made in (values, expected)), strict=True
    ):
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_channels_are_last_for_float32_on_a_cpu_unless_a_layer_goes_by_transforms(monkeypatch):
    monkeypatch.setattr(convolution, "nnpack_is_there", lambda: True)
    strided = torch.nn.Sequential(convolution.TransposedConvolution(8, 8, 5, 2), torch.nn.ReLU())
    transformed = torch.nn.Sequential(*strided, convolution.TransposedConvolution(8, 8, 5))
    images = torch.randn(2, 8, 4, 4)

    def is_last(images: torch.Tensor, layers: torch.nn.Sequential) -> bool:
        laid_out = convolution.lay_out(images, layers)
        assert torch.equal(laid_out, images)
        return convolution._has_channels_last(laid_out)

    assert is_last(images, strided)
    assert not is_last(images, transformed)
    assert not is_last(images.double(), strided)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_last(images, strided)


def test_a_single_slot_keeps_its_channels_last_through_the_layers():
    layers = torch.nn.Sequential(convolution.TransposedConvolution(8, 8, 5, 2), torch.nn.ReLU())
    single = torch.randn(4, 4, 8).permute(2, 0, 1)[None]  # as `spread` makes it; contiguous either way, torch says
    outputs = layers(convolution.lay_out(single, layers))
    assert outputs.stride() == (8 * 8 * 8, 1, 8 * 8, 8)
