"""Which runs the experiments of POAD need: three credits on four tasks, and the ablations of both discounts.

The generalisation of the paper needs no run of its own: every agent that is trained on Food Preparation is evaluated on
the six variants too, before and after. Two arms with the same settings are one, so nothing is run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratagem.algorithms.poad_config import POADConfig
from stratagem.errors import ConfigError
from stratagem.recipe import Recipe, load_recipe
from stratagem.reproduce.arm import Arm, Scale, merge_arms, override_recipe
from stratagem.reproduce.poad_published import GAMMA_W, VARIANTS

__all__ = ["ABLATED", "CREDITS", "PARTS", "SCALES", "TASKS", "Task", "make_arms"]

PARTS = ("tasks", "generalisation", "ablations")
"""What an arm can be for."""

CREDITS = ("poad", "ntpo", "twosome")


@dataclass(frozen=True)
class Task:
    """A game that the paper trains on."""

    game: str
    title: str
    recipe: int
    """Its place in :attr:`stratagem.reproduce.arm.Scale.recipes`."""


TASKS: dict[str, Task] = {
    "food_preparation": Task("VirtualHome-FoodPreparation", "Food Preparation", 0),
    "entertainment": Task("VirtualHome-Entertainment", "Entertainment", 1),
    "tomato_salad": Task("Overcooked-TomatoSalad", "tomato salad", 2),
    "tomato_lettuce_salad": Task("Overcooked-TomatoLettuceSalad", "tomato-lettuce salad", 2),
}

ABLATED = "food_preparation"
"""The task of the ablations and of generalisation."""

SCALES: dict[str, Scale] = {
    "laptop": Scale(
        ("poad_food_preparation", "poad_entertainment", "poad_overcooked_tomato_salad"), 3, 0, 100.0, "a guess"
    ),
    "paper": Scale(
        ("paper_poad_virtualhome", "paper_poad_virtualhome", "paper_poad_overcooked"),
        *(3, 0, 20.0, "a guess for one GPU, not measured"),
    ),
    "tiny": Scale(
        ("poad_food_preparation", "poad_entertainment", "poad_overcooked_tomato_salad"),
        *(2, 0, 500.0, "a guess"),
        (
            'model={name="tiny"}',
            "game.params={max_steps=6}",
            *("algorithm.num_iterations=2", "algorithm.num_groups=2", "algorithm.critic.layers=[8]"),
            *("algorithm.critic_warmup=0", "algorithm.num_epochs=1", "algorithm.num_minibatches=1"),
            *("evaluation.num_episodes=4", "evaluation.every=1", "run.checkpoint_every=1"),
        ),
    ),
}


def make_arms(
    scale: str, parts: Sequence[str] = PARTS, tasks: Sequence[str] = tuple(TASKS), overrides: Iterable[str] = ()
) -> list[Arm]:
    """Return the arms that some parts need.

    Args:
        scale: a key of ``SCALES``.
        parts: some of ``PARTS``.
        tasks: some of ``TASKS``; the ablations and generalisation are of ``ABLATED`` only.
        overrides: ``a.b=value`` items for every arm, before credit and discounts are varied.

    Raises:
        ConfigError: an override is wrong, or takes POAD away.
    """
    bases = {name: _base(name, scale, list(overrides)) for name in TASKS if name in tasks}
    wanted = [
        Arm(
            _credited(base, name, credit),
            f"{_TITLES[credit]}, {TASKS[name].title}",
            ("tasks", "generalisation") if name == ABLATED else ("tasks",),
        )
        for name, base in bases.items()
        for credit in CREDITS
    ]
    if ABLATED in bases:
        wanted += _ablations(bases[ABLATED])
    return [arm for arm in merge_arms(wanted) if set(arm.parts) & set(parts)]


_TITLES = {"poad": "POAD", "ntpo": "NTPO", "twosome": "TWOSOME"}


def _base(name: str, scale: str, overrides: list[str]) -> Recipe:
    task, size = TASKS[name], SCALES[scale]
    panels = [task.game, *(VARIANTS if name == ABLATED else ())]
    recipe = override_recipe(
        load_recipe(size.recipes[task.recipe]),
        [f"game.name={task.game}", f"evaluation.panels={panels}", *size.overrides, *overrides],
    )
    if not isinstance(recipe.algorithm, POADConfig):
        raise ConfigError("algorithm.name of a reproduction of POAD must be 'poad'; leave it out.")
    return replace(recipe, name=name, seed=0)


def _change(recipe: Recipe, name: str, **settings: Any) -> Recipe:
    assert isinstance(recipe.algorithm, POADConfig)
    return replace(recipe, name=name, algorithm=replace(recipe.algorithm, **settings))


def _credited(base: Recipe, name: str, credit: str) -> Recipe:
    """Return a recipe with another credit; NTPO discounts inside an action as it does between actions."""
    assert isinstance(base.algorithm, POADConfig)
    gamma_w = base.algorithm.gamma_a if credit == "ntpo" else 1.0
    return _change(base, f"{name}_{credit}", credit=credit, gamma_w=gamma_w)


def _ablations(base: Recipe) -> list[Arm]:
    """Vary gamma_w of NTPO, and switch the discount between actions off."""
    assert isinstance(base.algorithm, POADConfig)
    gamma_a = base.algorithm.gamma_a
    arms = [
        Arm(_credited(base, ABLATED, credit), f"{_TITLES[credit]}, gamma_a = {gamma_a}", ("ablations",))
        for credit in ("poad", "twosome")
    ]
    for gamma_w in GAMMA_W:
        recipe = _change(base, f"{ABLATED}_ntpo_w{gamma_w}", credit="ntpo", gamma_w=gamma_w)
        arms.append(Arm(recipe, f"NTPO, gamma_a = {gamma_a}, gamma_w = {gamma_w}", ("ablations",)))
    for credit in ("poad", "twosome"):
        recipe = _change(base, f"{ABLATED}_{credit}_a1", credit=credit, gamma_w=1.0, gamma_a=1.0)
        arms.append(Arm(recipe, f"{_TITLES[credit]}, gamma_a = 1", ("ablations",)))
    return arms
