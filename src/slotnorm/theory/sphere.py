"""The von Mises-Fisher distribution on the unit sphere of R^d: normaliser, density, concentration, sampling.

    f(x | θ, κ) = exp(κ θᵀx) / Z(d, κ),     Z(d, κ) = (2π)^(d/2) I_(d/2-1)(κ) / κ^(d/2-1)

The paper calls τ = 1/κ the concentration parameter; here `concentration` is κ, as in most of the literature.
"""

from functools import cache

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from slotnorm.errors import UserError

Array = NDArray[np.float64]

# Below this radius √(ν² + κ²) the power series is summed (160 terms reach 1e-16 there), above it 12 terms of the
# uniform expansion leave less than 1e-16.
_RADIUS = 50.0
_SERIES_TERMS = 160
_EXPANSION_TERMS = 12
_ROOT_STEPS = 30  # about 6 are needed


def log_normalizer(dim: int, concentration: ArrayLike) -> Array:
    """log Z(d, κ) for any dimension d >= 2 and any κ >= 0, of the shape of `concentration`; κ = 0 is the sphere's area.

    No Bessel function is formed: they leave the range of floats from a few hundred dimensions on.
    """
    kappa = _concentrations(dim, concentration)
    order = dim / 2 - 1
    radius = np.hypot(order, kappa)
    small = radius < _RADIUS
    logs = np.empty_like(kappa)
    area = np.log(2.0) + dim / 2 * np.log(np.pi) - gammaln(dim / 2)
    logs[small] = area + np.log(_series(order, kappa[small]))
    radius = radius[~small]
    logs[~small] = (
        dim / 2 * np.log(2 * np.pi)
        + radius
        - order * np.log(order + radius)
        - 0.5 * np.log(2 * np.pi * radius)
        + np.log(_expansion(order, radius))
    )
    return logs


def mean_length(dim: int, concentration: ArrayLike) -> Array:
    """|E x| = I_(d/2)(κ) / I_(d/2-1)(κ), the derivative of log Z: from 0 at κ = 0 up to 1."""
    kappa = _concentrations(dim, concentration)
    order = dim / 2 - 1
    radius = np.hypot(order, kappa)
    small = radius < _RADIUS
    lengths = np.empty_like(kappa)
    at = kappa[small]
    lengths[small] = at / (2 * (order + 1)) * _series(order + 1, at) / _series(order, at)
    # the quotient of two expansions, with the differences of their large terms taken by hand
    at, radius = kappa[~small], radius[~small]
    above = np.hypot(order + 1, at)
    step = (2 * order + 1) / (above + radius)
    logs = step - order * np.log1p((1 + step) / (order + radius)) - 0.5 * np.log(above / radius)
    ratio = _expansion(order + 1, above) / _expansion(order, radius)
    lengths[~small] = at / (order + 1 + above) * np.exp(logs) * ratio
    return lengths


def estimate_concentration(dim: int, length: ArrayLike, largest: float = 1e8) -> Array:
    """The maximum-likelihood κ in [0, largest] for points whose mean has this length: mean_length(d, κ) = length."""
    lengths = np.asarray(length, dtype=np.float64)
    if not ((lengths >= 0) & (lengths <= 1)).all():
        raise UserError(f"the mean of points on the sphere has length {lengths}, but it lies between 0 and 1")
    # With α = κ (1 - A²) / 2A, which Amos' bounds keep between (d-1)/2 and d/2, the root is κ = 2α R / (1 - R²).
    # From the two bounds on, secants: α hardly varies, so the curve is nearly straight.
    spread = lengths / np.maximum(1 - lengths**2, 1e-17)
    low, high = np.minimum((dim - 1) * spread, largest), np.minimum(dim * spread, largest)

    def excess(kappa: Array) -> Array:
        at = mean_length(dim, kappa)
        return kappa * (1 - spread * (1 - at) * (1 + at) / np.where(at > 0, at, 1.0))

    before, kappa = low, high
    error_before, error = excess(before), excess(kappa)
    for _ in range(_ROOT_STEPS):
        slope = np.where(error != error_before, error - error_before, np.inf)
        guess = np.clip(kappa - error * (kappa - before) / slope, low, high)
        error_of_guess = excess(guess)
        better = np.abs(error_of_guess) < np.abs(error)
        if not better.any():
            break
        before, error_before = np.where(better, kappa, before), np.where(better, error, error_before)
        kappa, error = np.where(better, guess, kappa), np.where(better, error_of_guess, error)
    return kappa


def log_density(points: ArrayLike, mean: ArrayLike, concentration: ArrayLike) -> Array:
    """log f(x | θ, κ) with respect to the sphere's surface: points (..., d), mean (d,) -> (...)."""
    directions, center = unit_vectors(points, "points"), unit_vectors(mean, "mean")
    logs: Array = np.asarray(concentration) * (directions @ center) - log_normalizer(center.shape[-1], concentration)
    return logs


def sample(
    mean: ArrayLike, concentration: float, count: int, random_state: int | np.random.Generator | None = None
) -> Array:
    """Draw (count, d) points of the distribution by Wood's rejection from a projected beta distribution."""
    draws = np.random.default_rng(random_state)
    center = unit_vectors(mean, "mean")
    dim = len(center)
    kappa = float(_concentrations(dim, concentration))
    # w = θᵀx is drawn as the gap 1 - w, which keeps its digits when κ is large
    b = (dim - 1) / (2 * kappa + np.hypot(2 * kappa, dim - 1))
    x = (1 - b) / (1 + b)
    highest = kappa * x + (dim - 1) * np.log(4 * b / (1 + b) ** 2)
    gaps = np.empty(0)
    while len(gaps) < count:
        missing = count - len(gaps)
        z = draws.beta((dim - 1) / 2, (dim - 1) / 2, size=missing + missing // 2 + 8)
        gap = 2 * b * z / (1 - (1 - b) * z)
        height = kappa * (1 - gap) + (dim - 1) * np.log(2 * b / (1 + b) + x * gap)
        accepted = height - highest >= np.log1p(-draws.random(len(z)))
        gaps = np.concatenate([gaps, gap[accepted][:missing]])
    tangent = draws.standard_normal((count, dim))
    tangent -= (tangent @ center)[:, None] * center
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    points: Array = (1 - gaps)[:, None] * center + np.sqrt(gaps * (2 - gaps))[:, None] * tangent
    return points


def unit_vectors(vectors: ArrayLike, name: str) -> Array:
    """The vectors (..., d) in float64 and of length one to the last digit; others than unit vectors are refused."""
    array = np.asarray(vectors, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] < 2:
        raise UserError(f"{name} have shape {array.shape}, but vectors of at least 2 dimensions are needed")
    lengths = np.linalg.norm(array, axis=-1, keepdims=True)
    if not np.isfinite(lengths).all():
        raise UserError(f"{name} hold NaN or infinite numbers; leave those out")
    if array.size and (worst := np.abs(lengths - 1).max()) > 1e-4:  # room for float32, not for mistakes
        raise UserError(f"{name} lie up to {worst:.2g} off the unit sphere; divide each by its length first")
    unit: Array = array / lengths
    return unit


def _concentrations(dim: int, concentration: ArrayLike) -> Array:
    if dim < 2:
        raise UserError(f"the dimension is {dim}, but a sphere to live on needs at least 2")
    kappa = np.asarray(concentration, dtype=np.float64)
    if not ((kappa >= 0) & np.isfinite(kappa)).all():
        raise UserError(f"the concentration is {kappa}, but must be finite and not negative")
    return kappa


def _series(order: float, kappa: Array) -> Array:
    """Γ(ν+1) (2/κ)^ν I_ν(κ) = Σ_m (κ²/4)^m / (m! (ν+1)_m): positive terms, so no digits are lost."""
    m = np.arange(1, _SERIES_TERMS).reshape(-1, *[1] * kappa.ndim)
    terms = np.cumprod(kappa**2 / 4 / (m * (order + m)), axis=0)
    total: Array = 1 + terms.sum(axis=0)
    return total


def _expansion(order: float, radius: Array) -> Array:
    """Σ_k U_k(p) / ν^k with p = ν/r, which makes I_ν(κ) = e^r (κ/(ν+r))^ν / √(2πr) times this, r = √(ν² + κ²).

    Written as Σ_k r^-k (U_k(p) / p^k), it also holds for ν = 0. Debye's expansion, uniform in κ.
    """
    if not radius.size:
        return radius
    square = (order / radius) ** 2
    total = np.zeros_like(radius)
    for coefficients in reversed(_debye_polynomials()):
        value = np.zeros_like(square)
        for coefficient in reversed(coefficients):
            value = value * square + coefficient
        total = total / radius + value
    return total


@cache
def _debye_polynomials() -> list[list[float]]:
    """Coefficients of U_k(p) / p^k in p², from U_(k+1) = p²(1-p²)/2 U_k' + 1/8 ∫_0^p (1-5t²) U_k(t) dt."""
    polynomials = [Polynomial([1.0])]
    while len(polynomials) < _EXPANSION_TERMS + 1:
        last = polynomials[-1]
        moved = Polynomial([0, 0, 0.5, 0, -0.5]) * last.deriv()
        polynomials.append(moved + (Polynomial([1, 0, -5]) * last).integ() / 8)
    return [[float(value) for value in polynomial.coef[k::2]] for k, polynomial in enumerate(polynomials)]
