"""A game of your own, from its rules to training: ``python examples/own_game.py``.

Nim against the house: a pile of sticks, each side takes one to three in turn, and whoever takes the last one wins. The
house plays at random, except that it takes the last sticks where it can.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratagem.agents.base import make_policy
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.algorithms import ms_grpo
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.games.checks import check_game
from stratagem.models.catalog import ModelConfig
from stratagem.models.local import LocalModel
from stratagem.rollout import Episode, play_episodes
from stratagem.seeding import generator

WORDS = ("one", "two", "three")


def house_takes(pile: int, rng: np.random.Generator) -> int:
    """Return how many sticks the house takes from a pile that is not empty."""
    return pile if pile <= 3 else int(rng.integers(1, 4))


def best_word(pile: int) -> str:
    """Return the winning move (leave a multiple of four), or the shortest one where there is none."""
    return WORDS[max(pile % 4, 1) - 1]


class Nim(Game):
    """The rules above, with a state."""

    name = "nim"
    max_steps = 12

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start: ``seed`` fixes the pile, ``seed`` and ``course`` what the house will do."""
        self._pile = int(generator(seed, "nim", "pile").integers(5, 16))
        self._house = generator(seed, "nim", "house", course)
        self._steps = 0
        self._over = False
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Take sticks, then let the house take some; without an action only the house moves."""
        check_joint_action(self, actions, started=hasattr(self, "_pile"), over=getattr(self, "_over", False))
        word = actions[0]
        self._steps += 1
        self._pile -= WORDS.index(word) + 1 if word is not None else 0
        won = self._pile == 0
        if not won:
            self._pile -= house_takes(self._pile, self._house)
        ended = self._pile == 0
        truncated = not ended and self._steps >= self.max_steps
        self._over = ended or truncated
        info = {"success": won} if self._over else {}
        reward = 1.0 if won else -1.0 if ended else 0.0
        return GameStep((self.observation(),), (reward,), ended, truncated, info)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return the words for as many sticks as there are."""
        return () if self._over else WORDS[: self._pile]

    def observation(self, player: int = 0) -> str:
        """Return the text: what never changes first, so that prompts share it."""
        rules = "Take one, two or three sticks. Then the house takes some. Whoever takes the last stick wins."
        return f"{rules}\nActions: {', '.join(WORDS)}\nSticks: {self._pile}"

    def state_key(self) -> str:
        """Return the true state."""
        return str(self._pile)

    def render(self) -> str:
        """Return a picture."""
        return "|" * self._pile or "(empty)"

    def planner_action(self, player: int = 0) -> str | None:
        """Return the winning move where there is one."""
        return best_word(self._pile)


def main() -> None:
    """Check the game, compare two policies, train for two iterations."""
    check_game(Nim)  # raises GameError and says what was forgotten
    episodes = [Episode(seed, course=0, address=("compare", seed)) for seed in range(200)]
    for policy in ("random", "planner"):
        played = play_episodes(Nim, [make_policy(policy)], episodes)
        print(f"{policy:<8} wins {sum(bool(t.success) for t in played) / len(played):.0%}")

    # A random two-layer model; put "smollm2-135m-instruct" for one that can learn.
    model = LocalModel.load(ModelConfig(name="tiny"))
    agent = LanguageAgent.from_config(model, AgentConfig(max_new_tokens=8, recovery="random"))
    config = ms_grpo.MSGRPOConfig(num_iterations=2, num_groups=2, group_size=8, sampled_group_size=4)
    for iteration in ms_grpo.train(ms_grpo.Learner(model, config), agent, Nim, seed=0):
        print(f"iteration {iteration.number}: return {iteration.metrics['return_mean']:.2f}")


if __name__ == "__main__":
    main()
