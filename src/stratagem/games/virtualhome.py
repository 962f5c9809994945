"""VirtualHome tasks of TWOSOME and POAD: Food Preparation, its renamed variants, and Entertainment.

One player in a flat of four rooms. What is seen and what may be done are texts; nothing happens by chance, so a seed
changes nothing. The reward is 1 when the task is done, which ends the episode; 50 steps truncate it. Rules and texts
are in :mod:`stratagem.games.virtualhome_food` and :mod:`stratagem.games.virtualhome_entertainment`.

The papers report the discounted return, 0.95^t for a success in step t counted from 0.
:meth:`VirtualHome.optimal_return` takes that ``gamma``, and so does a panel:
``fixed_panel("VirtualHome-FoodPreparation", gamma=0.95)`` evaluates discounted returns and their share of the optimum.

Values are exact: the reachable states are few, and each is backed up once for each number of steps left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from stratagem.errors import ConfigError, GameError
from stratagem.games import virtualhome_entertainment as entertainment
from stratagem.games import virtualhome_food as food
from stratagem.games.base import Game, GameStep, check_joint_action

__all__ = ["GAMMA", "TASKS", "Task", "Values", "VirtualHome", "make_task", "solve"]

GAMMA = 0.95
"""The papers' discount of a step."""

TASKS = ("food_preparation", "entertainment")

_TIE = 1e-12


class Task(NamedTuple):
    """The rules and words of one task; an action is its index in ``words``."""

    start: Any
    words: tuple[str, ...]
    advance: Callable[[Any, int], Any]
    solved: Callable[[Any], bool]
    admissible: Callable[[Any], tuple[int, ...]]
    prompt: Callable[[Any], str]
    picture: Callable[[Any], str]


@lru_cache(maxsize=64)
def make_task(task: str, item: str = "pancake", appliance: str = "microwave", full_hands_switch: bool = True) -> Task:
    """Return the rules and words of a task.

    >>> make_task("food_preparation", "cheese").words[6]
    'grab the cheese'

    Args:
        task: one of ``TASKS``.
        item: what is prepared.
        appliance: what it is put into.
        full_hands_switch: of Entertainment; see :func:`stratagem.games.virtualhome_entertainment.admissible`.
    """
    if task == "entertainment":
        return Task(
            entertainment.START,
            entertainment.ACTIONS,
            entertainment.advance,
            entertainment.solved,
            partial(entertainment.admissible, full_hands_switch=full_hands_switch),
            entertainment.prompt,
            entertainment.picture,
        )
    return Task(
        food.START,
        food.actions(item, appliance),
        food.advance,
        food.solved,
        food.admissible,
        partial(food.prompt, item=item, appliance=appliance),
        partial(food.picture, item=item, appliance=appliance),
    )


class Values(NamedTuple):
    """Exact expected returns; the first axis of each is the number of steps left."""

    states: dict[Hashable, int]
    """Every state that offered actions can reach, with its row."""
    choices: tuple[tuple[int, ...], ...]
    """What each state offers."""
    following: tuple[tuple[int, ...], ...]
    """Where each offered action leads: a row, or -1 for the task done."""
    optimal: np.ndarray
    """[horizon + 1, states] of the best policy."""
    uniform: np.ndarray
    """[horizon + 1, states] of the policy that draws among the offered actions."""


@lru_cache(maxsize=32)
def solve(task: Task, *, horizon: int = 50, gamma: float = GAMMA, every_action: bool = False) -> Values:
    r"""Return the exact values of the best and of the uniform policy.

    .. math:: V_0 = 0, \qquad V_h(s) = \max_a [r + \gamma V_{h-1}(s')], \qquad
              U_h(s) = \frac{1}{|A(s)|} \sum_a [r + \gamma U_{h-1}(s')]

    where a success gives 1 and no more. "No action" is left out; it is never better.

    >>> round(float(solve(make_task("food_preparation")).optimal[50, 0]), 5)
    0.77378

    Args:
        task: from :func:`make_task`.
        horizon: steps of an episode.
        gamma: discount of a step.
        every_action: all actions are offered in every state.
    """
    states: dict[Hashable, int] = {task.start: 0}
    queue = [task.start]
    choices: list[tuple[int, ...]] = []
    following: list[tuple[int, ...]] = []
    for state in queue:
        offered = tuple(range(len(task.words))) if every_action else task.admissible(state)
        row = []
        for action in offered:
            after = task.advance(state, action)
            if task.solved(after):
                row.append(-1)
                continue
            if after not in states:
                states[after] = len(queue)
                queue.append(after)
            row.append(states[after])
        choices.append(offered)
        following.append(tuple(row))
    width = max(map(len, following))
    # Padding repeats the first action, which is neutral for the maximum; the mean counts what is offered.
    table = np.array([[*row, *[row[0]] * (width - len(row))] for row in following])
    offered_mask = np.arange(width) < np.array([len(row) for row in following])[:, None]
    optimal = np.zeros((horizon + 1, len(queue)))
    uniform = np.zeros_like(optimal)
    for left in range(1, horizon + 1):
        best, mean = (
            np.where(table < 0, 1.0, gamma * values[left - 1][np.maximum(table, 0)]) for values in (optimal, uniform)
        )
        optimal[left] = best.max(axis=1)
        uniform[left] = (mean * offered_mask).sum(axis=1) / offered_mask.sum(axis=1)
    return Values(states, tuple(choices), tuple(following), optimal, uniform)


class VirtualHome(Game):
    """One player in a flat; see the module for the tasks."""

    name = "virtualhome"

    def __init__(
        self,
        *,
        task: str = "food_preparation",
        item: str = "pancake",
        appliance: str = "microwave",
        max_steps: int = 50,
        every_action: bool = False,
        full_hands_switch: bool = True,
        list_actions: bool = False,
    ) -> None:
        """Set the task.

        Args:
            task: ``food_preparation`` or ``entertainment``.
            item: of Food Preparation, what is prepared.
            appliance: of Food Preparation, what it is put into.
            max_steps: an episode is truncated after this many steps.
            every_action: offer every action in every state, also those that do nothing there.
            full_hands_switch: of Entertainment, offer the television's switch with both hands full (POAD does,
                TWOSOME does not).
            list_actions: put the offered actions before the papers' prompt, for agents that answer freely.
        """
        if task not in TASKS:
            raise ConfigError(f"task={task!r} is not a task of {self.name}; use one of {', '.join(TASKS)}.")
        for key, value in (("item", item), ("appliance", appliance)):
            if not value or value != value.strip().lower():
                raise ConfigError(f"{key}={value!r} cannot stand in an action; write lowercase words.")
        if item == appliance or item in food.ROOMS or appliance in food.ROOMS:
            raise ConfigError(
                f"item={item!r} and appliance={appliance!r} would make two actions equal; use two names, not of rooms."
            )
        if max_steps < 1:
            raise ConfigError(f"max_steps={max_steps!r} leaves no step to play; set max_steps to 1 or more.")
        self.task = task
        self.max_steps = max_steps
        self.every_action = every_action
        self.list_actions = list_actions
        self._task = make_task(task, item, appliance, full_hands_switch)
        self._state: Any = None
        self._steps = 0
        self._over = False

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start in the kitchen with empty hands, whatever the seed."""
        self._state, self._steps, self._over = self._task.start, 0, False
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Do one action; ``None`` does nothing and the step counts."""
        check_joint_action(self, actions, started=self._state is not None, over=self._over)
        if actions[0] is not None:
            self._state = self._task.advance(self._state, self._task.words.index(actions[0]))
        self._steps += 1
        terminated = self._task.solved(self._state)
        truncated = not terminated and self._steps >= self.max_steps
        self._over = terminated or truncated
        info: dict[str, Any] = {"success": terminated} if self._over else {}
        return GameStep((self.observation(),), (1.0 if terminated else 0.0,), terminated, truncated, info)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return what the papers' text offers here, or every action."""
        state = self._started()
        if self._over:
            return ()
        words = self._task.words
        return words if self.every_action else tuple(words[action] for action in self._task.admissible(state))

    def observation(self, player: int = 0) -> str:
        """Return the papers' prompt; a chosen action continues its last sentence."""
        text = self._task.prompt(self._started())
        if not self.list_actions or self._over:
            return text
        return "\n".join(["[Available Actions]", *(f'"{word}"' for word in self.legal_actions(player)), text])

    def state_key(self) -> str:
        """Return the task's state."""
        state = self._started()
        fields = [sorted(value) if isinstance(value, frozenset) else value for value in state]
        return f"{self.task} " + " ".join(f"{key}={value}" for key, value in zip(state._fields, fields, strict=True))

    def render(self) -> str:
        """Return who and what is where."""
        return self._task.picture(self._started())

    def planner_action(self, player: int = 0) -> str | None:
        """Return the first action of a shortest way to the end; of equals the first that is offered."""
        state = self._started()
        if self._over:
            return None
        # A longer horizon than the steps left, so that the planner also acts when it is too late.
        values = self._values(GAMMA, self.max_steps + 50)
        row = values.states[state]
        next_values = [
            1.0 if after < 0 else GAMMA * float(values.optimal[self.max_steps + 49, after])
            for after in values.following[row]
        ]
        best = next(i for i, value in enumerate(next_values) if value >= max(next_values) - _TIE)
        return self._task.words[values.choices[row][best]]

    def optimal_return(self, *, gamma: float = 1.0) -> float | None:
        """Return the exact best expected return from here with the steps that are left."""
        values, row = self._here(gamma)
        return 0.0 if self._over else float(values.optimal[self.max_steps - self._steps, row])

    def uniform_return(self, *, gamma: float = 1.0) -> float:
        """Return the exact expected return of a player that draws among the offered actions."""
        values, row = self._here(gamma)
        return 0.0 if self._over else float(values.uniform[self.max_steps - self._steps, row])

    def _here(self, gamma: float) -> tuple[Values, int]:
        state = self._started()
        values = self._values(gamma, self.max_steps)
        return values, values.states.get(state, 0)  # a state after the end is in no row, and none is read then

    def _values(self, gamma: float, horizon: int) -> Values:
        return solve(self._task, horizon=horizon, gamma=gamma, every_action=self.every_action)

    def _started(self) -> Any:
        if self._state is None:
            raise GameError(f"{self.name} has not been started; call reset(seed=...) first.")
        return self._state
