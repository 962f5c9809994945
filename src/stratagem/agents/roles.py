r"""The three roles of a hierarchical agent: what each is shown, and how its words are read.

=============  ==================================================================  ==============================
role           is shown                                                            answers with
=============  ==================================================================  ==============================
``high``       task, completed subtasks, last progress, observation                a subtask
``low``        subtask, local progress, observation                                ``action; True`` or ``; False``
``progress``   subtask, previous progress, action, resulting observation           the new local progress
=============  ==================================================================  ==============================

Source: Zhen et al. 2026 (STEP-HRL), arXiv:2604.05808, eq. 6 to 8 and appendix A. No answer raises: what cannot be used
is a reason (:class:`RoleError`), is counted, and something defined takes its place.

A template is a file as in :mod:`stratagem.agents.prompts`; its user section holds the placeholders of its role
(:data:`PLACEHOLDERS`), each once or not at all, and ``{observation}`` exactly once. A line that is nothing but an empty
value is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from stratagem.agents.prompts import PromptTemplate, parse_template
from stratagem.agents.prompts import load_template as load_any
from stratagem.errors import ConfigError

__all__ = [
    "NOTHING",
    "PLACEHOLDERS",
    "ROLES",
    "LowAnswer",
    "Role",
    "RoleError",
    "TaskView",
    "fill",
    "load_role_template",
    "low_answer",
    "one_line",
    "parse_line",
    "parse_low",
    "past_step",
    "read_start",
    "tidy",
]

Role = Literal["high", "low", "progress"]
ROLES: tuple[Role, ...] = ("high", "low", "progress")

NOTHING = "None"
"""What stands for "no subtask yet", "no progress yet" and "no action"."""

PLACEHOLDERS: dict[Role, tuple[str, ...]] = {
    "high": ("scene", "task", "subtasks", "progress", "history", "observation"),
    "low": ("scene", "task", "subtask", "progress", "history", "actions", "observation"),
    "progress": ("scene", "task", "subtask", "progress", "action", "observation"),
}
"""What a template of each role may show. ``scene`` is what holds for a whole episode, ``actions`` the legal ones,
``history`` the steps before, for an agent that is shown them."""


class RoleError(StrEnum):
    """Why a role's answer could not be used as it is."""

    EMPTY = "empty"
    """There is nothing but white space."""
    LENGTH = "length"
    """The answer was cut off at its limit of tokens."""
    NO_FLAG = "no_flag"
    """``low``: there is no ``; True`` or ``; False`` at the end."""
    AMBIGUOUS = "ambiguous"
    """``low``: the action is two legal ones when case is ignored."""
    UNKNOWN = "unknown"
    """``low``: the action is not legal."""


@dataclass(frozen=True)
class LowAnswer:
    """What the low level said."""

    action: str | None
    """A legal action as it is spelled there, or None."""
    done: bool
    """Whether it says that the action completes the subtask; False without a flag."""
    said: str
    """The action in its own words, for the progress; ``None`` where there is none."""
    error: RoleError | None = None


@dataclass(frozen=True)
class TaskView:
    """The first observation, taken apart."""

    task: str
    scene: str
    """What holds for the whole episode and is shown once."""
    observation: str


def one_line(text: str) -> str:
    """Return a text with its white space made single blanks."""
    return " ".join(text.split())


def tidy(text: str) -> str:
    """Return a text without empty lines and without blanks at the ends; a grid stays a grid."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines() if line.strip())


_TASK = re.compile(r"^.*?your task is to:\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_SCENE = re.compile(r"Looking quickly around you, [^\n]*")
_BANNER = re.compile(r"^-= .* =-$", re.MULTILINE)


def read_start(observation: str, default_task: str) -> TaskView:
    r"""Take the first observation of an episode apart.

    ALFWorld and ScienceWorld state the task in a line "Your task is to: ..."; a game that does not has
    ``default_task``. ALFWorld's list of all receptacles is the scene, as the authors' code shows it at every step.

    >>> read_start("You are in a room. Looking quickly around you, you see a bed 1.\n\nYour task is to: sleep.", "")
    TaskView(task='sleep.', scene='Looking quickly around you, you see a bed 1.', observation='You are in a room.')
    """
    task = _TASK.search(observation)
    scene = _SCENE.search(observation)
    rest = _BANNER.sub("", observation)
    for found in (task, scene):
        if found is not None:
            rest = rest.replace(found[0], "", 1)
    return TaskView(
        default_task if task is None else one_line(task[1]),
        "" if scene is None else scene[0],
        tidy(rest) or NOTHING,
    )


def past_step(observation: str, action: str) -> str:
    r"""Return how a step is shown to an agent that remembers it.

    >>> past_step("A door.", "open it")
    'Observation: A door.\nAction: open it'
    """
    return f"Observation: {observation}\nAction: {action}"


def load_role_template(role: Role, name_or_path: str, *, history: bool = False) -> PromptTemplate:
    """Return the built-in template of a role (``default``), or the one in a file.

    Args:
        role: whose.
        name_or_path: ``default`` or a path.
        history: for an agent that is shown its history, which the template then holds.

    Raises:
        UnknownNameError: the file is not there.
        ConfigError: it is no template, shows what the role does not know, or leaves out the history.
    """
    if name_or_path == "default":
        import importlib.resources

        name = f"hrl_{role}_history" if history and role != "progress" else f"hrl_{role}"
        resource = importlib.resources.files("stratagem.agents").joinpath("templates", f"{name}.txt")
        template = parse_template(name, resource.read_text(encoding="utf-8"))
    else:
        template = load_any(name_or_path)
    told = [name for name in PLACEHOLDERS[role] if history or name != "history"]
    for name in re.findall(r"\{(\w+)\}", template.user):
        if name not in told:
            raise ConfigError(
                f"template={template.name!r} holds {{{name}}}, which role {role!r} is not told; use "
                f"{', '.join('{' + known + '}' for known in told)}."
            )
    if history and role != "progress" and "{history}" not in template.user:
        raise ConfigError(
            f"template={template.name!r} has no {{history}}, which is all that role {role!r} knows of what happened; "
            "put it in, or set use_history=False."
        )
    return template


def fill(template: PromptTemplate, values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the (role, content) messages of a template; values are inserted as they are and never filled in again.

    Args:
        template: of a role.
        values: one text for each placeholder.
    """
    lines = []
    for line in template.user.splitlines():
        filled = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], line)
        if filled.strip() or not line.strip():
            lines.append(filled)
    user = ("user", "\n".join(lines))
    return (user,) if template.system is None else (("system", template.system), user)


# ---- reading answers -------------------------------------------------------------------------------------------------

_LOW = re.compile(r"(.*?)\s*;\s*(true|false)\s*\.?", re.IGNORECASE | re.DOTALL)


def low_answer(action: str, done: bool) -> str:
    """Return what the low level should say.

    >>> low_answer("open fridge 1", False)
    'open fridge 1; False'
    """
    return f"{action}; {done}"


def parse_low(text: str, legal_actions: Sequence[str]) -> LowAnswer:
    """Read the low level's answer.

    >>> parse_low("Open fridge 1 ; TRUE", ("open fridge 1",))
    LowAnswer(action='open fridge 1', done=True, said='Open fridge 1', error=None)
    >>> parse_low("open fridge 1", ("open fridge 1",)).error
    <RoleError.NO_FLAG: 'no_flag'>

    Args:
        text: the completion.
        legal_actions: the words that are legal now.
    """
    match = _LOW.fullmatch(text.strip())
    if match is None:
        error = RoleError.NO_FLAG if text.strip() else RoleError.EMPTY
        return LowAnswer(None, False, one_line(text) or NOTHING, error)
    said, done = one_line(match[1]), match[2].lower() == "true"
    if not said:
        return LowAnswer(None, done, NOTHING, RoleError.EMPTY)
    if said in legal_actions:
        return LowAnswer(said, done, said)
    matches = {legal for legal in legal_actions if legal.strip().lower() == said.lower()}
    if len(matches) == 1:
        return LowAnswer(matches.pop(), done, said)
    return LowAnswer(None, done, said, RoleError.AMBIGUOUS if matches else RoleError.UNKNOWN)


def parse_line(text: str, *, cut_off: bool = False) -> tuple[str | None, RoleError | None]:
    r"""Return the one line that ``high`` or ``progress`` said, and what is wrong with it.

    Args:
        text: the completion.
        cut_off: it met its limit of tokens; what there is of it can still be used.

    >>> parse_line("  Clean the apple 1\nwith it. ")
    ('Clean the apple 1 with it.', None)
    """
    line = one_line(text)
    if not line:
        return None, RoleError.EMPTY
    return line, RoleError.LENGTH if cut_off else None
