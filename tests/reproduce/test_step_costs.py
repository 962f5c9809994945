"""What a step costs: the requests of each agent, and how their tokens are counted."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stratagem.data.alfworld_annotations import expert_episodes
from stratagem.data.annotations import AnnotatedEpisode
from stratagem.errors import ConfigError
from stratagem.evaluation.records import Record
from stratagem.games import make
from stratagem.reproduce.step_costs import AGENTS, Call, StepCost, count_tokens, episode_calls
from stratagem.reproduce.step_hrl_efficiency import Measured, longest, main, make_records, steps_table, total_table

make_home = partial(make, "ALFWorld-Generated", view="raw")


class Words:
    """A tokenizer whose tokens are words."""

    name = "words"
    context_length = 10_000
    end_id = 0

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.known.setdefault(word, len(self.known) + 1) for word in text.split())

    def encode_chat(
        self, messages: Sequence[tuple[str, str]], assistant_prefix: str = "", sampled: Sequence[tuple[int, ...]] = ()
    ) -> tuple[int, ...]:
        return tuple(token for role, content in messages for token in self.encode(f"<{role}> {content}"))

    def text(self, ids: Sequence[int]) -> str:
        names = {number: word for word, number in self.known.items()} | {0: "<end>"}
        return " ".join(names[token] for token in ids)


@pytest.fixture(scope="module")
def episode() -> AnnotatedEpisode:
    return longest(expert_episodes(make_home, 20, seed=0), 1)[0]


def calls_of(kind: Any, episode: AnnotatedEpisode) -> tuple[Words, list[list[Call]]]:
    model = Words()
    game = make_home()
    try:
        return model, episode_calls(kind, model, game, episode)
    finally:
        game.close()


def test_tokens_are_counted_once_where_beginnings_are_equal() -> None:
    steps = [
        [Call("low", (1, 2, 3), (4,))],
        [Call("low", (1, 2, 3, 4, 5), (6, 7))],  # goes on from the step before
        [Call("high", (1, 9), (8,)), Call("low", (1, 9, 8), (2,))],
    ]
    assert count_tokens(steps) == [
        StepCost(calls=1, prompt=3, generated=1, new=4),
        StepCost(calls=1, prompt=5, generated=2, new=3),  # 5, 6, 7
        StepCost(calls=2, prompt=5, generated=2, new=3),  # 9, 8, then 2
    ]


@pytest.mark.parametrize("kind", AGENTS)
def test_every_agent_is_led_through_the_same_actions(kind: str, episode: AnnotatedEpisode) -> None:
    model, steps = calls_of(kind, episode)
    assert len(steps) == len(episode.steps) > 10
    for calls, step in zip(steps, episode.steps, strict=True):
        assert step.action in model.text(calls[-1].answer_ids)
        assert all(call.answer_ids[-1] == model.end_id for call in calls)


def test_the_flat_agent_is_asked_once_in_a_step_and_its_prompts_grow(episode: AnnotatedEpisode) -> None:
    _, steps = calls_of("flat", episode)
    assert {len(calls) for calls in steps} == {1}
    lengths = [len(calls[0].prompt_ids) for calls in steps]
    assert lengths == sorted(lengths) and lengths[-1] > lengths[0] + 5 * len(steps)


def test_step_hrl_asks_for_progress_from_the_second_step_on_and_for_a_subtask_where_one_begins(
    episode: AnnotatedEpisode,
) -> None:
    _, steps = calls_of("step_hrl", episode)
    begins = [number == 0 or episode.steps[number - 1].done for number in range(len(episode.steps))]
    for number, (calls, begin) in enumerate(zip(steps, begins, strict=True)):
        roles = ["progress"] if number else []
        assert [call.role for call in calls] == [*roles, *(["high"] if begin else []), "low"]


def test_a_hierarchy_with_histories_is_shown_all_when_a_subtask_is_named_and_the_subtask_s_own_otherwise(
    episode: AnnotatedEpisode,
) -> None:
    model, steps = calls_of("history", episode)
    begins = [number for number in range(len(episode.steps)) if number == 0 or episode.steps[number - 1].done]
    assert [number for number, calls in enumerate(steps) if len(calls) == 2] == begins and len(begins) > 1
    place = begins[1]
    high, low = (model.text(call.prompt_ids) for call in steps[place])
    assert all(step.action in high for step in episode.steps[:place])
    assert "Action:" not in low  # nothing has been done in this subtask
    before = model.text(steps[place - 1][-1].prompt_ids)
    assert all(f"Action: {step.action}" in before for step in episode.steps[: place - 1])
    assert len(steps[place][0].prompt_ids) > len(steps[place][1].prompt_ids)


def measured() -> Measured:
    cost = StepCost(1, 10, 2, 5)
    costs = {
        "flat": [[cost, StepCost(1, 30, 2, 5)], [StepCost(1, 20, 4, 9)]],
        "history": [[cost, cost], [cost]],
        "step_hrl": [[StepCost(2, 40, 2, 5), cost], [cost]],
    }
    return Measured(costs, {})  # type: ignore[arg-type]


def test_a_step_s_mean_is_over_the_episodes_that_get_so_far() -> None:
    table = steps_table(measured(), lambda cost: cost.prompt)
    # flat: (10 + 20) / 2 = 15; STEP-HRL: (40 + 10) / 2 = 25. No episode has a fifth step.
    assert table.rows == (("1", "2", "15", "10", "25"),)


def test_whole_episodes_are_summed_up_over_all_steps() -> None:
    rows = total_table(measured()).rows
    # flat: (10 + 30 + 20) / 3 = 20, std sqrt((100 + 100 + 0) / 3) = 8.16, generated (2 + 2 + 4) / 3, new 19 / 3
    assert rows[0][1:] == ("20", "8", "30", "2.7", "6", "1.00")
    assert rows[2][1:] == ("20", "14", "40", "2.0", "5", "1.33")  # (40 + 10 + 10) / 3, std sqrt(600 / 3) = 14.14


def test_records_name_what_was_measured_and_need_a_commit() -> None:
    hardware = {"cpu": "A processor", "usable_cores": 2}
    provenance = {"git": {"commit": "a" * 40, "dirty": True}, "hardware": hardware}
    records = make_records(measured(), command="run it", note="two episodes", provenance=provenance)
    assert [record.name for record in records] == [f"step_hrl.tokens_per_step.{kind}" for kind in AGENTS]
    assert [record.value for record in records] == [20.0, 10.0, 20.0]
    assert records[0].commit == "a" * 40 + "-dirty" and records[0].machine == "A processor, 2 cores"
    message = "--record needs the commit of the code, and this copy is in no git checkout; run it in one."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make_records(measured(), command="x", note="x", provenance={"git": None, "hardware": hardware})


def test_the_command_writes_figures_numbers_and_records_and_the_numbers_are_those_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path / "cache"))
    out, results = tmp_path / "out", tmp_path / "results"
    words = ["--out", str(out), "--model", "tiny", "--starts", "4", "--episodes", "2", "--latency", "1"]
    assert main([*words, "--record", str(results)]) == 0
    names = {path.name for path in out.iterdir()}
    figures = {
        f"{name}.{end}"
        for name in ("tokens_prompt", "tokens_new", "seconds_fresh", "seconds_kept")
        for end in ("png", "svg")
    }
    assert names == {"steps.csv", "efficiency.md"} | figures
    rows = list(csv.DictReader((out / "steps.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["agent"] for row in rows} == set(AGENTS)
    for kind in AGENTS:
        numbers = [int(row["prompt_tokens"]) for row in rows if row["agent"] == kind]
        path = results / f"step_hrl.tokens_per_step.{kind}.json"
        record = Record.from_json(path.read_text(encoding="utf-8"), name=path.stem)
        assert record.value == pytest.approx(sum(numbers) / len(numbers), rel=1e-12)
        assert f"{sum(numbers) / len(numbers):,.0f}" in (out / "efficiency.md").read_text(encoding="utf-8")
        assert "--latency 1" in json.loads(path.read_text(encoding="utf-8"))["command"]
    timed = [row for row in rows if row["seconds_kept"]]
    assert {row["episode"] for row in timed} == {"0"} and all(float(row["seconds_fresh"]) > 0 for row in timed)
    # An answer has as many tokens as the expert's at most.
    assert all(0 < int(row["sampled_kept"]) <= int(row["generated_tokens"]) for row in timed)
    assert [row["sampled_kept"] for row in timed] == [row["sampled_fresh"] for row in timed]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--episodes", "3", "--starts", "2"],
            "--episodes 3 is not in 1..2, the expert episodes that --starts gives; choose a number that is.",
        ),
        (["--latency", "30"], "--latency 30 is not in 0..20; choose a number that is."),
        (
            ["--game", "frozen_lake"],
            "There are rules to annotate alfworld, scienceworld and none for game 'frozen_lake'; ",
        ),
    ],
    ids=["more than there are", "too many to time", "another game"],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*words, "--model", "tiny", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
