"""The recipe: one TOML file that fixes an experiment - game, agent, algorithm, evaluation and seed.

Precedence: defaults < the file < ``--set a.b=value``. The recipe as resolved is written into the run folder and is
itself a recipe. Recipes are found by path or by name; those of the project travel inside the wheel.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stratagem.agents.hierarchical import HierarchicalConfig
from stratagem.agents.language import AgentConfig
from stratagem.agents.react import ReActConfig
from stratagem.agents.reflexion import ReflexionConfig
from stratagem.agents.scoring import ScoringConfig
from stratagem.algorithms.bc import WarmStartConfig
from stratagem.algorithms.eto_config import ETOConfig
from stratagem.algorithms.ms_grpo_config import MSGRPOConfig, without_idle_settings
from stratagem.algorithms.poad_config import POADConfig
from stratagem.algorithms.step_hrl_config import StepHRLConfig
from stratagem.config import apply_overrides, dump_toml, load_dataclass, to_table
from stratagem.errors import ConfigError, UnknownNameError
from stratagem.models.catalog import ModelConfig
from stratagem.rewards.format import FormatPenaltyConfig

__all__ = [
    "AGENTS",
    "ALGORITHMS",
    "EvaluationConfig",
    "GameConfig",
    "Recipe",
    "RunConfig",
    "apply_overrides",
    "dump_toml",
    "find_recipe",
    "list_recipes",
    "load_dataclass",
    "load_recipe",
    "to_table",
]

AGENTS: dict[str, type] = {
    "language": AgentConfig,
    "scoring": ScoringConfig,
    "hierarchical": HierarchicalConfig,
    "react": ReActConfig,
    "reflexion": ReflexionConfig,
}
"""``agent.name`` in a recipe -> the settings of that kind of agent."""

ALGORITHMS: dict[str, type] = {
    "ms_grpo": MSGRPOConfig,
    "poad": POADConfig,
    "step_hrl": StepHRLConfig,
    "eto": ETOConfig,
}
"""``algorithm.name`` in a recipe -> the settings of that algorithm."""


@dataclass(frozen=True)
class GameConfig:
    """Which game is played."""

    name: str = "frozen_lake"
    """A name of ``stratagem games``, or ``package.module:Class`` of a game of your own."""
    params: dict[str, Any] = field(default_factory=dict)
    """Settings of the game itself; the game's page lists them."""
    mix: tuple[str, ...] = ()
    """Further variants of the same game to train on: each start belongs to the game or to one of them, by its seed."""
    isolate: bool = False
    """Play in a worker process, so that a game that crashes or hangs costs its own episode only."""
    step_timeout_s: float = 60.0
    """Seconds that one step of an isolated game may take before its worker is ended."""

    def __post_init__(self) -> None:
        """Refuse a timeout that no step can meet."""
        if self.step_timeout_s <= 0:
            raise ConfigError(f"step_timeout_s={self.step_timeout_s!r} ends every step; set it above 0.")


@dataclass(frozen=True)
class EvaluationConfig:
    """Fixed panels of episodes that are played before, during and after training."""

    panels: tuple[str, ...] = ()
    """Games or variants; the first one makes the learning curve. Empty is the game that is trained on."""
    num_episodes: int = 50
    """Episodes of each panel."""
    every: int = 0
    """Iterations between evaluations; 0 evaluates at the start and the end only."""
    temperature: float | None = None
    """Sampling temperature of the evaluation; None is that of training."""
    gamma: float = 1.0
    """Discount of the returns that are reported; 1 sums rewards up."""
    params: dict[str, Any] = field(default_factory=dict)
    """Settings of the game that differ from those of training, on panels of the game that is trained on."""
    untrained: bool = True
    """Whether the untrained model plays too where there is a warm start; one that never writes a legal answer takes
    every episode to its limit of steps."""

    def __post_init__(self) -> None:
        """Refuse numbers that evaluate nothing."""
        if self.num_episodes < 1:
            raise ConfigError(f"num_episodes={self.num_episodes!r} evaluates nothing; set it to 1 or more.")
        if self.every < 0:
            raise ConfigError(f"every={self.every!r} is negative; use 0 for start and end only, or 1 or more.")
        if self.temperature is not None and self.temperature < 0:
            raise ConfigError(f"temperature={self.temperature!r} is negative; use 0 for greedy or a positive number.")
        if self.temperature is not None and math.isinf(self.temperature):
            raise ConfigError(f"temperature={self.temperature!r} draws every token alike; use a finite number.")
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"gamma={self.gamma!r} is not in (0, 1]; use 1 for no discount.")


@dataclass(frozen=True)
class RunConfig:
    """What a run keeps."""

    checkpoint_every: int = 10
    """Iterations between checkpoints; the last iteration is always saved."""
    keep_checkpoints: int = 2
    """The newest checkpoints that stay; older ones go once a newer one is safe on disk."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics are sent besides ``metrics.jsonl``; off by default."""
    save_trajectories: bool = True
    """Keep every step of training as Parquet."""

    def __post_init__(self) -> None:
        """Refuse a run that could not be resumed."""
        if self.checkpoint_every < 1:
            raise ConfigError(f"checkpoint_every={self.checkpoint_every!r} never saves; set it to 1 or more.")
        if self.keep_checkpoints < 1:
            raise ConfigError(f"keep_checkpoints={self.keep_checkpoints!r} keeps nothing; set it to 1 or more.")


@dataclass(frozen=True)
class Recipe:
    """One experiment."""

    name: str
    """Names the run folder; the file's name unless the recipe says otherwise."""
    seed: int = 0
    """Every random number of the run follows from it."""
    game: GameConfig = field(default_factory=GameConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    agent: AgentConfig | ScoringConfig | HierarchicalConfig | ReActConfig = field(
        default_factory=AgentConfig, metadata={"choices": AGENTS}
    )
    """Samples an answer and reads it ("language"), chooses among the legal actions by their probability ("scoring"),
    plans subtasks and carries them out ("hierarchical"), or thinks before each action over the whole history ("react";
    with a memory of failed trials "reflexion", which is evaluated but not trained)."""
    format_penalty: FormatPenaltyConfig | None = None
    """Shaping by format; None is off."""
    warm_start: WarmStartConfig | None = None
    """Behaviour cloning before the algorithm; None is off."""
    algorithm: MSGRPOConfig | POADConfig | StepHRLConfig | ETOConfig = field(
        default_factory=MSGRPOConfig, metadata={"choices": ALGORITHMS}
    )
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    run: RunConfig = field(default_factory=RunConfig)


def recipe_folders() -> list[Path]:
    """Return the folders that are searched for a recipe's name, first match first."""
    package = Path(__file__).resolve().parent
    # The second holds the recipes in an installed wheel, the third in a checkout.
    return [Path("recipes"), package / "_recipes", package.parents[1] / "recipes"]


def list_recipes() -> dict[str, Path]:
    """Return every recipe that can be named, with its file."""
    found: dict[str, Path] = {}
    for folder in recipe_folders():
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def find_recipe(name_or_path: str | Path) -> Path:
    """Return the file of a recipe given by path or by name.

    Raises:
        ConfigError: no such file, or (:class:`UnknownNameError`) no recipe of that name.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    if path.suffix == ".toml" or len(path.parts) > 1:
        raise ConfigError(f"Recipe file {str(path)!r} does not exist; give a path to a .toml file or a recipe's name.")
    recipes = list_recipes()
    if str(path) not in recipes:
        raise UnknownNameError("recipe", str(path), recipes)
    return recipes[str(path)]


def load_recipe(name_or_path: str | Path, overrides: Iterable[str] = (), *, of_run: bool = False) -> Recipe:
    """Find, read and check a recipe.

    Args:
        name_or_path: see :func:`find_recipe`.
        overrides: ``a.b=value`` items, applied in order.
        of_run: it is the recipe of a run, where settings without effect are passed over.

    Raises:
        ConfigError: the file is missing or not TOML, or a key or value in it is wrong.
    """
    path = find_recipe(name_or_path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"Recipe {str(path)!r} is not valid TOML: {error}. Correct that place in the file.") from None
    table.setdefault("name", path.stem)
    if of_run:
        table = without_idle_settings(table)
    return load_dataclass(Recipe, apply_overrides(table, overrides))
