"""What a recipe names, made: game, opponents, panels, agent.

Names and combinations are checked before any model loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalConfig
from stratagem.agents.history import HistoryAgent, make_language_agent
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.prompts import REACT_TEMPLATES, TEMPLATES, load_templates
from stratagem.agents.react import ReActAgent, ReActConfig
from stratagem.agents.reflexion import ReflexionConfig
from stratagem.agents.scoring import ScoringAgent, ScoringConfig
from stratagem.algorithms.bc import check_templates
from stratagem.algorithms.step_hrl_config import StepHRLConfig
from stratagem.errors import ConfigError, RunError
from stratagem.evaluation.panels import Panel, fixed_panel, panel_optima, panel_state_keys
from stratagem.evaluation.play import seat_opponents
from stratagem.files import atomic_write_bytes
from stratagem.games import VARIANTS, game_class, make
from stratagem.games.base import Game
from stratagem.games.mixture import Mixture
from stratagem.games.worker import GameWorker
from stratagem.models.base import LanguageModel
from stratagem.models.catalog import EMBEDDED, TINY, resolve
from stratagem.models.remember import RememberedScores, VersionedModel
from stratagem.recipe import GameConfig, Recipe
from stratagem.rewards.format import FormatPenalty
from stratagem.rollout import Player
from stratagem.runs.trackers import check_trackers
from stratagem.seeding import derive_seed

__all__ = [
    "Experiment",
    "build_agent",
    "build_experiment",
    "check_model_name",
    "check_recipe",
    "hold_template",
    "panel_names",
]

_MAX_WORKERS = 16
"""Games in processes of their own that play at once."""


@dataclass(frozen=True)
class Experiment:
    """Everything of a recipe but the model."""

    recipe: Recipe
    make_game: Callable[[], Game]
    opponents: tuple[Player, ...]
    """Who plays seats 1, 2, ... of the training game."""
    panels: tuple[Panel, ...]
    optima: tuple[tuple[float, ...] | None, ...]
    """For each panel the best expected return of each episode."""
    excluded_starts: frozenset[str]
    """Start states of the panels of this game, where it has more than one; training does not start there."""
    max_concurrent: int
    """Episodes under way at once."""

    def panel_game(self, panel: Panel) -> Callable[[], Game]:
        """Return what makes the game of a panel, isolated as in training."""
        return _maker(replace(self.recipe.game, name=panel.game, params=dict(panel.params)))


def _maker(game: GameConfig) -> Callable[[], Game]:
    if game.isolate:
        return partial(GameWorker, (game.name, game.params), timeout_s=game.step_timeout_s)
    return partial(make, game.name, **game.params)


def _training_maker(game: GameConfig) -> Callable[[], Game]:
    """Return what makes the game that is trained on, or the mixture of its variants."""
    if not game.mix:
        return _maker(game)
    variants = [replace(game, name=name, params=_shared(game.params, name), mix=()) for name in game.mix]
    makers = [_maker(one) for one in (replace(game, mix=()), *variants)]
    return partial(_mixture, makers)


def _mixture(makers: Sequence[Callable[[], Game]]) -> Mixture:
    return Mixture([maker() for maker in makers])


def _shared(params: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """Return the settings of a game without those that a variant of it fixes."""
    preset = VARIANTS.get(variant, (variant, {}))[1]
    return {key: value for key, value in params.items() if key not in preset}


def _check_mix(game: GameConfig) -> None:
    """Refuse a mixture of other games, or of one variant twice.

    Raises:
        ConfigError: so it is.
    """
    names = (game.name, *game.mix)
    for name in game.mix:
        if game_class(name) is not game_class(game.name):
            raise ConfigError(
                f"game.mix names {name!r}, which is another game than {game.name!r}; name variants of the same game."
            )
        if names.count(name) > 1:
            raise ConfigError(f"game.mix names {name!r} twice; name each variant once.")


def panel_names(recipe: Recipe) -> tuple[str, ...]:
    """Return the panels of a recipe; its own game where it names none."""
    return recipe.evaluation.panels or (recipe.game.name,)


def panel_params(recipe: Recipe, panel: str) -> dict[str, Any]:
    """Return the settings of a panel.

    They are those of the training game, changed by ``evaluation.params``, except what the panel's variant fixes; a
    panel of another game has its own defaults.
    """
    if game_class(panel) is not game_class(recipe.game.name):
        return {}
    params = {**recipe.game.params, **recipe.evaluation.params}
    return params if panel == recipe.game.name else _shared(params, panel)


def build_agent(
    model: LanguageModel, recipe: Recipe
) -> LanguageAgent | HistoryAgent | ScoringAgent | HierarchicalAgent:
    """Return the agent of a recipe, with its format penalty.

    Raises:
        ConfigError: template, tag and penalty do not go together, or there is no format to penalise.
    """
    if isinstance(recipe.agent, HierarchicalConfig):
        return _hierarchical(model, recipe, recipe.agent)
    if isinstance(recipe.agent, ReActConfig):
        return _react(model, recipe, recipe.agent)
    if isinstance(recipe.agent, ScoringConfig):
        for part in ("warm_start", "format_penalty"):
            if getattr(recipe, part) is not None:
                raise ConfigError(
                    f"[{part}] is about the format of an answer, and agent.name='scoring' writes none; leave [{part}] "
                    "out, or set agent.name = 'language'."
                )
        scorer: Any = None if model is None else RememberedScores(cast(VersionedModel, model))
        return ScoringAgent.from_config(scorer, recipe.agent)
    penalty = None
    if recipe.format_penalty is not None:
        tags = load_templates(recipe.agent.template)[0].tags
        penalty = FormatPenalty(tags, recipe.format_penalty, recipe.agent.tag)
    return make_language_agent(model, recipe.agent, penalty)


def _react(model: LanguageModel, recipe: Recipe, config: ReActConfig) -> ReActAgent:
    if isinstance(config, ReflexionConfig):
        raise ConfigError(
            "agent.name='reflexion' learns from its failures in words, and nothing of it is trained; evaluate it with "
            "`stratagem eval MODEL --agent reflexion`, or train agent.name = 'react'."
        )
    for part in ("warm_start", "format_penalty"):
        if getattr(recipe, part) is not None:
            raise ConfigError(
                f"[{part}] is about answers in tags, and agent.name='react' writes lines; leave [{part}] out, or set "
                "agent.name = 'language'."
            )
    return ReActAgent.from_config(model, config)


def _hierarchical(model: LanguageModel, recipe: Recipe, config: HierarchicalConfig) -> HierarchicalAgent:
    for part in ("warm_start", "format_penalty"):
        if getattr(recipe, part) is not None:
            raise ConfigError(
                f"[{part}] is for an agent with one answer, and agent.name='hierarchical' has three roles; leave "
                f"[{part}] out. algorithm.bc_iterations clones the expert."
            )
    if not isinstance(recipe.algorithm, StepHRLConfig):
        raise ConfigError(
            "agent.name='hierarchical' is trained by algorithm.name='step_hrl' only; set it, or choose another agent."
        )
    if recipe.evaluation.temperature is not None:
        raise ConfigError(
            f"evaluation.temperature={recipe.evaluation.temperature!r} does not say for which role; leave it out, and "
            "set agent.high.temperature, agent.low.temperature and agent.progress.temperature, by which a "
            "hierarchical agent is evaluated."
        )
    return HierarchicalAgent.from_config(model, config)


def hold_template(recipe: Recipe, run: Path, *, keep: bool) -> None:
    """Refuse a template file that is not the one the run was made with; a path alone would not tell.

    Args:
        recipe: of the run.
        run: its folder.
        keep: put a copy into the folder if there is none yet: ``template.txt``, for the second of a list
            ``template-2.txt``.

    Raises:
        RunError: the file was changed since.
    """
    given = recipe.agent.template
    for place, name in enumerate([given] if isinstance(given, str) else given or (), start=1):
        if name in TEMPLATES or name in REACT_TEMPLATES:
            continue
        content, copy = Path(name).read_bytes(), run / f"template{f'-{place}' if place > 1 else ''}.txt"
        if copy.exists():
            if copy.read_bytes() != content:
                raise RunError(
                    f"agent.template={name!r} was changed since run {run.name!r} was made; put back what "
                    f"{str(copy)!r} holds, or start a new run."
                )
        elif keep:
            atomic_write_bytes(copy, content)


def check_model_name(name: str) -> None:
    """Refuse a model name that cannot work, without fetching anything.

    Raises:
        UnknownNameError: neither an embedded name, a folder nor a hub id.
        ModelError: a folder without weights.
    """
    if name != TINY and name not in EMBEDDED and not (Path(name) / "adapter_config.json").is_file():
        resolve(name)


def check_recipe(recipe: Recipe) -> None:
    """Refuse what would fail only after a model was loaded.

    Raises:
        ConfigError: a name of a game, panel, model, template or tracker, or a combination of settings.
        ModelError: a model folder without weights.
    """
    check_model_name(recipe.model.name)
    check_trackers(recipe.run.trackers)
    agent = build_agent(cast(LanguageModel, None), recipe)
    adaptive = getattr(recipe.algorithm, "adaptive_temperature", None)
    if adaptive is not None and isinstance(recipe.agent, AgentConfig):
        adaptive.check(recipe.agent.temperature)
    _check_mix(recipe.game)
    game = _training_maker(replace(recipe.game, isolate=False))()
    try:
        seat_opponents(game)
        if recipe.warm_start is not None and isinstance(agent, LanguageAgent | HistoryAgent):
            game.reset(seed=0)
            check_templates(agent, recipe.warm_start, game.legal_actions(0)[0])
            if recipe.warm_start.demonstrator == "planner" and game.planner_action(0) is None:
                raise ConfigError(
                    f"warm_start.demonstrator='planner' but game {game.name!r} has no planner; use 'random'."
                )
    finally:
        game.close()
    names = panel_names(recipe)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"evaluation.panels names {name!r} twice; name each panel once.")
        make(name, **panel_params(recipe, name)).close()


def _has_one_start(game: Game) -> bool:
    """Return whether every seed starts in one and the same state, as far as a few of them show."""
    keys = set()
    for seed in range(8):
        game.reset(seed=seed)
        keys.add(game.state_key())
    return len(keys) == 1


def _check_starts(game: Game, excluded: frozenset[str]) -> None:
    """Refuse panels that hold every start of the game: nothing would be left to train on.

    Raises:
        ConfigError: none of 1,000 seeds starts outside of the panels.
    """
    for number in range(1000) if excluded else ():
        game.reset(seed=derive_seed("starts", number))  # seeds as training draws them; a panel has the small ones
        if game.state_key() not in excluded:
            return
    if excluded:
        raise ConfigError(
            f"The panels hold all {len(excluded)} starts of game {game.name!r} that 1,000 seeds reach, and training "
            "keeps apart from them; lower evaluation.num_episodes, or choose a game with more starts."
        )


def build_experiment(recipe: Recipe) -> Experiment:
    """Make the panels and everything else that needs no model.

    Raises:
        ConfigError: see :func:`check_recipe`.
    """
    check_recipe(recipe)
    panels = tuple(
        fixed_panel(name, panel_params(recipe, name), recipe.evaluation.num_episodes, gamma=recipe.evaluation.gamma)
        for name in panel_names(recipe)
    )
    own = [panel for panel in panels if game_class(panel.game) is game_class(recipe.game.name)]
    game = make(recipe.game.name, **recipe.game.params)
    try:
        opponents = seat_opponents(game)
        if _has_one_start(game):
            own = []  # nothing can be kept apart
        excluded = frozenset(key for panel in own for key in panel_state_keys(panel))
        _check_starts(game, excluded)
    finally:
        game.close()
    return Experiment(
        recipe=recipe,
        make_game=_training_maker(recipe.game),
        opponents=opponents,
        panels=panels,
        optima=tuple(panel_optima(panel) for panel in panels),
        excluded_starts=excluded,
        max_concurrent=_MAX_WORKERS if recipe.game.isolate else 1024,
    )
