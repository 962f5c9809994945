r"""Annotations of ALFWorld by rule: subtasks and local progress without another language model.

The authors of STEP-HRL (arXiv:2604.05808, appendix A) let DeepSeek write them, by a prompt that fixes their form. The
form is regular enough for rules:

- ``Locate and pick up a O`` up to taking it, ``Locate and pick up a new O except O N`` for the second of two, ``Locate
  and use a L`` up to switching it on;
- ``Clean|Heat|Cool the O N with the R N``;
- ``Place the O N in/on the R N``.

While something is searched for, the progress ends with the receptacles that were looked into in vain,
``|| [Checked: shelf 2, shelf 1]``; otherwise it is a plain sentence about the action. A closed door is told, and its
receptacle is not checked yet.

:func:`progress_after` is a function of what the progress role is shown, so that the role can learn it exactly, and it
labels any player's steps. The expert starts each search from what that search has seen: what an earlier subtask saw is
not in the prompt of the low level, which could not learn to use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from stratagem.agents.roles import NOTHING, read_start, tidy
from stratagem.data.annotations import AnnotatedEpisode, AnnotatedStep
from stratagem.errors import ConfigError, GameError
from stratagem.games.alfworld import ALFWorld
from stratagem.games.alfworld_expert import expert_command
from stratagem.games.base import Game
from stratagem.seeding import derive_seed

__all__ = ["expert_episode", "expert_episodes", "is_consistent", "progress_after"]

_LOCATE = re.compile(r"Locate and (pick up|use) (?:an? |the )?(?:new )?(\w+)(?: except (.+))?", re.IGNORECASE)
_CHECKED = re.compile(r"\[Checked: ([^\]]*)\]")
_ARRIVES = re.compile(r"(go to|open|examine|close) (.+)")
_TAKES = re.compile(r"take (.+) from (.+)")
_PUTS = re.compile(r"put (.+) in/on (.+)|move (.+) to (.+)")
_TREATS = re.compile(r"(clean|heat|cool) (.+) with (.+)")
_PAST = {"clean": "Cleaned", "heat": "Heated", "cool": "Cooled"}
_TREATMENT = {"clean": "Clean", "heat": "Heat", "cool": "Cool"}


def progress_after(subtask: str, progress: str, action: str, observation: str) -> str:
    """Return the local progress after an action.

    >>> progress_after("Locate and pick up a cup", "None", "go to shelf 1", "On the shelf 1, you see a pen 2.")
    'No cup at shelf 1; others are unchecked. || [Checked: shelf 1]'

    Args:
        subtask: g.
        progress: p before.
        action: a.
        observation: what the game answered.
    """
    search = _LOCATE.fullmatch(subtask)
    sentence, seen_in = _sentence(action, observation, None if search is None else search)
    if search is None:
        return sentence
    found = _CHECKED.search(progress)
    checked = [name for name in found[1].split(", ") if name] if found else []
    if seen_in is not None and seen_in not in checked:
        checked.append(seen_in)
    return f"{sentence} || [Checked: {', '.join(checked)}]" if checked else sentence


def _sentence(action: str, observation: str, search: re.Match[str] | None) -> tuple[str, str | None]:
    """Return the sentence, and the receptacle that was looked into in vain."""
    if "Nothing happens" in observation:
        return "Nothing happened.", None
    if taken := _TAKES.fullmatch(action):
        return f"Picked up the {taken[1]} from the {taken[2]}.", None
    if put := _PUTS.fullmatch(action):
        return f"Placed the {put[1] or put[3]} in/on the {put[2] or put[4]}.", None
    if treated := _TREATS.fullmatch(action):
        return f"{_PAST[treated[1]]} the {treated[2]} with the {treated[3]}.", None
    if action.startswith("use "):
        return f"Turned on the {action.removeprefix('use ')}.", None
    at = _ARRIVES.fullmatch(action)
    if at is None:
        return "Looked around.", None
    place = at[2]
    if observation.endswith("is closed.") or at[1] == "close":
        unchecked = " and still unchecked" if search is not None else ""
        return f"The {place} is closed{unchecked}.", None
    if search is None:
        return f"{'Opened' if at[1] == 'open' else 'Arrived at'} the {place}.", None
    _, told, inside = observation.partition("you see ")
    if not told:
        return "Looked around.", None
    kind, known = search[2].lower(), (search[3] or "").lower()
    names = [name for name in re.findall(rf"\b{re.escape(kind)} \d+\b", inside) if name != known]
    if names:
        return f"Found the {names[0]} at the {place}.", None
    return f"No {kind} at {place}; others are unchecked.", place


def expert_episode(game: ALFWorld, *, seed: int, course: int = 0) -> AnnotatedEpisode | None:
    """Play the expert and annotate its episode; None where it fails.

    Args:
        game: any variant; its own view of the household is not used.
        seed: of the start.
        course: of what follows.
    """
    game.reset(seed=seed, course=course)
    world = game.world
    kind, target = (name.lower() for name in world.goal)
    view = read_start(f"{game.reply}", "")
    steps: list[AnnotatedStep] = []
    segment: list[AnnotatedStep] = []  # of the subtask under way, which is named once it is over
    observation, placed, seen, number = view.observation, "", 0, 0
    while True:
        action = expert_command(world, game.state, seen, game.wording)
        if action is None:
            return None
        result = game.step((action,))
        reply = tidy(game.reply)
        ended = result.terminated or result.truncated
        verb = action.split()[0]
        done = ended or verb in ("take", "put", "move", "clean", "heat", "cool", "use")
        segment.append(AnnotatedStep(number, "", NOTHING, observation, action, done, NOTHING, reply, result.rewards[0]))
        seen |= _seen(game, action, reply)
        observation = reply
        if done:
            subtask = _name(action, kind, target, placed)
            steps.extend(_labelled(segment, subtask))
            segment, number = [], number + 1
            if verb in ("put", "move"):
                match = _PUTS.fullmatch(action)
                assert match is not None
                placed = match[1] or match[3]
                seen = 1 << world.receptacle_index[match[2] or match[4]]  # what is there is known, and done
            elif verb == "take":
                seen = 0
        if ended:
            if not result.terminated:
                return None
            return AnnotatedEpisode(game.name, seed, course, view.task, view.scene, True, tuple(steps))


def _seen(game: ALFWorld, action: str, reply: str) -> int:
    """Return the mask of the receptacle that a reply tells the contents of."""
    at = _ARRIVES.fullmatch(action)
    if at is None or "you see" not in reply or at[2] not in game.world.receptacle_index:
        return 0
    return 1 << game.world.receptacle_index[at[2]]


def _name(action: str, kind: str, target: str, placed: str) -> str:
    """Return the subtask that an action completes."""
    if action.startswith("take "):
        return f"Locate and pick up a new {kind} except {placed}" if placed else f"Locate and pick up a {kind}"
    if action.startswith("use "):
        return f"Locate and use a {target}"
    if treated := _TREATS.fullmatch(action):
        return f"{_TREATMENT[treated[1]]} the {treated[2]} with the {treated[3]}"
    put = _PUTS.fullmatch(action)
    # Whatever else wins: the goal object is in the hand, and the lamp is already on.
    return f"Place the {put[1] or put[3]} in/on the {put[2] or put[4]}" if put else f"Locate and use a {target}"


def _labelled(segment: list[AnnotatedStep], subtask: str) -> list[AnnotatedStep]:
    labelled = []
    progress = NOTHING
    for step in segment:
        after = progress_after(subtask, progress, step.action, step.next_observation)
        labelled.append(replace(step, subtask=subtask, progress=progress, next_progress=after))
        progress = after
    return labelled


def is_consistent(episode: AnnotatedEpisode) -> bool:
    """Return whether every find is followed by going for it, as the low level can see no reason not to.

    An object that already is where it should be is such a reason for the expert.
    """
    for step in episode.steps:
        found = re.match(r"Found the (.+?) at the ", step.progress)
        if found is not None and not re.match(rf"(take {re.escape(found[1].split()[0])}|use) ", step.action):
            return False
    return True


def expert_episodes(
    make_game: Callable[[], Game], count: int, *, seed: int, excluded_starts: frozenset[str] = frozenset()
) -> list[AnnotatedEpisode]:
    """Return annotated expert episodes, each from its own start.

    Starts at which the expert fails, or goes against what the annotations say, are passed over.

    Args:
        make_game: makes ALFWorld.
        count: episodes.
        seed: of the run.
        excluded_starts: state keys at which no episode may start.

    Raises:
        ConfigError: another game, for which there are no rules.
        GameError: the expert fails too often.
    """
    game = make_game()
    try:
        if not isinstance(game, ALFWorld):
            raise ConfigError(
                f"There are rules to annotate ALFWorld and none for game {game.name!r}; set algorithm.annotations to a "
                "file (docs/algorithms/step_hrl.md), or play ALFWorld in this process (game.isolate = false)."
            )
        episodes: list[AnnotatedEpisode] = []
        attempt = 0
        while len(episodes) < count:
            if attempt >= 100 + 20 * count:
                raise GameError(
                    f"Of {attempt} starts of {game.name!r} only {len(episodes)} gave an expert episode outside the "
                    f"evaluation panels; expected {count}. Ask for fewer, or evaluate on fewer episodes."
                )
            start = derive_seed(seed, "expert", attempt)
            attempt += 1
            game.reset(seed=start)
            if game.state_key() in excluded_starts:
                continue
            episode = expert_episode(game, seed=start)
            if episode is not None and is_consistent(episode):
                episodes.append(episode)
    finally:
        game.close()
    return episodes
