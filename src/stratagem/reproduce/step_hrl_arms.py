"""Which runs the experiments of STEP-HRL need: the agent, its ablations, and the trained agents beside it.

All arms of a task learn from the same expert episodes with as many optimizer steps. What offline reinforcement learning
adds shows twice: in a run, between the end of cloning and the end, and against the arm that clones all the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stratagem.agents.hierarchical import HierarchicalConfig
from stratagem.algorithms.step_hrl_config import StepHRLConfig
from stratagem.errors import ConfigError
from stratagem.recipe import Recipe, load_recipe
from stratagem.reproduce.arm import Arm, Scale, merge_arms, override_recipe

__all__ = ["PARTS", "SCALES", "TASKS", "Task", "make_arms"]

PARTS = ("main", "ablations", "others")
"""What an arm can be for."""


@dataclass(frozen=True)
class Task:
    """A game that the paper trains on."""

    title: str
    recipe: str
    others: tuple[tuple[str, str], ...]
    """Recipe and title of each trained agent beside it."""


TASKS: dict[str, Task] = {
    "alfworld": Task(
        "ALFWorld",
        "step_hrl_alfworld",
        (
            ("glider_alfworld", "hierarchy with histories (GLIDER)"),
            ("flat_alfworld", "flat agent, cloned"),
            ("eto_alfworld", "flat agent, cloned, then ETO"),
        ),
    ),
    "scienceworld": Task("ScienceWorld", "step_hrl_scienceworld", ()),
}

_TINY = (
    'model={name="tiny"}',
    "algorithm.num_iterations=10",
    "algorithm.bc_iterations=5",
    "algorithm.steps_per_iteration=1",
    "algorithm.batch_episodes=1",
    "algorithm.num_expert_episodes=2",
    "evaluation.num_episodes=1",
    "evaluation.every=5",
    "run.checkpoint_every=5",
)

SCALES: dict[str, Scale] = {
    "laptop": Scale(tuple(task.recipe for task in TASKS.values()), 3, 0, 200.0, "a guess"),
    "tiny": Scale(tuple(task.recipe for task in TASKS.values()), 2, 0, 500.0, "a guess", _TINY),
}


def make_arms(
    scale: str, parts: Sequence[str] = PARTS, tasks: Sequence[str] = tuple(TASKS), overrides: Iterable[str] = ()
) -> list[Arm]:
    """Return the arms that some parts need.

    Args:
        scale: a key of ``SCALES``.
        parts: some of ``PARTS``.
        tasks: some of ``TASKS``.
        overrides: ``a.b=value`` items for every arm.

    Raises:
        ConfigError: an override is wrong or takes STEP-HRL away.
    """
    items = [*SCALES[scale].overrides, *overrides]
    arms = [arm for name in tasks for arm in _task_arms(name, items)]
    return [arm for arm in merge_arms(arms) if set(arm.parts) & set(parts)]


def _task_arms(name: str, items: list[str]) -> list[Arm]:
    task = TASKS[name]
    base = replace(override_recipe(load_recipe(task.recipe), items), name=f"{name}_step_hrl", seed=0)
    algorithm, agent = base.algorithm, base.agent
    if not isinstance(algorithm, StepHRLConfig) or not isinstance(agent, HierarchicalConfig):
        raise ConfigError(
            "algorithm.name of a reproduction of STEP-HRL must be 'step_hrl' and agent.name 'hierarchical'; leave them "
            "out."
        )
    cloned = replace(algorithm, bc_iterations=algorithm.num_iterations)
    arms = [
        Arm(base, f"STEP-HRL, {task.title}", ("main", "ablations", "others")),
        Arm(replace(base, name=f"{name}_cloning", algorithm=cloned), f"cloning alone, {task.title}", ("main",)),
        _ablation(base, f"{name}_no_subtasks", f"without subtasks, {task.title}", replace(agent, use_subtasks=False)),
        _ablation(base, f"{name}_no_progress", f"without progress, {task.title}", replace(agent, use_progress=False)),
    ]
    for recipe, title in task.others:
        other = override_recipe(load_recipe(recipe), items)
        arms.append(Arm(replace(other, name=recipe, seed=0), f"{title}, {task.title}", ("others",)))
    return arms


def _ablation(base: Recipe, name: str, title: str, agent: HierarchicalConfig) -> Arm:
    return Arm(replace(base, name=name, agent=agent), title, ("ablations",))
