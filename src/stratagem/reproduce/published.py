"""What Dilkes et al. 2025 (arXiv:2508.10839) report, to be put beside what was measured here.

Values are mean and standard deviation; those of Table 1 over 8 runs of 50 episodes each, those of the baselines over
1,000 episodes.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ABLATION", "BASELINES", "BEST_RUN", "PANELS", "TABLE_1", "Spread", "TableRow"]

PANELS = ("Snake-Standard", "Snake-Poison", "FrozenLake-Slippery", "FrozenLake-NotSlippery")
"""The four evaluation scenarios, in the order of Table 1."""


class Spread(NamedTuple):
    """Mean and standard deviation."""

    mean: float
    std: float


class TableRow(NamedTuple):
    """A row of Table 1."""

    initial: Spread
    """Before training."""
    final: Spread
    """After 700 iterations."""
    change: Spread
    """Of the differences of single runs."""


TABLE_1: dict[tuple[str, str], TableRow] = {
    ("snake", "Snake-Standard"): TableRow(Spread(-2.607, 0.162), Spread(-1.487, 1.093), Spread(1.120, 1.001)),
    ("snake", "Snake-Poison"): TableRow(Spread(-3.298, 0.126), Spread(-3.508, 0.913), Spread(-0.210, 0.827)),
    ("snake", "FrozenLake-Slippery"): TableRow(Spread(0.020, 0.035), Spread(0.131, 0.127), Spread(0.111, 0.114)),
    ("snake", "FrozenLake-NotSlippery"): TableRow(Spread(-0.207, 0.213), Spread(0.054, 0.087), Spread(0.261, 0.203)),
    ("frozen_lake", "Snake-Standard"): TableRow(Spread(-2.696, 0.120), Spread(-2.665, 0.061), Spread(0.030, 0.143)),
    ("frozen_lake", "Snake-Poison"): TableRow(Spread(-3.299, 0.086), Spread(-3.312, 0.083), Spread(-0.013, 0.049)),
    ("frozen_lake", "FrozenLake-Slippery"): TableRow(Spread(0.040, 0.033), Spread(0.227, 0.073), Spread(0.187, 0.059)),
    ("frozen_lake", "FrozenLake-NotSlippery"): TableRow(
        Spread(-0.158, 0.167), Spread(0.573, 0.121), Spread(0.732, 0.201)
    ),
}
"""(trained on, evaluated on) -> row."""

BASELINES: dict[tuple[str, str], Spread] = {
    ("Qwen2.5-72B-Instruct", "Snake-Standard"): Spread(-1.26, 1.80),
    ("Qwen2.5-72B-Instruct", "FrozenLake-NotSlippery"): Spread(0.38, 0.48),
    ("Qwen2.5-72B-Instruct", "FrozenLake-Slippery"): Spread(0.094, 0.29),
    ("dqn", "Snake-Standard"): Spread(4.58, 2.47),
    ("dqn", "FrozenLake-Slippery"): Spread(0.17, 0.38),
}
"""(who, evaluated on) -> what the text says; Figure 2 shows more bars without giving their numbers."""

BEST_RUN: dict[tuple[str, str], float] = {
    ("snake", "Snake-Standard"): 0.45,
    ("snake", "FrozenLake-Slippery"): 0.32,
}
"""(trained on, evaluated on) -> the best of the 8 runs."""

ABLATION: dict[tuple[int, int], float] = {(100, 25): -0.72, (100, 100): -0.86, (25, 25): -1.00}
"""(G, G') -> final mean reward on Snake-Standard; (100, 25) takes 1 / 3.5 of the time of (100, 100)."""
