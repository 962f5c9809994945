"""Overcooked: cook a salad with macro actions in a kitchen that is seen in part.

Setting of TWOSOME (Tan et al. 2024, arXiv:2401.14151) and POAD (Wen et al. 2024, arXiv:2405.15821): map A of 7x7, one
cook, tomato salad or tomato-lettuce salad. Rules in :mod:`stratagem.games.overcooked_rules`, text in
:mod:`stratagem.games.overcooked_text`, exact plans in :mod:`stratagem.games.overcooked_plan`.

A step of the game is a macro action, which takes one or more primitive steps; ``info["duration"]`` says how many.
Every primitive step earns -0.001, the chop that cuts a food of the dish +0.2, the right dish +1 and the end, anything
else that is served -0.1 (it goes back to where it started). The reward of a macro action is the sum of gamma^k r_k over
its primitive steps with gamma = 0.99. The papers' return discounts by 0.99 for each primitive step between macro
actions too: a panel with ``gamma=0.99`` evaluates that. ``max_steps`` counts primitive steps.

With two cooks, a step lasts until one of them needs a new macro action; the other goes on with its own, has no legal
action meanwhile and gives None. Both earn the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.errors import ConfigError, GameError
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.games.overcooked_plan import explore, optimal_values, steps_to_dish
from stratagem.games.overcooked_rules import LAYOUTS, State, advance, macros, read_kitchen, start_state
from stratagem.games.overcooked_text import action_words, observation_vector, picture, prompt

__all__ = ["GAMMA", "Overcooked"]

GAMMA = 0.99
"""The papers' discount of a primitive step."""


class Overcooked(Game):
    """One or two cooks in a kitchen; see the module for the rules."""

    name = "overcooked"

    def __init__(
        self,
        *,
        layout: str | Sequence[str] = "tomato",
        order: Sequence[str] = ("tomato",),
        num_cooks: int = 1,
        max_steps: int = 200,
        gamma: float = GAMMA,
        list_actions: bool = False,
    ) -> None:
        """Set the kitchen and the dish.

        Args:
            layout: a name of ``LAYOUTS``, or rows of letters (:func:`stratagem.games.overcooked_rules.read_kitchen`).
            order: foods of the dish.
            num_cooks: one or two.
            max_steps: an episode is truncated after this many primitive steps.
            gamma: discount of the primitive steps within a macro action.
            list_actions: put the actions before the papers' prompt, for agents that answer freely.
        """
        if isinstance(layout, str) and layout not in LAYOUTS:
            raise ConfigError(
                f"layout={layout!r} is not a kitchen; use one of {', '.join(LAYOUTS)}, or rows such as "
                "['###t#', 'k_1_#', 's___#', '###b#']."
            )
        if num_cooks not in (1, 2):
            raise ConfigError(f"num_cooks={num_cooks!r} cannot cook here; set num_cooks to 1 or 2.")
        if max_steps < 1:
            raise ConfigError(f"max_steps={max_steps!r} leaves no step to play; set max_steps to 1 or more.")
        if not 0 < gamma <= 1:
            raise ConfigError(f"gamma={gamma!r} is not a discount; set gamma above 0 and at most 1.")
        rows = LAYOUTS[layout] if isinstance(layout, str) else tuple(layout)
        self.kitchen = read_kitchen(rows, tuple(order), num_cooks)
        self.num_players = num_cooks
        self.max_steps = max_steps
        self.gamma = gamma
        self.list_actions = list_actions
        self._macros = macros(self.kitchen)
        self._state: State | None = None
        self._playing: list[str | None] = [None] * num_cooks
        self._elapsed = [0] * num_cooks
        self._steps = 0
        self._over = False

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start in the kitchen as it is drawn, whatever the seed."""
        self._state = start_state(self.kitchen)
        self._playing, self._elapsed = [None] * self.num_players, [0] * self.num_players
        self._steps, self._over = 0, False
        return tuple(self.observation(player) for player in range(self.num_players))

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Play macro actions until a cook needs a new one; a free cook with ``None`` stands still for one step."""
        check_joint_action(self, actions, started=self._state is not None, over=self._over)
        state = self._started()
        for player, action in enumerate(actions):
            if action is not None:
                words = action_words(self.kitchen, state, player)
                self._playing[player], self._elapsed[player] = self._macros[words.index(action)], 0
            elif self._playing[player] is None:
                self._elapsed[player] = 0
        rewards = [0.0] * self.num_players
        duration = 0
        while True:
            moment = advance(self.kitchen, state, self._playing, self._elapsed)
            state = moment.state
            for player in range(self.num_players):
                rewards[player] += self.gamma ** self._elapsed[player] * moment.reward
                self._elapsed[player] += 1
                if moment.ended[player]:
                    self._playing[player] = None
            duration += 1
            self._steps += 1
            if moment.served or any(moment.ended) or self._steps >= self.max_steps:
                break
        self._state = state
        terminated = moment.served
        truncated = not terminated and self._steps >= self.max_steps
        self._over = terminated or truncated
        info: dict[str, Any] = {"duration": duration}
        if self._over:
            info |= {"success": terminated, "primitive_steps": self._steps}
        observations = tuple(self.observation(player) for player in range(self.num_players))
        return GameStep(observations, tuple(rewards), terminated, truncated, info)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return the words of every macro action here; none while a cook plays one."""
        state = self._started()
        if self._over or self._playing[player] is not None:
            return ()
        return action_words(self.kitchen, state, player)

    def observation(self, player: int = 0) -> str:
        """Return the papers' prompt; a chosen action continues its last sentence."""
        text = prompt(self.kitchen, self._started(), player)
        legal = self.legal_actions(player) if self.list_actions else ()
        return "\n".join(["[Available Actions]", *(f'"{word}"' for word in legal), text]) if legal else text

    def grid_observation(self, player: int = 0) -> np.ndarray:
        """Return the papers' vector as int64."""
        return np.array(observation_vector(self.kitchen, self._started(), player), dtype=np.int64)

    def state_key(self) -> str:
        """Return cooks, things and what each cook remembers."""
        state = self._started()
        things = " ".join(
            f"{name}@{'bowl' if t.in_bowl else f'cook{t.cook + 1}' if t.cook >= 0 else t.cell}/{t.chops}"
            for name, t in zip((*self.kitchen.foods, "bowl"), state.things, strict=True)
        )
        cooks = " ".join(
            f"cook{number + 1}@{cell} {macro or '-'}{elapsed if macro else ''} remembers {','.join(map(str, memory))}"
            for number, (cell, macro, elapsed, memory) in enumerate(
                zip(state.cooks, self._playing, self._elapsed, state.memory, strict=True)
            )
        )
        return f"{things} {cooks}"

    def render(self) -> str:
        """Return the kitchen, one letter for each cell, and what is held."""
        return picture(self.kitchen, self._started())

    def planner_action(self, player: int = 0) -> str | None:
        """Return the first macro action of a way to the dish with the fewest primitive steps; None for two cooks."""
        if self._over or self.num_players > 1:
            return None
        state = self._started()
        lengths = steps_to_dish(self.kitchen)[explore(self.kitchen).states[state]]
        return action_words(self.kitchen, state, 0)[int(lengths.argmin())]

    def optimal_return(self, *, gamma: float = 1.0) -> float | None:
        """Return the exact best return from here with the primitive steps that are left; None for two cooks.

        It is not the return of the shortest plan: with enough steps, chopping again what was served wrongly earns more.
        """
        state = self._started()
        if self._over:
            return 0.0
        if self.num_players > 1:
            return None
        values = optimal_values(self.kitchen, horizon=self.max_steps, gamma=gamma, macro_gamma=self.gamma)
        return float(values[self.max_steps - self._steps, explore(self.kitchen).states[state]])

    def _started(self) -> State:
        if self._state is None:
            raise GameError(f"{self.name} has not been started; call reset(seed=...) first.")
        return self._state
