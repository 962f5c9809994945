"""Who plays, from one word of the command line: a policy, a run, or a model."""

from __future__ import annotations

import argparse
import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratagem.agents.base import POLICIES, make_policy
from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalConfig
from stratagem.agents.history import make_language_agent
from stratagem.agents.language import AgentConfig
from stratagem.agents.prompts import load_templates
from stratagem.agents.react import ReActAgent, ReActConfig
from stratagem.agents.reflexion import ReflexionAgent, ReflexionConfig
from stratagem.agents.scoring import ScoringAgent, ScoringConfig
from stratagem.config import apply_overrides, load_dataclass, to_table
from stratagem.errors import ConfigError, RunError, UnknownNameError
from stratagem.models.catalog import EMBEDDED, TINY, ModelConfig
from stratagem.recipe import AGENTS, Recipe, load_recipe
from stratagem.rollout import Player
from stratagem.runs.experiment import check_model_name, hold_template
from stratagem.runs.folder import RunFolder, list_runs

__all__ = ["Contestant", "find_contestant", "find_run", "free_folder", "parse_params", "run_model"]

AnyConfig = AgentConfig | ScoringConfig | HierarchicalConfig | ReActConfig
"""Settings of any kind of agent."""


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
    num_trials: int | None = None
    """How often it may try an episode that it failed; None is for agents that do not learn from it."""


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
        "agent",
        "device",
        "dtype",
        "base_url",
        "api_key_env",
        "continue_assistant",
    )
    if who in POLICIES and arguments.base_url is None:
        given = [f"--{name.replace('_', '-')}" for name in options if getattr(arguments, name) is not None]
        given += ["--agent-set"] if arguments.agent_settings else []
        if given:
            raise ConfigError(f"{', '.join(given)} has no effect on policy {who!r}, which asks no model; leave it out.")
        return Contestant(who, {"policy": who}, lambda: make_policy(who))
    changes = {
        name: getattr(arguments, name)
        for name in ("template", "temperature", "max_new_tokens")
        if getattr(arguments, name) is not None
    }
    if arguments.base_url is not None:
        return _served(who, arguments, _changed(_chosen(arguments, AgentConfig()), changes, f"model {who!r}"))
    for name in ("api_key_env", "continue_assistant"):
        if getattr(arguments, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} has no effect without --base-url; give both, or leave it out."
            )
    where = {name: value for name in ("device", "dtype") if (value := getattr(arguments, name)) is not None}
    if (Path(who) / "recipe.toml").is_file() or (Path(arguments.runs_dir) / who / "recipe.toml").is_file():
        run = find_run(who, arguments.runs_dir)
        recipe = load_recipe(run.recipe_file, of_run=True)
        own = recipe.agent
        recipe = replace(recipe, agent=_chosen(arguments, own))
        told = {item.partition("=")[0].strip() for item in arguments.agent_settings} | changes.keys()
        if "temperature" not in told and arguments.agent is None and recipe.evaluation.temperature is not None:
            changes["temperature"] = recipe.evaluation.temperature  # the run itself is evaluated so
        if "template" not in changes and recipe.agent.template is not None:
            load_templates(recipe.agent.template)  # refuses a file that is gone
            if recipe.agent.template == own.template:
                hold_template(recipe, run.path, keep=False)
        changed = _changed(recipe.agent, changes, f"run {run.name!r}")
        if "dtype" in where:  # says how everything is computed
            where["matmul_dtype"] = "float32"
        recipe = replace(recipe, agent=changed, model=replace(recipe.model, **where))
        settings = {"run": run.name, **_agent_settings(recipe.agent), "weights": run_weights(run)}
        return Contestant(
            run.name, settings, lambda: _agent(run_model(run, recipe), recipe.agent), recipe, _trials(recipe.agent)
        )
    try:
        check_model_name(who)
    except UnknownNameError:
        names = [*POLICIES, *list_runs(arguments.runs_dir), *EMBEDDED, TINY]
        raise UnknownNameError("policy, run or model", who, names) from None
    config = replace(ModelConfig(name=who), **where)
    agent = _changed(_chosen(arguments, AgentConfig()), changes, f"model {who!r}")
    _agent(None, agent)  # refuses a wrong template before weights are read

    def load() -> Player:
        from stratagem.models.local import LocalModel

        return _agent(LocalModel.load(config), agent)

    settings = {"model": who, "dtype": config.dtype, **_agent_settings(agent)}
    return Contestant(who, settings, load, num_trials=_trials(agent))


def run_model(run: RunFolder, recipe: Recipe) -> Any:
    """Load a run's model: the finished one, or else the weights of its newest checkpoint.

    Raises:
        RunError: there is neither.
    """
    from stratagem.models.local import LocalModel
    from stratagem.runs.checkpoint import load_latest
    from stratagem.runs.weights import load_parameters

    if (run.path / "model").is_dir():
        return LocalModel.load(replace(recipe.model, name=str(run.path / "model"), lora=None))
    checkpoint = load_latest(run.checkpoints)
    if checkpoint is None:
        raise RunError(
            f"Run {run.name!r} has neither a model nor a checkpoint yet; continue it with "
            f"`stratagem train --name {run.name} --resume`."
        )
    model = LocalModel.load(recipe.model)
    load_parameters(model, checkpoint.played, checkpoint.path)
    return model


def run_weights(run: RunFolder) -> str:
    """Return which weights of a run are used, so that an evaluation is not resumed with others."""
    from stratagem.runs.checkpoint import list_checkpoints

    checkpoints = list_checkpoints(run.checkpoints)
    return "model" if (run.path / "model").is_dir() else checkpoints[-1].name if checkpoints else "none"


def _chosen(arguments: argparse.Namespace, default: AnyConfig) -> AnyConfig:
    """Return the settings of the agent that --agent and --agent-set ask for."""
    if arguments.agent is not None:
        if arguments.agent not in AGENTS:
            raise UnknownNameError("agent", arguments.agent, AGENTS)
        default = AGENTS[arguments.agent]()
    for item in arguments.agent_settings:
        if not item.partition("=")[1]:
            raise ConfigError(f"--agent-set {item!r} is not an assignment; write key=value, as num_trials=5.")
    if not arguments.agent_settings:
        return default
    return load_dataclass(type(default), apply_overrides(to_table(default), arguments.agent_settings))


def _changed(config: AnyConfig, changes: dict[str, Any], whom: str) -> AnyConfig:
    """Return settings with what --template, --temperature and --max-new-tokens say."""
    if "max_new_tokens" in changes and isinstance(config, ScoringConfig):
        raise ConfigError(
            f"--max-new-tokens has no effect on {whom}, which scores actions instead of writing; leave it out."
        )
    if changes and isinstance(config, HierarchicalConfig):
        option = next(iter(changes)).replace("_", "-")
        raise ConfigError(f"--{option} does not say for which role of {whom}; leave it out.")
    return replace(config, **changes)


def _trials(config: AnyConfig) -> int | None:
    return config.num_trials if isinstance(config, ReflexionConfig) else None


def _agent(model: Any, config: AnyConfig) -> Player:
    if isinstance(config, ReflexionConfig):
        return ReflexionAgent.from_config(model, config)
    if isinstance(config, ReActConfig):
        return ReActAgent.from_config(model, config)
    if isinstance(config, HierarchicalConfig):
        return HierarchicalAgent.from_config(model, config)
    if isinstance(config, ScoringConfig):
        from stratagem.models.remember import RememberedScores

        scorer: Any = None if model is None else RememberedScores(model)
        return ScoringAgent.from_config(scorer, config)
    return make_language_agent(model, config)


def _agent_settings(config: AnyConfig) -> dict[str, Any]:
    if isinstance(config, HierarchicalConfig):
        return dataclasses.asdict(config)
    if isinstance(config, ReActConfig):
        name = "react" if _trials(config) is None else "reflexion"
        return {"agent": name, **dataclasses.asdict(config)}
    if isinstance(config, ScoringConfig):
        return {
            "template": config.template,
            "temperature": config.temperature,
            "normalisation": config.normalisation,
            **({"choice": config.choice} if config.choice != "action" else {}),
        }
    return {
        "template": config.template if isinstance(config.template, str) else config.template[0],  # what plays here
        "temperature": config.temperature,
        "max_new_tokens": config.max_new_tokens,
        "recovery": config.recovery,
        "invalid_penalty": config.invalid_penalty,
        **({"context_steps": config.context_steps} if config.context_steps != 0 else {}),
    }


def _served(who: str, arguments: argparse.Namespace, agent: AnyConfig) -> Contestant:
    from stratagem.models.served import ServedModel, ServedModelConfig

    if isinstance(agent, ScoringConfig):
        raise ConfigError(
            "--agent scoring needs the probability of every legal action, for which a server is not asked; leave it "
            "out."
        )
    for name in ("device", "dtype"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} has no effect with --base-url, where the server decides; leave it out.")
    config = ServedModelConfig(
        arguments.base_url,
        who,
        api_key_env=arguments.api_key_env,
        continue_assistant=bool(arguments.continue_assistant),
    )
    prefix = "" if agent.template is None else load_templates(agent.template)[0].assistant_prefix
    if prefix and not config.continue_assistant:
        raise ConfigError(
            f"--template {agent.template!r} begins the answer with {prefix!r}, which many servers cannot; choose "
            "another, such as --template think_action, or give --continue-assistant for vLLM or SGLang."
        )
    _agent(None, agent)
    settings = {"model": who, "base_url": arguments.base_url, **_agent_settings(agent)}
    return Contestant(who, settings, lambda: _agent(ServedModel(config), agent), num_trials=_trials(agent))


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


def free_folder(label: str, what: str) -> Path:
    """Return the next folder for an evaluation of somebody."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{Path(label).name}-{what}").strip("-.")
    number = 1
    while (Path("evaluations") / f"{stem}-{number}").exists():
        number += 1
    return Path("evaluations") / f"{stem}-{number}"
