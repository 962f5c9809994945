r"""Observation to messages: the paper's template T, a text with one placeholder.

A template is a text file::

    # Lines like this one are comments; they may stand before the first section.
    tags: think plan action
    assistant_prefix: <think>
    --- system
    What never changes.
    --- user
    {observation}

``tags`` are the tags an answer should hold, in order (read by the format penalty). ``assistant_prefix`` is what the
assistant's turn begins with: part of the prompt, never sampled or trained; ``\n`` in it is a new line. Both headers
and the ``system`` section may be left out. ``user`` holds ``{observation}`` exactly once; every other brace is itself.

Put the static text before ``{observation}`` and nothing after it: prompts of one template then share their whole
beginning, which a model computes once.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem.errors import ConfigError, UnknownNameError

__all__ = [
    "PLACEHOLDER",
    "REACT_TEMPLATES",
    "TEMPLATES",
    "PromptTemplate",
    "load_template",
    "load_templates",
    "parse_template",
]

PLACEHOLDER = "{observation}"

TEMPLATES: dict[str, str] = {
    "action": "the action alone, in a turn that begins with its tag; a few tokens per step",
    "action_formal": "as `action`, worded as a task with a state and a decision",
    "action_brief": "as `action`, in as few words as can be",
    "think_action": "a sentence of thought, then the action",
    "think_plan_action": "the paper's structure: think, plan, action, at most 200 tokens",
    "think_plan_action_brief": "as `think_plan_action`, in as few words as can be",
}
"""Built-in templates and what each is for; the texts lie in ``agents/templates/``."""

REACT_TEMPLATES: dict[str, str] = {
    "react": "a thought, then an action, each on a line; for any game",
    "react_alfworld": "the same, with the commands of ALFWorld and an example of an episode",
}
"""Those of :mod:`stratagem.agents.react`, whose answers have no tags."""


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt with one place for the observation."""

    name: str
    system: str | None
    """The system message; None leaves it out (the model's own default may then apply)."""
    user: str
    """The user's message; holds ``{observation}`` exactly once."""
    assistant_prefix: str = ""
    """Text the assistant's turn begins with."""
    tags: tuple[str, ...] = ()
    """Tags that an answer should hold, in order."""

    def __post_init__(self) -> None:
        """Refuse a template that does not show the observation exactly once."""
        count = self.user.count(PLACEHOLDER)
        if count != 1:
            raise ConfigError(
                f"template={self.name!r} holds {PLACEHOLDER} {count} times in its user section; write it exactly once."
            )
        if self.system is not None and PLACEHOLDER in self.system:
            raise ConfigError(
                f"template={self.name!r} holds {PLACEHOLDER} in its system section, which is never filled in; "
                "move it to the user section."
            )

    def messages(self, observation: str) -> tuple[tuple[str, str], ...]:
        """Return the (role, content) pairs for one observation, which is inserted as it is."""
        user = ("user", self.user.replace(PLACEHOLDER, observation))
        return (user,) if self.system is None else (("system", self.system), user)


def _headers(name: str, lines: list[str]) -> tuple[tuple[str, ...], str]:
    values = {"tags": "", "assistant_prefix": ""}
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon or key.strip() not in values:
            raise ConfigError(
                f"template={name!r} has the header line {line!r}; expected 'tags: ...' or 'assistant_prefix: ...' "
                "before the first '--- system' or '--- user' line."
            )
        values[key.strip()] = value.strip()
    return tuple(values["tags"].split()), values["assistant_prefix"].replace("\\n", "\n")


def parse_template(name: str, text: str) -> PromptTemplate:
    """Read the text of a template file.

    Raises:
        ConfigError: an unknown header or section, no user section, or not exactly one placeholder.
    """
    header: list[str] = []
    sections: dict[str, list[str]] = {}
    current = header
    for line in text.splitlines():
        if line.startswith("--- "):
            section = line[4:].strip()
            if section not in ("system", "user") or section in sections:
                raise ConfigError(
                    f"template={name!r} has the section line {line!r}; expected '--- system' and '--- user', each once."
                )
            current = sections[section] = []
        else:
            current.append(line)
    if "user" not in sections:
        raise ConfigError(f"template={name!r} has no user section; add a line '--- user' and {PLACEHOLDER} below it.")
    tags, prefix = _headers(name, header)
    system = "\n".join(sections["system"]).strip("\n") if "system" in sections else None
    return PromptTemplate(name, system, "\n".join(sections["user"]).strip("\n"), prefix, tags)


def load_template(name_or_path: str | Path) -> PromptTemplate:
    """Return a built-in template by name, or the one in a file.

    Raises:
        UnknownNameError: neither a built-in name nor a file.
        ConfigError: the file is not a template.
    """
    name = str(name_or_path)
    if name in TEMPLATES or name in REACT_TEMPLATES:
        resource = importlib.resources.files("stratagem.agents").joinpath("templates", f"{name}.txt")
        return parse_template(name, resource.read_text(encoding="utf-8"))
    path = Path(name_or_path)
    if not path.is_file():
        raise UnknownNameError("template", name, TEMPLATES)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Template file {name!r} cannot be read ({error}); give a text file in UTF-8.") from error
    return parse_template(path.stem, text)


def load_templates(names: str | Sequence[str]) -> tuple[PromptTemplate, ...]:
    """Return one template, or those of an ensemble, which ask for the same answer in other words.

    Raises:
        UnknownNameError: neither a built-in name nor a file.
        ConfigError: a file is not a template, or the ensemble is empty, names one twice, or asks for different answers.
    """
    if isinstance(names, str):
        return (load_template(names),)
    if not names:
        raise ConfigError('template=[] names no template; name one or more, as ["action", "action_brief"].')
    for name in names:
        if list(names).count(name) > 1:
            raise ConfigError(f"template={list(names)!r} names {name!r} twice; name each template once.")
    templates = tuple(load_template(name) for name in names)
    first = templates[0]
    for other in templates[1:]:
        if other.tags != first.tags:
            raise ConfigError(
                f"template={list(names)!r} asks for different answers: {first.name!r} has the tags "
                f"{_words(first.tags)}, {other.name!r} has {_words(other.tags)}; choose templates with the same tags."
            )
    return templates


def _words(tags: Sequence[str]) -> str:
    return ", ".join(tags) or "none"
