"""Convolutions by tiled Fourier transforms against the usual ones."""

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
    found, expected = fast(images), exact(wide)
    cotangent = torch.randn_like(found)
    gradients = torch.autograd.grad(found, (images, fast.weight, fast.bias), cotangent, retain_graph=True)
    wanted = torch.autograd.grad(expected, (wide, exact.weight, exact.bias), cotangent.double())
    for value, reference_value in ((found, expected), *zip(gradients, wanted, strict=True)):
        assert (value - reference_value).abs().max() < 3e-6 * reference_value.abs().max()
    again = torch.autograd.grad(found, (images, fast.weight, fast.bias), cotangent)
    assert torch.equal(fast(images), found)
    assert all(torch.equal(left, right) for left, right in zip(gradients, again, strict=True))


def test_the_fast_convolution_can_be_differentiated_twice():
    torch.manual_seed(0)
    fast, exact = convolution.Convolution(8, 8, 5), torch.nn.Conv2d(8, 8, 5, padding=2).double()
    exact.load_state_dict(fast.state_dict())
    found = []
    for layer, images in ((fast, torch.randn(1, 8, 9, 9)), (exact, None)):
        images = found[0][0].detach().double() if images is None else images
        images.requires_grad_()
        (first,) = torch.autograd.grad(layer(images).square().sum(), images, create_graph=True)
        found.append((images, torch.autograd.grad(first.square().sum(), layer.weight)[0]))
    assert (found[0][1] - found[1][1]).abs().max() < 1e-5 * found[1][1].abs().max()


def test_without_nnpack_the_usual_convolution_is_taken(monkeypatch):
    layer, images = convolution.Convolution(8, 8, 5), torch.randn(1, 8, 9, 9)
    fast = layer(images)
    monkeypatch.setattr(convolution, "_nnpack_is_there", lambda: False)
    torch.testing.assert_close(layer(images), fast, rtol=1e-5, atol=1e-6)
    assert torch.equal(layer(images), torch.nn.functional.conv2d(images, layer.weight, layer.bias, padding=2))
