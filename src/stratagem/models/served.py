"""A language model behind any OpenAI-compatible server (vLLM, SGLang, llama.cpp, ``transformers serve``, hosted APIs).

For evaluation: a server returns text without the token ids and log-probabilities that training needs, so those fields
of the completion stay empty. :mod:`stratagem.models.chat_api` says what is sent and how an answer is read; this file is
about a server that is slow, full, broken or gone. Every call ends: with a completion, or within ``total_timeout_s`` of
its first try with a :class:`~stratagem.errors.ModelError` that says what to do.
"""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import json
import logging
import math
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import numpy as np

from stratagem.errors import ConfigError, ModelError
from stratagem.models.base import Completion, Request
from stratagem.models.chat_api import (
    RESERVED_KEYS,
    Answer,
    MalformedAnswerError,
    error_text,
    parse_answer,
    request_body,
    restore_stop,
)
from stratagem.seeding import derive_seed, uniforms
from stratagem.types import Finish

__all__ = ["ServedModel", "ServedModelConfig", "ServedUsage"]

_log = logging.getLogger(__name__)

_MAX_ERROR_BYTES = 65536
_MAX_QUOTE = 300
_CONNECT_S = 10.0
_SLOW_FIX = "Set timeout_s higher, or max_new_tokens or max_concurrency lower."
_STATUS_FIXES = {
    400: "Change the setting that the server names.",
    401: "Set api_key_env to the environment variable that holds a valid key.",
    403: "Set api_key_env to the environment variable that holds a key with access to this model.",
    404: "Check base_url (it usually ends in /v1) and model.",
    422: "Change the setting that the server names; extra_body, send_extra_sampling and continue_assistant add fields "
    "that not every server takes.",
    429: "Set max_concurrency lower, or max_retries or max_backoff_s higher.",
}


@dataclass(frozen=True)
class ServedModelConfig:
    """Where the server is and how it is treated."""

    base_url: str
    """Address of the API, usually ending in ``/v1``; ``/chat/completions`` is appended."""
    model: str
    """The model's name on that server."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key, never the key; None sends no key."""
    context_length: int = 32768
    """The model's window as callers should see it; the server enforces its own."""
    max_concurrency: int = 16
    """Requests in flight at once; a waiting retry keeps its place, so a full server is not pressed."""
    timeout_s: float = 120.0
    """Limit for one try, from connecting to the last byte."""
    total_timeout_s: float = 900.0
    """Limit for all tries of one completion, pauses included."""
    max_retries: int = 5
    """Further tries after a broken connection, a timeout, status 408, 429 or 5xx, or an unreadable answer."""
    backoff_s: float = 0.5
    """The k-th pause is this times 2^(k-1), times a number in [0.5, 1) that is fixed by the request."""
    max_backoff_s: float = 30.0
    """Longest pause, also where the server's Retry-After asks for more."""
    max_response_bytes: int = 8 * 1024 * 1024
    """A longer answer is refused."""
    seed: int | None = None
    """Sends a seed of its own with each request, derived from this; None sends none. See :class:`ServedModel`."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the completion limit; newer OpenAI models take the second name only."""
    send_extra_sampling: bool = False
    """Send ``top_k`` and ``min_p``, which OpenAI's schema lacks and vLLM, SGLang and llama.cpp take."""
    continue_assistant: bool = False
    """Send ``assistant_prefix`` as an open assistant message (vLLM, SGLang)."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the body, sent as they are."""

    def __post_init__(self) -> None:
        """Refuse bad values, and secrets where they would be written down."""
        _check_base_url(self.base_url)
        if not self.model:
            raise ConfigError("model='' names no model; set it to the model's name on the server.")
        if self.api_key_env is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.api_key_env):
            # The value is not shown: it may be the key.
            raise ConfigError(
                "api_key_env is not the name of an environment variable (A-Z, 0-9 and _); set it to the name of the "
                "variable that holds the key, never to the key itself."
            )
        for name in ("context_length", "max_concurrency", "max_response_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} is too small; set it to 1 or more.")
        if self.max_retries < 0:
            raise ConfigError(f"max_retries={self.max_retries!r} is negative; use 0 for a single try.")
        for name in ("timeout_s", "total_timeout_s", "backoff_s", "max_backoff_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name}={value!r} is not a time limit; set it to a positive number of seconds.")
        if self.max_tokens_field not in ("max_tokens", "max_completion_tokens"):
            raise ConfigError(
                f"max_tokens_field={self.max_tokens_field!r} is unknown; use 'max_tokens' or 'max_completion_tokens'."
            )
        taken = sorted(RESERVED_KEYS & self.extra_body.keys())
        if taken:
            raise ConfigError(
                f"extra_body holds {', '.join(map(repr, taken))}, which this program sets itself; use the generation "
                "settings, seed, send_extra_sampling or continue_assistant."
            )
        try:
            json.dumps(self.extra_body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"extra_body cannot be sent as JSON ({error}); use texts, numbers and tables.") from None


@dataclass
class ServedUsage:
    """What a model was asked and what it cost, added up over all calls."""

    requests: int = 0
    """Completions asked for."""
    retries: int = 0
    """Further tries; their tokens, if the server counted any, are not known."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    answers_without_usage: int = 0
    """Answers that did not say their tokens; if not 0, the sums are lower bounds."""
    other_finishes: Counter[str] = field(default_factory=Counter)
    """Finish reasons other than "stop" and "length" (``content_filter``, ...), which are taken as a stop."""


class _FailedTryError(Exception):
    """One try came to nothing."""

    def __init__(self, what: str, fix: str, *, retry: bool, retry_after: float = 0.0) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.retry = retry
        self.retry_after = retry_after


class ServedModel:
    """A :class:`~stratagem.models.base.LanguageModel` that asks a server.

    Seeds: one seed for all requests would give equal prompts equal completions, and so a group of equal episodes.
    With ``config.seed`` each request therefore sends its own, derived from ``request.uniforms`` where they are given
    (so an episode does not depend on the others), else from the prompt and how often it was asked before. Whether the
    same seed gives the same text again is up to the server.

    Close it in the event loop that used it; a call from another loop opens connections of its own.
    """

    def __init__(self, config: ServedModelConfig) -> None:
        self.config = config
        self.name = config.model
        self.context_length = config.context_length
        self.usage = ServedUsage()
        self._url = config.base_url.rstrip("/") + "/chat/completions"
        self._asked: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._closed = False
        self._api_key()  # A missing key should not wait for the first request.

    def __repr__(self) -> str:
        """Name the model and where it is."""
        return f"ServedModel(model={self.name!r}, base_url={self.config.base_url!r})"

    async def generate(self, request: Request) -> Completion:
        """Ask for one completion, again where that may help.

        Raises:
            ConfigError: the request needs a field that the settings do not allow.
            ModelError: the server refused, or gave no usable answer in all tries.
        """
        config = self.config
        body = request_body(
            request,
            model=config.model,
            seed=None,
            max_tokens_field=config.max_tokens_field,
            send_extra_sampling=config.send_extra_sampling,
            continue_assistant=config.continue_assistant,
            extra_body=config.extra_body,
        )
        digest = hashlib.blake2b(json.dumps(body).encode(), digest_size=16).hexdigest()
        if config.seed is not None:
            body["seed"] = self._request_seed(config.seed, request.uniforms, digest)
        client = self._open()
        async with self._slots:
            self.usage.requests += 1
            # ASCII JSON, so that no text can fail to encode.
            answer = await self._ask(client, json.dumps(body, allow_nan=False).encode(), digest)
        return self._completion(answer, request)

    async def aclose(self) -> None:
        """Close the connections; later calls of ``generate`` are refused."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def _completion(self, answer: Answer, request: Request) -> Completion:
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.completion_tokens += answer.completion_tokens
        self.usage.answers_without_usage += not answer.tokens_reported
        if answer.finish_reason not in ("stop", "length"):
            self.usage.other_finishes[(answer.finish_reason or "none")[:40]] += 1
        return Completion(
            text=restore_stop(answer, stop=request.config.stop, assistant_prefix=request.assistant_prefix),
            finish=Finish.LENGTH if answer.finish_reason == "length" else Finish.STOP,
            num_prompt_tokens=answer.prompt_tokens,
            num_completion_tokens=answer.completion_tokens,
        )

    def _request_seed(self, seed: int, drawn: np.ndarray | None, digest: str) -> int:
        if drawn is None:
            self._asked[digest] += 1
            address = f"{digest}:{self._asked[digest]}"
        else:
            # The first numbers of an address do not depend on the token limit (see stratagem.seeding).
            address = np.ascontiguousarray(drawn[:4], dtype=np.float64).tobytes().hex()
        return derive_seed(seed, "served", address) & 0x7FFFFFFF  # 31 bits: some servers store an int32.

    def _open(self) -> httpx.AsyncClient:
        if self._closed:
            raise self._was_closed()
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            config = self.config
            key = self._api_key()
            headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
            if key:
                headers["Authorization"] = f"Bearer {key}"
            self._loop = loop
            self._slots = asyncio.Semaphore(config.max_concurrency)
            self._client = httpx.AsyncClient(
                headers=headers,
                follow_redirects=False,  # A redirect would carry prompts and key to an address nobody chose.
                timeout=httpx.Timeout(None, connect=min(_CONNECT_S, config.timeout_s)),  # The rest: asyncio.timeout.
                limits=httpx.Limits(max_connections=config.max_concurrency),
                # A proxy from the environment is for the world outside.
                trust_env=httpx.URL(config.base_url).host not in ("127.0.0.1", "localhost", "::1"),
            )
        return self._client

    def _was_closed(self) -> ModelError:
        return ModelError(f"model={self.name!r} was closed; make a new ServedModel to ask again.")

    def _api_key(self) -> str:
        """Read the key anew each time, so that no attribute holds it and it cannot be pickled."""
        name = self.config.api_key_env
        if name is None:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise ConfigError(
                f"api_key_env={name!r} names an environment variable that is not set; export it, or leave "
                "api_key_env out for a server without a key."
            )
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"api_key_env={name!r}: its value holds characters that no HTTP header can carry; expected printable "
                "ASCII. Export the key again."
            )
        return key

    async def _ask(self, client: httpx.AsyncClient, body: bytes, digest: str) -> Answer:
        config = self.config
        loop = asyncio.get_running_loop()
        left_s = config.total_timeout_s
        deadline = loop.time() + left_s
        tries = 0
        while True:
            if client.is_closed:
                raise self._was_closed()
            tries += 1
            try:
                return await self._try_once(client, body, min(config.timeout_s, left_s))
            except _FailedTryError as failure:
                where = f"base_url={config.base_url!r}: {failure.what}."
                if not failure.retry:
                    raise ModelError(f"{where} {failure.fix}") from None
                pause = _pause(config, tries, failure.retry_after, digest)
                if tries > config.max_retries:
                    limit = f"max_retries={config.max_retries!r}"
                elif loop.time() + pause >= deadline:
                    limit = f"total_timeout_s={config.total_timeout_s!r}"
                else:
                    limit = ""
                if limit:
                    count = "1 try" if tries == 1 else f"{tries} tries"
                    raise ModelError(f"{where} Gave up after {count} ({limit}). {failure.fix}") from None
                _log.info("%s Trying again in %.1f s.", where, pause)
            self.usage.retries += 1
            await asyncio.sleep(pause)
            left_s = max(deadline - loop.time(), 0.0)

    async def _try_once(self, client: httpx.AsyncClient, body: bytes, seconds: float) -> Answer:
        limit = self.config.max_response_bytes
        try:
            async with asyncio.timeout(seconds), client.stream("POST", self._url, content=body) as response:
                payload = await _read(response, limit if response.status_code == 200 else _MAX_ERROR_BYTES)
        except TimeoutError:
            raise _FailedTryError(f"no complete answer within {seconds:.3g} s", _SLOW_FIX, retry=True) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _FailedTryError(
                f"cannot connect ({_quote(client, f'{type(error).__name__}: {error}')}); expected an OpenAI-compatible "
                "server there",
                "Start the server, or set base_url to its address (it usually ends in /v1).",
                retry=True,
            ) from None
        except httpx.HTTPError as error:
            raise _FailedTryError(
                f"the connection broke before the answer was complete ({type(error).__name__})",
                "Look at the server's log; it may have been restarted or run out of memory.",
                retry=True,
            ) from None
        if response.status_code != 200:
            raise _refusal(client, response, payload or b"")
        if payload is None:
            raise _FailedTryError(
                f"the answer is larger than max_response_bytes={limit!r}",
                "Set max_new_tokens lower, or max_response_bytes higher.",
                retry=False,
            )
        try:
            return parse_answer(payload)
        except MalformedAnswerError as error:
            begin = _quote(client, payload[:4096].decode("utf-8", "replace"), 80)
            kind = _quote(client, response.headers.get("content-type", "none"), 80)
            what = f"the answer is not a chat completion ({error}; content type {kind!r}; it begins {begin!r})"
            raise _FailedTryError(what, error.fix, retry=True) from None


def _refusal(client: httpx.AsyncClient, response: httpx.Response, payload: bytes) -> _FailedTryError:
    """Return what a status other than 200 means."""
    status = response.status_code
    if response.has_redirect_location:
        target = _quote(client, response.headers["location"])
        return _FailedTryError(
            f"the server answered {status}, a redirect to {target!r}, which is not followed",
            "Set base_url to the final address if you trust it.",
            retry=False,
        )
    said = _quote(client, error_text(payload))
    return _FailedTryError(
        f"the server answered {status}" + (f" and said {said!r}" if said else ""),
        _STATUS_FIXES.get(status, "Look at the server's log."),
        retry=status in (408, 429) or status >= 500,
        retry_after=_retry_after(response.headers.get("retry-after", "")),
    )


def _quote(client: httpx.AsyncClient, text: str, limit: int = _MAX_QUOTE) -> str:
    """Return a server's words without the key that was sent, shortened after that, so that no piece of it stays."""
    key = client.headers.get("authorization", "").removeprefix("Bearer ")
    text = text.replace(key, "***") if key else text
    return text if len(text) <= limit else text[:limit] + "..."


async def _read(response: httpx.Response, limit: int) -> bytes | None:
    """Return the body, or None once it is longer than ``limit``; the rest is not read."""
    parts = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def _pause(config: ServedModelConfig, tries: int, retry_after: float, digest: str) -> float:
    """Return the seconds before the next try: exponential with jitter fixed by the request, or as the server asks."""
    grown = min(config.backoff_s * 2.0 ** min(tries - 1, 60), config.max_backoff_s)
    jittered = grown * (0.5 + 0.5 * float(uniforms(1, "served pause", digest, tries)[0]))
    return max(jittered, min(retry_after, config.max_backoff_s))


def _retry_after(value: str) -> float:
    """Return the seconds that a Retry-After header asks for (a number or an HTTP date); 0 for none or nonsense."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _check_base_url(base_url: str) -> None:
    if "@" in base_url or "?" in base_url or "#" in base_url:
        # The value is not shown: it may hold a password or a key.
        raise ConfigError(
            "base_url holds a user name, a query or a fragment; expected a plain address like "
            "'http://127.0.0.1:8000/v1'. Put a key into the environment variable that api_key_env names."
        )
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(
            f"base_url={base_url!r} is not an http or https address; write it like 'http://127.0.0.1:8000/v1'."
        )
    if base_url.rstrip("/").endswith("/chat/completions"):
        raise ConfigError(f"base_url={base_url!r} holds the path that is appended to it; end it before '/chat'.")
