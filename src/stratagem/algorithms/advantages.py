"""Advantages of a group, and which episodes of it to learn from.

Pure functions on numpy arrays. Notation: G episodes of one group, all from the same start.
"""

from __future__ import annotations

import numpy as np

__all__ = ["aaw_probabilities", "aaw_sample", "group_normalised"]


def group_normalised(returns: np.ndarray) -> np.ndarray:
    """Return (C_j - mean C) / std C, exactly 0 where all returns are equal.

    Source: Dilkes et al. 2025, arXiv:2508.10839, eq. 4. The paper does not say which standard deviation; this is that
    of the population (division by G).

    Args:
        returns: [G] composite returns C_j, G >= 2.

    Raises:
        ValueError: fewer than two episodes: there is nothing to compare with.

    >>> group_normalised(np.array([1.0, 0.0, 0.0, 1.0])).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"returns has shape {values.shape}; a group needs two or more episodes to compare. Raise G.")
    # Sums of equal rewards in another order differ by rounding, which must not become a signal of size 1.
    if values.max() - values.min() <= 1e-9 * max(1.0, np.abs(values).max()):
        return np.zeros_like(values)
    normalised: np.ndarray = (values - values.mean()) / values.std()
    return normalised


def aaw_probabilities(advantages: np.ndarray, *, temperature: float) -> np.ndarray:
    """Return p_j = exp(|A_j| / T_ep) / sum_i exp(|A_i| / T_ep).

    Source: Dilkes et al. 2025, arXiv:2508.10839, eq. 5.

    Args:
        advantages: [G] A_j.
        temperature: T_ep > 0; small values prefer extreme episodes, large ones approach uniform.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be above 0; AAW sampling is switched off with None.")
    scaled = np.abs(np.asarray(advantages, dtype=np.float64)) / temperature
    weights = np.exp(scaled - scaled.max())
    probabilities: np.ndarray = weights / weights.sum()
    return probabilities


def aaw_sample(advantages: np.ndarray, size: int, *, temperature: float, rng: np.random.Generator) -> np.ndarray:
    """Draw ``size`` of G episodes without replacement, one after the other with probabilities p_j of those left.

    Adding Gumbel noise to log p_j and taking the largest draws from exactly that law (Kool et al. 2019,
    arXiv:1903.06059). |A_j| / T_ep stands for log p_j, from which it differs by a constant; it never underflows.

    Args:
        advantages: [G] A_j over the whole group.
        size: G' <= G.
        temperature: T_ep > 0.
        rng: one number is drawn for each episode.

    Returns:
        [size] indices, ascending.
    """
    count = len(advantages)
    if not 1 <= size <= count:
        raise ValueError(f"size={size!r} cannot be drawn from {count} episodes; choose 1 to {count}.")
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be above 0; AAW sampling is switched off with None.")
    keys = np.abs(np.asarray(advantages, dtype=np.float64)) / temperature + rng.gumbel(size=count)
    return np.sort(np.argsort(-keys, kind="stable")[:size])
