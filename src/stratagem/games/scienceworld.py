"""ScienceWorld: elementary science, done with text commands in a house with its tools, materials and garden.

The game of Wang et al. 2022 (arXiv:2203.07540), played by its own simulator
(:mod:`~stratagem.games.scienceworld_engine`), which needs Java and the package ``scienceworld``. An episode is one
variation of one task (:mod:`~stratagem.games.scienceworld_tasks`).

The engine counts goals that are reached as a score of 0 to 100; a reward is what a command adds to it, as a share of
100, so the return is the score that papers report. A wrong answer (focusing on the wrong thing) sets the score below 0
and ends the episode: what was earned is taken back.

There are thousands of valid commands in a state, and working them all out takes longer than ten steps. So
:meth:`ScienceWorld.legal_actions` is a tuple that asks (:mod:`~stratagem.games.scienceworld_commands`). ``None`` is "no
valid command", answered in the engine's own words, as any text is that it does not know. :meth:`ScienceWorld.step_text`
takes any text.

The engine draws from one generator, also where it only lists commands. It is seeded anew before every step, so that
reading changes nothing and ``(seed, course)`` fixes the episode.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from stratagem.errors import ConfigError, GameError, UnknownNameError
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.games.scienceworld_commands import RULES, Commands
from stratagem.games.scienceworld_engine import UNKNOWN_COMMAND, Engine, Reply
from stratagem.games.scienceworld_tasks import (
    DEFAULT_LIMIT,
    SPLITS,
    STEP_LIMITS,
    VARIATIONS,
    package_starts,
    read_index,
)
from stratagem.seeding import derive_seed

__all__ = ["ScienceWorld"]

VIEWS = ("full", "look", "raw")
SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "selfWateringFlowerPots",
    "openContainers",
    "openDoors",
    "noElectricalAction",
)

_NO_COMMAND = "none"
"""What the engine gets for "no action"; it knows no such command."""
_AMBIGUOUS = "Ambiguous request:"


class ScienceWorld(Game):
    """One player in a house with a task of elementary science; see the module for rewards and commands."""

    name = "scienceworld"
    max_concurrent = 8
    """Each game has a Java process of its own, of a quarter to half a GiB."""

    def __init__(
        self,
        *,
        split: str = "train",
        tasks: Sequence[str] | None = None,
        index: str | None = None,
        simplification: str = "easy",
        max_steps: int | None = None,
        view: str = "full",
        history: int = 5,
        heap_mb: int = 400,
    ) -> None:
        """Set which variations are played and how they are shown.

        Args:
            split: ``train``, ``seen`` (the package's dev) or ``unseen`` (its test).
            tasks: which tasks are played; None for all that there are.
            index: a folder or file that says which variations a split has; None for the package's own splits.
            simplification: ``easy``, or names of the engine's simplifications with commas between, or empty for none.
            max_steps: an episode is truncated after this many commands; None for each task's own limit.
            view: ``full`` shows rules, task, the last commands and what is seen; ``look`` the reply, what is around and
                what is carried, as the authors of STEP-HRL show it; ``raw`` the reply of the engine only.
            history: so many of the last commands the full view shows.
            heap_mb: limit of the Java heap in MiB.
        """
        for key, value, known in (("split", split, SPLITS), ("view", view, VIEWS)):
            if value not in known:
                raise UnknownNameError(key, value, known)
        for task in tasks or ():
            if task not in VARIATIONS:
                raise UnknownNameError("task", task, VARIATIONS)
        for part in filter(None, simplification.split(",")):
            if part not in SIMPLIFICATIONS:
                raise UnknownNameError("simplification", part, SIMPLIFICATIONS)
        if tasks is not None and not tasks:
            raise ConfigError("tasks=[] leaves nothing to play; name one or more, or leave tasks out.")
        for key, number, least, why in (
            ("max_steps", max_steps, 1, "leaves no step to play"),
            ("history", history, 0, "is no number of commands"),
            ("heap_mb", heap_mb, 64, "is too little for the engine"),
        ):
            if number is not None and number < least:
                raise ConfigError(f"{key}={number!r} {why}; set {key} to {least} or more.")
        self.split, self.index, self.simplification = split, index, simplification
        self.view, self.history, self.heap_mb = view, history, heap_mb
        starts = package_starts(split) if index is None else read_index(index, split)
        self.starts = tuple(start for start in starts if tasks is None or start[0] in tasks)
        """(task, variation) of each start."""
        if not self.starts:
            raise ConfigError(f"tasks={list(tasks or ())!r} has no variation in split={split!r}; name other tasks.")
        self.tasks = tuple(dict.fromkeys(task for task, _ in self.starts))
        electric = [task for task in self.tasks if "power-component" in task or "conductivity" in task]
        if "noElectricalAction" in simplification and electric:
            raise ConfigError(
                f"simplification={simplification!r} takes away what task {electric[0]!r} needs; leave "
                "noElectricalAction out, or name other tasks."
            )
        self._limits = {task: max_steps or STEP_LIMITS.get(task, DEFAULT_LIMIT) for task in self.tasks}
        self.max_steps = max(self._limits.values())
        self._engine: Engine | None = None
        self._start: tuple[str, int] | None = None
        self._course = 0
        self._resets = 0
        self._sent: list[str] = []
        self._score = 0
        self._over = False
        self._reply = ""
        self._task = ""
        self._choices: tuple[str, ...] = ()
        self._log: list[str] = []
        self._shown: str | None = None
        self._commands: Commands | None = None
        self._gold: tuple[str, ...] | None = None
        self._gold_place = 0

    @property
    def num_starts(self) -> int | None:
        """How many variations are played: seeds 0 to ``num_starts - 1`` play each once."""
        return len(self.starts)

    @property
    def pid(self) -> int | None:
        """The id of the Java process, ``None`` while there is none."""
        return self._engine.pid if self._engine is not None and self._engine.alive else None

    @property
    def start(self) -> tuple[str, int]:
        """The (task, variation) that is played."""
        self._playing()
        assert self._start is not None
        return self._start

    @property
    def task(self) -> str:
        """What is to be done, as one sentence or more."""
        self._playing()
        return self._task

    @property
    def reply(self) -> str:
        """What the engine said last."""
        self._playing()
        return self._reply

    @property
    def score(self) -> int:
        """The score so far, 0 to 100; 0 after a wrong answer."""
        self._playing()
        return self._score

    @property
    def moment(self) -> tuple[int, int]:
        """Which state of which episode this is."""
        return self._resets, len(self._sent)

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start the variation of ``seed``, in a new Java process where the last one failed."""
        if seed < 0:
            raise ConfigError(f"seed={seed!r} is negative; use 0 or a positive integer.")
        if self._engine is None or not self._engine.alive:
            self._engine = Engine(heap_mb=self.heap_mb)
        self._start = self.starts[int(seed) % len(self.starts)]
        self._course = int(course)
        self._resets += 1
        self._sent, self._log, self._choices = [], [], ()
        self._score, self._over = 0, False
        self._gold, self._gold_place = None, 0
        self._engine.load(*self._start, self.simplification)
        self._task = re.sub(r"^Your task is to:?\s*", "", " ".join(self._engine.task().split()))
        self._reply = self._engine.look()
        self._changed()
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Carry out one command; ``None`` is answered like a text that the engine does not know."""
        engine = self._playing()
        if self._over or len(actions) != 1:
            check_joint_action(self, actions, started=True, over=self._over)
        action = actions[0]
        if action is not None and self._choices and action not in self._choices:
            raise GameError(
                f"action={action!r} of player 0 is not legal in {self.name}, which asks which of several things is "
                f"meant; use one of {', '.join(self._choices)}, or None to take the command back."
            )
        reply = self._send(engine, _NO_COMMAND if action is None else action)
        unknown = reply.text == UNKNOWN_COMMAND and action is not None  # nothing has happened
        if unknown and action not in tuple(self.legal_actions()):  # the engine lists a few that it does not know
            raise GameError(
                f"action={action!r} of player 0 is not legal in {self.name}: {UNKNOWN_COMMAND} Use one of "
                "legal_actions(), or None for no action."
            )
        shown = "no valid command" if action is None else action
        return self._apply(_NO_COMMAND if action is None else action, shown, reply)

    def step_text(self, text: str) -> GameStep:
        """Carry out any text as the engine does; what it does not know changes nothing and the step counts.

        Raises:
            GameError: before ``reset`` or after the end, or the engine failed.
        """
        engine = self._playing()
        check_joint_action(self, (None,), started=True, over=self._over)
        return self._apply(text, text, self._send(engine, text))

    def _send(self, engine: Engine, text: str) -> Reply:
        engine.seed(derive_seed("scienceworld", *self.start, self._course, len(self._sent)))
        return engine.step(text)

    def _apply(self, sent: str, shown: str, reply: Reply) -> GameStep:
        self._sent.append(sent)
        self._reply = reply.text
        several = reply.text.startswith(_AMBIGUOUS)
        self._choices = tuple(re.findall(r"^(\d+):\t", reply.text, re.MULTILINE)) if several else ()
        self._log.append(f"> {shown}\n{reply.text}\n")
        gold = self._gold
        if gold is not None and self._gold_place < len(gold) and gold[self._gold_place] == sent:
            self._gold_place += 1
        score = max(0, reply.score)
        reward, self._score = (score - self._score) / 100, score
        terminated = reply.completed or reply.score < 0
        task, variation = self.start
        truncated = not terminated and len(self._sent) >= self._limits[task]
        self._over = terminated or truncated
        self._changed()
        info: dict[str, Any] = {}
        if self._over:
            info = {"success": reply.score >= 100, "score": score, "task": task, "variation": variation}
        return GameStep((self.observation(),), (reward,), terminated, truncated, info)

    def _changed(self) -> None:
        self._shown = self._commands = None

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return the commands that the engine could carry out; a tuple that asks the engine (:class:`Commands`)."""
        self._playing()
        if self._over:
            return ()
        if self._choices:
            return self._choices
        if self._commands is None:
            self._commands = Commands(self)
        return self._commands

    def knows(self, text: str) -> bool:
        """Return whether the engine could carry a command out now; case and articles do not matter."""
        return self._playing().knows(text)

    def valid_commands(self) -> tuple[str, ...]:
        """Return the engine's list of valid commands, each once, in order of the alphabet."""
        engine = self._playing()
        engine.seed(0)  # it draws where names are not enough to tell things apart
        return tuple(sorted({command.strip().lower() for command in engine.valid()}))

    def observation(self, player: int = 0) -> str:
        """Return what is seen; see ``view``."""
        engine = self._playing()
        if self._shown is None:
            self._shown = self._observe(engine)
        return self._shown

    def _observe(self, engine: Engine) -> str:
        task = f"Your task is to: {self._task}"
        if self.view == "full":
            last = "".join(self._log[-self.history :]) if self.history else ""
            commands = f"[Last commands]\n{last}" if last else ""
            teleport = '"teleport to (place)"\n' if self._teleports() else ""
            rules = RULES.format(teleport=teleport)
            return f"{rules}[Task]\n{task}\n{commands}[Now]\n{engine.look()}\n{engine.inventory()}"
        seen = self._reply
        if self.view == "look":
            seen = f"Obs: {self._reply}\nLook: {engine.look()}\nInventory: {engine.inventory()}"
        return seen if self._sent else f"{task}\n{seen}"

    def _teleports(self) -> bool:
        return "easy" in self.simplification or "teleportAction" in self.simplification

    def state_key(self) -> str:
        """Return the variation and a digest of everything that there is, its properties and the goals reached."""
        engine = self._playing()
        task, variation = self.start
        state = f"{engine.tree()}\n{engine.progress()}\n{self._choices}"
        return f"{task} {variation} {hashlib.sha256(state.encode()).hexdigest()[:16]}"

    def render(self) -> str:
        """Return the task, the score, what is seen around and what is carried."""
        engine = self._playing()
        return f"Task: {self._task}\nScore: {self._score}\n{engine.look()}\n{engine.inventory()}"

    def planner_action(self, player: int = 0) -> str | None:
        """Return the next command of the engine's own solution, as far as it was followed; it knows no other way.

        What the engine does not know here is passed over; after the last command it looks around. The solution is
        worked out when it is first asked for.
        """
        engine = self._playing()
        if self._over:
            return None
        if self._gold is None:
            self._find_gold(engine)
        gold = self._gold or ()
        if self._choices:
            answer = gold[self._gold_place] if self._gold_place < len(gold) else ""
            return answer if answer in self._choices else self._choices[0]
        while self._gold_place < len(gold) and not engine.knows(gold[self._gold_place]):
            self._gold_place += 1  # it was worked out where chance went another way
        return gold[self._gold_place] if self._gold_place < len(gold) else "look around"

    def _find_gold(self, engine: Engine) -> None:
        # Working it out ends where the episode began, so what was done since is done again.
        self._gold = engine.load(*self.start, self.simplification, gold=True)
        sent, self._sent = self._sent, []
        for text in sent:
            self._send(engine, text)
            self._sent.append(text)
            if self._gold_place < len(self._gold) and self._gold[self._gold_place] == text:
                self._gold_place += 1

    def close(self) -> None:
        """End the Java process."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _playing(self) -> Engine:
        if self._engine is None:
            raise GameError(f"{self.name} has not been started; call reset(seed=...) first.")
        return self._engine
