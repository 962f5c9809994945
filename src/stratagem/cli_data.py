"""The verb that prepares data: games, and annotations of expert episodes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stratagem.cli_players import parse_params
from stratagem.data.annotations import (
    AnnotatedEpisode,
    annotation_rows,
    check_annotations,
    read_annotations,
    write_annotations,
)
from stratagem.data.expert import RULES, expert_episodes
from stratagem.errors import ConfigError, RunError, UnknownNameError
from stratagem.evaluation.panels import fixed_panel, panel_state_keys
from stratagem.games import make
from stratagem.games.alfworld_data import DATA_VARIABLE, convert

__all__ = ["JOBS", "data"]

JOBS: dict[str, tuple[str, ...]] = {
    "alfworld": ("SRC", "DST"),
    "annotate": ("FILE",),
    "check-annotations": ("FILE",),
}
"""What can be done, and the paths that each takes."""

_SHOWN = 20
"""Problems that are printed one by one."""

_MODEL_OPTIONS = ("base_url", "api_key_env", "device", "dtype", "temperature", "max_new_tokens", "source")
_EXPERT_OPTIONS = ("game", "task", "leave_out", "seed")
_EXPERT_DEFAULTS: dict[str, Any] = {
    "game": "ALFWorld-Generated",
    "task": "Play as well as you can.",
    "leave_out": 50,
    "seed": 0,
    "episodes": 100,
}
_VIEWS = {"alfworld": "raw", "scienceworld": "look"}
"""How games with more than one view are shown to the agents that learn from the annotations."""


def data(arguments: argparse.Namespace) -> int:
    """Do one of the jobs."""
    if arguments.job not in JOBS:
        raise UnknownNameError("data job", arguments.job, JOBS)
    expected = JOBS[arguments.job]
    if len(arguments.paths) != len(expected):
        raise ConfigError(
            f"`stratagem data {arguments.job}` got {len(arguments.paths)} path(s); write stratagem data "
            f"{arguments.job} {' '.join(expected)}."
        )
    if arguments.job != "annotate":
        names = (*_MODEL_OPTIONS, *_EXPERT_OPTIONS, "model", "episodes", "params")
        _refuse(arguments, names, f"`stratagem data {arguments.job}`")
    jobs = {"alfworld": _convert, "annotate": _annotate, "check-annotations": _check}
    return jobs[arguments.job](arguments)


def _refuse(arguments: argparse.Namespace, names: Sequence[str], where: str) -> None:
    """Refuse options that would change nothing."""
    flags = {"source": "--from", "params": "--param"}
    given = [flags.get(n, f"--{n.replace('_', '-')}") for n in names if getattr(arguments, n) not in (None, [])]
    if given:
        raise ConfigError(f"{', '.join(given)} has no effect with {where}; leave it out.")


def _convert(arguments: argparse.Namespace) -> int:
    """Convert the official ALFWorld games to the form that is read fast."""
    source, target = arguments.paths
    started = time.perf_counter()
    counts = convert(source, target)
    size = Path(target).stat().st_size / 2**20
    for split, count in sorted(counts.items()):
        print(f"  {split:<14}{count:>6} games")
    print(f"{target}: {size:.1f} MiB in {time.perf_counter() - started:.1f} s")
    print(f"Play with: {DATA_VARIABLE}={Path(target).absolute()} stratagem play ALFWorld --policy planner")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Name everything that is wrong with an annotation file; 1 if something is."""
    path = Path(arguments.paths[0])
    problems = check_annotations(annotation_rows(path))
    for problem in problems[:_SHOWN]:
        print(problem)
    if problems:
        more = f", of which the first {_SHOWN} are shown" if len(problems) > _SHOWN else ""
        print(f"{path}: {len(problems)} problem(s){more}")
        return 1
    print(_summary(path, read_annotations(path)))
    return 0


def _summary(path: Path, episodes: Sequence[AnnotatedEpisode]) -> str:
    steps = sum(len(episode.steps) for episode in episodes)
    subtasks = sum(episode.steps[-1].subtask_number + 1 for episode in episodes)
    won = sum(episode.success for episode in episodes)
    return f"{path}: {len(episodes)} episodes ({won} successful), {subtasks} subtasks, {steps} steps"


# ---- annotate --------------------------------------------------------------------------------------------------------


def _annotate(arguments: argparse.Namespace) -> int:
    """Let an expert play and write down subtasks and progress, by rule or by a model."""
    target = Path(arguments.paths[0])
    if target.exists():
        raise ConfigError(f"FILE={str(target)!r} exists; name a new file.")
    if target.suffix not in (".parquet", ".jsonl"):
        raise ConfigError(f"FILE={str(target)!r} ends with {target.suffix!r}; use .parquet or .jsonl.")
    if arguments.model is None:
        _refuse(arguments, _MODEL_OPTIONS, "`stratagem data annotate` without --model")
    if arguments.source is not None:
        _refuse(arguments, (*_EXPERT_OPTIONS, "params"), "`stratagem data annotate --from`")
        episodes = read_annotations(Path(arguments.source))[: arguments.episodes]
    else:
        episodes = _expert(arguments)
    reasons: list[str] = []
    if arguments.model is not None:
        count = len(episodes)
        episodes, reasons = _ask(arguments, episodes)
        for reason in reasons[:_SHOWN]:
            print(f"left out: {reason}", file=sys.stderr)
        if not episodes:
            raise RunError(
                f"Model {arguments.model!r} annotated none of {count} episodes; the first reason: {reasons[0]}. Choose "
                "a larger model, or give it more room with --max-new-tokens."
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_annotations(target, episodes)
    print(_summary(target, episodes))
    if reasons:
        print(f"{len(reasons)} episodes were left out, since the model's answers could not be used")
    print(f"Train on them with: stratagem train step_hrl_alfworld --set algorithm.annotations='{target}'")
    return 0


def _expert(arguments: argparse.Namespace) -> list[AnnotatedEpisode]:
    from stratagem.data.model_annotations import plain_episodes

    chosen = {
        name: default if getattr(arguments, name) is None else getattr(arguments, name)
        for name, default in _EXPERT_DEFAULTS.items()
    }
    if chosen["episodes"] < 1:
        raise ConfigError(f"--episodes {chosen['episodes']} annotates nothing; set it to 1 or more.")
    if chosen["leave_out"] < 0:
        raise ConfigError(f"--leave-out {chosen['leave_out']} is negative; use 0 to leave out nothing.")
    params = parse_params(arguments.params)
    game = make(chosen["game"], **params)
    by_rule, name = game.name in RULES, game.name
    game.close()
    if name in _VIEWS:
        params = {"view": _VIEWS[name]} | params
    if not by_rule and arguments.model is None:
        raise ConfigError(
            f"There are rules to annotate {', '.join(RULES)} and none for game {chosen['game']!r}; name a language "
            "model with --model, which annotates any game that has a planner."
        )
    excluded: frozenset[str] = frozenset()
    if chosen["leave_out"]:
        panel = fixed_panel(chosen["game"], params, chosen["leave_out"])
        if panel.num_starts > 1:  # nothing can be kept apart where every episode starts alike
            excluded = panel_state_keys(panel)
    make_game = partial(make, chosen["game"], **params)
    if by_rule:
        return expert_episodes(make_game, chosen["episodes"], seed=chosen["seed"], excluded_starts=excluded)
    return plain_episodes(
        make_game, chosen["episodes"], seed=chosen["seed"], task=chosen["task"], excluded_starts=excluded
    )


def _ask(
    arguments: argparse.Namespace, episodes: Sequence[AnnotatedEpisode]
) -> tuple[list[AnnotatedEpisode], list[str]]:
    from stratagem.data.model_annotations import annotate

    settings: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("temperature", "max_new_tokens")
        if getattr(arguments, name) is not None
    }
    if arguments.base_url is not None:
        _refuse(arguments, ("device", "dtype"), "`stratagem data annotate --base-url`")
        from stratagem.models.served import ServedModel, ServedModelConfig

        config = ServedModelConfig(arguments.base_url, arguments.model, api_key_env=arguments.api_key_env)
        return annotate(ServedModel(config), episodes, **settings)
    _refuse(arguments, ("api_key_env",), "`stratagem data annotate` without --base-url")
    from stratagem.models.catalog import ModelConfig
    from stratagem.models.local import LocalModel
    from stratagem.runs.experiment import check_model_name

    check_model_name(arguments.model)
    where = {name: value for name in ("device", "dtype") if (value := getattr(arguments, name)) is not None}
    return annotate(LocalModel.load(ModelConfig(name=arguments.model, **where)), episodes, **settings)
