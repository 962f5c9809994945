import re
from pathlib import Path

import pytest

from stratagem.agents.parsing import parse_action
from stratagem.agents.prompts import TEMPLATES, PromptTemplate, load_template, parse_template
from stratagem.errors import ConfigError, UnknownNameError
from stratagem.rewards.format import FormatPenalty


def test_messages_put_the_observation_in_its_place() -> None:
    template = PromptTemplate("t", "Be brief.", "State:\n{observation}\nYour move?")
    assert template.messages("x") == (("system", "Be brief."), ("user", "State:\nx\nYour move?"))


def test_without_a_system_text_there_is_no_system_message() -> None:
    assert PromptTemplate("t", None, "{observation}").messages("x") == (("user", "x"),)


@pytest.mark.parametrize("observation", ["{}", "{0}", "{observation}", "%s", "\\1", "{'a': 1}", ""])
def test_braces_and_escapes_in_an_observation_are_literal(observation: str) -> None:
    template = PromptTemplate("t", None, '{"state": {observation}} {other}')
    assert template.messages(observation)[0][1] == '{"state": ' + observation + "} {other}"


@pytest.mark.parametrize(("user", "count"), [("none", 0), ("{observation} {observation}", 2)])
def test_the_placeholder_must_stand_once(user: str, count: int) -> None:
    message = f"template='t' holds {{observation}} {count} times in its user section; write it exactly once."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        PromptTemplate("t", None, user)


def test_a_placeholder_in_the_system_section_is_refused() -> None:
    message = (
        "template='t' holds {observation} in its system section, which is never filled in; move it to the user section."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        PromptTemplate("t", "{observation}", "{observation}")


@pytest.mark.parametrize("name", TEMPLATES)
def test_built_in_templates_end_with_the_observation(name: str) -> None:
    template = load_template(name)
    assert template.name == name
    assert template.messages("THE STATE")[-1][1].endswith("THE STATE")
    assert template.tags[-1] == "action"
    assert name.startswith("_".join(template.tags))


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_in_the_form_a_template_asks_for_parses_and_costs_nothing(name: str) -> None:
    template = load_template(name)
    answer = "".join(f"<{tag}>up</{tag}>" for tag in template.tags)
    assert answer.startswith(template.assistant_prefix)
    assert parse_action(answer, ("up",)).action == "up"
    assert FormatPenalty(template.tags)(answer, 20) == 0.0


@pytest.mark.parametrize("name", TEMPLATES)
def test_built_in_templates_name_no_action_and_each_tag(name: str) -> None:
    template = load_template(name)
    assert template.system is not None
    for tag in template.tags:
        assert f"<{tag}>" in template.system
        assert f"</{tag}>" in template.system
    assert not re.search(r"\b(up|down|left|right)\b", template.system)


def test_a_template_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(
        "# note\ntags: think action\nassistant_prefix: <think>\\n\n\n--- system\nA\n\nB\n--- user\n{observation}\n"
    )
    assert load_template(path) == PromptTemplate("mine", "A\n\nB", "{observation}", "<think>\n", ("think", "action"))
    assert load_template(str(path)) == load_template(path)


def test_headers_and_the_system_section_may_be_left_out() -> None:
    assert parse_template("t", "--- user\nGo. {observation}") == PromptTemplate("t", None, "Go. {observation}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tag: action\n--- user\n{observation}",
            "template='t' has the header line 'tag: action'; expected 'tags: ...' or 'assistant_prefix: ...' before "
            "the first '--- system' or '--- user' line.",
        ),
        (
            "--- assistant\nx\n--- user\n{observation}",
            "template='t' has the section line '--- assistant'; expected '--- system' and '--- user', each once.",
        ),
        (
            "--- user\n{observation}\n--- user\n",
            "template='t' has the section line '--- user'; expected '--- system' and '--- user', each once.",
        ),
        (
            "--- system\nx",
            "template='t' has no user section; add a line '--- user' and {observation} below it.",
        ),
    ],
    ids=["header", "section", "section_twice", "no_user"],
)
def test_a_bad_template_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        parse_template("t", text)


def test_a_template_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\xff")
    message = (
        f"Template file {str(path)!r} cannot be read ('utf-8' codec can't decode byte 0xff in position 0: invalid "
        "start byte); give a text file in UTF-8."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_template(path)


def test_an_unknown_template_suggests_the_nearest_name() -> None:
    message = (
        "Unknown template 'think_acton'. Did you mean 'think_action'? Available: action, action_brief, action_formal, "
        "think_action, think_plan_action, think_plan_action_brief."
    )
    with pytest.raises(UnknownNameError, match=f"^{re.escape(message)}$"):
        load_template("think_acton")
