"""ALFWorld: find things in a household, clean, heat or cool them, and put them where they belong.

The text game of Shridhar et al. 2021 (arXiv:2010.03768) without PDDL, TextWorld or a planner: the rules are pure Python
(:mod:`~stratagem.games.alfworld_rules`) and the replies are those of the original, word for word. Households are
generated (:mod:`~stratagem.games.alfworld_generate`), which needs no files, or are the original ones
(:mod:`~stratagem.games.alfworld_data`).

Reward is 1 for the command that reaches the goal, which ends the episode; after ``max_steps`` commands it is truncated.

The original takes any text and answers "Nothing happens." to what it cannot do. Here such a text is not a legal action,
as in every game of this package, and ``None`` is what gets that answer and counts as a step. :meth:`ALFWorld.step_text`
takes any text, as the original does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from stratagem.errors import ConfigError, GameError, UnknownNameError
from stratagem.games.alfworld_data import SPLITS, load_games
from stratagem.games.alfworld_expert import ALL_SEEN, expert_command
from stratagem.games.alfworld_generate import generate_record
from stratagem.games.alfworld_rules import (
    NOTHING_HAPPENS,
    TASK_TYPES,
    WORDINGS,
    Outcome,
    State,
    World,
    admissible_commands,
    advance,
    build_world,
    describe,
    first_reply,
    is_won,
    listing,
    room_text,
)
from stratagem.games.base import Game, GameStep, check_joint_action

__all__ = ["ALFWorld"]

SOURCES = ("generated", "data")
VIEWS = ("full", "raw")
PLANNERS = ("search", "oracle")

_RULES = """Act in a household with text commands until the task is done.
[Commands]
"go to (receptacle)"
"open (receptacle)"
"close (receptacle)"
"take (object) from (receptacle)"
"{put}"
"clean (object) with (receptacle)"
"heat (object) with (receptacle)"
"cool (object) with (receptacle)"
"use (object)"
"examine (receptacle, or object that you hold)"
"look"
"inventory"
[Rules]
Objects and receptacles have a name and a number, as in "go to shelf 1".
You see what is in a receptacle when you go to it or open it. You can hold one object.
Clean with a sinkbasin, heat with a microwave, cool with a fridge, while you hold the object. Use a lamp to turn it on.
Whatever cannot be done changes nothing, is answered with "Nothing happens." and counts as a step.
"""
_PUT = {"put": "put (object) in/on (receptacle)", "move": "move (object) to (receptacle)"}


class ALFWorld(Game):
    """One player in a household with a task; see the module for the rules."""

    name = "alfworld"

    def __init__(
        self,
        *,
        source: str = "generated",
        split: str = "train",
        data: str | None = None,
        task_types: Sequence[str] | None = None,
        wording: str = "put",
        max_steps: int = 50,
        view: str = "full",
        history: int | None = None,
        arrival: bool = False,
        planner: str = "search",
    ) -> None:
        """Set which games are played and how they are shown.

        Args:
            source: ``generated`` households, or the original games in ``data``.
            split: ``train``, ``valid_seen`` (rooms of training) or ``valid_unseen`` (other rooms).
            data: official folder or compact file; None for the environment variable ``ALFWORLD_DATA``.
            task_types: which of the six types of tasks are played; None for all.
            wording: ``put`` for "put X in/on Y" (alfworld 0.3), ``move`` for "move X to Y" (0.4 and later).
            max_steps: an episode is truncated after this many commands.
            view: ``full`` shows rules, room, task and what was done so far; ``raw`` the reply of the engine only.
            history: of what was done so far show this many commands; None for all.
            arrival: keep "You arrive at X." before what is seen there, as alfworld 0.4 says it.
            planner: the expert that searches (``search``), or one that knows where everything is (``oracle``).
        """
        for key, value, known in (
            ("source", source, SOURCES),
            ("split", split, SPLITS),
            ("wording", wording, WORDINGS),
            ("view", view, VIEWS),
            ("planner", planner, PLANNERS),
        ):
            if value not in known:
                raise UnknownNameError(key, value, known)
        if data is not None and source == "generated":
            raise ConfigError(
                f"data={data!r} is not read with source='generated'; set source='data' or leave data out."
            )
        for task_type in task_types or ():
            if task_type not in TASK_TYPES:
                raise UnknownNameError("task type", task_type, TASK_TYPES)
        if task_types is not None and not task_types:
            raise ConfigError("task_types=[] leaves nothing to play; name one or more, or leave task_types out.")
        if max_steps < 1:
            raise ConfigError(f"max_steps={max_steps!r} leaves no step to play; set max_steps to 1 or more.")
        if history is not None and history < 1:
            raise ConfigError(
                f"history={history!r} hides the answer to the last command; set history to 1 or more, or leave it out "
                "to show everything."
            )
        if history is not None and view == "raw":
            raise ConfigError(
                f"history={history!r} is not shown with view='raw'; set view='full' or leave history out."
            )
        if arrival and wording == "put":
            raise ConfigError(
                "arrival=True needs wording='move': alfworld 0.3 numbers places by a list that games do not keep; "
                "set wording='move' or arrival=False."
            )
        self.source, self.split, self.data = source, split, data
        self.task_types = TASK_TYPES if task_types is None else tuple(dict.fromkeys(task_types))
        self.wording, self.view, self.history, self.arrival, self.planner = wording, view, history, arrival, planner
        self.max_steps = max_steps
        self._indices: tuple[int, ...] | None = None
        self._world: World | None = None
        self._state: State
        self._seen = 0
        self._steps = 0
        self._over = False
        self._reply = ""
        self._opening = ""
        self._log: list[str] = []
        self._legal: tuple[str, ...] | None = None

    @property
    def num_starts(self) -> int | None:
        """How many games there are: seeds 0 to ``num_starts - 1`` play each once; None where they are generated."""
        return None if self.source == "generated" else len(self._find_indices())

    def _find_indices(self) -> tuple[int, ...]:
        if self._indices is None:
            records = load_games(self.data, self.split).records
            self._indices = tuple(i for i, record in enumerate(records) if record["type"] in self.task_types)
            if not self._indices:
                raise ConfigError(
                    f"task_types={list(self.task_types)!r} has no game in split={self.split!r}; name other types."
                )
        return self._indices

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start the game of ``seed``; nothing happens by chance, so ``course`` changes nothing."""
        if seed < 0:
            raise ConfigError(f"seed={seed!r} is negative; use 0 or a positive integer.")
        if self.source == "generated":
            self._world = _generated(int(seed), self.split, self.task_types)
        else:
            indices = self._find_indices()
            self._world = load_games(self.data, self.split).world(indices[int(seed) % len(indices)])
        self._state = self._world.start
        self._seen, self._steps, self._over = 0, 0, False
        self._reply = first_reply(self._world)
        self._opening = (
            f"{_RULES.format(put=_PUT[self.wording])}[Household]\n{room_text(self._world)}\n"
            f"Your task is to: {self._world.task}"
        )
        self._log = []
        self._legal = None
        return (self.observation(),)

    @property
    def world(self) -> World:
        """The household that is played."""
        if self._world is None:
            raise GameError(f"{self.name} has not been started; call reset(seed=...) first.")
        return self._world

    @property
    def state(self) -> State:
        """What commands have changed."""
        assert self.world
        return self._state

    @property
    def reply(self) -> str:
        """What the engine said last."""
        assert self.world
        return self._reply

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Carry out one command; ``None`` changes nothing and the step counts."""
        world = self._world
        if world is None or self._over or len(actions) != 1:
            check_joint_action(self, actions, started=world is not None, over=self._over)
        assert world is not None
        command = actions[0]
        outcome = None if command is None else advance(world, self._state, command, self.wording)
        if outcome is None and command is not None:
            # Only here the legal actions are worked out: they are what the message lists.
            check_joint_action(self, actions, started=True, over=False)
            raise AssertionError(f"{command!r} is admissible but was not carried out")
        return self._apply(world, command, outcome)

    def step_text(self, text: str) -> GameStep:
        """Carry out any text as the original engine does; what it cannot do changes nothing and the step counts.

        Raises:
            GameError: before ``reset`` or after the end.
        """
        check_joint_action(self, (None,), started=self._world is not None, over=self._over)
        text = text.strip()  # as the original does
        return self._apply(self.world, text, advance(self.world, self._state, text, self.wording))

    def _apply(self, world: World, command: str | None, outcome: Outcome | None) -> GameStep:
        won = False
        self._reply = NOTHING_HAPPENS
        if outcome is not None:
            self._state, self._reply = outcome.state, outcome.reply
            if outcome.shown >= 0:
                self._seen |= 1 << outcome.shown
            if self.arrival and command is not None and command.startswith("go "):
                self._reply = f"You arrive at {command.removeprefix('go to ')}. {outcome.reply}"
            won = outcome.changed and is_won(world, self._state)
        if self.view == "full":
            self._log.append(f"\n> {'no valid command' if command is None else command}\n{self._reply}")
        self._legal = None
        self._steps += 1
        truncated = not won and self._steps >= self.max_steps
        self._over = won or truncated
        info: dict[str, Any] = {}
        if self._over:
            info = {"success": won, "task_type": world.task_type, "game": world.key}
        return GameStep((self.observation(),), (1.0 if won else 0.0,), won, truncated, info)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return the admissible commands: every one that is not answered with "Nothing happens."."""
        world = self.world
        if self._over:
            return ()
        if self._legal is None:
            self._legal = admissible_commands(world, self._state, self.wording)
        return self._legal

    def observation(self, player: int = 0) -> str:
        """Return rules, room, task and what was done so far (``view="full"``) or the last reply (``view="raw"``)."""
        assert self.world
        if self.view == "raw":
            return self._reply
        log = self._log if self.history is None else self._log[-self.history :]
        return f"{self._opening}{''.join(log)}"

    def state_key(self) -> str:
        """Return the game and all that commands have changed in it."""
        state = self.state
        contents = "/".join(",".join(map(str, inside)) for inside in state.contents)
        masks = (state.opened, state.hot, state.cool, state.clean, state.toggled, state.sliced)
        missing = " ".join(f"{item}-{receptacle}" for item, receptacle in state.missing)
        marks = " ".join(f"{mask:x}" for mask in masks)
        return f"{self.world.key} {state.place} {state.held} {contents} {marks} {missing}".rstrip()

    def render(self) -> str:
        """Return where everything is, also what the player has not seen."""
        world, state = self.world, self.state
        lines = [f"Task: {world.task}", f"Holding: {world.objects[state.held] if state.held >= 0 else 'nothing'}"]
        for index, name in enumerate(world.receptacles):
            mark = "*" if world.places[index] == state.place else " "
            closed = describe(world, state, index).endswith("is closed.")
            inside = listing([world.objects[item] for item in state.contents[index]])
            lines.append(f"{mark} {name}{' (closed)' if closed else ''}: {inside}")
        return "\n".join(lines)

    def planner_action(self, player: int = 0) -> str | None:
        """Return the next command of the expert, which goes on from what has been seen in this episode."""
        world = self.world
        if self._over:
            return None
        seen = ALL_SEEN if self.planner == "oracle" else self._seen
        return expert_command(world, self._state, seen, self.wording)


@lru_cache(maxsize=512)
def _generated(seed: int, split: str, task_types: tuple[str, ...]) -> World:
    return build_world(generate_record(seed, split, task_types))
