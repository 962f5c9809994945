"""What makes MS-GRPO more consistent: the options against the inconsistency between its runs, on Frozen Lake.

Each arm changes one thing of the recipe of Frozen Lake; what a change is worth shows in the worst seed rather than in
the mean. Ours: the paper reports the inconsistency and proposes remedies, but tries none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stratagem.agents.language import AgentConfig
from stratagem.agents.prompts import TEMPLATES, load_template, load_templates
from stratagem.algorithms.ms_grpo_config import MSGRPOConfig
from stratagem.algorithms.temperature import AdaptiveTemperatureConfig
from stratagem.errors import ConfigError
from stratagem.evaluation.tables import Table
from stratagem.recipe import Recipe
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.pages import Findings, mean_and_std, spread_text, write_csv
from stratagem.reproduce.published import PANELS

__all__ = ["CONSISTENCY", "consistency_arms", "consistency_section"]

CONSISTENCY = "consistency"
"""The part of an arm."""

_CLIP_HIGHER = 0.28
"""eps_up of DAPO (Yu et al. 2025, arXiv:2503.14476)."""
_PROMPTS = 14
"""As many as there are states on a board of Frozen Lake."""
_KL = 0.05
_TRUST = 0.1
_AVERAGE = 0.8
"""Over about five iterations."""
_TEMPERATURE_RANGE = 1.3
"""The adaptive temperature goes from that of the recipe up to so many times it."""


def consistency_arms(recipe: Recipe) -> list[Arm]:
    """Return a recipe as it is, and one arm for each change; what it does already changes nothing and is its own arm.

    Raises:
        ConfigError: the agent of the recipe samples no tokens.
    """
    algorithm, agent = recipe.algorithm, recipe.agent
    assert isinstance(algorithm, MSGRPOConfig)
    if not isinstance(agent, AgentConfig):
        raise ConfigError(
            "agent.name of the consistency arms must be 'language', whose tokens MS-GRPO trains; leave it out."
        )

    def change(name: str, **settings: object) -> Recipe:
        changed = replace(algorithm, **settings)  # type: ignore[arg-type]
        return replace(recipe, name=f"{recipe.name}_{name}", algorithm=changed)

    adaptive = AdaptiveTemperatureConfig(lowest=agent.temperature, highest=_TEMPERATURE_RANGE * agent.temperature)
    several = replace(agent, template=_wordings(agent.template))
    groups = algorithm.num_groups
    arms = [
        (recipe, "reference"),
        (
            (
                change("step_off", step_coef=0.0, step_target="return", step_credit="normalised"),
                "without step-level credit",
            )
            if algorithm.step_coef > 0
            else (change("step_on", step_coef=1.0), "step-level credit")
        ),
        *_targets(change, algorithm),
        *_credits(change, algorithm),
        (change("leave_one_out", baseline="leave_one_out"), "leave-one-out baseline"),
        (
            (change("fixed", dynamic_groups=0), "without dynamic groups")
            if algorithm.dynamic_groups
            else (change("dynamic", dynamic_groups=groups), f"dynamic groups (up to {groups} more)")
        ),
        (
            (change("whole_groups", minibatch_prompts=None, minibatch_groups=1), "a step for each group")
            if algorithm.minibatch_prompts is not None
            else (
                change("mixed", minibatch_groups=None, minibatch_prompts=_PROMPTS),
                f"steps of {_PROMPTS} mixed prompts",
            )
        ),
        (change("clip_higher", clip_high=_CLIP_HIGHER), f"clip-higher (eps_up = {_CLIP_HIGHER})"),
        (
            (change("kl_off", kl_coef=0.0), "without KL penalty")
            if algorithm.kl_coef
            else (change("kl", kl_coef=_KL), f"KL penalty (beta = {_KL})")
        ),
        (
            (change("max_kl_off", max_kl=None), "without trust region")
            if algorithm.max_kl is not None
            else (change("max_kl", max_kl=_TRUST), f"trust region ({_TRUST})")
        ),
        (change("average", average_decay=_AVERAGE), f"average of the weights (decay {_AVERAGE})"),
        (change("entropy", ent_coef=0.2), "entropy bonus 0.2"),
        (change("epochs", num_epochs=2), "2 epochs"),
        (replace(recipe, name=f"{recipe.name}_templates", agent=several), "template ensemble"),
        (change("temperature", adaptive_temperature=adaptive), "adaptive temperature"),
    ]
    return [Arm(arm, title, (CONSISTENCY,)) for arm, title in arms]


def _targets(change: Callable[..., Recipe], algorithm: MSGRPOConfig) -> list[tuple[Recipe, str]]:
    """Return an arm for each target of step-level credit that a recipe with such credit does not have."""
    titles = {
        "return": "step-level credit by single returns",
        "value": "step-level credit by pooled values",
        "best": "step-level credit by the best found out",
    }
    if algorithm.step_coef == 0:
        return []
    return [
        (change(f"target_{name}", step_target=name), title)
        for name, title in titles.items()
        if name != algorithm.step_target
    ]


def _credits(change: Callable[..., Recipe], algorithm: MSGRPOConfig) -> list[tuple[Recipe, str]]:
    """Return the arm with the other kind of step-level credit, for a recipe with such credit."""
    if algorithm.step_coef == 0:
        return []
    if algorithm.step_credit == "matching":
        return [(change("normalised", step_credit="normalised"), "step-level credit normalised")]
    return [(change("matching", step_credit="matching"), "step-level credit that comes to rest")]


def _wordings(template: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return a template and every built-in one that asks for the same answer."""
    first = template if isinstance(template, str) else template[0]
    tags = load_templates(template)[0].tags
    return (first, *(name for name in TEMPLATES if name != first and load_template(name).tags == tags))


def consistency_section(findings: Findings, folder: Path, stem: str) -> str:
    """Return the section of the page and write its CSV file.

    Args:
        findings: what there is.
        folder: of the page.
        stem: begins the name of the file.
    """
    arms = findings.for_part(CONSISTENCY)
    trained = {arm.recipe.game.name for arm in arms}
    rows, numbers = [], []
    for panel in sorted(PANELS, key=lambda name: name not in trained):  # first that of training
        for arm in arms:
            done = {run.seed: run.last(panel).mean for run in findings.of(arm, finished=True) if panel in run.points}
            ranked = sorted(done, key=lambda seed, done=done: done[seed])  # type: ignore[misc]
            extremes = [f"{done[seed]:.3f} (seed {seed})" for seed in (ranked[0], ranked[-1])] if ranked else ["-", "-"]
            title = "reference" if arm.title.startswith("trained") else arm.title
            rows.append((panel, title, spread_text(list(done.values())), *extremes, str(len(done))))
            worst = [done[ranked[0]], ranked[0]] if ranked else ["", ""]
            numbers.append([panel, arm.name, len(done), *mean_and_std(list(done.values())), *worst])
    write_csv(
        folder / f"{stem}-consistency.csv",
        ["evaluation", "arm", "runs", "final_mean", "final_std", "worst", "worst_seed"],
        numbers,
    )
    headers = ("Evaluation", "Frozen Lake, one change at a time", "Final", "Worst seed", "Best seed", "Runs")
    note = (
        "Ours: remedies for the inconsistency between runs that the paper reports. A seed is one run; its value is the "
        "mean return on the panel at the end.\n"
    )
    return f"## Consistency\n\n{note}\n{Table(headers, tuple(rows)).markdown()}"
