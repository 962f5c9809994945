from __future__ import annotations

import re
from typing import Any

import pytest

from stratagem.errors import ConfigError
from stratagem.models.served import ServedModel, ServedModelConfig, _pause, _retry_after

# The pauses


@pytest.mark.parametrize(("tries", "grown"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (5000, 30.0)])
def test_pauses_double_up_to_the_cap_with_jitter_in_the_upper_half(tries: int, grown: float) -> None:
    config = ServedModelConfig("http://127.0.0.1:1", "m")  # 0.5 * 2^(tries-1), at most 30
    pauses = [_pause(config, tries, 0.0, str(index)) for index in range(50)]
    assert all(0.5 * grown <= pause < grown for pause in pauses)
    assert len(set(pauses)) == 50
    assert pauses == [_pause(config, tries, 0.0, str(index)) for index in range(50)]


def test_retry_after_lengthens_a_pause_up_to_the_cap_and_never_shortens_it() -> None:
    config = ServedModelConfig("http://127.0.0.1:1", "m")
    assert _pause(config, 1, 7.0, "d") == 7.0
    assert _pause(config, 1, 3600.0, "d") == 30.0
    assert _pause(config, 7, 1.0, "d") == _pause(config, 7, 0.0, "d") >= 15.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("", 0.0),
        ("soon", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 60.0),  # 100 s after the epoch, read at 40 s
        ("Thu, 01 Jan 1970 00:00:20 GMT", 0.0),
        ("Thu, 01 Jan 99999 00:00:20 GMT", 0.0),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(monkeypatch: pytest.MonkeyPatch, value: str, expected: float) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("stratagem.models.served.time.time", lambda: 40.0)
        seconds = _retry_after(value)
    assert seconds == expected


# The key


def test_a_missing_key_is_found_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRATAGEM_TEST_KEY", raising=False)
    message = (
        "api_key_env='STRATAGEM_TEST_KEY' names an environment variable that is not set; export it, or leave "
        "api_key_env out for a server without a key."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ServedModel(ServedModelConfig("http://127.0.0.1:1", "m", api_key_env="STRATAGEM_TEST_KEY"))


def test_a_key_that_no_header_can_carry_is_refused_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_TEST_KEY", "sk-\u00e9")
    message = (
        "api_key_env='STRATAGEM_TEST_KEY': its value holds characters that no HTTP header can carry; expected "
        "printable ASCII. Export the key again."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ServedModel(ServedModelConfig("http://127.0.0.1:1", "m", api_key_env="STRATAGEM_TEST_KEY"))


# Settings

SECRET_URL = (
    "base_url holds a user name, a query or a fragment; expected a plain address like 'http://127.0.0.1:8000/v1'. "
    "Put a key into the environment variable that api_key_env names."
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"base_url": "127.0.0.1:8000"},
            "base_url='127.0.0.1:8000' is not an http or https address; write it like 'http://127.0.0.1:8000/v1'.",
        ),
        (
            {"base_url": "http://"},
            "base_url='http://' is not an http or https address; write it like 'http://127.0.0.1:8000/v1'.",
        ),
        ({"base_url": "http://me:secret@host/v1"}, SECRET_URL),
        ({"base_url": "http://host/v1?key=secret"}, SECRET_URL),
        (
            {"base_url": "http://host/v1/chat/completions"},
            "base_url='http://host/v1/chat/completions' holds the path that is appended to it; end it before '/chat'.",
        ),
        ({"model": ""}, "model='' names no model; set it to the model's name on the server."),
        (
            {"api_key_env": "sk-0123"},
            "api_key_env is not the name of an environment variable (A-Z, 0-9 and _); set it to the name of the "
            "variable that holds the key, never to the key itself.",
        ),
        ({"context_length": 0}, "context_length=0 is too small; set it to 1 or more."),
        ({"max_concurrency": 0}, "max_concurrency=0 is too small; set it to 1 or more."),
        ({"max_response_bytes": 0}, "max_response_bytes=0 is too small; set it to 1 or more."),
        ({"max_retries": -1}, "max_retries=-1 is negative; use 0 for a single try."),
        ({"timeout_s": 0}, "timeout_s=0 is not a time limit; set it to a positive number of seconds."),
        (
            {"total_timeout_s": float("inf")},
            "total_timeout_s=inf is not a time limit; set it to a positive number of seconds.",
        ),
        ({"backoff_s": -1.0}, "backoff_s=-1.0 is not a time limit; set it to a positive number of seconds."),
        (
            {"max_backoff_s": float("nan")},
            "max_backoff_s=nan is not a time limit; set it to a positive number of seconds.",
        ),
        (
            {"max_tokens_field": "tokens"},
            "max_tokens_field='tokens' is unknown; use 'max_tokens' or 'max_completion_tokens'.",
        ),
        (
            {"extra_body": {"top_k": 5, "seed": 1, "echo": True}},
            "extra_body holds 'seed', 'top_k', which this program sets itself; use the generation settings, seed, "
            "send_extra_sampling or continue_assistant.",
        ),
        (
            {"extra_body": {"x": {1}}},
            "extra_body cannot be sent as JSON (Object of type set is not JSON serializable); use texts, numbers and "
            "tables.",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ServedModelConfig(**{"base_url": "http://127.0.0.1:1/v1", "model": "m", **settings})
