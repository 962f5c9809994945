import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.parsing import ParseError
from stratagem.errors import ConfigError, ModelError, UnknownNameError
from stratagem.models.base import Completion, GenerationConfig, Request
from stratagem.rewards.format import FormatPenalty
from stratagem.types import Finish

LEGAL = ("up", "down", "left", "right")


@dataclass
class Script:
    """A model that says one thing and remembers what it was asked."""

    text: str
    ids: tuple[int, ...] = (1, 2, 3)
    num_tokens: int = 0
    name: str = "script"
    context_length: int = 1000
    requests: list[Request] = field(default_factory=list)

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        return Completion(self.text, Finish.STOP, completion_ids=self.ids, num_completion_tokens=self.num_tokens)

    async def aclose(self) -> None:
        return None


def test_a_decision_is_prompt_generation_and_parsing() -> None:
    model = Script("UP</action>")
    agent = LanguageAgent.from_config(model, AgentConfig(max_new_tokens=8, temperature=0.7))
    uniforms = np.array([0.1] * 8)
    decision = asyncio.run(agent.decide("the state", LEGAL, uniforms))
    assert (decision.action, decision.parse_error, decision.shaping) == ("up", None, 0.0)
    assert decision.completion.text == "UP</action>"
    (request,) = model.requests
    assert request.messages[-1] == ("user", "the state")
    assert request.config == GenerationConfig(max_new_tokens=8, temperature=0.7, stop=("</action>",))
    assert request.assistant_prefix == "<action>"
    assert request.uniforms is uniforms


def test_the_prefix_is_part_of_the_answer_but_not_of_its_length() -> None:
    seen: list[tuple[str, int]] = []

    def shaping(text: str, num_tokens: int) -> float:
        seen.append((text, num_tokens))
        return -0.125

    agent = LanguageAgent.from_config(Script("up</action>"), AgentConfig(), shaping)
    assert asyncio.run(agent.decide("s", LEGAL)).shaping == -0.125
    assert seen == [("<action>up</action>", 3)]


def test_the_token_count_of_a_server_is_used_where_there_are_no_ids() -> None:
    penalty = FormatPenalty(("action",))
    agent = LanguageAgent.from_config(Script("up</action>", ids=(), num_tokens=190), AgentConfig(), penalty)
    # 190 tokens: half of the length penalty of -0.5
    assert asyncio.run(agent.decide("s", LEGAL)).shaping == -0.25


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ParseError.UNCLOSED),
        ("up", ParseError.UNCLOSED),
        ("jump</action>", ParseError.UNKNOWN),
        ("</action>", ParseError.EMPTY),
        ("<action>up</action>", ParseError.NESTED),
    ],
)
def test_a_malformed_completion_is_data(text: str, error: ParseError) -> None:
    agent = LanguageAgent.from_config(Script(text), AgentConfig())
    decision = asyncio.run(agent.decide("s", LEGAL))
    assert (decision.action, decision.parse_error) == (None, error)
    assert decision.completion.completion_ids == (1, 2, 3)


def test_the_first_decision_reports_its_reason_like_any_other() -> None:
    agent = LanguageAgent.from_config(Script("jump</action>"), AgentConfig())
    first, second = (asyncio.run(agent.decide("s", LEGAL)) for _ in range(2))
    assert first.parse_error is second.parse_error is ParseError.UNKNOWN


def test_another_tag_is_parsed_and_ends_the_completion(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("tags: move\n--- user\n{observation}\n")
    model = Script("<move>left</move>")
    agent = LanguageAgent.from_config(model, AgentConfig(template=str(path), tag="move"))
    assert asyncio.run(agent.decide("s", LEGAL)).action == "left"
    assert model.requests[0].config.stop == ("</move>",)


def test_a_failing_model_is_an_error_and_not_a_bad_action() -> None:
    class Broken(Script):
        async def generate(self, request: Request) -> Completion:
            raise ModelError("gone")

    with pytest.raises(ModelError, match=r"^gone$"):
        asyncio.run(LanguageAgent.from_config(Broken(""), AgentConfig()).decide("s", LEGAL))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recovery": "retry"}, "recovery='retry' is not a strategy; use one of no_action, random, end."),
        (
            {"invalid_penalty": 0.5},
            "invalid_penalty=0.5 would reward invalid actions; use a number of 0 or less.",
        ),
        ({"tag": "<act>"}, "tag='<act>' is not the name of a tag; write a word without brackets, as 'action'."),
        ({"max_new_tokens": 0}, "max_new_tokens=0 leaves nothing to sample; set it to 1 or more."),
        ({"temperature": -1.0}, "temperature=-1.0 is negative; use 0 for greedy or a positive number."),
        ({"temperature": float("inf")}, "temperature=inf draws every token alike; use a finite number."),
        ({"top_p": 0.0}, "top_p=0.0 is not in (0, 1]; leave it out to switch it off."),
    ],
)
def test_bad_settings_are_refused_before_a_model_is_loaded(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        AgentConfig(**settings)


def test_a_tag_that_the_template_does_not_ask_for_is_refused() -> None:
    message = (
        "tag='move' is not asked for by template 'action', whose tags are action; set tag to one of them or choose "
        "another template."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        LanguageAgent.from_config(Script(""), AgentConfig(tag="move"))


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        LanguageAgent.from_config(Script(""), AgentConfig(template="nope"))
