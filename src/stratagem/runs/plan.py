"""What a recipe would cost, before anything is loaded: episodes, tokens, disk.

The numbers are upper bounds and rough guesses, and are called so.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from stratagem.agents.prompts import load_templates
from stratagem.games import make
from stratagem.models.catalog import EMBEDDED, TINY
from stratagem.recipe import Recipe
from stratagem.runs.experiment import panel_names, panel_params

__all__ = ["ADAPTER_SHARE", "Plan", "layer_parameters", "make_plan", "parameter_count"]

_CHARACTERS_PER_TOKEN = 4.0
"""English text with a common tokenizer; the tiny model has a token for each character."""
_BYTES = {"float32": 4, "bfloat16": 2}
ADAPTER_SHARE = 0.02
"""An adapter is about so much of its model."""


@dataclass(frozen=True)
class Plan:
    """Costs of a run. Numbers of tokens are upper bounds: they take every episode to its last step."""

    training_episodes: int
    evaluations: int
    evaluation_episodes: int
    """Of all evaluations together."""
    prompt_tokens: int
    """Of one step; where past steps are shown, of the longest, with every observation whole."""
    generated_tokens: int
    """All steps of all episodes at the completion limit; 0 where an agent chooses among actions instead of writing."""
    decisions: int
    """All steps of all episodes."""
    disk_gib: float | None
    """The most that checkpoints, reference and model take at once; None where the size of the model is not known.
    Trajectories are left out, and so are the weights that training begins with, which all runs share."""

    @property
    def work(self) -> tuple[int, str]:
        """What takes the time, and its unit: generated tokens, or decisions where nothing is generated."""
        return (self.generated_tokens, "tokens") if self.generated_tokens else (self.decisions, "decisions")

    def lines(self) -> list[str]:
        """Return the plan in words."""
        amount, unit = self.work
        most = f"{amount:,} {'generated' if unit == 'tokens' else unit}"
        disk = "unknown, since the size of the model is" if self.disk_gib is None else _size(self.disk_gib)
        return [
            f"training    {self.training_episodes:,} episodes",
            f"evaluation  {self.evaluations} times, {self.evaluation_episodes:,} episodes in all",
            f"tokens      about {self.prompt_tokens:,} in a prompt, most of them shared between prompts; at most "
            f"{most}",
            f"disk        {disk} for checkpoints and model, and some MiB for trajectories",
        ]


def _size(gib: float) -> str:
    return f"about {gib:.1f} GiB" if gib >= 0.1 else f"about {gib * 1024:.0f} MiB"


def parameter_count(name: str) -> float | None:
    """Return about how many parameters a model has, by its catalog entry, its files or its name; None if nothing says.

    >>> parameter_count("Qwen/Qwen2.5-3B-Instruct")
    3000000000.0
    """
    if name == TINY:
        return 30_000.0
    if name in EMBEDDED:
        name = EMBEDDED[name].parameters
    elif Path(name).is_dir():
        return sum(path.stat().st_size for path in Path(name).glob("*.safetensors")) / 4 or None
    match = re.search(r"(\d+(?:\.\d+)?)\s*([BbMm])(?![A-Za-z])", name)
    return None if match is None else float(match[1]) * (1e9 if match[2] in "Bb" else 1e6)


def layer_parameters(name: str) -> float | None:
    """Return how many parameters one layer of a model has, by its catalog entry or its files; None if nothing says."""
    if name == TINY:
        return 9_280.0
    if name in EMBEDDED:
        return EMBEDDED[name].layer_parameters
    found = 0
    for path in Path(name).glob("*.safetensors"):
        with path.open("rb") as file:  # a length in eight bytes, then that many bytes of JSON
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= path.stat().st_size else b""
        try:
            tensors = json.loads(header)
        except ValueError:  # damaged, or a pointer in place of the weights: told when the model is loaded
            return None
        found += sum(math.prod(tensor["shape"]) for key, tensor in tensors.items() if ".layers.0." in key)
    return float(found) or None


def make_plan(recipe: Recipe) -> Plan:
    """Work out what a checked recipe costs."""
    game = make(recipe.game.name, **recipe.game.params)
    try:
        observation = game.reset(seed=0)[0]
        max_steps = game.max_steps
    finally:
        game.close()
    algorithm, evaluation = recipe.algorithm, recipe.evaluation
    characters = len(observation)
    if recipe.agent.template is not None:
        template = load_templates(recipe.agent.template)[0]
        characters = sum(len(content) for _, content in template.messages(observation))
    groups = algorithm.num_groups + getattr(algorithm, "dynamic_groups", 0)  # if every first one lacks a signal
    episodes = algorithm.num_iterations * groups * algorithm.group_size
    between = (algorithm.num_iterations - 1) // evaluation.every if evaluation.every else 0
    evaluations = 2 + between + (recipe.warm_start is not None and recipe.evaluation.untrained)
    steps = episodes * min(max_steps, algorithm.max_steps or max_steps)
    evaluation_episodes = 0
    for name in panel_names(recipe):
        panel_game = make(name, **panel_params(recipe, name))
        evaluation_episodes += evaluations * evaluation.num_episodes
        steps += evaluations * evaluation.num_episodes * panel_game.max_steps
        panel_game.close()
    per_token = 1.0 if recipe.model.name == TINY else _CHARACTERS_PER_TOKEN
    answer = getattr(recipe.agent, "max_new_tokens", 0)
    context = getattr(recipe.agent, "context_steps", 0)
    past = max_steps - 1 if context == "all" else min(context, max_steps - 1)
    return Plan(
        training_episodes=episodes,
        evaluations=evaluations,
        evaluation_episodes=evaluation_episodes,
        prompt_tokens=round(characters / per_token + past * (len(observation) / per_token + answer)),
        generated_tokens=steps * answer,
        decisions=steps,
        disk_gib=_disk(recipe),
    )


def _disk(recipe: Recipe) -> float | None:
    count = parameter_count(recipe.model.name)
    if count is None:
        return None
    trained = count
    if recipe.model.trainable_layers is not None:
        of_layer = layer_parameters(recipe.model.name)
        trained = count if of_layer is None else min(count, recipe.model.trainable_layers * of_layer)
    if recipe.model.lora is not None:
        count *= ADAPTER_SHARE
        trained = count
    # A checkpoint is what trains, Adam's two moments of it and the average where there is one.
    checkpoint = trained * (4 if getattr(recipe.algorithm, "average_decay", 0.0) > 0 else 3)
    reference = trained if getattr(recipe.algorithm, "kl_coef", 0.0) > 0 else 0.0
    # The old checkpoints are still there while one more, or at the end the model, is written.
    most = checkpoint * recipe.run.keep_checkpoints + max(checkpoint, count) + reference
    return most * _BYTES[recipe.model.dtype] / 2**30
