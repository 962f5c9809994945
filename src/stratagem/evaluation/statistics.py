"""Uncertainty of a measured number; every resample is seeded.

Which one to use: over the episodes of one panel :func:`bootstrap_interval` (returns are far from normal), for a success
rate :func:`wilson_interval` (honest at 0 and 1), for the same episodes before and after :func:`paired_difference`, over
a handful of training seeds :func:`across_seeds` (Student's t: a bootstrap of five numbers is too narrow).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from stratagem.seeding import generator

__all__ = [
    "Interval",
    "Summary",
    "across_seeds",
    "bootstrap_interval",
    "mean",
    "paired_difference",
    "sample_std",
    "wilson_interval",
]

Interval = tuple[float, float]
"""Lower and upper end."""

_CHUNK = 2_000_000  # resampled values held at once: 16 MB


@dataclass(frozen=True)
class Summary:
    """A mean with its spread and its uncertainty."""

    count: int
    mean: float
    std: float | None
    """Sample standard deviation; None for a single value."""
    interval: Interval | None
    """None where one value says nothing of the spread."""


def _array(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"values has shape {array.shape}; expected one dimension with at least one number.")
    if not np.isfinite(array).all():
        raise ValueError("values holds a number that is not finite; drop failed episodes before summing up.")
    return array


def mean(values: Sequence[float]) -> float:
    """Return the mean, exact for equal values.

    >>> mean([0.1] * 3)
    0.1
    """
    array = _array(values)
    return float(array[0]) if (array == array[0]).all() else float(array.mean())


def sample_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation with n - 1, or None for a single value."""
    array = _array(values)
    return None if array.size < 2 else float(array.std(ddof=1))


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Return the percentile bootstrap interval of the mean (Efron 1979).

    Equal inputs give equal intervals in any process. Equal values give an interval of width zero: the method knows
    nothing beyond the sample.

    Args:
        values: one number per episode.
        confidence: the share of intervals that should hold the true mean.
        resamples: how often the sample is drawn with replacement.
        seed: of the resampling.
    """
    array = _array(values)
    if (array == array[0]).all():
        return float(array[0]), float(array[0])
    rng = generator("bootstrap", seed)
    rows = max(1, _CHUNK // array.size)
    means = [
        array[rng.integers(array.size, size=(min(rows, resamples - done), array.size))].mean(axis=1)
        for done in range(0, resamples, rows)
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def wilson_interval(successes: int, total: int, *, confidence: float = 0.95) -> Interval:
    r"""Return Wilson's score interval of a proportion (Wilson 1927).

    .. math:: \frac{s + z^2/2 \pm z \sqrt{s (n - s)/n + z^2/4}}{n + z^2}
    """
    if not 0 <= successes <= total or total == 0:
        raise ValueError(f"successes={successes!r} of total={total!r}; expected 0 <= successes <= total and total > 0.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = z * math.sqrt(successes * (total - successes) / total + z * z / 4)
    centre, scale = successes + z * z / 2, total + z * z
    # At the ends one bound is 0 or 1 exactly; rounding must not push it outside.
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == total else (centre + half) / scale
    return low, high


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Summary:
    """Return after - before, episode by episode, with a bootstrap interval; both must be in the same order."""
    first, second = _array(before), _array(after)
    if first.size != second.size:
        raise ValueError(f"before has {first.size} values and after {second.size}; pair the same episodes.")
    differences: list[float] = (second - first).tolist()
    return Summary(
        len(differences),
        mean(differences),
        sample_std(differences),
        bootstrap_interval(differences, confidence=confidence, seed=seed),
    )


def across_seeds(values: Sequence[float], *, confidence: float = 0.95) -> Summary:
    """Return mean, standard deviation and Student's t interval over independent training runs."""
    array = _array(values)
    centre, std = mean(values), sample_std(values)
    if std is None:
        return Summary(1, centre, None, None)
    from scipy.special import stdtrit  # here: a third of what a command takes to begin

    half = float(stdtrit(array.size - 1, (1 + confidence) / 2)) * std / math.sqrt(array.size)
    return Summary(array.size, centre, std, (centre - half, centre + half))
