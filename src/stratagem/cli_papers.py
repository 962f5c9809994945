"""What `stratagem reproduce` knows of each paper: its parts, its arms, its page, and the options that only it has."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem.agents.base import POLICIES, make_policy
from stratagem.errors import ConfigError, UnknownNameError
from stratagem.evaluation.panels import fixed_panel
from stratagem.evaluation.play import evaluate, seat_opponents
from stratagem.files import atomic_write_text
from stratagem.reproduce import arms as ms_grpo
from stratagem.reproduce import poad_arms as poad
from stratagem.reproduce import poad_report, report, step_hrl_report
from stratagem.reproduce import step_hrl_arms as step_hrl
from stratagem.reproduce.arm import Arm, Scale
from stratagem.reproduce.consistency import CONSISTENCY
from stratagem.reproduce.pages import Findings
from stratagem.reproduce.published import PANELS
from stratagem.runs.experiment import panel_params

__all__ = ["PAPERS", "Paper", "find_paper"]


@dataclass(frozen=True)
class Paper:
    """How the experiments of one paper are run."""

    scales: Mapping[str, Scale]
    options: tuple[str, ...]
    """Names of options that mean something to this paper and not to every one; the last is the rate of a run."""
    parts: Callable[[argparse.Namespace], tuple[str, ...]]
    """The options -> what is asked for."""
    make_arms: Callable[[argparse.Namespace, Sequence[str]], list[Arm]]
    """The options and the parts -> what is run."""
    write_report: Callable[[Findings, Path], Path]
    """Writes the page into a folder."""
    panels: tuple[str, ...] = ()
    """On which players that are not trained here are shown beside."""
    prepare: Callable[[argparse.Namespace, Sequence[str], Sequence[Arm], Path], None] | None = None
    """Gets those players' results before anything is run."""


def find_paper(arguments: argparse.Namespace) -> Paper:
    """Return the paper that is asked for.

    Raises:
        UnknownNameError: there is none of that name.
        ConfigError: an option is another paper's, or the scale is.
    """
    if arguments.paper not in PAPERS:
        raise UnknownNameError("paper", arguments.paper, PAPERS)
    own = PAPERS[arguments.paper]
    if arguments.scale not in own.scales:
        raise ConfigError(
            f"--scale {arguments.scale} is not there for {arguments.paper}; use --scale {' or '.join(own.scales)}."
        )
    for name in dict.fromkeys(name for paper in PAPERS.values() for name in paper.options):
        if name not in own.options and getattr(arguments, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} means nothing to paper {arguments.paper!r}; leave it out.")
    return own


# ---- MS-GRPO ---------------------------------------------------------------------------------------------------------


def _ms_grpo_parts(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.table is not None:
        if arguments.table != 1:
            raise ConfigError(f"--table {arguments.table} is not in the paper; its only results table is --table 1.")
        return ("table 1",)
    if arguments.figure is not None:
        if arguments.figure not in (1, 2, 3):
            raise ConfigError(f"--figure {arguments.figure} is not in the paper; use --figure 1, 2 or 3.")
        return (f"figure {arguments.figure}",)
    if arguments.consistency:
        return (CONSISTENCY,)
    return ("ablations",) if arguments.ablations else ms_grpo.PARTS


def _ms_grpo_arms(arguments: argparse.Namespace, parts: Sequence[str]) -> list[Arm]:
    return ms_grpo.make_arms(arguments.scale, parts, arguments.overrides)


def _ms_grpo_players(arguments: argparse.Namespace, parts: Sequence[str], arms: Sequence[Arm], out: Path) -> None:
    if arguments.dqn is not None:
        _take_dqn(Path(arguments.dqn), out)
    if "figure 2" in parts and not arguments.collect:
        _play_baselines(arms, ms_grpo.SCALES[arguments.scale].baseline_episodes, out)


def _play_baselines(arms: Sequence[Arm], episodes: int, out: Path) -> None:
    """Play each panel with the random policy and the planner, as the trained agents' games are set."""
    bases = [arm for arm in arms if arm.name in (ms_grpo.SNAKE, ms_grpo.FROZEN_LAKE)]
    for panel_name in PANELS:
        arm = next(arm for arm in bases if panel_name.lower().startswith(arm.name.replace("_", "")))
        panel = fixed_panel(panel_name, panel_params(arm.recipe, panel_name), episodes)
        for name in POLICIES:
            path = out / "baselines" / name / f"{panel_name}.json"
            if path.exists():
                continue
            game = panel.make_game()
            opponents = seat_opponents(game)
            game.close()
            print(f"  {name} on {panel_name}: {episodes} episodes", flush=True)
            result, _ = evaluate(panel, [make_policy(name), *opponents], address=(0, "panel", panel.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(path, result.to_json())


def _take_dqn(source: Path, out: Path) -> None:
    """Copy the results of ``stratagem baseline dqn`` beside the other players."""
    found = sorted((source / "evaluation").glob("*.json"))
    if not found:
        raise ConfigError(
            f"--dqn {str(source)!r} holds no evaluation; name a folder that `stratagem baseline dqn --out` has written."
        )
    target = out / "baselines" / "dqn"
    target.mkdir(parents=True, exist_ok=True)
    for path in found:
        atomic_write_text(target / path.name, path.read_text(encoding="utf-8"))


# ---- POAD ------------------------------------------------------------------------------------------------------------


def _poad_parts(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.tasks is not None:
        return ("tasks", "generalisation")
    return ("ablations",) if arguments.ablations else poad.PARTS


def _poad_arms(arguments: argparse.Namespace, parts: Sequence[str]) -> list[Arm]:
    return poad.make_arms(arguments.scale, parts, _tasks(arguments, poad.TASKS), arguments.overrides)


def _tasks(arguments: argparse.Namespace, known: Mapping[str, object]) -> list[str]:
    tasks = list(known) if arguments.tasks is None else arguments.tasks.split(",")
    for task in tasks:
        if task not in known:
            raise UnknownNameError("task", task, known)
    return tasks


# ---- STEP-HRL --------------------------------------------------------------------------------------------------------


def _step_hrl_parts(arguments: argparse.Namespace) -> tuple[str, ...]:
    return ("ablations",) if arguments.ablations else step_hrl.PARTS


def _step_hrl_arms(arguments: argparse.Namespace, parts: Sequence[str]) -> list[Arm]:
    return step_hrl.make_arms(arguments.scale, parts, _tasks(arguments, step_hrl.TASKS), arguments.overrides)


PAPERS: dict[str, Paper] = {
    "ms-grpo": Paper(
        scales=ms_grpo.SCALES,
        options=("table", "figure", "consistency", "dqn", "tokens_per_second"),
        parts=_ms_grpo_parts,
        make_arms=_ms_grpo_arms,
        write_report=report.write_report,
        panels=PANELS,
        prepare=_ms_grpo_players,
    ),
    "poad": Paper(
        scales=poad.SCALES,
        options=("tasks", "decisions_per_second"),
        parts=_poad_parts,
        make_arms=_poad_arms,
        write_report=poad_report.write_report,
    ),
    "step-hrl": Paper(
        scales=step_hrl.SCALES,
        options=("tasks", "tokens_per_second"),
        parts=_step_hrl_parts,
        make_arms=_step_hrl_arms,
        write_report=step_hrl_report.write_report,
    ),
}
"""Name on the command line -> paper."""
