import itertools
import random
import re

import numpy as np
import pytest

from stratagem.errors import GameError
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.games.checks import check_game
from stratagem.seeding import generator


class Walk(Game):
    """Two players walk on a line by chance; keeps the contract. Every fault below breaks one thing of it."""

    name = "walk"
    num_players = 2
    max_steps = 6

    def __init__(self):
        self.state = None
        self.over = False

    def reset(self, *, seed, course=0):
        self.state = [int(x) for x in generator(seed, "walk", "start").integers(5, size=2)]
        self.rng = generator(seed, "walk", "course", course)
        self.count = 0
        self.over = False
        return tuple(self.observation(player) for player in range(2))

    def step(self, actions):
        check_joint_action(self, actions, started=self.state is not None, over=self.over)
        for player, action in enumerate(actions):
            if action is not None:
                self.state[player] += {"left": -1, "right": 1}[action] * int(self.rng.integers(1, 3))
        self.count += 1
        self.over = self.count >= self.max_steps
        return self.result((0.0, 1.0), False, self.over)

    def result(self, rewards, terminated, truncated, **info):
        observations = tuple(self.observation(player) for player in range(2))
        return GameStep(observations, rewards, terminated, truncated, info)

    def legal_actions(self, player=0):
        return () if self.over else ("left", "right")

    def observation(self, player=0):
        return f"you: {self.state[player]}, other: {self.state[1 - player]}"

    def state_key(self):
        return str(self.state)

    def render(self):
        return str(self.state)


def fault(**methods):
    return type("Fault", (Walk,), methods)


def step_with(**changes):
    def step(self, actions):
        result = Walk.step(self, actions)
        return GameStep(**({key: getattr(result, key) for key in GameStep.__dataclass_fields__} | changes))

    return step


def unseeded_start(self, *, seed, course=0):
    Walk.reset(self, seed=seed, course=course)
    self.state = [next(COUNTER), 0]
    return tuple(self.observation(player) for player in range(2))


def start_from_course(self, *, seed, course=0):
    Walk.reset(self, seed=seed, course=course)
    self.state = [course, 0]
    return tuple(self.observation(player) for player in range(2))


def unseeded_chance(self, actions):
    result = Walk.step(self, actions)
    return GameStep(result.observations, (float(next(COUNTER)), 0.0), result.terminated, result.truncated)


def remember_instances(self):
    Walk.__init__(self)
    self.number = float(next(COUNTER))


def reward_is_number(self, actions):
    result = Walk.step(self, actions)
    return GameStep(result.observations, (self.number, 0.0), result.terminated, result.truncated)


def no_start_check(self, actions):
    if self.state is None:
        return GameStep(("", ""), (0.0, 0.0), False, False)
    return Walk.step(self, actions)


def type_error_before_reset(self, actions):
    if self.state is None:
        raise TypeError("state is None")
    return Walk.step(self, actions)


def accept_any_word(self, actions):
    return Walk.step(self, tuple("left" if action == "no such action" else action for action in actions))


def accept_any_count(self, actions):
    return Walk.step(self, tuple(actions)[:2])


def accept_after_end(self, actions):
    if self.state is not None and self.over:
        return self.result((0.0, 0.0), True, False)
    return Walk.step(self, actions)


def refuse_none(self, actions):
    if self.state is not None and None in actions:
        raise KeyError(None)
    return Walk.step(self, actions)


def never_end(self, actions):
    result = Walk.step(self, actions)
    self.over = False
    return GameStep(result.observations, result.rewards, False, False)


class Reading(Walk):
    def render(self):
        self.looked += 1
        return str(self.looked)

    def reset(self, *, seed, course=0):
        self.looked = 0
        return super().reset(seed=seed, course=course)


def global_python(self, actions):
    random.random()
    return Walk.step(self, actions)


def global_numpy(self, actions):
    np.random.random()
    return Walk.step(self, actions)


def no_moves(self, player=0):
    return ()


def stale_observation(self, player=0):
    return "start" if self.count == 0 else f"count {self.count} {next(COUNTER)}"


class Nameless(Walk):
    name = None


COUNTER = itertools.count()

REFUSE = "call check_joint_action(self, actions, ...) first in step"

FAULTS = {
    "not a game": (dict, "make_game returned dict, not a Game; derive the class from Game."),
    "no name": (Nameless, "Nameless has no name; set name = '...' in the class body."),
    "step before reset": (
        fault(step=no_start_check),
        f"walk: step before reset was accepted; {REFUSE} to refuse it.",
    ),
    "step before reset raises another error": (
        fault(step=type_error_before_reset),
        f"walk: step before reset raised TypeError, not GameError; {REFUSE}.",
    ),
    "unseeded start": (
        fault(reset=unseeded_start),
        "walk: reset(seed=0, course=0) starts differently from reset(seed=0, course=0); "
        "draw the start from generator(seed, ...) made in reset.",
    ),
    "start from course": (
        fault(reset=start_from_course),
        "walk: reset(seed=0, course=1) starts differently from reset(seed=0, course=0); "
        "only what happens after the start may depend on course.",
    ),
    "key with an id": (
        fault(__init__=remember_instances, state_key=lambda self: str(self.number)),
        "walk: state_key of two games in the same start (seed=0) differs; "
        "build it from the state alone, in a fixed order, without ids or counters.",
    ),
    "unseeded chance": (
        fault(step=unseeded_chance),
        "walk: the same actions after reset(seed=0, course=0) led to two different episodes; "
        "draw chance from generator(seed, ..., course) made in reset, and forget the episode before.",
    ),
    "depends on the object": (
        fault(__init__=remember_instances, step=reward_is_number),
        "walk: a new game plays seed=0, course=0 differently from a used one; "
        "keep nothing from one episode to the next.",
    ),
    "nothing to do": (
        fault(legal_actions=no_moves),
        "walk: no player has a legal action after 0 step(s), yet the episode has not ended; "
        "return terminated=True from the step that leaves nothing to do.",
    ),
    "illegal word": (
        fault(step=accept_any_word),
        f"walk: the illegal word 'no such action' was accepted; {REFUSE} to refuse it.",
    ),
    "too many actions": (
        fault(step=accept_any_count),
        f"walk: 3 actions for 2 player(s) was accepted; {REFUSE} to refuse it.",
    ),
    "stale observation": (
        fault(observation=stale_observation),
        "walk: observation(player) differs from what step returned; build both by the same function.",
    ),
    "no limit": (
        fault(step=never_end),
        "walk: the episode of seed=0 did not end within max_steps=6 steps; "
        "count steps in step and return truncated=True at max_steps.",
    ),
    "legal list": (
        fault(legal_actions=lambda self, player=0: ["left", "right"]),
        "walk: legal_actions(0) returned ['left', 'right']; return a tuple of words.",
    ),
    "padded word": (
        fault(legal_actions=lambda self, player=0: ("left", " right")),
        "walk: the legal action ' right' is empty, padded or not lowercase, so no answer can match it; "
        "use stripped lowercase words.",
    ),
    "word with a tag": (
        fault(legal_actions=lambda self, player=0: ("left", "go </action> right")),
        "walk: the legal action 'go </action> right' holds the tag that answers end with, so no answer can match it; "
        "use words without <action> and </action>.",
    ),
    "word twice": (
        fault(legal_actions=lambda self, player=0: ("left", "left")),
        "walk: legal_actions(0) names a word twice in ('left', 'left'); name each once.",
    ),
    "illegal planner": (
        fault(planner_action=lambda self, player=0: "fly"),
        "walk: planner_action(0) returned 'fly', which is not among ('left', 'right').",
    ),
    "illegal random action": (
        fault(random_action=lambda self, player, rng: "fly"),
        "walk: random_action(0) returned 'fly', which is not among ('left', 'right').",
    ),
    "one observation": (
        fault(step=step_with(observations=("one",))),
        "walk: step returned 1 observation(s) for 2 player(s); return a tuple with one text for each player.",
    ),
    "observation instead of a tuple": (
        fault(reset=lambda self, *, seed, course=0: "hello"),
        "walk: reset returned str observation(s) for 2 player(s); return a tuple with one text for each player.",
    ),
    "empty observation": (
        fault(step=step_with(observations=("one", " "))),
        "walk: step returned an observation that is not a text; return non-empty strings.",
    ),
    "picture that is no text": (
        fault(render=lambda self: 3),
        "walk: render or state_key returned int; return plain text (str).",
    ),
    "one reward": (
        fault(step=step_with(rewards=(1.0,))),
        "walk: step returned 1 reward(s) for 2 player(s); return a tuple with one number for each player.",
    ),
    "infinite reward": (
        fault(step=step_with(rewards=(0.0, float("nan")))),
        "walk: step returned rewards=(0.0, nan); every reward must be a finite number.",
    ),
    "both flags": (
        fault(step=step_with(terminated=True, truncated=True)),
        "walk: a step is both terminated and truncated; "
        "truncated means that the limit was reached in a state that is not terminal.",
    ),
    "success that is no bool": (
        fault(step=step_with(info={"success": 1.0})),
        "walk: info['success']=1.0 is not a bool; give True or False, or leave the key out.",
    ),
    "step after the end": (
        fault(step=accept_after_end),
        f"walk: step after the end was accepted; {REFUSE} to refuse it.",
    ),
    "legal after the end": (
        fault(legal_actions=lambda self, player=0: ("left", "right")),
        "walk: legal_actions(0) is ('left', 'right') after the end; return ().",
    ),
    "reading changes": (
        Reading,
        "walk: reading observation, render or state_key twice gives two answers; reading must not change "
        "the state or draw random numbers.",
    ),
    "none refused": (
        fault(step=refuse_none),
        "walk: step raised KeyError for the action None; None means no action and must always be accepted.",
    ),
    "key with a counter": (
        fault(state_key=lambda self: f"{self.state} step {self.count}"),
        re.compile(
            r"walk: state_key changed from '(\[\d, \d\]) step 0' to '\1 step 1' while nothing that is seen changed; "
            r"leave step counters and history out of it\."
        ),
    ),
    "global random": (
        fault(step=global_python),
        "walk: the global random state of random or numpy changed; "
        "draw from a generator of the game's own, made in reset by stratagem.seeding.generator.",
    ),
    "global numpy random": (
        fault(step=global_numpy),
        "walk: the global random state of random or numpy changed; "
        "draw from a generator of the game's own, made in reset by stratagem.seeding.generator.",
    ),
}


def test_a_game_that_keeps_the_contract_passes():
    check_game(Walk)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name):
    make_game, message = FAULTS[name]
    with pytest.raises(GameError) as caught:
        check_game(make_game)
    if isinstance(message, str):
        assert str(caught.value) == message
    else:
        assert message.fullmatch(str(caught.value))
