"""Mixtures of von Mises-Fisher distributions, fitted by expectation maximization, in scikit-learn's manner."""

import inspect
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from slotnorm.errors import UserError, nearest
from slotnorm.theory.sphere import Array, estimate_concentration, log_normalizer, sample, unit_vectors

# A component on a single point would have an infinite concentration. At this one its points are 1e-4 radians apart.
_LARGEST_CONCENTRATION = 1e8

RandomState = int | np.random.Generator | None


def expectation(points: Array, weights: Array, means: Array, concentrations: Array) -> tuple[Array, Array]:
    """E-step: responsibilities γ (n, K) and log-likelihoods (n,) of unit vectors (n, d).

    γ_nk is proportional to π_k exp(κ_k θ_kᵀx_n) / Z(d, κ_k); with one κ for all, Z cancels and it is the paper's.
    """
    logs = concentrations * (points @ means.T) - log_normalizer(points.shape[1], concentrations)
    with np.errstate(divide="ignore"):  # a component of weight 0 takes no part
        logs += np.log(weights)
    likelihoods = logsumexp(logs, axis=1)
    return np.exp(logs - likelihoods[:, None]), likelihoods


def maximization(points: Array, responsibilities: Array) -> tuple[Array, Array, Array]:
    """M-step: weights Σ_n γ_nk / N (K,), directions Σ_n γ_nk x_n normalised (K, d), mean lengths (K,).

    A component whose sum vanishes has direction and length 0: every direction is as good.
    """
    mass = responsibilities.sum(axis=0)
    sums = responsibilities.T @ points
    norms = np.linalg.norm(sums, axis=1)
    tiny = np.finfo(np.float64).tiny
    lengths = np.minimum(norms / np.maximum(mass, tiny), 1.0)
    directions = np.where(norms[:, None] > tiny, sums / np.maximum(norms, tiny)[:, None], 0.0)
    return mass / mass.sum(), directions, lengths


class VonMisesFisherMixture:
    """A mixture of `n_components` von Mises-Fisher distributions.

        mixture = VonMisesFisherMixture(n_components=3).fit(points)      # unit vectors (n, d)
        mixture.means_, mixture.weights_, mixture.concentrations_         # (3, d), (3,), (3,)

    `concentration` κ, or `tau` = 1/κ (the paper's word and letter), fixes the concentration of every component; with
    neither each component's own is estimated. `tau=1` is the paper's setting. The best of `n_init` starts is kept.

    Attributes after `fit`: `weights_`, `means_`, `concentrations_`, `taus_`, `converged_`, `n_iter_`, `lower_bound_`
    (mean log-likelihood of a point), `lower_bounds_` (the same at the start and after each iteration: it never falls).
    """

    weights_: Array
    means_: Array
    concentrations_: Array
    lower_bounds_: Array
    converged_: bool

    def __init__(
        self,
        n_components: int = 3,
        *,
        concentration: float | None = None,
        tau: float | None = None,
        tol: float = 1e-6,
        max_iter: int = 300,
        n_init: int = 4,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.concentration = concentration
        self.tau = tau
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Estimate the mixture from unit vectors (n, d)."""
        fixed = self._check()
        points = self._points(X)
        if len(points) < self.n_components:
            raise UserError(f"{len(points)} points cannot be {self.n_components} components; lower n_components")
        draws = np.random.default_rng(self.random_state)
        best = -np.inf
        for _ in range(self.n_init):
            run = _Run(points, self.n_components, fixed, draws)
            converged = run.iterate(self.max_iter, self.tol)
            if run.bounds[-1] > best:
                best, self.converged_ = run.bounds[-1], converged
                self.weights_, self.means_, self.concentrations_ = run.weights, run.means, run.concentrations
                self.lower_bounds_ = np.array(run.bounds)
        return self

    @property
    def n_iter_(self) -> int:
        """Iterations of the best start."""
        return len(self._fitted().lower_bounds_) - 1

    @property
    def lower_bound_(self) -> float:
        """Mean log-likelihood of the points of `fit`."""
        return float(self._fitted().lower_bounds_[-1])

    @property
    def taus_(self) -> Array:
        """1/κ of each component, (K,); infinite for a uniform one."""
        with np.errstate(divide="ignore"):
            taus: Array = 1 / self._fitted().concentrations_
        return taus

    def predict_proba(self, X: ArrayLike) -> Array:
        """Responsibilities (n, K)."""
        return self._expectation(X)[0]

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """The most responsible component, (n,)."""
        components: NDArray[np.intp] = self._expectation(X)[0].argmax(axis=1)
        return components

    def fit_predict(self, X: ArrayLike, y: None = None) -> NDArray[np.intp]:
        """`fit`, then `predict` the same points."""
        return self.fit(X).predict(X)

    def score_samples(self, X: ArrayLike) -> Array:
        """Log-likelihood of each point, (n,)."""
        return self._expectation(X)[1]

    def score(self, X: ArrayLike, y: None = None) -> float:
        """Mean log-likelihood of a point."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> tuple[Array, NDArray[np.intp]]:
        """Draw points (n, d) and the components (n,) they come from."""
        self._fitted()
        draws = np.random.default_rng(self.random_state)
        components = draws.choice(len(self.weights_), size=n_samples, p=self.weights_)
        points = np.empty((n_samples, self.means_.shape[1]))
        for component, (mean, kappa) in enumerate(zip(self.means_, self.concentrations_, strict=True)):
            chosen = components == component
            points[chosen] = sample(mean, kappa, int(chosen.sum()), draws)
        return points, components

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn's `clone` asks for them."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **parameters: Any) -> Self:
        """Set some of the constructor's arguments."""
        for name, value in parameters.items():
            if name not in self.get_params():
                raise UserError(
                    f"a VonMisesFisherMixture has no parameter {name!r}; {nearest(name, self.get_params())}"
                )
            setattr(self, name, value)
        return self

    def _expectation(self, X: ArrayLike) -> tuple[Array, Array]:
        self._fitted()
        points = self._points(X)
        if points.shape[1] != self.means_.shape[1]:
            raise UserError(f"points have {points.shape[1]} dimensions, but the mixture has {self.means_.shape[1]}")
        return expectation(points, self.weights_, self.means_, self.concentrations_)

    def _fitted(self) -> Self:
        if not hasattr(self, "weights_"):
            raise UserError("this VonMisesFisherMixture has no parameters yet; call fit(points) first")
        return self

    @staticmethod
    def _points(X: ArrayLike) -> Array:
        points = unit_vectors(X, "points")
        if points.ndim != 2 or len(points) == 0:
            raise UserError(f"points have shape {points.shape}, but (n, d) with at least one point is needed")
        return points

    def _check(self) -> float | None:
        """The fixed concentration, or None when it is to be estimated."""
        for name in ("n_components", "max_iter", "n_init"):
            if (value := getattr(self, name)) < 1 or value != int(value):
                raise UserError(f"{name} is {value}, but must be a whole number of at least 1")
        if self.concentration is not None and self.tau is not None:
            raise UserError(
                f"concentration is {self.concentration} and tau is {self.tau}, but tau is 1/concentration; give one"
            )
        for name in ("concentration", "tau"):
            if (value := getattr(self, name)) is not None and not 0 < value < np.inf:
                raise UserError(f"{name} is {value}, but must be positive and finite; leave it out to estimate it")
        return 1 / self.tau if self.tau is not None else self.concentration


class _Run:
    """One start of expectation maximization."""

    def __init__(self, points: Array, components: int, fixed: float | None, draws: np.random.Generator) -> None:
        self.points, self.fixed = points, fixed
        self.means = _spread(points, components, draws)
        self.concentrations = np.full(components, points.shape[1] if fixed is None else fixed, dtype=np.float64)
        nearest_mean = (points @ self.means.T).argmax(axis=1)
        self.maximize(np.eye(components)[nearest_mean])
        self.bounds: list[float] = []

    def iterate(self, iterations: int, tol: float) -> bool:
        """Alternate E- and M-step until the mean log-likelihood grows by less than `tol`; whether that was reached."""
        parameters = self.points, self.weights, self.means, self.concentrations
        responsibilities, likelihoods = expectation(*parameters)
        self.bounds.append(float(likelihoods.mean()))
        for _ in range(iterations):
            self.maximize(responsibilities)
            responsibilities, likelihoods = expectation(self.points, self.weights, self.means, self.concentrations)
            self.bounds.append(float(likelihoods.mean()))
            if self.bounds[-1] - self.bounds[-2] < tol:
                return True
        return False

    def maximize(self, responsibilities: Array) -> None:
        """The M-step, exact in weights, directions and concentrations, so that the likelihood cannot fall."""
        self.weights, directions, lengths = maximization(self.points, responsibilities)
        has_direction = directions.any(axis=1, keepdims=True)
        self.means = np.where(has_direction, directions, self.means)
        if self.fixed is None:
            estimates = estimate_concentration(self.points.shape[1], lengths, _LARGEST_CONCENTRATION)
            self.concentrations = np.where(self.weights > 0, estimates, self.concentrations)  # empty: keeps what it had


def _spread(points: Array, components: int, draws: np.random.Generator) -> Array:
    """Starting directions far from each other: points drawn in proportion to 1 - cos to the nearest one before."""
    chosen = [int(draws.integers(len(points)))]
    gaps = np.maximum(1 - points @ points[chosen[0]], 0)
    while len(chosen) < components:
        total = gaps.sum()
        weights = gaps / total if total > 0 else None  # fewer different points than components: any will do
        chosen.append(int(draws.choice(len(points), p=weights)))
        gaps = np.minimum(gaps, np.maximum(1 - points @ points[chosen[-1]], 0))
    return points[chosen]
