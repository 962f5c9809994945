from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stratagem.errors import ConfigError
from stratagem.models.base import GenerationConfig, Request
from stratagem.models.chat_api import (
    Answer,
    MalformedAnswerError,
    error_text,
    parse_answer,
    request_body,
    restore_stop,
)

ALLOWED: dict[str, Any] = {
    "model": "m",
    "seed": None,
    "max_tokens_field": "max_tokens",
    "send_extra_sampling": False,
    "continue_assistant": False,
    "extra_body": {},
}


def make_request(prefix: str = "", **generation: Any) -> Request:
    return Request((("system", "s"), ("user", "u")), GenerationConfig(**generation), assistant_prefix=prefix)


def make_answer(text: str, finish_reason: str | None = "stop", **known: Any) -> Answer:
    fields = {"stop_reported": False, "matched_stop": None, **known}
    return Answer(text, finish_reason, prompt_tokens=0, completion_tokens=0, tokens_reported=False, **fields)


def make_payload(choice: Any = None, **top: Any) -> bytes:
    choice = {"message": {"content": "hi"}, "finish_reason": "stop"} if choice is None else choice
    return json.dumps({"choices": [choice], **top}).encode()


def test_plain_request_becomes_the_openai_body_with_top_p_off_said_aloud() -> None:
    assert request_body(make_request(), **ALLOWED) == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "max_tokens": 200,
        "temperature": 1.0,
        "top_p": 1.0,
    }


def test_every_setting_that_is_given_is_sent() -> None:
    request = make_request("<think>", max_new_tokens=5, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, stop=("</a>",))
    settings = {
        "model": "m",
        "seed": 7,
        "max_tokens_field": "max_completion_tokens",
        "send_extra_sampling": True,
        "continue_assistant": True,
        "extra_body": {"include_stop_str_in_output": True},
    }
    assert request_body(request, **settings) == {
        "include_stop_str_in_output": True,
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "<think>"},
        ],
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "stop": ["</a>"],
        "seed": 7,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


def test_extra_sampling_that_is_off_is_sent_as_off() -> None:
    body = request_body(make_request(), **{**ALLOWED, "send_extra_sampling": True})
    assert (body["top_k"], body["min_p"]) == (-1, 0.0)


@pytest.mark.parametrize(
    ("generation", "named"),
    [({"top_k": 20}, "top_k=20"), ({"min_p": 0.1}, "min_p=0.1"), ({"top_k": 2, "min_p": 0.5}, "top_k=2 and min_p=0.5")],
    ids=["top_k", "min_p", "both"],
)
def test_sampling_outside_the_schema_is_refused_by_name(generation: dict[str, Any], named: str) -> None:
    message = (
        f"{named} cannot be sent: OpenAI's chat completions take temperature and top_p only. Leave it out, or set "
        "send_extra_sampling=true for a server that takes top_k and min_p (vLLM, SGLang, llama.cpp)."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        request_body(make_request(**generation), **ALLOWED)


def test_assistant_prefix_is_refused_unless_allowed() -> None:
    message = (
        "assistant_prefix='<think>' cannot be sent: OpenAI's chat completions always begin a new assistant turn. Use a "
        "prompt template without a prefix, or set continue_assistant=true for a server that takes "
        "continue_final_message (vLLM, SGLang)."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        request_body(make_request("<think>"), **ALLOWED)


def test_answer_is_read_with_its_token_counts() -> None:
    choice = {"message": {"content": "hi"}, "finish_reason": "stop", "stop_reason": "</a>"}
    assert parse_answer(make_payload(choice, usage={"prompt_tokens": 3, "completion_tokens": 2})) == Answer(
        "hi", "stop", True, "</a>", prompt_tokens=3, completion_tokens=2, tokens_reported=True
    )


@pytest.mark.parametrize(
    "usage",
    [None, [], {}, {"prompt_tokens": 3}, {"prompt_tokens": True, "completion_tokens": 2}, {"prompt_tokens": -1}],
    ids=["null", "list", "empty", "one", "bool", "negative"],
)
def test_unusable_usage_is_said_to_be_missing_and_loses_no_completion(usage: Any) -> None:
    answer = parse_answer(make_payload(usage=usage))
    assert answer.text == "hi"
    assert not answer.tokens_reported


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, (False, None)),
        ({"stop_reason": None}, (True, None)),
        ({"stop_reason": 2}, (True, None)),
        ({"stop_reason": "</a>"}, (True, "</a>")),
        ({"matched_stop": "</a>"}, (True, "</a>")),
        ({"matched_stop": 2}, (True, None)),
    ],
    ids=["silent", "vllm eos", "vllm token", "vllm text", "sglang text", "sglang token"],
)
def test_what_ended_the_completion_is_read_where_the_server_says_it(extra: dict[str, Any], expected: Any) -> None:
    answer = parse_answer(make_payload({"message": {"content": "x"}, "finish_reason": "stop", **extra}))
    assert (answer.stop_reported, answer.matched_stop) == expected


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "'choices' is not a list"),
        (b'{"error": "x"}', "'choices' is not a list"),
        (b'{"choices": {}}', "'choices' is not a list"),
        (b'{"choices": []}', "'choices' is empty"),
        (b'{"choices": [1]}', "'choices[0].message' is not an object"),
        (b'{"choices": [{}]}', "'choices[0].message' is not an object"),
        (b'{"choices": [{"message": "hi"}]}', "'choices[0].message' is not an object"),
        (b'{"choices": [{"message": {"content": 5}}]}', "'content' is not a text"),
        (b'{"choices": [{"message": {"content": "x"}, "finish_reason": 1}]}', "'finish_reason' is not a text"),
        (
            b'{"choices": [{"message": {}, "finish_reason": "tool_calls"}]}',
            "'content' is null, finish_reason 'tool_calls'",
        ),
    ],
    ids=str,
)
def test_answers_that_are_no_chat_completion_are_refused_with_the_reason(payload: bytes, why: str) -> None:
    with pytest.raises(MalformedAnswerError, match=f"^{re.escape(why)}$"):
        parse_answer(payload)


def test_null_content_at_the_length_limit_is_an_empty_completion() -> None:
    # A reasoning parser took all tokens: that is what the model did, not a fault of the server.
    answer = parse_answer(make_payload({"message": {"content": None}, "finish_reason": "length"}))
    assert (answer.text, answer.finish_reason) == ("", "length")


def test_half_of_a_surrogate_pair_cannot_reach_a_file() -> None:
    payload = b'{"choices": [{"message": {"content": "a\\ud800b \\ud83d\\ude00"}, "finish_reason": "stop"}]}'
    assert parse_answer(payload).text == "a\ufffdb \U0001f600"


STOP = ("</action>",)


@pytest.mark.parametrize(
    ("answer", "stop", "prefix", "expected"),
    [
        (make_answer("<action>left"), STOP, "", "<action>left</action>"),
        (make_answer("<action>left</action>"), STOP, "", "<action>left</action>"),
        (make_answer("<action>left</action>\n"), STOP, "", "<action>left</action>\n"),
        (make_answer("go left"), STOP, "", "go left"),
        (make_answer("left"), STOP, "<action>", "left</action>"),
        (make_answer("left"), STOP, "<action>up</action>", "left"),
        (make_answer("left"), STOP, "<action>up</action><action>", "left</action>"),
        (make_answer("<action>left"), (), "", "<action>left"),
        (make_answer("<action>left"), ("</action>", "\n"), "", "<action>left"),
        (make_answer("a\nb"), ("\n\n",), "", "a\nb"),
        (make_answer("<>left"), ("</>",), "", "<>left"),
        (make_answer("<action>lef", "length"), STOP, "", "<action>lef"),
        (make_answer("<action>lef", "content_filter"), STOP, "", "<action>lef"),
        (make_answer("<action>lef", None), STOP, "", "<action>lef"),
        (make_answer("left", stop_reported=True, matched_stop="</action>"), STOP, "", "left</action>"),
        (make_answer("a", stop_reported=True, matched_stop="\n"), ("</action>", "\n"), "", "a\n"),
        (
            make_answer("<action>left</action>\n", stop_reported=True, matched_stop="</action>"),
            STOP,
            "",
            "<action>left</action>\n",
        ),
        (make_answer("<action>left", stop_reported=True), STOP, "", "<action>left"),
        (make_answer("<action>left", stop_reported=True, matched_stop="<|eot|>"), STOP, "", "<action>left"),
    ],
    ids=[
        "open tag is closed",
        "kept by the server",
        "kept with more behind it",
        "no tag",
        "tag opened by the prefix",
        "tag closed in the prefix",
        "tag opened again in the prefix",
        "no stop text",
        "two stop texts",
        "stop text is no tag",
        "nameless tag",
        "length",
        "filtered",
        "no reason",
        "server names it",
        "server names one of two",
        "server names it and kept it",
        "server says end of sequence",
        "server names a foreign stop",
    ],
)
def test_stop_text_is_restored_only_where_it_is_known_or_the_one_reading(
    answer: Answer, stop: tuple[str, ...], prefix: str, expected: str
) -> None:
    assert restore_stop(answer, stop=stop, assistant_prefix=prefix) == expected


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"error": {"message": "bad key", "code": 1}}', "bad key"),
        (b'{"error": "bad key"}', "bad key"),
        (b'{"object": "error", "message": "bad key"}', "bad key"),
        (b'{"detail": "bad key"}', "bad key"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc": ["body"]}]'),
        (b"<html>\n  oops\x1b[31m</html>", "<html> oops [31m</html>"),
        (b"", ""),
    ],
    ids=["openai", "text", "old vllm", "fastapi", "fastapi list", "html", "empty"],
)
def test_error_answers_of_all_servers_become_one_line(payload: bytes, expected: str) -> None:
    assert error_text(payload) == expected
