"""What the experiments of every paper are made of: arms, which are recipes that are run with several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stratagem.algorithms.eto_config import ETOConfig
from stratagem.algorithms.ms_grpo_config import MSGRPOConfig
from stratagem.algorithms.poad_config import POADConfig
from stratagem.algorithms.step_hrl_config import StepHRLConfig
from stratagem.config import apply_overrides, load_dataclass, to_table
from stratagem.recipe import Recipe

__all__ = ["Arm", "Scale", "merge_arms", "override_recipe"]


@dataclass(frozen=True)
class Scale:
    """A size at which the experiments of a paper are run."""

    recipes: tuple[str, ...]
    """Of each game, in the paper's order."""
    num_seeds: int
    """Unless a user says otherwise."""
    baseline_episodes: int
    """Of each panel, for players that are not trained here; 0 where the paper compares with none."""
    rate: float
    """Planned tokens or decisions (see :attr:`stratagem.runs.plan.Plan.work`) that one run gets through in a second."""
    rate_source: str
    """Where that number comes from."""
    overrides: tuple[str, ...] = ()
    """``a.b=value`` items that go over the recipes, before those of the user."""


@dataclass(frozen=True)
class Arm:
    """A recipe that is run with several seeds."""

    recipe: Recipe
    """With seed 0; its name is the arm's."""
    title: str
    """For tables and legends."""
    parts: tuple[str, ...]
    """What it is for: some of the parts of a paper."""

    @property
    def name(self) -> str:
        """The arm's name, which begins the names of its runs."""
        return self.recipe.name

    @property
    def algorithm(self) -> MSGRPOConfig | POADConfig | StepHRLConfig | ETOConfig:
        """The settings of the algorithm."""
        return self.recipe.algorithm

    @property
    def sizes(self) -> tuple[int, int]:
        """G and G': episodes from one start that are played, and those that are learnt from."""
        played = self.algorithm.group_size
        sampled = self.algorithm.sampled_group_size if isinstance(self.algorithm, MSGRPOConfig) else None
        return played, sampled or played

    def with_seed(self, seed: int) -> Recipe:
        """Return the recipe of one run."""
        return replace(self.recipe, seed=seed)

    def run_name(self, seed: int) -> str:
        """Return the name of one run."""
        return f"{self.name}-{seed}"


def merge_arms(arms: Iterable[Arm]) -> list[Arm]:
    """Make arms with the same settings one, so that nothing is run twice; the first gives name and title."""
    found: list[Arm] = []
    for arm in arms:
        same = next(
            (i for i, other in enumerate(found) if replace(other.recipe, name="") == replace(arm.recipe, name="")), None
        )
        if same is None:
            found.append(arm)
        else:
            found[same] = replace(found[same], parts=(*found[same].parts, *arm.parts))
    return found


def override_recipe(recipe: Recipe, items: Sequence[str]) -> Recipe:
    """Return a recipe with ``a.b=value`` items over its own table, so that an item can name any key.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    return load_dataclass(Recipe, apply_overrides(to_table(recipe), items))
