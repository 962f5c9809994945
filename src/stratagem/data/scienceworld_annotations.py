r"""Annotations of ScienceWorld by rule: the engine's own solutions, cut into subtasks, with local progress.

The authors of STEP-HRL (arXiv:2604.05808, appendix A) cut them by hand-written strategies for each kind of task and let
DeepSeek write the progress. Here one set of rules serves all tasks. A command that changes something ends a subtask,
which is named after it; looking, opening and closing belong to the subtask that they serve:

- ``Go to the R``: all moves up to R, with doors and looks between them; ``|| [Route: hallway -> kitchen]``;
- ``Find and pick up the O``: what is opened on the way; ``|| [Opened: cupboard, fridge]``;
- ``Build the circuit``: all connections in a row; ``|| [Connections: battery anode to red wire terminal 1]``;
- ``Wait and watch``: all waiting in a row, with looks between; ``|| [Waited: 3 times]``;
- ``Focus on the O``, ``Activate the O``, ``Move the A to the B``, ``Use the A on the B``, ``Read the O`` and so on:
  what the command says.

A command that is answered with a question is not done yet; the answer ends it. :func:`progress_after` is a function of
what the progress role is shown, so that the role can learn it exactly, and it labels any player's steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stratagem.agents.roles import NOTHING, one_line, read_start, tidy
from stratagem.data.annotations import AnnotatedEpisode, AnnotatedStep
from stratagem.errors import ConfigError, GameError
from stratagem.games.base import Game
from stratagem.games.scienceworld import ScienceWorld
from stratagem.games.scienceworld_engine import UNKNOWN_COMMAND
from stratagem.seeding import generator

__all__ = ["expert_episode", "expert_episodes", "progress_after", "segment_ends", "subtask_name"]

_MOVES = re.compile(r"(?:go to|teleport to) (.+)")
_DOOR = re.compile(r"(?:open|close) (?:the )?(.*\bdoor\b.*)")
_PICKS = re.compile(r"pick up (.+)")
_OPENS = re.compile(r"open (.+)")
_CONNECTS = re.compile(r"connect (.+)")
_WAITS = re.compile(r"wait\d*")
_LOOKS = re.compile(r"(?:look|examine|inventory|task)\b.*")
_SERVES = re.compile(r"(?:look|examine|inventory|task|open|close)\b.*")
_PAIR = re.compile(
    r"(use) (.+?) (on) (.+)|(move) (.+?) (to) (.+)|(pour|dunk) (.+?) (into) (.+)|(pour|dunk) (.+) (in) (.+)"
)
_CHOICE = re.compile(r"\d+")
_ASKS = "Ambiguous request:"
_LIST = re.compile(r"\|\| \[(\w+): (.*)\]$")
_PAST = {
    "activate": "Activated",
    "close": "Closed",
    "connect": "Connected",
    "deactivate": "Deactivated",
    "disconnect": "Disconnected",
    "drop": "Dropped",
    "dunk": "Dunked",
    "eat": "Ate",
    "flush": "Flushed",
    "focus": "Focused",
    "go": "Went",
    "mix": "Mixed",
    "move": "Moved",
    "open": "Opened",
    "pick": "Picked",
    "pour": "Poured",
    "put": "Put",
    "teleport": "Went",
    "use": "Used",
}
_TOLD = re.compile(r"(?:use|read|look at|look in|examine)\b.*")
_TOLD_LENGTH = 200
"""Characters of an answer that the progress repeats; the longest of what is measured or read is about that long."""


# ---- subtasks --------------------------------------------------------------------------------------------------------


def segment_ends(actions: list[str], replies: list[str]) -> list[bool]:
    """Return for each command of an episode whether it completes a subtask.

    >>> segment_ends(["open door to kitchen", "go to kitchen", "open cupboard", "pick up pot"], [""] * 4)
    [False, True, False, True]

    Args:
        actions: all commands.
        replies: what the engine said to each.
    """
    asked = [reply.startswith(_ASKS) for reply in replies]
    said = _meant(actions, asked)
    ends = []
    for place, action in enumerate(said):
        rest = said[place + 1 :]
        if place == len(said) - 1:
            end = True
        elif asked[place] or _SERVES.fullmatch(action):
            end = False
        elif _MOVES.fullmatch(action):
            end = not _goes_on(rest, _MOVES, _DOOR, _LOOKS)
        elif _CONNECTS.fullmatch(action):
            end = not _goes_on(rest, _CONNECTS, _LOOKS)
        elif _WAITS.fullmatch(action):
            end = not _goes_on(rest, _WAITS, _LOOKS)
        else:
            end = True
        ends.append(end)
    return ends


def _meant(actions: list[str], asked: list[bool]) -> list[str]:
    """Return the commands, with the answer to a question replaced by the command that was asked about."""
    meant: list[str] = []
    for place, action in enumerate(actions):
        answers = place > 0 and asked[place - 1] and _CHOICE.fullmatch(action)
        meant.append(meant[-1] if answers else action)
    return meant


def _goes_on(rest: list[str], kind: re.Pattern[str], *between: re.Pattern[str]) -> bool:
    """Return whether a command of the kind comes next, or after others that may stand between."""
    for action in rest:
        if kind.fullmatch(action):
            return True
        if not any(other.fullmatch(action) for other in between):
            return False
    return False


def subtask_name(action: str) -> str:
    """Return the subtask that a command completes.

    >>> subtask_name("move metal pot in inventory to stove")
    'Move the metal pot to the stove'
    """
    text = one_line(action).replace(" in inventory", "")
    if moved := _MOVES.fullmatch(text):
        return f"Go to the {moved[1]}"
    if picked := _PICKS.fullmatch(text):
        return f"Find and pick up the {picked[1]}"
    if _CONNECTS.fullmatch(text):
        return "Build the circuit"
    if _WAITS.fullmatch(text):
        return "Wait and watch"
    if pair := _PAIR.fullmatch(text):
        verb, what, word, where = filter(None, pair.groups())
        return f"{verb.capitalize()} the {what} {word} the {where}"
    if text.startswith("focus on "):
        return f"Focus on the {text.removeprefix('focus on ')}"
    if text.startswith("put down "):
        return f"Put down the {text.removeprefix('put down ')}"
    if text.startswith("look"):
        return text.capitalize()
    verb, _, what = text.partition(" ")
    return f"{verb.capitalize()} the {what}" if what else verb.capitalize()


# ---- progress --------------------------------------------------------------------------------------------------------


def progress_after(subtask: str, progress: str, action: str, observation: str) -> str:
    """Return the local progress after an action.

    >>> progress_after("Find and pick up the pot", "None", "open cupboard", "The cupboard is now open.")
    'Opened the cupboard. || [Opened: cupboard]'

    Args:
        subtask: g.
        progress: p before.
        action: a.
        observation: what the game answered, in the view ``look`` or ``raw``.
    """
    reply = _reply(observation)
    works = reply != UNKNOWN_COMMAND and not reply.startswith(_ASKS)
    sentence = _sentence(action, reply) if works else _failure(reply)
    kind, items = _items(subtask, progress)
    if works and kind:
        items = _added(kind, items, action)
    return f"{sentence} || [{kind}: {items}]" if items else sentence


def _reply(observation: str) -> str:
    """Return what the engine said, without what the view ``look`` adds."""
    found = re.match(r"Obs: (.*?)\nLook: ", observation, re.DOTALL)
    return one_line(found[1] if found else observation)


def _failure(reply: str) -> str:
    return "It was asked which one is meant." if reply.startswith(_ASKS) else "Nothing happened."


def _sentence(action: str, reply: str) -> str:
    if _TOLD.fullmatch(action):
        return reply[:_TOLD_LENGTH]
    if _WAITS.fullmatch(action):
        return "Waited."
    if _CHOICE.fullmatch(action):
        return reply[:_TOLD_LENGTH]
    verb, _, what = action.partition(" ")
    if verb not in _PAST:
        return "Looked around." if _LOOKS.fullmatch(action) else f"Did this: {action}."
    for word in ("up", "down", "on", "to"):
        if what.startswith(f"{word} "):
            return f"{_PAST[verb]} {word} the {what.removeprefix(f'{word} ')}."
    return f"{_PAST[verb]} the {what}."


def _items(subtask: str, progress: str) -> tuple[str, str]:
    """Return what a subtask keeps a list of, and the list so far."""
    for beginning, kind in (
        ("Go to ", "Route"),
        ("Find and pick up ", "Opened"),
        ("Build the circuit", "Connections"),
        ("Wait ", "Waited"),
    ):
        if subtask.startswith(beginning):
            found = _LIST.search(progress)
            return kind, found[2] if found and found[1] == kind else ""
    return "", ""


def _added(kind: str, items: str, action: str) -> str:
    if kind == "Waited":
        count = int(items.split()[0]) if items else 0
        count += bool(_WAITS.fullmatch(action))
        return f"{count} time{'s' * (count > 1)}" if count else ""
    pattern, join = {"Route": (_MOVES, " -> "), "Opened": (_OPENS, ", "), "Connections": (_CONNECTS, ", ")}[kind]
    found = pattern.fullmatch(action)
    return items if found is None else join.join(filter(None, (items, found[1])))


# ---- episodes --------------------------------------------------------------------------------------------------------


def expert_episode(game: ScienceWorld, *, seed: int, course: int = 0) -> AnnotatedEpisode | None:
    """Play the engine's solution and annotate it; None where it does not reach a score of 100 in time.

    Args:
        game: any view; what it shows is what is annotated.
        seed: of the start.
        course: of what follows.
    """
    (shown,) = game.reset(seed=seed, course=course)
    view = read_start(shown, "")
    actions, replies, shows, rewards = [], [], [view.observation], []
    while True:
        action = game.planner_action()
        assert action is not None
        result = game.step((action,))
        actions.append(action)
        replies.append(game.reply)
        shows.append(tidy(result.observations[0]) or NOTHING)
        rewards.append(result.rewards[0])
        if result.terminated or result.truncated:
            break
    if not result.info["success"]:
        return None
    asked = [reply.startswith(_ASKS) for reply in replies]
    meant, ends = _meant(actions, asked), segment_ends(actions, replies)
    steps: list[AnnotatedStep] = []
    first = 0
    for place, end in enumerate(ends):
        if end:
            subtask, progress = subtask_name(meant[place]), NOTHING
            for number in range(first, place + 1):
                step = AnnotatedStep(
                    subtask_number=sum(ends[:number]),
                    subtask=subtask,
                    progress=progress,
                    observation=shows[number],
                    action=actions[number],
                    done=ends[number],
                    next_progress=progress_after(subtask, progress, actions[number], shows[number + 1]),
                    next_observation=shows[number + 1],
                    reward=rewards[number],
                )
                steps.append(step)
                progress = step.next_progress
            first = place + 1
    return AnnotatedEpisode(game.name, seed, course, view.task, view.scene, True, tuple(steps))


def expert_episodes(
    make_game: Callable[[], Game], count: int, *, seed: int, excluded_starts: frozenset[str] = frozenset()
) -> list[AnnotatedEpisode]:
    """Return annotated episodes, each of another variation, in an order that the seed fixes.

    Variations whose solution does not reach a score of 100 in time are passed over.

    Args:
        make_game: makes ScienceWorld.
        count: episodes.
        seed: of the run.
        excluded_starts: state keys at which no episode may start.

    Raises:
        ConfigError: the game is in another process.
        GameError: there are too few variations that are solved.
    """
    game = make_game()
    try:
        if not isinstance(game, ScienceWorld):
            raise ConfigError(
                f"game={game.name!r} is played in another process, where its solutions cannot be annotated; set "
                "game.isolate = false. ScienceWorld's engine is a process of its own in any case."
            )
        episodes: list[AnnotatedEpisode] = []
        for start in generator(seed, "expert").permutation(len(game.starts)):
            if len(episodes) == count:
                return episodes
            game.reset(seed=int(start))
            if game.state_key() in excluded_starts:
                continue
            episode = expert_episode(game, seed=int(start))
            if episode is not None:
                episodes.append(episode)
        if len(episodes) < count:
            raise GameError(
                f"Of {len(game.starts)} variations only {len(episodes)} gave an expert episode outside the evaluation "
                f"panels; expected {count}. Ask for fewer, name more tasks, or raise max_steps."
            )
        return episodes
    finally:
        game.close()
