"""The numbers that the paper prints: its one table, MOVi-D zero-shot with 24 slots. All else it shows as curves."""

from typing import NamedTuple


class Printed(NamedTuple):
    """Median and maximal deviation as printed."""

    median: float
    deviation: float


# transfer -> study -> normalization -> F-ARI, l2, ARI
_METRICS = ("f_ari", "l2", "ari")
_ROWS: dict[str, dict[str, dict[str, tuple[tuple[float, float], ...]]]] = {
    "movi-d": {
        "movi-10-11": {
            "weighted_mean": ((0.647, 0.015), (2.143, 0.004), (0.172, 0.011)),
            "layer_norm": ((0.660, 0.012), (2.146, 0.002), (0.171, 0.004)),
            "weighted_sum": ((0.722, 0.005), (2.223, 0.009), (0.204, 0.004)),
            "batch_norm": ((0.725, 0.006), (2.149, 0.004), (0.182, 0.011)),
        },
        "movi-6-11": {
            "weighted_mean": ((0.640, 0.009), (2.220, 0.001), (0.176, 0.003)),
            "layer_norm": ((0.639, 0.011), (2.220, 0.004), (0.176, 0.005)),
            "weighted_sum": ((0.709, 0.044), (2.309, 0.014), (0.205, 0.147)),
            "batch_norm": ((0.711, 0.005), (2.219, 0.006), (0.175, 0.007)),
        },
        "movi-6-7": {
            "weighted_mean": ((0.741, 0.005), (2.370, 0.009), (0.253, 0.018)),
            "layer_norm": ((0.742, 0.019), (2.365, 0.007), (0.253, 0.007)),
            "weighted_sum": ((0.797, 0.023), (2.475, 0.038), (0.242, 0.156)),
            "batch_norm": ((0.809, 0.005), (2.374, 0.002), (0.297, 0.030)),
        },
    }
}


def printed(transfer: str, study: str, norm: str, metric: str) -> Printed | None:
    """The paper's number for a cell of its table, or None."""
    row = _ROWS.get(transfer, {}).get(study, {}).get(norm)
    return Printed(*row[_METRICS.index(metric)]) if row and metric in _METRICS else None
