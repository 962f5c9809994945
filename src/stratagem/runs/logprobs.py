"""What saved weights think of the tokens that a run recorded: computed on the token tree, kept in the run folder.

Training moves probability towards tokens of good episodes and away from those of bad ones. Which tokens it moved is
seen by asking two sets of weights, such as the untrained model and the last checkpoint, for the log-probabilities of
one and the same recorded answers. This is the only place that computes them; the page and pandas read the files
(:mod:`stratagem.data.token_logprobs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stratagem.agents.language import AgentConfig
from stratagem.data.token_logprobs import (
    ANSWER,
    START,
    Place,
    TokenLogprobs,
    logprobs_file,
    read_token_logprobs,
    write_token_logprobs,
)
from stratagem.data.trajectories import StoredGroup, read_trajectories, trajectory_file
from stratagem.errors import RunError, UnknownNameError
from stratagem.models.base import TokenRow, TrainableModel
from stratagem.models.local import LocalModel
from stratagem.recipe import Recipe
from stratagem.runs.checkpoint import list_checkpoints, load_checkpoint
from stratagem.runs.folder import RunFolder
from stratagem.runs.weights import load_parameters

__all__ = [
    "Change",
    "Written",
    "change_of",
    "compute_logprobs",
    "find_weights",
    "list_weights_of_run",
    "sampling_temperature",
    "token_logprobs",
]


@dataclass(frozen=True)
class Written:
    """A file that is there now."""

    weights: str
    iteration: int
    num_tokens: int
    was_there: bool
    """It held all that was asked for already, so nothing was computed."""


@dataclass(frozen=True)
class Change:
    """How the probability of an iteration's tokens differs between two sets of weights."""

    num_tokens: int
    before: float
    """Mean log p of a token."""
    after: float
    better: float | None
    """Mean change over the tokens of episodes with an advantage above 0; None where there are none."""
    worse: float | None
    """Likewise below 0."""


def list_weights_of_run(run: RunFolder, recipe: Recipe) -> dict[str, Path | None]:
    """Return what weights a run still has: name -> checkpoint or model folder, in the order of training.

    The untrained model, :data:`START`, is made from the recipe and needs no file.
    """
    found: dict[str, Path | None] = {START: None}
    reference = run.path / "reference" / "000000"
    if reference.is_dir():
        found["000000"] = reference
    for path in list_checkpoints(run.checkpoints):  # a second generation of an iteration replaces the first
        found[path.name.partition(".")[0]] = path
    final = f"{recipe.algorithm.num_iterations:06d}"
    if final not in found and (run.path / "model").is_dir():
        found[final] = run.path / "model"
    return found


def find_weights(run: RunFolder, recipe: Recipe, word: str) -> str:
    """Return the name of weights that a user asks for: ``start``, ``newest``, ``final`` or an iteration.

    Raises:
        UnknownNameError: the word is none of these.
        RunError: the run does not have them, or no longer.
    """
    saved = [name for name in list_weights_of_run(run, recipe) if name != START]
    words = ", ".join(str(int(name)) for name in saved) or "none"
    total = recipe.algorithm.num_iterations
    if word == START or (word.isdecimal() and int(word) == 0 and recipe.warm_start is None):
        return START  # without a warm start nothing lies between the untrained model and iteration 1
    if word == "newest":
        if not saved:
            raise RunError(f"Run {run.name!r} has no checkpoint yet; look again after its first one.")
        return saved[-1]
    if word == "final":
        if f"{total:06d}" not in saved:
            raise RunError(
                f"Run {run.name!r} has no final weights, those of iteration {total}; iterations with weights: {words}."
            )
        return f"{total:06d}"
    if not word.isdecimal():
        raise UnknownNameError("weights", word, [START, "newest", "final", *(str(int(name)) for name in saved)])
    if f"{int(word):06d}" not in saved:
        raise RunError(
            f"Run {run.name!r} has no weights of iteration {int(word)}; iterations with weights: {words}. Older "
            "checkpoints are deleted; run.keep_checkpoints says how many stay."
        )
    return f"{int(word):06d}"


def sampling_temperature(recipe: Recipe) -> float:
    """Return the temperature at which tokens are asked for.

    It is that of training where answers are sampled at one, so that the numbers compare with the recorded ones. Agents
    that choose among actions, that have a temperature for each role, or that are greedy are asked at 1.
    """
    if isinstance(recipe.agent, AgentConfig) and recipe.agent.temperature > 0:
        return recipe.agent.temperature
    return 1.0


def compute_logprobs(
    run: RunFolder,
    recipe: Recipe,
    weights: Sequence[str],
    iterations: Sequence[int],
    *,
    limit: int | None = None,
) -> Iterator[Written]:
    """Write the files of some weights and iterations; yield after each. Files that hold enough are left alone.

    Args:
        run: may be in training.
        recipe: of the run; its device is used.
        weights: names from :func:`find_weights`.
        iterations: of the trajectories.
        limit: so many episodes of each iteration, the first ones; None is all.

    Raises:
        RunError: trajectories or weights are missing or damaged, or the disk is full.
        ModelError: the model cannot be loaded.
    """
    temperature = sampling_temperature(recipe)
    sources = list_weights_of_run(run, recipe)
    trained: LocalModel | None = None
    # The untrained model comes first: loading a checkpoint changes the weights in place.
    for name in sorted(dict.fromkeys(weights), key=lambda name: (name != START, name)):
        model: LocalModel | None = None
        for iteration in iterations:
            rows = _rows(read_trajectories(trajectory_file(run.trajectories, iteration)), limit)
            path = logprobs_file(run.path, name, iteration)
            num_tokens = sum(len(completion) for _, completion in rows.values())
            if _holds(path, rows, temperature):
                yield Written(name, iteration, num_tokens, True)
                continue
            if model is None:
                trained, model = _load(recipe, sources[name], trained)
            flat = token_logprobs(
                model, list(rows.values()), temperature=temperature, max_tokens=recipe.algorithm.max_tokens_per_pass
            )
            answers = {
                place: TokenLogprobs(tuple(completion), logprobs)
                for (place, (_, completion)), logprobs in zip(rows.items(), flat, strict=True)
            }
            write_token_logprobs(path, iteration, answers, temperature=temperature)
            yield Written(name, iteration, num_tokens, False)


@torch.no_grad()
def token_logprobs(
    model: TrainableModel, rows: Sequence[TokenRow], *, temperature: float, max_tokens: int
) -> list[tuple[float, ...]]:
    """Return log p of each completion token of each row; equal rows and equal beginnings are computed once.

    Args:
        model: whose weights are asked.
        rows: (prompt ids, completion ids), none of them empty.
        temperature: divides the logits; > 0.
        max_tokens: distinct tokens of one pass.
    """
    distinct = list(dict.fromkeys((tuple(prompt), tuple(completion)) for prompt, completion in rows))
    found: dict[TokenRow, tuple[float, ...]] = {}
    for part in model.split(distinct, max_tokens) if distinct else []:
        some = [distinct[number] for number in part]
        flat = iter(model.logprobs(some, temperature=temperature).logprobs.tolist())
        for row in some:
            found[row] = tuple(next(flat) for _ in row[1])
    return [found[tuple(prompt), tuple(completion)] for prompt, completion in rows]


def change_of(run: RunFolder, iteration: int, before: str, after: str) -> Change | None:
    """Compare two files over the answers that both hold; None where there are none.

    Raises:
        RunError: a file is missing or damaged.
    """
    first, _ = read_token_logprobs(logprobs_file(run.path, before, iteration))
    second, _ = read_token_logprobs(logprobs_file(run.path, after, iteration))
    advantages = {
        (group.index, place): advantage
        for group in read_trajectories(trajectory_file(run.trajectories, iteration))
        for place, advantage in enumerate(group.advantages)
    }
    shared = [place for place in first if place in second and first[place].completion_ids]
    if not shared:
        return None
    changes = {
        place: [b - a for a, b in zip(first[place].logprobs, second[place].logprobs, strict=True)] for place in shared
    }

    def over(sign: int) -> float | None:
        kept = [
            number
            for place, numbers in changes.items()
            for number in numbers
            if sign * (advantages.get(place[:2]) or 0.0) > 0
        ]
        return sum(kept) / len(kept) if kept else None

    count = sum(map(len, changes.values()))
    return Change(
        num_tokens=count,
        before=sum(sum(first[place].logprobs) for place in shared) / count,
        after=sum(sum(second[place].logprobs) for place in shared) / count,
        better=over(1),
        worse=over(-1),
    )


def _rows(groups: Sequence[StoredGroup], limit: int | None) -> dict[Place, TokenRow]:
    """Return the prompt and the answer of everything that was said, by its place."""
    found: dict[Place, TokenRow] = {}
    episodes = [(group.index, place, t) for group in groups for place, t in enumerate(group.group.trajectories)]
    for index, place, trajectory in episodes[:limit]:
        for number, step in enumerate(trajectory.steps):
            said = [(part, (g.prompt_ids, g.completion_ids)) for part, g in enumerate(step.generations)]
            for part, row in [*said, (ANSWER, (step.prompt_ids, step.completion_ids))]:
                if row[0] and row[1]:  # not where the prompt filled the context, nor of a player without tokens
                    found[index, place, number, part] = row
    return found


def _holds(path: Path, rows: dict[Place, TokenRow], temperature: float) -> bool:
    """Return whether a file is there and has every answer that is asked for."""
    if not path.is_file():
        return False
    try:
        known, at = read_token_logprobs(path)
    except RunError:
        return False  # damaged: made again
    return at == temperature and all(
        place in known and known[place].completion_ids == tuple(completion) for place, (_, completion) in rows.items()
    )


def _load(recipe: Recipe, source: Path | None, model: LocalModel | None) -> tuple[LocalModel | None, LocalModel]:
    """Return the model that takes checkpoints, if it was made, and the one with the weights of ``source``."""
    config = replace(recipe.model, gradient_checkpointing=False)  # nothing is kept for a backward pass
    if source is not None and source.name == "model":
        return model, LocalModel.load(replace(config, name=str(source), lora=None))
    if model is None:
        model = LocalModel.load(config)
    if source is not None:
        load_parameters(model, load_checkpoint(source).played, source)
    return model, model
