"""The OpenAI chat-completions format as pure functions: a request to a body, an answer to a completion.

No network here; :mod:`stratagem.models.served` sends and receives. Two things differ from the schema on purpose:

* **Off is said, not left out.** A server fills a missing sampling value with its own default (vLLM takes the model's
  ``generation_config.json``, e.g. ``top_k=20``), so ``top_p=None`` is sent as 1.0 and, where the server takes them,
  ``top_k=None`` as -1 and ``min_p=None`` as 0.0.
* **The stop text is restored.** Servers cut it off the completion; :class:`~stratagem.models.base.GenerationConfig`
  keeps it, and a parser needs its ``</action>``. See :func:`restore_stop`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratagem.errors import ConfigError
from stratagem.models.base import Request

__all__ = [
    "RESERVED_KEYS",
    "Answer",
    "MalformedAnswerError",
    "error_text",
    "parse_answer",
    "request_body",
    "restore_stop",
]

RESERVED_KEYS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "seed",
    }
    | {"n", "stream", "add_generation_prompt", "continue_final_message"}
)
"""Body keys with a setting of their own; ``extra_body`` may not hold them."""


class MalformedAnswerError(Exception):
    """An answer with status 200 that is not a chat completion; says why and what may help."""

    def __init__(self, why: str, fix: str = "Check that base_url leads to an OpenAI-compatible API.") -> None:
        super().__init__(why)
        self.fix = fix


@dataclass(frozen=True)
class Answer:
    """What a server said, checked but not interpreted."""

    text: str
    finish_reason: str | None
    stop_reported: bool
    """Whether the server says what ended the completion (vLLM ``stop_reason``, SGLang ``matched_stop``)."""
    matched_stop: str | None
    """The stop text that ended it; None for an end-of-sequence or stop token, and where the server does not say."""
    prompt_tokens: int
    completion_tokens: int
    tokens_reported: bool
    """Whether both counts were there; they are 0 otherwise."""


def request_body(
    request: Request,
    *,
    model: str,
    seed: int | None,
    max_tokens_field: str,
    send_extra_sampling: bool,
    continue_assistant: bool,
    extra_body: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the JSON body that asks for one completion.

    Raises:
        ConfigError: the request needs something that is not portable and was not allowed.
    """
    generation = request.config
    extras = {name: getattr(generation, name) for name in ("top_k", "min_p") if getattr(generation, name) is not None}
    if extras and not send_extra_sampling:
        named = " and ".join(f"{name}={value!r}" for name, value in extras.items())
        raise ConfigError(
            f"{named} cannot be sent: OpenAI's chat completions take temperature and top_p only. Leave it out, or set "
            "send_extra_sampling=true for a server that takes top_k and min_p (vLLM, SGLang, llama.cpp)."
        )
    if request.assistant_prefix and not continue_assistant:
        raise ConfigError(
            f"assistant_prefix={request.assistant_prefix!r} cannot be sent: OpenAI's chat completions always begin a "
            "new assistant turn. Use a prompt template without a prefix, or set continue_assistant=true for a server "
            "that takes continue_final_message (vLLM, SGLang)."
        )
    messages = [{"role": role, "content": content} for role, content in request.messages]
    body: dict[str, Any] = {
        **extra_body,
        "model": model,
        "messages": messages,
        max_tokens_field: generation.max_new_tokens,
        "temperature": generation.temperature,
        "top_p": 1.0 if generation.top_p is None else generation.top_p,
    }
    if generation.stop:
        body["stop"] = list(generation.stop)
    if seed is not None:
        body["seed"] = seed
    if send_extra_sampling:
        body["top_k"] = extras.get("top_k", -1)
        body["min_p"] = extras.get("min_p", 0.0)
    if request.assistant_prefix:
        messages.append({"role": "assistant", "content": request.assistant_prefix})
        body["add_generation_prompt"] = False
        body["continue_final_message"] = True
    return body


def parse_answer(payload: bytes) -> Answer:
    """Read the body of a 200 answer.

    A null ``content`` is an error except with ``finish_reason`` "length": there a reasoning parser has taken every
    token that the limit allowed, and the completion is honestly empty.

    Raises:
        MalformedAnswerError: it is not a chat completion.
    """
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError):
        raise MalformedAnswerError("not JSON") from None
    if not isinstance(data, dict):
        raise MalformedAnswerError("not a JSON object")
    choices = data.get("choices")
    if not isinstance(choices, list):
        raise MalformedAnswerError("'choices' is not a list")
    if not choices:
        raise MalformedAnswerError("'choices' is empty")
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise MalformedAnswerError("'choices[0].message' is not an object")
    finish_reason = choice.get("finish_reason")
    if not isinstance(finish_reason, str | None):
        raise MalformedAnswerError("'finish_reason' is not a text")
    content = message.get("content")
    if content is None and finish_reason == "length":
        content = ""
    if content is None:
        raise MalformedAnswerError(
            f"'content' is null, finish_reason {finish_reason!r}",
            "The server may have put the text elsewhere: start it without a reasoning or tool-call parser.",
        )
    if not isinstance(content, str):
        raise MalformedAnswerError("'content' is not a text")
    reported = [choice[key] for key in ("stop_reason", "matched_stop") if key in choice]
    prompt_tokens = _count(data.get("usage"), "prompt_tokens")
    completion_tokens = _count(data.get("usage"), "completion_tokens")
    return Answer(
        # JSON can spell half of a surrogate pair, which no file could store later.
        text=content.encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
        finish_reason=finish_reason,
        stop_reported=bool(reported),
        matched_stop=next((value for value in reported if isinstance(value, str)), None),
        prompt_tokens=prompt_tokens or 0,
        completion_tokens=completion_tokens or 0,
        tokens_reported=prompt_tokens is not None and completion_tokens is not None,
    )


def restore_stop(answer: Answer, *, stop: tuple[str, ...], assistant_prefix: str = "") -> str:
    """Return the completion with the stop text that ended it, as far as that is known.

    In this order:

    1. It did not end with ``finish_reason`` "stop", or there are no stop texts: nothing to restore.
    2. The text holds a stop text: the server kept it (``include_stop_str_in_output``, ``transformers serve``).
    3. The server says what ended it: that stop text is appended; an end-of-sequence token (null or a token id) is not
       a stop text, so the completion stays as it is, unclosed where the model left it so.
    4. The server does not say. With exactly one stop text of the form ``</x>`` and an ``<x>`` that is still open
       (counting ``assistant_prefix``), the stop text is appended. This is a guess: a model that ended its turn inside
       ``<x>`` looks the same. Anything else stays as it is.
    """
    text = answer.text
    if answer.finish_reason != "stop" or any(mark in text for mark in stop):
        return text
    if answer.stop_reported:
        return text + answer.matched_stop if answer.matched_stop in stop else text
    if len(stop) == 1 and stop[0].startswith("</") and stop[0].endswith(">") and len(stop[0]) > 3:
        said = assistant_prefix + text
        if said.rfind("<" + stop[0][2:]) > said.rfind(stop[0]):
            return text + stop[0]
    return text


def error_text(payload: bytes) -> str:
    """Return what an error answer says, in one line: its JSON message where there is one, else its text."""
    text = payload.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = text
    for key in ("error", "message", "detail"):
        if isinstance(data, dict) and data.get(key):
            data = data[key]
    if not isinstance(data, str):
        data = json.dumps(data)
    return " ".join("".join(char if char.isprintable() else " " for char in data).split())


def _count(usage: object, key: str) -> int | None:
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
