"""Which runs the experiments of MS-GRPO need: a small family of recipes made from two.

An *arm* is a recipe that is run with several seeds. Table 1 and Figures 1 and 2 need two (trained on Snake, trained on
Frozen Lake), Figure 3 varies the group size G and the sampled group size G' on Snake, and a few ablations are ours,
that of the context on both games. Two arms with the same settings are one, so nothing is run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stratagem.agents.language import AgentConfig, ContextSteps
from stratagem.algorithms.ms_grpo_config import MSGRPOConfig
from stratagem.errors import ConfigError
from stratagem.recipe import GameConfig, Recipe, load_recipe
from stratagem.reproduce.arm import Arm, Scale, merge_arms, override_recipe
from stratagem.reproduce.consistency import CONSISTENCY, consistency_arms
from stratagem.reproduce.published import PANELS
from stratagem.rewards.format import FormatPenaltyConfig

__all__ = ["FROZEN_LAKE", "PARTS", "SCALES", "SNAKE", "make_arms"]

SNAKE, FROZEN_LAKE = "snake", "frozen_lake"

PARTS = ("table 1", "figure 1", "figure 2", "figure 3", "ablations")
"""What an arm can be for; besides there is :data:`stratagem.reproduce.consistency.CONSISTENCY`, only when asked for."""

_UNIFORM = 1e6
"""A temperature at which absolute-advantage-weighted sampling is uniform to six digits."""
_SHARP = 0.25

_CONTEXT = 3
"""Past steps that the ablation of the context shows, besides none and all."""
_ROUNDS = 8
"""Steps of its episodes where a recipe plays so few that there is no past to show."""


SCALES: dict[str, Scale] = {
    "laptop": Scale(("snake", "frozen_lake"), 3, 1000, 1900.0, "the demo on two CPU cores"),
    "paper": Scale(("paper_snake", "paper_frozen_lake"), 8, 1000, 2000.0, "a guess for one GPU, not measured"),
    "tiny": Scale(("tiny", "tiny"), 2, 20, 2000.0, "a guess"),
}


def make_arms(scale: str, parts: Sequence[str] = PARTS, overrides: Iterable[str] = ()) -> list[Arm]:
    """Return the arms that some parts need.

    Args:
        scale: a key of ``SCALES``.
        parts: some of ``PARTS``, or ``CONSISTENCY``.
        overrides: ``a.b=value`` items for every arm, before G, G' and the like are varied.

    Raises:
        ConfigError: an override is wrong, or takes MS-GRPO away.
    """
    snake, frozen_lake = _bases(scale, list(overrides))
    wanted: list[Arm] = [
        Arm(snake, "trained on Snake", ("table 1", "figure 1", "figure 2")),
        Arm(frozen_lake, "trained on Frozen Lake", ("table 1", "figure 1", "figure 2")),
        *_sampling(snake),
        *_ablations(snake),
        *(consistency_arms(frozen_lake) if CONSISTENCY in parts else ()),
        Arm(frozen_lake, "trained on Frozen Lake", ("ablations",)),
        *(Arm(arm, title, ("ablations",)) for arm, title in _contexts(frozen_lake, FROZEN_LAKE)),
    ]
    return [arm for arm in merge_arms(wanted) if set(arm.parts) & set(parts)]


def _bases(scale: str, overrides: list[str]) -> tuple[Recipe, Recipe]:
    bases = []
    for name, recipe_name in zip((SNAKE, FROZEN_LAKE), SCALES[scale].recipes, strict=True):
        recipe = load_recipe(recipe_name)
        if scale == "tiny" and name == SNAKE:
            recipe = replace(
                recipe,
                game=GameConfig(
                    "Snake-Standard", {"width": 3, "height": 3, "num_apples": 2, "max_steps": 3, "grid": False}
                ),
            )
        # Over the recipe's own table, so that an override can name any key; the panels are those of the paper.
        panels = ", ".join(f'"{panel}"' for panel in PANELS)
        recipe = override_recipe(recipe, [f"evaluation.panels=[{panels}]", *overrides])
        recipe = replace(recipe, name=name, seed=0)
        if not isinstance(recipe.algorithm, MSGRPOConfig):
            raise ConfigError("algorithm.name of a reproduction of MS-GRPO must be 'ms_grpo'; leave it out.")
        bases.append(recipe)
    return bases[0], bases[1]


def _change(recipe: Recipe, name: str, **settings: object) -> Recipe:
    assert isinstance(recipe.algorithm, MSGRPOConfig)
    return replace(recipe, name=name, algorithm=replace(recipe.algorithm, **settings))  # type: ignore[arg-type]


def _sampled(recipe: Recipe, group_size: int, sampled: int, prefix: str = SNAKE) -> Recipe:
    """Return a recipe with other G and G'; G' = G takes all episodes, without sampling."""
    assert isinstance(recipe.algorithm, MSGRPOConfig)
    temperature = recipe.algorithm.episode_temperature or 1.0
    off = sampled >= group_size
    return _change(
        recipe,
        f"{prefix}_g{group_size}_s{min(sampled, group_size)}",
        group_size=group_size,
        sampled_group_size=None if off else sampled,
        episode_temperature=None if off else temperature,
    )


def _levels(recipe: Recipe) -> tuple[int, int, int]:
    assert isinstance(recipe.algorithm, MSGRPOConfig)
    full = recipe.algorithm.group_size
    return max(2, full // 4), max(2, full // 2), full


def _sampling(recipe: Recipe) -> list[Arm]:
    """Figure 3: G' at a quarter, half and all of G, then G at half and a quarter with G' at a quarter."""
    quarter, half, full = _levels(recipe)
    pairs = dict.fromkeys([(full, quarter), (full, half), (full, full), (half, quarter), (quarter, quarter)])
    return [
        Arm(_sampled(recipe, size, sampled), f"G = {size}, G' = {min(sampled, size)}", ("figure 3",))
        for size, sampled in pairs
    ]


def _ablations(recipe: Recipe) -> list[Arm]:
    """Ours, each one change from G' at a quarter of G."""
    quarter, _, full = _levels(recipe)
    base = _sampled(recipe, full, quarter)
    assert isinstance(base.algorithm, MSGRPOConfig)
    has_penalty, has_kl = base.format_penalty is not None, base.algorithm.kl_coef > 0
    penalty = None if has_penalty else FormatPenaltyConfig()
    arms = [
        (base, "reference: AAW sampling"),
        (_sampled(recipe, full, full), "all episodes, no sampling"),
        (
            replace(base, name=f"snake_format_{'off' if has_penalty else 'on'}", format_penalty=penalty),
            f"format penalty {'off' if has_penalty else 'on'}",
        ),
        (
            _change(base, f"snake_kl_{'off' if has_kl else 'on'}", kl_coef=0.0 if has_kl else 1e-3),
            f"KL penalty {'off' if has_kl else 'on (beta = 0.001)'}",
        ),
    ]
    if base.algorithm.sampled_group_size is not None:
        arms[1:1] = [
            (_change(base, "snake_uniform", episode_temperature=_UNIFORM), "uniform sampling (T_ep = 1e6)"),
            (_change(base, "snake_sharp", episode_temperature=_SHARP), f"sharper sampling (T_ep = {_SHARP})"),
        ]
    arms += _contexts(base, SNAKE)
    return [Arm(arm, title, ("ablations",)) for arm, title in arms]


def _contexts(base: Recipe, prefix: str) -> list[tuple[Recipe, str]]:
    """Show the last steps, then the whole episode, of which the paper shows the present observation alone.

    Where a recipe plays fewer steps than that, all arms play longer episodes and fewer of them, and a reference without
    a past comes first.
    """
    algorithm, agent = base.algorithm, base.agent
    assert isinstance(algorithm, MSGRPOConfig)
    if not isinstance(agent, AgentConfig):
        return []
    arms = []
    if algorithm.minibatch_prompts is not None:
        # With a past hardly two prompts are equal: there would be a hundred times as many steps.
        base = _change(base, f"{prefix}_context_0", minibatch_prompts=None, minibatch_groups=1)
        arms.append((base, "context: none, a step for each group"))
    elif algorithm.max_steps is not None and algorithm.max_steps <= _CONTEXT:
        groups = max(1, algorithm.num_groups * algorithm.max_steps // _ROUNDS)  # about as many steps in all
        part = algorithm.minibatch_groups
        part = None if part is None else min(part, groups)
        changes = {"max_steps": _ROUNDS, "num_groups": groups, "minibatch_groups": part}
        base = _change(base, f"{prefix}_context_0", **changes)
        arms.append((base, f"context: none, episodes of {_ROUNDS} steps"))
    shown: dict[ContextSteps, str] = {_CONTEXT: f"the last {_CONTEXT} steps", "all": "the whole episode"}
    for steps, words in shown.items():
        changed = replace(base, name=f"{prefix}_context_{steps}", agent=replace(agent, context_steps=steps))
        arms.append((changed, f"context: {words}"))
    return arms
