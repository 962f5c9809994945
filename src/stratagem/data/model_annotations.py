"""Annotations of any game by a language model, in this process or served.

1. :func:`plain_episodes` lets a game's planner play; each episode is one subtask, the task itself, without progress.
   That is a valid annotation too: what is left of STEP-HRL without its hierarchy.
2. :func:`annotate` asks a model to cut each episode into subtasks, and then step by step for the local progress.

An answer that cannot be used costs its own episode, and is given as a reason. The prompts say in our words what those
of Zhen et al. 2026 (arXiv:2604.05808, appendix A) ask DeepSeek for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from stratagem.agents.roles import NOTHING, one_line, read_start, tidy
from stratagem.coroutines import run_coroutine
from stratagem.data.annotations import AnnotatedEpisode, AnnotatedStep
from stratagem.errors import ConfigError, GameError
from stratagem.games.base import Game
from stratagem.models.base import GenerationConfig, LanguageModel, Request
from stratagem.seeding import derive_seed

__all__ = ["annotate", "plain_episodes", "read_subtasks"]

_SUBTASKS = """You divide what an expert did into subtasks.
Each subtask is a stretch of consecutive actions that serve one aim, such as finding an object and taking it, changing \
it, or putting it somewhere. Name it by that aim, in a short sentence that could have been said before its first action.
Write one line for each subtask, in order, as FIRST-LAST: NAME, where FIRST and LAST are numbers of actions. The first \
subtask begins with action 1, each other one right after the one before, the last one ends with the last action. \
Write nothing else.
For example:
1-4: Locate and pick up a mug
5-6: Clean the mug 2 with the sinkbasin 1"""

_PROGRESS = """You keep the local progress of a subtask: one line that sums up what has been reached in it so far.
You are given the subtask, the progress before, an action and what was observed after it. Answer with the new progress \
and nothing else.
Spell names of objects and places as they are spelled there. Claim nothing that was not observed.
If the subtask is to locate something: say whether it was found, and end the line with || [Checked: A, B], the places \
that were looked into in vain. Keep those that were listed before. A closed place has not been looked into. \
Once the thing is found or taken, the search is over.
For any other subtask: say only what the action did, in a short sentence, without a list."""


def plain_episodes(
    make_game: Callable[[], Game],
    count: int,
    *,
    seed: int,
    task: str = "Play as well as you can.",
    excluded_starts: frozenset[str] = frozenset(),
) -> list[AnnotatedEpisode]:
    """Return episodes of a game's planner, each one subtask.

    Args:
        make_game: makes a game for one player.
        count: episodes; those that the game itself calls a failure are kept.
        seed: of the run.
        task: of a game that states none.
        excluded_starts: state keys at which no episode may start.

    Raises:
        ConfigError: the game has no planner, or more than one player.
        GameError: no start outside ``excluded_starts`` was found.
    """
    game = make_game()
    episodes: list[AnnotatedEpisode] = []
    try:
        if game.num_players != 1:
            raise ConfigError(f"Game {game.name!r} has {game.num_players} players; expected one for annotations.")
        for attempt in range(1000 + 20 * count):
            if len(episodes) == count:
                break
            start = derive_seed(seed, "expert", attempt)
            view = read_start(game.reset(seed=start)[0], task)
            if game.state_key() in excluded_starts:
                continue
            episodes.append(_play(game, start, view.task, view.scene, view.observation))
        else:
            raise GameError(
                f"Of {1000 + 20 * count} starts of {game.name!r} only {len(episodes)} are no starts of an evaluation "
                f"panel; expected {count}. Ask for fewer, or evaluate on fewer episodes."
            )
    finally:
        game.close()
    return episodes


def _play(game: Game, seed: int, task: str, scene: str, observation: str) -> AnnotatedEpisode:
    steps: list[AnnotatedStep] = []
    while True:
        action = game.planner_action(0)
        if action is None:
            raise ConfigError(f"Game {game.name!r} has no planner to annotate; give it one, or write annotations.")
        result = game.step((action,))
        after = tidy(result.observations[0]) or NOTHING
        ended = result.terminated or result.truncated
        steps.append(
            AnnotatedStep(0, task, NOTHING, observation, action, ended, NOTHING, after, float(result.rewards[0]))
        )
        observation = after
        if ended:
            success = bool(result.info.get("success", result.terminated))
            return AnnotatedEpisode(game.name, seed, 0, task, scene, success, tuple(steps))


def annotate(
    model: LanguageModel,
    episodes: Sequence[AnnotatedEpisode],
    *,
    temperature: float = 0.0,
    max_new_tokens: int = 400,
    max_concurrent: int = 16,
) -> tuple[list[AnnotatedEpisode], list[str]]:
    """Ask a model for subtasks and local progress.

    Args:
        model: any; it is closed at the end.
        episodes: what the expert did; subtasks that they have are replaced.
        temperature: of its answers.
        max_new_tokens: limit of an answer.
        max_concurrent: episodes that are worked on at once.

    Returns:
        The episodes that could be annotated, and a reason for each of the others.

    Raises:
        ModelError: the model cannot answer.
    """
    config = GenerationConfig(max_new_tokens, temperature)
    return run_coroutine(_annotate(model, episodes, config, max_concurrent))


async def _annotate(
    model: LanguageModel, episodes: Sequence[AnnotatedEpisode], config: GenerationConfig, max_concurrent: int
) -> tuple[list[AnnotatedEpisode], list[str]]:
    room = asyncio.Semaphore(max_concurrent)

    async def one(number: int, episode: AnnotatedEpisode) -> AnnotatedEpisode | str:
        async with room:
            try:
                return await _one(model, episode, config)
            except ValueError as error:
                return f"Episode {number}: {error}"

    try:
        found = await asyncio.gather(*(one(number, episode) for number, episode in enumerate(episodes)))
    finally:
        await model.aclose()
    good = [item for item in found if isinstance(item, AnnotatedEpisode)]
    return good, [item for item in found if isinstance(item, str)]


async def _one(model: LanguageModel, episode: AnnotatedEpisode, config: GenerationConfig) -> AnnotatedEpisode:
    lines = [f"{number}. {step.action} -> {step.next_observation}" for number, step in enumerate(episode.steps, 1)]
    user = f"Task: {episode.task}\nActions:\n" + "\n".join(lines)
    completion = await model.generate(Request((("system", _SUBTASKS), ("user", user)), config))
    subtasks = read_subtasks(completion.text, len(episode.steps))
    steps: list[AnnotatedStep] = []
    place = 0
    for number, (name, count) in enumerate(subtasks):
        progress = NOTHING
        for step in episode.steps[place : place + count]:
            user = (
                f"Subtask: {name}\nProgress before: {progress}\nAction: {step.action}\n"
                f"Observation: {step.next_observation}"
            )
            completion = await model.generate(Request((("system", _PROGRESS), ("user", user)), config))
            after = one_line(completion.text)
            if not after:
                raise ValueError(f"the progress after {step.action!r} is empty; expected one line")
            done = len(steps) + 1 == place + count
            steps.append(
                replace(step, subtask_number=number, subtask=name, progress=progress, done=done, next_progress=after)
            )
            progress = after
        place += count
    return replace(episode, steps=tuple(steps))


def read_subtasks(text: str, num_actions: int) -> list[tuple[str, int]]:
    r"""Return the name and the number of actions of each subtask.

    >>> read_subtasks("1-2: Locate and pick up a cup\n3: Place the cup 1 in/on the desk 1", 3)
    [('Locate and pick up a cup', 2), ('Place the cup 1 in/on the desk 1', 1)]

    Raises:
        ValueError: the lines do not cover the actions one after the other.
    """
    found: list[tuple[str, int]] = []
    after = 1
    for match in re.finditer(r"^\s*(\d+)(?:\s*-\s*(\d+))?\s*:\s*(.+?)\s*$", text, re.MULTILINE):
        first, last = int(match[1]), int(match[2] or match[1])
        if first != after or last < first:
            raise ValueError(f"subtask {match[3]!r} has actions {first}-{last}; expected it to begin with {after}")
        found.append((match[3], last - first + 1))
        after = last + 1
    if after != num_actions + 1:
        raise ValueError(f"the subtasks cover {after - 1} of {num_actions} actions; expected all of them")
    return found
