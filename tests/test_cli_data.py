"""Annotations from the command line: by rule, by a model, and what is wrong with a file."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stratagem.cli import main
from stratagem.data.annotations import read_annotations, write_annotations
from stratagem.evaluation.panels import fixed_panel, panel_state_keys
from stratagem.games import make


def test_alfworld_is_annotated_by_rule_outside_the_panel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "episodes.parquet"
    assert main(["data", "annotate", str(path), "--episodes", "5", "--seed", "3"]) == 0
    episodes = read_annotations(path)
    assert len(episodes) == 5 and all(episode.success for episode in episodes)
    steps, subtasks = (
        sum(len(e.steps) for e in episodes),
        sum(e.steps[-1].subtask_number + 1 for e in episodes),
    )
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{path}: 5 episodes (5 successful), {subtasks} subtasks, {steps} steps"
    assert out[1] == f"Train on them with: stratagem train step_hrl_alfworld --set algorithm.annotations='{path}'"
    game = make("ALFWorld-Generated", view="raw")
    starts = set()
    for episode in episodes:
        game.reset(seed=episode.seed)
        starts.add(game.state_key())
    assert not starts & panel_state_keys(fixed_panel("ALFWorld-Generated", {"view": "raw"}, 50))
    assert main(["data", "check-annotations", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [out[0]]


def test_a_bad_file_is_explained_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "episodes.jsonl"
    assert main(["data", "annotate", str(path), "--episodes", "1"]) == 0
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows[0]["done"] = "no"
    rows[1]["reward"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    capsys.readouterr()
    assert main(["data", "check-annotations", str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "Row 0 (episode 0, step 0) has done='no'; expected bool.",
        "Row 1 (episode 0, step 1) has reward=None; expected float.",
        f"{path}: 2 problem(s)",
    ]


class Annotator(BaseHTTPRequestHandler):
    """A chat server that cuts an episode after its first action, and misbehaves for every other one."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        user = body["messages"][-1]["content"]
        count = user.count(" -> ")
        text = "Did it."
        if user.startswith("Task: "):
            text = f"1: Begin\n2-{count}: Go on" if count > 2 else "I would not know."
        answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
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
    with ThreadingHTTPServer(("127.0.0.1", 0), Annotator) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


LAKE = ("--game", "frozen_lake", "--param", "size=3", "--param", "slippery=false", "--leave-out", "0")


def test_a_served_model_annotates_any_game_with_a_planner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: str
) -> None:
    path = tmp_path / "lake.jsonl"
    served = ("--model", "m", "--base-url", server)
    assert main(["data", "annotate", str(path), *LAKE, "--episodes", "3", "--task", "Reach the goal.", *served]) == 0
    episodes = read_annotations(path)
    assert len(episodes) == 3
    assert {episode.task for episode in episodes} == {"Reach the goal."}
    assert {step.subtask for episode in episodes for step in episode.steps} == {"Begin", "Go on"}
    # And what is there can be annotated anew.
    again = tmp_path / "again.parquet"
    assert main(["data", "annotate", str(again), "--from", str(path), "--episodes", "2", *served]) == 0
    assert read_annotations(again) == episodes[:2]


def test_answers_that_cannot_be_used_cost_their_episodes_and_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: str
) -> None:
    path, source = tmp_path / "lake.jsonl", tmp_path / "source.jsonl"
    assert main(["data", "annotate", str(source), "--episodes", "2"]) == 0
    long = read_annotations(source)[0]
    assert len(long.steps) > 2
    short = replace(long, success=False, steps=long.steps[:2])
    write_annotations(source, [long, short])
    capsys.readouterr()
    served = ("--model", "m", "--base-url", server)
    assert main(["data", "annotate", str(path), "--from", str(source), *served]) == 0
    captured = capsys.readouterr()
    assert captured.err == "left out: Episode 1: the subtasks cover 0 of 2 actions; expected all of them\n"
    assert "1 episodes were left out, since the model's answers could not be used" in captured.out
    write_annotations(source, [short])
    new = tmp_path / "new.jsonl"
    assert main(["data", "annotate", str(new), "--from", str(source), *served]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: Model 'm' annotated none of 1 episodes; the first reason: Episode 0: the subtasks cover 0 of 2 "
        "actions; expected all of them. Choose a larger model, or give it more room with --max-new-tokens."
    )
    assert not new.exists()


def test_what_cannot_be_done_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, there = str(tmp_path / "new.jsonl"), tmp_path / "there.jsonl"
    there.write_text("", encoding="utf-8")
    for words, message in (
        (("annotate",), "`stratagem data annotate` got 0 path(s); write stratagem data annotate FILE."),
        (("alfworld", new), "`stratagem data alfworld` got 1 path(s); write stratagem data alfworld SRC DST."),
        (("annotate", str(there)), f"FILE={str(there)!r} exists; name a new file."),
        (
            ("annotate", str(tmp_path / "a.csv")),
            f"FILE={str(tmp_path / 'a.csv')!r} ends with '.csv'; use .parquet or .jsonl.",
        ),
        (
            ("annotate", new, "--game", "frozen_lake"),
            "There are rules to annotate alfworld, scienceworld and none for game 'frozen_lake'; name a language model "
            "with --model, which annotates any game that has a planner.",
        ),
        (
            ("annotate", new, "--temperature", "1"),
            "--temperature has no effect with `stratagem data annotate` without --model; leave it out.",
        ),
        (
            ("check-annotations", str(there), "--game", "snake", "--param", "size=3"),
            "--game, --param has no effect with `stratagem data check-annotations`; leave it out.",
        ),
        (
            ("annotate", new, "--from", str(there), "--seed", "1", "--model", "tiny"),
            "--seed has no effect with `stratagem data annotate --from`; leave it out.",
        ),
        (("annotate", new, "--episodes", "0"), "--episodes 0 annotates nothing; set it to 1 or more."),
        (("annotate", new, "--leave-out", "-1"), "--leave-out -1 is negative; use 0 to leave out nothing."),
        (
            ("annotate", new, "--model", "m", "--base-url", "http://x/v1", "--device", "cpu", "--episodes", "1"),
            "--device has no effect with `stratagem data annotate --base-url`; leave it out.",
        ),
        (
            ("annotate", new, "--model", "tinny", "--episodes", "1"),
            "Unknown model 'tinny'.",
        ),
    ):
        capsys.readouterr()
        assert main(["data", *words]) == 2, words
        err = capsys.readouterr().err
        assert err == f"error: {message}\n" or (message.endswith("'tinny'.") and err.startswith(f"error: {message}")), (
            err
        )
    assert not Path(new).exists()
