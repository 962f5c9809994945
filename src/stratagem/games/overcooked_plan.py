"""Every state that one cook can reach, the shortest way to a dish, and exact returns.

A kitchen with one cook has few states (24 and 1,156 in the papers' two), so all of them are listed once, with what each
macro action leads to. Nothing happens by chance.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stratagem.games.overcooked_rules import Kitchen, State, advance, macros, start_state

__all__ = ["Graph", "explore", "optimal_values", "steps_to_dish"]


class Graph(NamedTuple):
    """States and what macro actions lead to; S states, M macro actions."""

    states: dict[State, int]
    """Every state with its row."""
    following: np.ndarray
    """[S, M] row of the state after a macro action, -1 for a served dish."""
    rewards: tuple[tuple[tuple[float, ...], ...], ...]
    """[S][M] rewards of the primitive steps of a macro action."""


@lru_cache(maxsize=32)
def explore(kitchen: Kitchen) -> Graph:
    """Return all states of a kitchen with one cook."""
    names = macros(kitchen)
    start = start_state(kitchen)
    states = {start: 0}
    queue = [start]
    following: list[list[int]] = []
    rewards: list[tuple[tuple[float, ...], ...]] = []
    for state in queue:
        rows, earned = [], []
        for name in names:
            after, served = state, False
            steps: list[float] = []
            while True:
                moment = advance(kitchen, after, (name,), (len(steps),))
                after, served = moment.state, moment.served
                steps.append(moment.reward)
                if served or moment.ended[0]:
                    break
            if not served and after not in states:
                states[after] = len(queue)
                queue.append(after)
            rows.append(-1 if served else states[after])
            earned.append(tuple(steps))
        following.append(rows)
        rewards.append(tuple(earned))
    return Graph(states, np.array(following), tuple(rewards))


@lru_cache(maxsize=32)
def steps_to_dish(kitchen: Kitchen) -> np.ndarray:
    """Return [S, M] the fewest primitive steps to a served dish when a macro action comes first; inf for never."""
    graph = explore(kitchen)
    lengths = np.array([[len(steps) for steps in row] for row in graph.rewards], dtype=float)
    best = np.full(len(graph.states), np.inf)
    while True:
        through = lengths + np.where(graph.following < 0, 0.0, best[np.maximum(graph.following, 0)])
        better = through.min(axis=1)
        if np.array_equal(better, best):
            return through
        best = better


@lru_cache(maxsize=32)
def optimal_values(kitchen: Kitchen, *, horizon: int, gamma: float, macro_gamma: float) -> np.ndarray:
    r"""Return [horizon + 1, S] the exact best return with h primitive steps left.

    .. math:: V_h(s) = \max_m \Big[\sum_{k < \min(n, h)} \gamma_m^k r_k + \gamma^{n} V_{h-n}(s')\Big]

    with n the primitive steps of macro action m and V = 0 at a served dish and with no step left.

    Args:
        kitchen: with one cook.
        horizon: primitive steps of an episode.
        gamma: discount of a primitive step between macro actions.
        macro_gamma: discount of a primitive step within a macro action, which is part of the game's reward.
    """
    graph = explore(kitchen)
    lengths = np.array([[len(steps) for steps in row] for row in graph.rewards])
    longest = int(lengths.max())
    earned = np.zeros((longest + 1, *lengths.shape))  # by how many steps there is time for
    for row, by_macro in enumerate(graph.rewards):
        for column, steps in enumerate(by_macro):
            total = np.cumsum([macro_gamma**k * reward for k, reward in enumerate(steps)])
            earned[1:, row, column] = total[np.minimum(np.arange(longest), len(steps) - 1)]
    goes_on = graph.following >= 0
    after = np.maximum(graph.following, 0)
    values = np.zeros((horizon + 1, len(graph.states)))
    for left in range(1, horizon + 1):
        rest = values[np.maximum(left - lengths, 0), after]
        later = np.where(goes_on & (lengths <= left), gamma**lengths * rest, 0.0)
        values[left] = (earned[min(left, longest)] + later).max(axis=1)
    return values
