"""Von Mises-Fisher distributions and their mixtures, against closed forms, integrals and scipy."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats
from sklearn.base import clone

from slotnorm.errors import UserError
from slotnorm.theory import VonMisesFisherMixture
from slotnorm.theory.sphere import estimate_concentration, log_density, log_normalizer, mean_length, sample
from slotnorm.theory.vmf import expectation, maximization

CONCENTRATIONS = [1e-6, 0.1, 1.0, 7.0, 45.0, 49.9, 50.1, 300.0, 2e4]
DIMENSIONS = [2, 3, 4, 16, 64, 101, 103, 768, 4096]


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def moments_by_integration(dim, kappa):
    """log Z and the mean of w = θᵀx from the integral of e^(κw) (1 - w²)^((d-3)/2), with w = sin t, at any scale."""

    def height(t):
        return kappa * np.sin(t) + (dim - 2) * np.log(np.cos(t))

    end = np.pi / 2 - 1e-12
    peak = optimize.minimize_scalar(
        lambda t: -height(t), bounds=(-end, end), method="bounded", options={"xatol": 1e-12}
    )
    top = max(height(peak.x), height(end))
    width = 12 / np.sqrt(kappa + dim)
    points = np.clip([peak.x - width, peak.x, peak.x + width], -end, end)

    def integral(f):
        edges = np.unique([-end, *points, end])
        return sum(integrate.quad(f, *edge, epsabs=1e-14, epsrel=1e-12, limit=200)[0] for edge in pairwise(edges))

    mass = integral(lambda t: np.exp(height(t) - top))
    mean = integral(lambda t: np.sin(t) * np.exp(height(t) - top)) / mass
    area_of_circles = np.log(2) + (dim - 1) / 2 * np.log(np.pi) - special.gammaln((dim - 1) / 2)
    return area_of_circles + top + np.log(mass), mean


# density ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", CONCENTRATIONS)
def test_in_three_dimensions_the_normaliser_has_a_closed_form(kappa):
    log_sinh = kappa + np.log(-np.expm1(-2 * kappa)) - np.log(2)
    np.testing.assert_allclose(log_normalizer(3, kappa), np.log(4 * np.pi / kappa) + log_sinh, rtol=1e-12)
    if kappa > 0.01:  # below, this difference loses its digits
        np.testing.assert_allclose(mean_length(3, kappa), 1 / np.tanh(kappa) - 1 / kappa, rtol=1e-12)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_the_normaliser_agrees_with_bessel_functions_where_they_can_be_formed(dim):
    kappa = np.array(CONCENTRATIONS)
    order = dim / 2 - 1
    bessel, above = special.ive(order, kappa), special.ive(order + 1, kappa)
    formed = above > 1e-250
    expected = dim / 2 * np.log(2 * np.pi) + np.log(bessel[formed]) + kappa[formed] - order * np.log(kappa[formed])
    np.testing.assert_allclose(log_normalizer(dim, kappa)[formed], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean_length(dim, kappa)[formed], above[formed] / bessel[formed], rtol=1e-12)
    assert np.isfinite(log_normalizer(dim, kappa)).all()
    assert formed.any()


@pytest.mark.parametrize("dim", [2, 3, 16, 64, 768, 4096])
@pytest.mark.parametrize("kappa", [0.1, 7.0, 300.0, 5000.0])
def test_the_density_integrates_to_one(dim, kappa):
    log_integral, mean = moments_by_integration(dim, kappa)
    assert log_normalizer(dim, kappa) == pytest.approx(log_integral, rel=0, abs=1e-9)
    assert mean_length(dim, kappa) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_without_concentration_the_density_is_uniform(dim):
    log_area = np.log(2) + dim / 2 * np.log(np.pi) - special.gammaln(dim / 2)
    np.testing.assert_allclose(log_normalizer(dim, 0.0), log_area, rtol=1e-13)
    assert mean_length(dim, 0.0) == 0


@pytest.mark.parametrize("kappa", [1e10, 1e15])
def test_extreme_concentrations_follow_their_limit(kappa):
    """On a small cap the distribution is a Gaussian of variance 1/κ in d - 1 dimensions."""
    for dim in (2, 3, 20):
        expected = kappa + (dim - 1) / 2 * np.log(2 * np.pi / kappa)
        np.testing.assert_allclose(log_normalizer(dim, kappa), expected, rtol=1e-13)
        np.testing.assert_allclose(mean_length(dim, kappa), 1, rtol=1e-8)


def test_the_mean_length_is_the_derivative_of_the_normaliser():
    kappa = np.array([0.3, 4.0, 49.99999, 50.00001, 220.0])
    for dim in (2, 5, 64, 300):
        slope = (log_normalizer(dim, kappa + 1e-4) - log_normalizer(dim, kappa - 1e-4)) / 2e-4
        # a difference of rounded numbers: SciPy 1.12 rounds a little worse than later versions
        np.testing.assert_allclose(mean_length(dim, kappa), slope, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_the_density_equals_scipy(dim):
    draws = np.random.default_rng(1)
    mean = unit(draws.standard_normal(dim))
    points = unit(draws.standard_normal((20, dim)))
    expected = stats.vonmises_fisher(mean, 6.5).logpdf(points)
    np.testing.assert_allclose(log_density(points, mean, 6.5), expected, rtol=1e-12)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_the_concentration_is_found_from_the_mean_length(dim):
    kappa = np.array([0, 1e-6, 0.2, 3.0, 44.0, 51.0, 700.0, 1e5])
    np.testing.assert_allclose(estimate_concentration(dim, mean_length(dim, kappa)), kappa, rtol=1e-8)
    assert estimate_concentration(dim, 1.0, largest=123.0) == 123
    assert estimate_concentration(dim, mean_length(dim, 900.0), largest=500.0) == 500


# sampling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (3, 0.0), (3, 12.0), (10, 5.0), (64, 200.0), (5, 1e6)])
def test_samples_follow_the_density(dim, kappa):
    draws = np.random.default_rng(2)
    mean = unit(draws.standard_normal(dim))
    points = sample(mean, kappa, 4000, draws)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, rtol=1e-12)
    heights = points @ mean

    # the marginal of w = θᵀx against its integrated density, on a grid of w around the mean
    grid = np.linspace(max(-1.0, heights.min() - 1e-9), 1, 20001)
    middle = (grid[1:] + grid[:-1]) / 2
    logs = kappa * (middle - 1) + (dim - 3) / 2 * np.log((1 - middle) * (1 + middle))
    cumulative = np.concatenate([[0], np.cumsum(np.exp(logs - logs.max()))])
    result = stats.kstest(heights, lambda w: np.interp(w, grid, cumulative / cumulative[-1]))
    assert result.pvalue > 1e-3
    # around the mean every direction is as likely
    rest = points - heights[:, None] * mean
    assert np.linalg.norm(unit(rest).mean(axis=0)) < 5 / np.sqrt(4000)


def test_sampling_is_repeatable():
    mean = unit(np.ones(4))
    assert np.array_equal(sample(mean, 5.0, 7, random_state=3), sample(mean, 5.0, 7, random_state=3))
    assert not np.array_equal(sample(mean, 5.0, 7, random_state=3), sample(mean, 5.0, 7, random_state=4))
    assert sample(mean, 5.0, 0).shape == (0, 4)


# mixtures -----------------------------------------------------------------------------------------------------------


def planted(dim, weights, concentrations, count, seed):
    draws = np.random.default_rng(seed)
    while True:  # directions that are at least 60 degrees apart
        means = unit(draws.standard_normal((len(weights), dim)))
        if (means @ means.T - 2 * np.eye(len(weights))).max() < 0.5:
            break
    counts = [round(weight * count) for weight in weights]
    triples = zip(means, concentrations, counts, strict=True)
    points = np.concatenate([sample(mean, kappa, number, draws) for mean, kappa, number in triples])
    return means, points, np.repeat(np.arange(len(weights)), counts)


@pytest.mark.parametrize(
    ("dim", "concentrations"), [(2, [60, 90]), (3, [30, 60, 20]), (16, [80, 50, 120]), (128, [400] * 4)]
)
def test_planted_components_are_recovered(dim, concentrations):
    weights = np.arange(1, len(concentrations) + 1) / sum(range(1, len(concentrations) + 1))
    means, points, components = planted(dim, weights, concentrations, 3000, seed=4)
    mixture = VonMisesFisherMixture(len(weights), random_state=5).fit(points)
    cosines = means @ mixture.means_.T
    order = cosines.argmax(axis=1)
    assert sorted(order) == list(range(len(weights)))
    assert np.degrees(np.arccos(cosines.max(axis=1))).max() < 4
    np.testing.assert_allclose(mixture.weights_[order], weights, atol=0.03)
    np.testing.assert_allclose(mixture.concentrations_[order], concentrations, rtol=0.12)
    assert (mixture.predict(points) == order[components]).mean() > 0.97
    assert mixture.converged_


@pytest.mark.parametrize("options", [{}, {"tau": 1.0}, {"concentration": 25.0}])
@pytest.mark.parametrize(("dim", "components"), [(2, 5), (3, 1), (8, 4), (100, 6)])
def test_the_likelihood_never_decreases(options, dim, components):
    points = unit(np.random.default_rng(6).standard_normal((300, dim)) + 0.7)
    mixture = VonMisesFisherMixture(components, random_state=7, tol=-np.inf, max_iter=60, n_init=2, **options).fit(
        points
    )
    assert mixture.n_iter_ == 60
    assert np.diff(mixture.lower_bounds_).min() > -1e-12 * np.abs(mixture.lower_bounds_).max()
    assert mixture.lower_bound_ == pytest.approx(mixture.score(points), rel=1e-12)
    if components > 1:
        assert mixture.lower_bounds_[-1] > mixture.lower_bounds_[0]


def test_one_component_is_the_maximum_likelihood_of_scipy():
    points = sample(unit(np.arange(1.0, 6.0)), 9.0, 400, random_state=8)
    mixture = VonMisesFisherMixture(1).fit(points)
    mean, kappa = stats.vonmises_fisher.fit(points)
    np.testing.assert_allclose(mixture.means_[0], mean, rtol=1e-10)
    np.testing.assert_allclose(mixture.concentrations_[0], kappa, rtol=1e-6)
    np.testing.assert_allclose(
        mixture.score_samples(points), stats.vonmises_fisher(mean, kappa).logpdf(points), rtol=1e-6
    )


def test_fixed_concentrations_are_kept_under_either_name():
    points = unit(np.random.default_rng(9).standard_normal((50, 4)))
    by_tau = VonMisesFisherMixture(3, tau=0.25, random_state=1).fit(points)
    by_kappa = VonMisesFisherMixture(3, concentration=4.0, random_state=1).fit(points)
    assert by_tau.concentrations_.tolist() == [4.0] * 3
    assert by_tau.taus_.tolist() == [0.25] * 3
    assert np.array_equal(by_tau.means_, by_kappa.means_)


def test_with_tau_one_the_steps_are_the_papers_formulas():
    draws = np.random.default_rng(10)
    points, means, weights = (
        unit(draws.standard_normal((30, 5))),
        unit(draws.standard_normal((3, 5))),
        np.array([0.5, 0.3, 0.2]),
    )
    attention, _ = expectation(points, weights, means, np.ones(3))
    scores = weights * np.exp(points @ means.T)
    np.testing.assert_allclose(attention, scores / scores.sum(axis=1, keepdims=True), rtol=1e-12)
    new_weights, directions, lengths = maximization(points, attention)
    sums = np.einsum("nk,nd->kd", attention, points)
    np.testing.assert_allclose(new_weights, attention.sum(axis=0) / 30, rtol=1e-12)
    np.testing.assert_allclose(directions, unit(sums), rtol=1e-12)
    np.testing.assert_allclose(lengths, np.linalg.norm(sums, axis=1) / attention.sum(axis=0), rtol=1e-12)


def test_components_without_points_stay_finite():
    points = np.repeat(np.eye(3)[:2], 6, axis=0)
    mixture = VonMisesFisherMixture(4, random_state=11).fit(points)
    for values in (mixture.means_, mixture.weights_, mixture.concentrations_, mixture.lower_bounds_):
        assert np.isfinite(values).all()
    assert mixture.weights_.sum() == pytest.approx(1)
    assert (mixture.weights_ == 0).sum() == 2
    assert np.isfinite(mixture.score_samples(np.eye(3))).all()
    np.testing.assert_allclose(mixture.predict_proba(points).sum(axis=1), 1)


def test_opposite_points_have_no_direction_and_no_concentration():
    points = np.array([[1.0, 0, 0], [-1.0, 0, 0]])
    mixture = VonMisesFisherMixture(1).fit(points)
    assert mixture.concentrations_[0] == 0
    assert np.isinf(mixture.taus_[0])
    np.testing.assert_allclose(mixture.score_samples(points), -np.log(4 * np.pi))


def test_samples_of_a_mixture_come_from_its_components():
    _, points, _ = planted(6, [0.25, 0.75], [50, 50], 800, seed=12)
    mixture = VonMisesFisherMixture(2, random_state=13).fit(points)
    drawn, components = mixture.sample(2000)
    assert drawn.shape == (2000, 6)
    np.testing.assert_allclose(np.bincount(components) / 2000, mixture.weights_, atol=0.04)
    assert (mixture.predict(drawn) == components).mean() > 0.98
    assert abs(mixture.score(drawn) - mixture.lower_bound_) < 0.15


def test_it_behaves_as_scikit_learn_expects():
    mixture = VonMisesFisherMixture(2, tau=0.5, random_state=3)
    twin = clone(mixture)
    assert twin.get_params() == mixture.get_params()
    points = unit(np.random.default_rng(14).standard_normal((40, 3)))
    assert np.array_equal(twin.fit_predict(points), mixture.fit(points).predict(points))
    assert twin.set_params(n_components=5).fit(points.astype(np.float32)).means_.shape == (5, 3)


def test_bad_use_gets_one_sentence():
    points = unit(np.random.default_rng(15).standard_normal((10, 3)))
    cases = [
        (lambda: VonMisesFisherMixture(2).predict(points), r"has no parameters yet; call fit\(points\) first"),
        (lambda: VonMisesFisherMixture(0).fit(points), "n_components is 0, but must be a whole number of at least 1"),
        (lambda: VonMisesFisherMixture(2.5).fit(points), "n_components is 2.5, but must be a whole number"),
        (lambda: VonMisesFisherMixture(11).fit(points), "10 points cannot be 11 components"),
        (lambda: VonMisesFisherMixture(tau=1, concentration=2).fit(points), "tau is 1/concentration; give one"),
        (lambda: VonMisesFisherMixture(tau=-1).fit(points), "tau is -1, but must be positive and finite"),
        (
            lambda: VonMisesFisherMixture(2).fit(points * 2),
            "lie up to 1 off the unit sphere; divide each by its length",
        ),
        (lambda: VonMisesFisherMixture(2).fit(points * np.nan), "hold NaN or infinite numbers"),
        (lambda: VonMisesFisherMixture(2).fit(points[0]), r"points have shape \(3,\), but \(n, d\)"),
        (
            lambda: VonMisesFisherMixture(2).fit(points[:, :1]),
            r"points have shape \(10, 1\), but vectors of at least 2",
        ),
        (lambda: VonMisesFisherMixture(2).fit(points).score(np.eye(4)), "4 dimensions, but the mixture has 3"),
        (lambda: VonMisesFisherMixture(2).set_params(kappa=1), "has no parameter 'kappa'"),
        (lambda: log_normalizer(1, 1.0), "the dimension is 1, but a sphere to live on needs at least 2"),
        (lambda: log_normalizer(3, -1.0), "the concentration is -1.0, but must be finite and not negative"),
        (lambda: estimate_concentration(3, 1.5), "has length 1.5, but it lies between 0 and 1"),
    ]
    for action, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            action()
