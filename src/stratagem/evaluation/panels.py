"""Fixed panels: the same episodes, each time, for every agent; and what an evaluation found.

A panel is a list of seeds of one game. It does not depend on file order, workers or library versions, and its hash
over the start states says so: a result file carries the hash, and two results are compared only if theirs agree.
Episodes are played with ``course=0``, so what happens by chance is fixed by the seed as well.

Training must not start where a panel does: :func:`panel_state_keys` names those starts by state, since different seeds
can lead to one board.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import ConfigError, GameError
from stratagem.evaluation.statistics import Interval, bootstrap_interval, mean, sample_std, wilson_interval
from stratagem.games import make
from stratagem.games.base import Game
from stratagem.seeding import derive_seed
from stratagem.types import StopReason, Trajectory

__all__ = ["EvaluationResult", "Panel", "check_panel", "fixed_panel", "panel_optima", "panel_state_keys"]

_PATIENCE = 100
"""After so many seeds in a row that lead to known starts, a game is taken to have no others."""


@dataclass(frozen=True)
class Panel:
    """Episodes that are played at each evaluation."""

    name: str
    """How tables call it."""
    game: str
    params: Mapping[str, Any]
    """Settings of the game, as given to :func:`stratagem.games.make`."""
    seeds: tuple[int, ...]
    hash: str
    """12 hex digits over the start states and first observations of all episodes."""
    num_starts: int
    """Distinct start states; fewer than seeds where the game has no more."""
    gamma: float = 1.0
    """Discount of returns and optima; 1 sums rewards up."""

    def make_game(self) -> Game:
        """Return a new game with the panel's settings."""
        return make(self.game, **self.params)


def _fingerprint(starts: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    text = json.dumps([[key, *observations] for key, observations in starts], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _starts(game: Game, seeds: Sequence[int]) -> list[tuple[str, tuple[str, ...]]]:
    starts = []
    for seed in seeds:
        observations = game.reset(seed=seed, course=0)
        starts.append((game.state_key(), tuple(observations)))
    return starts


def fixed_panel(
    game: str,
    params: Mapping[str, Any] | None = None,
    num_episodes: int = 50,
    name: str | None = None,
    *,
    gamma: float = 1.0,
) -> Panel:
    """Return the panel of a game; the same arguments give the same panel anywhere.

    Seeds whose start state is already in the panel are skipped. Where the game has too few start states the panel is
    filled with the skipped seeds, which still differ in what happens by chance. Seeds depend on the game but not on its
    settings, so variants (slippery or not) are evaluated on the same boards.

    Args:
        game: name of the game or of a variant.
        params: settings that go over the variant's.
        num_episodes: the paper evaluates on 50.
        name: how tables call it; the game's name if left out.
        gamma: discount of the returns and optima that an evaluation reports.

    Raises:
        ConfigError: ``num_episodes`` is below 1, ``gamma`` is no discount, or game or settings are unknown.
    """
    if num_episodes < 1:
        raise ConfigError(f"num_episodes={num_episodes!r} leaves nothing to evaluate; set it to 1 or more.")
    if not 0 < gamma <= 1:
        raise ConfigError(f"gamma={gamma!r} is not a discount; set gamma above 0 and at most 1.")
    params = dict(params or {})
    played = make(game, **params)
    chosen: dict[int, tuple[str, tuple[str, ...]]] = {}
    spare: dict[int, tuple[str, tuple[str, ...]]] = {}
    keys: set[str] = set()
    try:
        index = in_a_row = 0
        while len(chosen) < num_episodes and (in_a_row < _PATIENCE or len(chosen) + len(spare) < num_episodes):
            # A game with a fixed list of starts is played through in its own order, so that a panel can hold them all.
            seed = derive_seed("panel", played.name, index) if played.num_starts is None else index
            index += 1
            ((key, observations),) = _starts(played, [seed])
            in_a_row = in_a_row + 1 if key in keys else 0
            (spare if key in keys else chosen)[seed] = (key, observations)
            keys.add(key)
    finally:
        played.close()
    num_starts = len(chosen)
    for seed in list(spare)[: num_episodes - num_starts]:
        chosen[seed] = spare[seed]
    return Panel(name or game, game, params, tuple(chosen), _fingerprint(list(chosen.values())), num_starts, gamma)


def panel_state_keys(panel: Panel) -> frozenset[str]:
    """Return the start states of a panel, so that training can leave them out."""
    game = panel.make_game()
    try:
        return frozenset(key for key, _ in _starts(game, panel.seeds))
    finally:
        game.close()


def panel_optima(panel: Panel) -> tuple[float, ...] | None:
    """Return the best expected return of each episode, or None where the game does not compute it."""
    game = panel.make_game()
    optima: list[float] = []
    try:
        for seed in panel.seeds:
            game.reset(seed=seed, course=0)
            optimum = game.optimal_return(gamma=panel.gamma)
            if optimum is None:
                return None
            optima.append(optimum)
    finally:
        game.close()
    return tuple(optima)


def check_panel(panel: Panel) -> None:
    """Play the starts again and compare the hash.

    Raises:
        ConfigError: the game no longer starts where the panel says.
    """
    game = panel.make_game()
    try:
        found = _fingerprint(_starts(game, panel.seeds))
    finally:
        game.close()
    if found != panel.hash:
        raise ConfigError(
            f"panel={panel.name!r} has hash {panel.hash} but its seeds now start with hash {found}; the game changed. "
            "Make the panel again and do not compare with older results."
        )


@dataclass(frozen=True)
class EvaluationResult:
    """What one agent did on one panel; a JSON file in a run folder."""

    panel: str
    panel_hash: str
    game: str
    params: dict[str, Any]
    num_episodes: int
    """Episodes that count; those whose game failed do not."""
    returns: tuple[float, ...]
    """Environment return of each episode that counts, in the order of the panel."""
    seeds: tuple[int, ...]
    """Panel seed of each of ``returns``."""
    mean: float
    std: float | None
    """Sample standard deviation over episodes; None for one episode."""
    interval: Interval
    """95% bootstrap interval of the mean."""
    success_rate: float | None
    """Share of episodes that the game calls a success; None where it never says."""
    success_interval: Interval | None
    """95% Wilson interval."""
    invalid_action_rate: float
    """Steps without a valid action / steps."""
    mean_episode_length: float
    tokens_per_step: float
    stop_reasons: dict[str, int] = field(default_factory=dict)
    """Over all episodes, failed games among them."""
    optimum_mean: float | None = None
    """Mean of the best expected return of the same episodes."""
    share_of_optimum: float | None = None
    """mean / optimum_mean where the optimum is positive and the mean not negative."""
    gamma: float = 1.0
    """Discount of ``returns`` and of the optimum."""

    @classmethod
    def from_trajectories(
        cls, panel: Panel, trajectories: Sequence[Trajectory], optima: Sequence[float] | None = None
    ) -> EvaluationResult:
        """Sum up one player's episodes.

        An episode without a verdict counts as no success if another one has a verdict.

        Args:
            panel: what was played.
            trajectories: one for each seed, in the order of ``panel.seeds``.
            optima: from :func:`panel_optima`.

        Raises:
            GameError: every episode failed.
        """
        seeds = tuple(trajectory.seed for trajectory in trajectories)
        if seeds != panel.seeds:
            raise ValueError(f"trajectories of panel {panel.name!r} do not follow its seeds; play each once, in order.")
        kept = [i for i, trajectory in enumerate(trajectories) if trajectory.stop_reason != StopReason.GAME_FAILED]
        if not kept:
            raise GameError(
                f"All {len(trajectories)} episodes of panel {panel.name!r} failed in the game, so there is no result; "
                "see info of the trajectories for the reason."
            )
        played = [trajectories[i] for i in kept]
        returns = tuple(
            trajectory.environment_return if panel.gamma == 1 else trajectory.discounted_return(panel.gamma)
            for trajectory in played
        )
        steps = sum(len(trajectory.steps) for trajectory in played)
        verdicts = [trajectory.success for trajectory in played]
        successes = None if all(verdict is None for verdict in verdicts) else sum(bool(v) for v in verdicts)
        optimum = None if optima is None else mean([optima[i] for i in kept])
        average = mean(returns)
        return cls(
            panel=panel.name,
            panel_hash=panel.hash,
            game=panel.game,
            params=dict(panel.params),
            num_episodes=len(played),
            returns=returns,
            seeds=tuple(seeds[i] for i in kept),
            mean=average,
            std=sample_std(returns),
            interval=bootstrap_interval(returns),
            success_rate=None if successes is None else successes / len(played),
            success_interval=None if successes is None else wilson_interval(successes, len(played)),
            invalid_action_rate=sum(t.num_invalid for t in played) / max(steps, 1),
            mean_episode_length=steps / len(played),
            tokens_per_step=sum(t.num_tokens for t in played) / max(steps, 1),
            stop_reasons=dict(sorted(Counter(str(t.stop_reason) for t in trajectories).items())),
            optimum_mean=optimum,
            share_of_optimum=average / optimum if optimum is not None and optimum > 0 and average >= 0 else None,
            gamma=panel.gamma,
        )

    def to_json(self) -> str:
        """Return the result as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> EvaluationResult:
        """Read what :meth:`to_json` wrote."""
        data = json.loads(text)
        for key in ("returns", "seeds", "interval", "success_interval"):
            if data[key] is not None:
                data[key] = tuple(data[key])
        share = data.get("share_of_optimum")
        if share is not None and share < 0:  # a file that is older than the rule above
            data["share_of_optimum"] = None
        return cls(**data)
