"""A server that misbehaves on purpose, over real sockets on the loopback address."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import re
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from stratagem.errors import ModelError
from stratagem.models.base import Completion, GenerationConfig, Request
from stratagem.models.served import ServedModel, ServedModelConfig
from stratagem.seeding import uniforms
from stratagem.types import Finish

T = TypeVar("T")
KEY = "sk-very-secret-0123456789"
HINT_API = "Check that base_url leads to an OpenAI-compatible API."


def completion(text: Any = "hi", finish_reason: Any = "stop", **choice: Any) -> bytes:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    choices = [{"message": message, "finish_reason": finish_reason, **choice}]
    return json.dumps({"choices": choices, "usage": usage}).encode()


@dataclass(frozen=True)
class Reply:
    body: bytes = completion()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    keep: int | None = None
    """Send so many bytes of the body, then drop the connection."""
    drip_s: float = 0.0
    """Pause after each byte of the body."""


HANG = Reply(delay_s=60)


class ScriptedServer:
    """Gives the k-th request the k-th reply; the last one repeats."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = replies
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.url = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            raw = await reader.readexactly(int(headers["content-length"]))
            reply = self.replies[min(len(self.bodies), len(self.replies) - 1)]
            self.paths.append(head[0])
            self.headers.append(dict(line.split(": ", 1) for line in head[1:] if line))
            self.bodies.append(json.loads(raw))
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                await asyncio.sleep(reply.delay_s)
                await self._send(reply, writer)
            finally:
                self.in_flight -= 1
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> None:
        fields = {"Content-Type": "application/json", "Content-Length": str(len(reply.body)), "Connection": "close"}
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{k}: {v}" for k, v in {**fields, **reply.headers}.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        if reply.drip_s:
            for index in range(len(reply.body)):
                writer.write(reply.body[index : index + 1])
                await writer.drain()
                await asyncio.sleep(reply.drip_s)
        else:
            writer.write(reply.body[: reply.keep])
            await writer.drain()


def make_request(text: str = "u", *, prefix: str = "", draw: int | None = None, **generation: Any) -> Request:
    drawn = None if draw is None else uniforms(8, "draw", draw)
    return Request((("user", text),), GenerationConfig(**generation), uniforms=drawn, assistant_prefix=prefix)


def talk(
    replies: list[Reply], call: Callable[[ServedModel], Coroutine[Any, Any, T]], **settings: Any
) -> tuple[T, ScriptedServer, ServedModel]:
    """Run ``call`` against a server that gives ``replies``."""

    async def run() -> tuple[T, ScriptedServer, ServedModel]:
        async with ScriptedServer(*replies) as server:
            model = ServedModel(ServedModelConfig(server.url, "m", **{"backoff_s": 0.001, **settings}))
            try:
                return await call(model), server, model
            finally:
                await model.aclose()

    return asyncio.run(run())


def ask(
    *replies: Reply, request: Request | None = None, **settings: Any
) -> tuple[Completion, ScriptedServer, ServedModel]:
    return talk(list(replies), lambda model: model.generate(request or make_request()), **settings)


def ask_in_vain(*replies: Reply, **settings: Any) -> tuple[str, ScriptedServer, ServedModel]:
    """Return the error's message, the address replaced by URL."""

    async def call(model: ServedModel) -> str:
        with pytest.raises(ModelError) as caught:
            await model.generate(make_request())
        return str(caught.value).replace(model.config.base_url, "URL")

    return talk(list(replies), call, **settings)


# What is asked and answered


def test_completion_carries_text_finish_and_token_counts() -> None:
    answer, server, model = ask(Reply())
    assert answer == Completion("hi", Finish.STOP, num_prompt_tokens=3, num_completion_tokens=2)
    assert (model.name, model.context_length) == ("m", 32768)
    assert server.paths == ["POST /v1/chat/completions HTTP/1.1"]
    assert server.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "u"}],
            "max_tokens": 200,
            "temperature": 1.0,
            "top_p": 1.0,
        }
    ]
    assert "Authorization" not in server.headers[0]


def test_trailing_slash_of_the_address_makes_no_double_slash() -> None:
    async def run() -> list[str]:
        async with ScriptedServer(Reply()) as server:
            model = ServedModel(ServedModelConfig(server.url + "/", "m"))
            await model.generate(make_request())
            await model.aclose()
            return server.paths

    assert asyncio.run(run()) == ["POST /v1/chat/completions HTTP/1.1"]


def test_stop_text_is_restored_for_the_parser() -> None:
    answer, server, _ = ask(Reply(completion("<action>left")), request=make_request(stop=("</action>",)))
    assert answer.text == "<action>left</action>"
    assert server.bodies[0]["stop"] == ["</action>"]


def test_prefix_counts_as_the_opening_tag() -> None:
    answer, server, _ = ask(
        Reply(completion("left")), request=make_request(prefix="<action>", stop=("</action>",)), continue_assistant=True
    )
    assert answer.text == "left</action>"
    assert server.bodies[0]["messages"][-1] == {"role": "assistant", "content": "<action>"}


@pytest.mark.parametrize(
    ("reason", "finish", "counted"),
    [
        ("stop", Finish.STOP, {}),
        ("length", Finish.LENGTH, {}),
        ("content_filter", Finish.STOP, {"content_filter": 1}),
        (None, Finish.STOP, {"none": 1}),
    ],
    ids=["stop", "length", "other", "none"],
)
def test_finish_reasons_are_mapped_and_unknown_ones_counted(
    reason: Any, finish: Finish, counted: dict[str, int]
) -> None:
    answer, _, model = ask(Reply(completion("x", reason)))
    assert answer.finish is finish
    assert dict(model.usage.other_finishes) == counted


def test_usage_adds_up_over_calls_and_says_when_it_is_a_lower_bound() -> None:
    async def call(model: ServedModel) -> None:
        for _ in range(3):
            await model.generate(make_request())

    silent = Reply(b'{"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}')
    _, _, model = talk([Reply(), Reply(status=500), Reply(), silent], call)
    usage = model.usage
    # Two answers of 3 + 2 tokens, one that does not say; four tries for three completions.
    assert (usage.requests, usage.retries, usage.prompt_tokens, usage.completion_tokens) == (3, 1, 6, 4)
    assert usage.answers_without_usage == 1


def test_text_that_utf8_cannot_encode_is_sent_all_the_same() -> None:
    _, server, _ = ask(Reply(), request=make_request("a\ud800 \u00e9"))
    assert server.bodies[0]["messages"][0]["content"] == "a\ud800 \u00e9"


def test_json_with_a_wrong_content_type_is_read() -> None:
    assert ask(Reply(headers={"Content-Type": "text/plain"}))[0].text == "hi"


# Seeds


def seeds_of(requests: list[Request], **settings: Any) -> list[Any]:
    async def call(model: ServedModel) -> None:
        for request in requests:
            await model.generate(request)

    return [body.get("seed") for body in talk([Reply()], call, **settings)[1].bodies]


def test_no_seed_is_sent_unless_one_is_set() -> None:
    assert seeds_of([make_request(draw=1)]) == [None]


def test_each_draw_has_its_own_seed_whatever_the_order() -> None:
    first, second = make_request(draw=1), make_request(draw=2)
    ahead = seeds_of([first, second], seed=0)
    assert ahead == seeds_of([second, first], seed=0)[::-1]
    assert ahead[0] != ahead[1]
    assert all(0 <= seed < 2**31 for seed in ahead)
    assert ahead != seeds_of([first, second], seed=1)


def test_without_draws_equal_prompts_still_get_different_seeds() -> None:
    # One seed for all would make the episodes of a group copies of each other.
    seeds = seeds_of([make_request(), make_request(), make_request("other")], seed=0)
    assert len(set(seeds)) == 3
    assert seeds == seeds_of([make_request(), make_request(), make_request("other")], seed=0)


# Failures that pass


def test_two_server_errors_are_survived() -> None:
    answer, server, model = ask(Reply(status=500), Reply(status=503), Reply())
    assert answer.text == "hi"
    assert len(server.bodies) == 3
    assert model.usage.retries == 2


def test_retries_send_the_same_seed() -> None:
    _, server, _ = ask(Reply(status=500), Reply(), seed=3)
    assert server.bodies[0] == server.bodies[1]


@pytest.mark.parametrize("status", [408, 429])
def test_busy_answers_are_tried_again(status: int) -> None:
    assert ask(Reply(status=status), Reply())[0].text == "hi"


def test_retry_after_is_waited_for() -> None:
    start = time.monotonic()
    ask(Reply(status=429, headers={"Retry-After": "0.3"}), Reply())
    assert time.monotonic() - start >= 0.3


def test_retry_after_is_capped() -> None:
    start = time.monotonic()
    ask(Reply(status=429, headers={"Retry-After": "3600"}), Reply(), max_backoff_s=0.01)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "broken",
    [
        Reply(keep=10),
        Reply(body=b"garbage"),
        Reply(body=b'{"choices": []}'),
        Reply(body=completion(None)),
        Reply(body=completion(5)),
    ],
    ids=["cut", "garbage", "no choices", "null", "number"],
)
def test_a_broken_answer_is_asked_for_again(broken: Reply) -> None:
    answer, _, model = ask(broken, Reply())
    assert answer.text == "hi"
    assert model.usage.retries == 1


def test_a_hanging_try_is_ended_and_repeated() -> None:
    answer, _, model = ask(HANG, Reply(), timeout_s=1.0)
    assert answer.text == "hi"
    assert model.usage.retries == 1


def test_a_server_that_comes_up_late_is_reached() -> None:
    async def run() -> Completion:
        server = ScriptedServer(Reply())
        async with server:
            url = server.url
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        model = ServedModel(ServedModelConfig(url, "m", backoff_s=0.2))
        asking = asyncio.create_task(model.generate(make_request()))
        await asyncio.sleep(0.05)
        late = await asyncio.start_server(server._serve, "127.0.0.1", port)
        try:
            return await asking
        finally:
            late.close()
            await late.wait_closed()
            await model.aclose()

    assert asyncio.run(run()).text == "hi"


# Failures that stay


def test_lasting_server_errors_end_with_the_servers_words() -> None:
    message, server, _ = ask_in_vain(Reply(b'{"error": {"message": "out of memory"}}', 500), max_retries=2)
    assert message == (
        "base_url='URL': the server answered 500 and said 'out of memory'. Gave up after 3 tries (max_retries=2). "
        "Look at the server's log."
    )
    assert len(server.bodies) == 3


def test_lasting_429_says_how_to_press_less() -> None:
    assert ask_in_vain(Reply(b"", 429), max_retries=0)[0] == (
        "base_url='URL': the server answered 429. Gave up after 1 try (max_retries=0). "
        "Set max_concurrency lower, or max_retries or max_backoff_s higher."
    )


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (400, "Change the setting that the server names."),
        (401, "Set api_key_env to the environment variable that holds a valid key."),
        (403, "Set api_key_env to the environment variable that holds a key with access to this model."),
        (404, "Check base_url (it usually ends in /v1) and model."),
        (
            422,
            "Change the setting that the server names; extra_body, send_extra_sampling and continue_assistant add "
            "fields that not every server takes.",
        ),
        (418, "Look at the server's log."),
    ],
)
def test_a_refusal_is_final_and_says_what_to_change(status: int, fix: str) -> None:
    message, server, _ = ask_in_vain(Reply(b'{"error": {"message": "no"}}', status))
    assert message == f"base_url='URL': the server answered {status} and said 'no'. {fix}"
    assert len(server.bodies) == 1


def test_a_long_refusal_is_shortened() -> None:
    message = ask_in_vain(Reply(b"x" * 100_000, 400))[0]
    assert message == "base_url='URL': the server answered 400. Change the setting that the server names."
    message = ask_in_vain(Reply(b"x" * 1000, 400))[0]
    assert message == (
        f"base_url='URL': the server answered 400 and said '{'x' * 300}...'. Change the setting that the server names."
    )


def test_a_redirect_is_not_followed() -> None:
    message, server, _ = ask_in_vain(Reply(b"", 307, {"Location": "http://127.0.0.1:9/elsewhere"}))
    assert message == (
        "base_url='URL': the server answered 307, a redirect to 'http://127.0.0.1:9/elsewhere', which is not followed. "
        "Set base_url to the final address if you trust it."
    )
    assert len(server.bodies) == 1


def test_a_server_that_always_hangs_is_given_up() -> None:
    assert ask_in_vain(HANG, timeout_s=0.2, max_retries=1)[0] == (
        "base_url='URL': no complete answer within 0.2 s. Gave up after 2 tries (max_retries=1). "
        "Set timeout_s higher, or max_new_tokens or max_concurrency lower."
    )


def test_a_server_that_drips_bytes_cannot_outlast_the_limit() -> None:
    # Every single read succeeds in 0.05 s; only a limit on the whole try ends this.
    start = time.monotonic()
    assert ask_in_vain(Reply(drip_s=0.05), timeout_s=0.3, max_retries=0)[0] == (
        "base_url='URL': no complete answer within 0.3 s. Gave up after 1 try (max_retries=0). "
        "Set timeout_s higher, or max_new_tokens or max_concurrency lower."
    )
    assert time.monotonic() - start < 5


def test_no_pause_outlasts_the_limit_for_all_tries() -> None:
    start = time.monotonic()
    busy = Reply(b"", 503, {"Retry-After": "20"})
    assert ask_in_vain(busy, max_retries=1000, total_timeout_s=10.0)[0] == (
        "base_url='URL': the server answered 503. Gave up after 1 try (total_timeout_s=10.0). Look at the server's log."
    )
    assert time.monotonic() - start < 8


def test_no_try_outlasts_the_limit_for_all_tries() -> None:
    start = time.monotonic()
    assert ask_in_vain(HANG, max_retries=1000, total_timeout_s=0.3)[0] == (
        "base_url='URL': no complete answer within 0.3 s. Gave up after 1 try (total_timeout_s=0.3). "
        "Set timeout_s higher, or max_new_tokens or max_concurrency lower."
    )
    assert time.monotonic() - start < 8


def test_a_connection_that_always_breaks_is_given_up() -> None:
    assert ask_in_vain(Reply(keep=10), max_retries=1)[0] == (
        "base_url='URL': the connection broke before the answer was complete (RemoteProtocolError). Gave up after 2 "
        "tries (max_retries=1). Look at the server's log; it may have been restarted or run out of memory."
    )


@pytest.mark.parametrize(
    ("reply", "what", "fix"),
    [
        (
            Reply(b"<html>log in</html>", headers={"Content-Type": "text/html"}),
            "not JSON; content type 'text/html'; it begins '<html>log in</html>'",
            HINT_API,
        ),
        (
            Reply(b'{"choices": []}'),
            "'choices' is empty; content type 'application/json'; it begins '{\"choices\": []}'",
            HINT_API,
        ),
        (
            Reply(b'{"choices":[{"message":{"content":null},"finish_reason":"stop"}],"pad":"0123456789abcdef"}'),
            "'content' is null, finish_reason 'stop'; content type 'application/json'; it begins "
            '\'{"choices":[{"message":{"content":null},"finish_reason":"stop"}],"pad":"01234567...\'',
            "The server may have put the text elsewhere: start it without a reasoning or tool-call parser.",
        ),
    ],
    ids=["html", "empty choices", "null content"],
)
def test_lasting_nonsense_is_quoted(reply: Reply, what: str, fix: str) -> None:
    assert ask_in_vain(reply, max_retries=1)[0] == (
        f"base_url='URL': the answer is not a chat completion ({what}). Gave up after 2 tries (max_retries=1). {fix}"
    )


def test_a_huge_answer_is_refused_without_reading_it() -> None:
    # Sent slowly enough that reading all of it would take far longer than the test allows.
    endless = Reply(b"[" * 2000 + b"x" * 100_000, drip_s=0.001)
    start = time.monotonic()
    message, server, _ = ask_in_vain(endless, max_response_bytes=100)
    assert message == (
        "base_url='URL': the answer is larger than max_response_bytes=100. "
        "Set max_new_tokens lower, or max_response_bytes higher."
    )
    assert len(server.bodies) == 1
    assert time.monotonic() - start < 20


def test_an_unreachable_server_is_named_with_what_to_do() -> None:
    with socket.socket() as taken:  # Bound but not listening: nobody answers, and nobody else gets the port.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"

        async def run() -> None:
            model = ServedModel(ServedModelConfig(url, "m", max_retries=1, backoff_s=0.001))
            try:
                await model.generate(make_request())
            finally:
                await model.aclose()

        message = (
            f"base_url={url!r}: cannot connect (ConnectError: All connection attempts failed); expected an "
            "OpenAI-compatible server there. Gave up after 2 tries (max_retries=1). Start the server, or set base_url "
            "to its address (it usually ends in /v1)."
        )
        with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
            asyncio.run(run())


def test_a_closed_model_says_so() -> None:
    async def call(model: ServedModel) -> None:
        await model.aclose()
        await model.generate(make_request())

    with pytest.raises(ModelError, match=r"^model='m' was closed; make a new ServedModel to ask again\.$"):
        talk([Reply()], call)


def test_closing_ends_the_retries_of_a_call_in_flight() -> None:
    async def call(model: ServedModel) -> None:
        asking = asyncio.create_task(model.generate(make_request()))
        await asyncio.sleep(0.1)
        await model.aclose()
        await asking

    with pytest.raises(ModelError, match=r"^model='m' was closed; make a new ServedModel to ask again\.$"):
        talk([Reply(status=500)], call, backoff_s=0.3)


# Concurrency


def test_never_more_requests_in_flight_than_allowed() -> None:
    async def call(model: ServedModel) -> list[Completion]:
        return await asyncio.gather(*(model.generate(make_request(str(index))) for index in range(6)))

    answers, server, _ = talk([Reply(delay_s=0.2)], call, max_concurrency=3)
    assert [answer.text for answer in answers] == ["hi"] * 6
    assert server.most_in_flight == 3


def test_a_waiting_retry_keeps_its_place() -> None:
    async def call(model: ServedModel) -> None:
        await asyncio.gather(model.generate(make_request("a")), model.generate(make_request("b")))

    _, server, _ = talk([Reply(status=503), Reply()], call, max_concurrency=1)
    assert [body["messages"][0]["content"] for body in server.bodies] == ["a", "a", "b"]


def test_a_cancelled_call_frees_its_place() -> None:
    async def run() -> Completion:
        async with ScriptedServer(HANG, Reply()) as server:
            model = ServedModel(ServedModelConfig(server.url, "m", max_concurrency=1))
            first = asyncio.create_task(model.generate(make_request()))
            while not server.bodies:
                await asyncio.sleep(0.01)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            try:
                return await model.generate(make_request())
            finally:
                await model.aclose()

    assert asyncio.run(run()).text == "hi"


def test_a_model_can_be_used_from_one_event_loop_after_another() -> None:
    async def ask_twice(model: ServedModel) -> list[str]:
        # With one place the second call has to wait, which ties a semaphore to its loop.
        calls = [model.generate(make_request(text)) for text in "ab"]
        results = await asyncio.gather(*calls, return_exceptions=True)
        return [result.text if isinstance(result, Completion) else str(result) for result in results]

    async def first() -> tuple[ServedModel, list[str]]:
        async with ScriptedServer(Reply()) as server:
            model = ServedModel(ServedModelConfig(server.url, "m", max_concurrency=1, max_retries=0))
            return model, await ask_twice(model)

    model, texts = asyncio.run(first())
    assert texts == ["hi", "hi"]
    # The server is gone now: the error has to be about that, not about a closed event loop.
    assert [text.split(": ")[1] for text in asyncio.run(ask_twice(model))] == ["cannot connect (ConnectError"] * 2
    asyncio.run(model.aclose())


# The key


def test_the_key_is_sent_and_appears_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STRATAGEM_TEST_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    seen = []

    async def call(model: ServedModel) -> None:
        seen.append(pickle.dumps(model.config).decode("latin-1"))
        seen.append(pickle.dumps(vars(model)).decode("latin-1"))
        for _ in range(3):
            with pytest.raises(ModelError) as caught:
                await model.generate(make_request())
            seen.append(str(caught.value))
        seen.append(repr(model) + repr(model.config) + repr(vars(model)) + repr(model.usage))

    echo = b'{"error": {"message": "Incorrect API key provided: ' + KEY.encode() + b'"}}'
    replies = [
        Reply(echo, 401),
        Reply(b"", 307, {"Location": f"http://127.0.0.1:9/?key={KEY}"}),
        # The key lies across the end of what is quoted: cutting first would leave a piece of it.
        Reply(b"x" * 70 + KEY.encode()),
    ]
    _, server, _ = talk(replies, call, api_key_env="STRATAGEM_TEST_KEY", max_retries=1)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert seen[2].endswith(
        "the server answered 401 and said 'Incorrect API key provided: ***'. "
        "Set api_key_env to the environment variable that holds a valid key."
    )
    assert f"it begins '{'x' * 70}***')" in seen[4]
    assert "Trying again" in caplog.text
    assert "Bearer" not in caplog.text
    # At level DEBUG httpcore shows a server's headers as they came, so its records are left out here.
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("httpcore")]
    for text in [*seen, *logged]:
        assert KEY[:8] not in text
