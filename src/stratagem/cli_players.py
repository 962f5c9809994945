"""Who plays, from one word of the command line: a policy, a run, or a model."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratagem.agents.base import POLICIES, make_policy
from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalConfig
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.prompts import load_template
from stratagem.agents.scoring import ScoringAgent, ScoringConfig
from stratagem.config import apply_overrides
from stratagem.errors import ConfigError, RunError, UnknownNameError
from stratagem.models.catalog import EMBEDDED, TINY, ModelConfig
from stratagem.recipe import Recipe, load_recipe
from stratagem.rollout import Player
from stratagem.runs.experiment import check_model_name, hold_template
from stratagem.runs.folder import RunFolder, list_runs

__all__ = ["Contestant", "find_contestant", "find_run", "parse_params", "run_model"]


@dataclass(frozen=True)
class Contestant:
    """A player that is known but not loaded yet."""

    label: str
    """What tables call it."""
    settings: dict[str, Any]
    """Everything that decides how it plays, as JSON values."""
    load: Callable[[], Player]
    """Loads weights, which takes a while."""
    recipe: Recipe | None = None
    """Of the run that made it."""


def parse_params(items: Iterable[str]) -> dict[str, Any]:
    """Return the settings of ``--param key=value`` items, values as TOML."""
    for item in items:
        if not item.partition("=")[1]:
            raise ConfigError(f"--param {item!r} is not an assignment; write key=value, for example size=8.")
    return apply_overrides({}, items)


def find_run(name: str, runs_dir: str) -> RunFolder:
    """Return a run by folder or by name.

    Raises:
        UnknownNameError: neither, with the nearest run.
    """
    for path in (Path(name), Path(runs_dir) / name):
        if (path / "recipe.toml").is_file():
            return RunFolder.open(path)
    raise UnknownNameError("run", name, list_runs(runs_dir))


def find_contestant(who: str, arguments: argparse.Namespace) -> Contestant:
    """Return who a word means, trying policies, then runs, then models.

    Args:
        who: the word.
        arguments: the options of language models, and ``runs_dir``.

    Raises:
        UnknownNameError: nobody of that name.
        ConfigError: an option that does not go with it.
    """
    options = (
        "template",
        "temperature",
        "max_new_tokens",
        "device",
        "dtype",
        "base_url",
        "api_key_env",
        "continue_assistant",
    )
    if who in POLICIES and arguments.base_url is None:
        given = [f"--{name.replace('_', '-')}" for name in options if getattr(arguments, name) is not None]
        if given:
            raise ConfigError(f"{', '.join(given)} has no effect on policy {who!r}, which asks no model; leave it out.")
        return Contestant(who, {"policy": who}, lambda: make_policy(who))
    changes = {
        name: getattr(arguments, name)
        for name in ("template", "temperature", "max_new_tokens")
        if getattr(arguments, name) is not None
    }
    if arguments.base_url is not None:
        return _served(who, arguments, replace(AgentConfig(), **changes))
    for name in ("api_key_env", "continue_assistant"):
        if getattr(arguments, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} has no effect without --base-url; give both, or leave it out."
            )
    where = {name: value for name in ("device", "dtype") if (value := getattr(arguments, name)) is not None}
    if (Path(who) / "recipe.toml").is_file() or (Path(arguments.runs_dir) / who / "recipe.toml").is_file():
        run = find_run(who, arguments.runs_dir)
        recipe = load_recipe(run.recipe_file)
        if "max_new_tokens" in changes and isinstance(recipe.agent, ScoringConfig):
            raise ConfigError(
                f"--max-new-tokens has no effect on run {run.name!r}, which scores actions instead of writing; leave "
                "it out."
            )
        if changes and isinstance(recipe.agent, HierarchicalConfig):
            option = next(iter(changes)).replace("_", "-")
            raise ConfigError(f"--{option} does not say for which role of run {run.name!r}; leave it out.")
        if "template" not in changes and recipe.agent.template is not None:
            load_template(recipe.agent.template)  # refuses a file that is gone
            hold_template(recipe, run.path, keep=False)
        recipe = replace(recipe, agent=replace(recipe.agent, **changes), model=replace(recipe.model, **where))
        settings = {"run": run.name, **_agent_settings(recipe.agent), "weights": _weights(run)}
        return Contestant(run.name, settings, lambda: _agent(run_model(run, recipe), recipe.agent), recipe)
    try:
        check_model_name(who)
    except UnknownNameError:
        names = [*POLICIES, *list_runs(arguments.runs_dir), *EMBEDDED, TINY]
        raise UnknownNameError("policy, run or model", who, names) from None
    config = replace(ModelConfig(name=who), **where)
    agent = replace(AgentConfig(), **changes)
    _agent(None, agent)  # refuses a wrong template before weights are read

    def load() -> Player:
        from stratagem.models.local import LocalModel

        return _agent(LocalModel.load(config), agent)

    return Contestant(who, {"model": who, "dtype": config.dtype, **_agent_settings(agent)}, load)


def run_model(run: RunFolder, recipe: Recipe) -> Any:
    """Load a run's model: the finished one, or else the weights of its newest checkpoint.

    Raises:
        RunError: there is neither.
    """
    from stratagem.models.local import LocalModel
    from stratagem.runs.checkpoint import load_latest
    from stratagem.runs.training import load_parameters

    if (run.path / "model").is_dir():
        return LocalModel.load(replace(recipe.model, name=str(run.path / "model"), lora=None))
    checkpoint = load_latest(run.checkpoints)
    if checkpoint is None:
        raise RunError(
            f"Run {run.name!r} has neither a model nor a checkpoint yet; continue it with "
            f"`stratagem train --name {run.name} --resume`."
        )
    model = LocalModel.load(recipe.model)
    load_parameters(model, checkpoint.tensors["parameters"], checkpoint.path)
    return model


def _weights(run: RunFolder) -> str:
    """Return which weights of a run are used, so that an evaluation is not resumed with others."""
    from stratagem.runs.checkpoint import list_checkpoints

    checkpoints = list_checkpoints(run.checkpoints)
    return "model" if (run.path / "model").is_dir() else checkpoints[-1].name if checkpoints else "none"


def _agent(model: Any, config: AgentConfig | ScoringConfig | HierarchicalConfig) -> Player:
    if isinstance(config, HierarchicalConfig):
        return HierarchicalAgent.from_config(model, config)
    if isinstance(config, ScoringConfig):
        from stratagem.models.remember import RememberedScores

        return ScoringAgent.from_config(RememberedScores(model), config)
    return LanguageAgent.from_config(model, config)


def _agent_settings(config: AgentConfig | ScoringConfig | HierarchicalConfig) -> dict[str, Any]:
    if isinstance(config, HierarchicalConfig):
        return dataclasses.asdict(config)
    if isinstance(config, ScoringConfig):
        return {
            "template": config.template,
            "temperature": config.temperature,
            "normalisation": config.normalisation,
        }
    return {
        "template": config.template,
        "temperature": config.temperature,
        "max_new_tokens": config.max_new_tokens,
        "recovery": config.recovery,
        "invalid_penalty": config.invalid_penalty,
    }


def _served(who: str, arguments: argparse.Namespace, agent: AgentConfig) -> Contestant:
    from stratagem.models.served import ServedModel, ServedModelConfig

    for name in ("device", "dtype"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} has no effect with --base-url, where the server decides; leave it out.")
    config = ServedModelConfig(
        arguments.base_url,
        who,
        api_key_env=arguments.api_key_env,
        continue_assistant=bool(arguments.continue_assistant),
    )
    prefix = load_template(agent.template).assistant_prefix
    if prefix and not config.continue_assistant:
        raise ConfigError(
            f"--template {agent.template!r} begins the answer with {prefix!r}, which many servers cannot; choose "
            "another, such as --template think_action, or give --continue-assistant for vLLM or SGLang."
        )
    _agent(None, agent)
    settings = {"model": who, "base_url": arguments.base_url, **_agent_settings(agent)}
    return Contestant(who, settings, lambda: _agent(ServedModel(config), agent))


def stored_recipe(run: RunFolder) -> dict[str, Any]:
    """Return a run's recipe as a table, with what it needs to be shown.

    Raises:
        RunError: the file is damaged.
    """
    try:
        table = tomllib.loads(run.recipe_file.read_text(encoding="utf-8"))
        for section, key in (("game", "name"), ("model", "name"), ("algorithm", "num_iterations"), ("evaluation", "")):
            _ = table[section][key] if key else table[section]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{str(run.recipe_file)!r} is no recipe as a run writes it ({error}); restore it from a copy."
        ) from error
    return table
