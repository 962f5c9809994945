"""Prompted agents from the command line: ReAct, Reflexion, and what does not go with them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stratagem.cli import main
from stratagem.evaluation.episode_log import read_episodes
from stratagem.games import GAMES
from stratagem.games.frozen_lake import FrozenLake

LAKE = ("--game", "frozen_lake", "--param", "board=['SG', 'HF']", "--param", "slippery=false", "--episodes", "2")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path_factory.getbasetemp() / "cache_agents"))


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(words) == code, capsys.readouterr()
    return capsys.readouterr().out


def test_a_model_in_this_process_plays_as_react(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "eval", "tiny", "--agent", "react", "--max-new-tokens", "4", *LAKE, "--out", "ev")
    # A random model writes no line that begins with "Action:".
    header, episodes = read_episodes(Path("ev/episodes.jsonl"))
    steps = [step for trajectory in episodes.values() for step in trajectory.steps]
    assert {step.parse_error for step in steps} == {"missing"}
    assert f"no action in {len(steps)} answers: {len(steps)} missing\n" in out
    assert (header["who.agent"], header["who.template"], header["who.context_steps"]) == ("react", "react", "all")
    # The prompt of a step goes on from the one before and its answer, token by token.
    first, second = episodes[0].steps[:2]
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


class Student(BaseHTTPRequestHandler):
    """A chat server that falls into the hole until it is told not to, and writes what nobody can read at times."""

    asked: list[list[dict[str, str]]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = body["messages"]
        self.asked.append(messages)
        if "failed attempt" in messages[0]["content"]:
            text = "Go right.\nDo not go down."
        elif "- Go right. Do not go down." in messages[1]["content"]:
            text = "Thought: I was told.\nAction: right"
        else:
            text = "Thought: Down?\nAction: jump" if len(messages) == 2 else "Thought: Down.\nAction: down"
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Student.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Student) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def test_a_served_model_learns_from_its_failures_and_every_trial_is_kept(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    words = ("eval", "m", "--base-url", server, "--agent", "reflexion", *LAKE, "--out", "ev")
    out = said(capsys, *words)
    assert "reflections: 2\n" in out
    assert "no action in 2 answers: 2 unknown\n" in out
    rows = json.loads(Path("ev/trials.json").read_text())
    assert [(row["trial"], row["played"], row["solved"], row["success_rate"]) for row in rows] == [
        (1, 2, 0, 0.0),
        (2, 2, 2, 1.0),
    ]
    assert json.loads(Path("ev/result.json").read_text())["success_rate"] == 1.0
    _, first = read_episodes(Path("ev/trial_1.jsonl"))
    _, last = read_episodes(Path("ev/episodes.jsonl"))
    assert [step.completion for step in first[0].steps] == [
        "Thought: Down?\nAction: jump",
        "Thought: Down.\nAction: down",
    ]
    assert [part.completion for part in last[0].steps[0].generations] == ["Go right.\nDo not go down."]
    # 1: two answers for each episode; 2: a reflection and an answer.
    assert len(Student.asked) == 2 * 2 + 2 * 2
    # The reading of a chat by a server is a chat of roles in turn.
    roles = [message["role"] for message in Student.asked[-1]]
    assert roles == ["system", "user"]
    assert "reflections: 2\n" in said(capsys, *words, "--resume")
    assert len(Student.asked) == 8  # nothing was played again


def test_an_interrupted_evaluation_in_trials_goes_on(capsys: pytest.CaptureFixture[str], server: str) -> None:
    words = ("eval", "m", "--base-url", server, "--agent", "reflexion", *LAKE, "--out", "ev")
    said(capsys, *words)
    whole = {name: read_episodes(Path("ev") / name)[1] for name in ("trial_1.jsonl", "trial_2.jsonl")}
    lines = Path("ev/trial_2.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("ev/trial_2.jsonl").write_text("".join(lines[:2]) + lines[2][:40], encoding="utf-8")  # torn, as by kill -9
    Student.asked.clear()
    said(capsys, *words, "--resume")
    assert len(Student.asked) == 2  # one episode: a reflection and an answer
    assert {name: read_episodes(Path("ev") / name)[1] for name in whole} == whole


def test_another_evaluation_is_not_gone_on_with(capsys: pytest.CaptureFixture[str], server: str) -> None:
    words = ("eval", "m", "--base-url", server, "--agent", "reflexion", *LAKE, "--out", "ev")
    said(capsys, *words)
    assert main([*words, "--resume", "--agent-set", "memory=1"]) == 2
    assert "different: who.memory (3 -> 1)." in capsys.readouterr().err


def test_a_prompted_hierarchy_and_settings_of_an_agent(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("eval", "tiny", "--agent", "hierarchical", "--agent-set", "max_invalid=1", *LAKE, "--out", "ev")
    short = [f"{role}.max_new_tokens=3" for role in ("high", "low", "progress")]
    said(capsys, *words, *(word for item in short for word in ("--agent-set", item)))
    header, episodes = read_episodes(Path("ev/episodes.jsonl"))
    assert header["who.low"]["max_new_tokens"] == 3
    assert {trajectory.stop_reason for trajectory in episodes.values()} == {"invalid_action"}
    said(capsys, "eval", "tiny", "--agent-set", "context_steps=1", "--max-new-tokens", "2", *LAKE, "--out", "other")
    assert read_episodes(Path("other/episodes.jsonl"))[0]["who.context_steps"] == 1


def test_what_does_not_go_with_an_agent_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (
            ("random", "--agent", "react"),
            "--agent has no effect on policy 'random', which asks no model; leave it out.",
        ),
        (
            ("tiny", "--agent", "reacts"),
            "Unknown agent 'reacts'. Did you mean 'react'? Available: hierarchical, language, react, reflexion, "
            "scoring.",
        ),
        (
            ("tiny", "--agent-set", "memory"),
            "--agent-set 'memory' is not an assignment; write key=value, as num_trials=5.",
        ),
        (
            ("m", "--agent", "scoring", "--base-url", "http://localhost:1/v1"),
            "--agent scoring needs the probability of every legal action, for which a server is not asked; leave it "
            "out.",
        ),
        (
            ("tiny", "--agent", "hierarchical", "--temperature", "1"),
            "--temperature does not say for which role of model 'tiny'; leave it out.",
        ),
        (
            ("tiny", "--agent", "scoring", "--max-new-tokens", "3"),
            "--max-new-tokens has no effect on model 'tiny', which scores actions instead of writing; leave it out.",
        ),
        (
            ("tiny", "--agent", "react", "--template", "think"),
            "Unknown ReAct template 'think'. Available: react, react_alfworld.",
        ),
    ):
        capsys.readouterr()
        assert main(["eval", *words, *LAKE]) == 2
        assert capsys.readouterr().err == f"error: {message}\n"


def test_what_is_not_trained_is_not_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny", "--set", "agent={name='reflexion'}", "--set", "warm_start=false", "--dry-run"]) == 2
    assert capsys.readouterr().err == (
        "error: agent.name='reflexion' learns from its failures in words, and nothing of it is trained; evaluate it "
        "with `stratagem eval MODEL --agent reflexion`, or train agent.name = 'react'.\n"
    )


def test_a_game_without_a_description_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = type("Plain", (FrozenLake,), {"__doc__": None})
    monkeypatch.setitem(GAMES, "plain", plain)
    assert main(["games", "plain"]) == 0
    assert capsys.readouterr().out.startswith("plain: no description\nparameters:\n")
