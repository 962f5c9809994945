"""Tokens coloured by change of probability, choices as bars, roles one by one."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import httpx
import pytest

from stratagem.data.token_logprobs import ANSWER, TokenLogprobs, logprobs_file, write_token_logprobs
from stratagem.data.trajectories import read_trajectories, write_trajectories
from stratagem.page.answers import candidates_of, tokens_of
from stratagem.page.changes import SCALE, level_of
from stratagem.page.data import Library
from stratagem.page.server import make_app
from stratagem.types import Finish, Generation, Step, TrajectoryGroup

NewRun = Callable[..., Path]
AddChange = Callable[..., None]
EPISODE = "/run/first/iteration/1/group/0/episode/1"


def ask(run: Path, path: str) -> str:
    """Return a page, as the application gives it."""
    transport = httpx.ASGITransport(make_app(Library([run.parent])))

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1234") as client:
            return await client.get(path)

    answer = asyncio.run(get())
    assert answer.status_code == 200, answer.text
    return answer.text


def steps_of(run: Path, episode: int) -> tuple[Step, ...]:
    return read_trajectories(run / "trajectories" / "000001.parquet")[0].group.trajectories[episode].steps


@pytest.mark.parametrize(
    ("factor", "level"),
    [(1.0, "zero"), (1.09, "zero"), (1.11, "plus1"), (1 / 1.11, "minus1"), (1.6, "plus2"), (3.1, "plus3"),
     (1 / 3.1, "minus3"), (11.0, "plus4"), (1 / 11.0, "minus4")],
)  # fmt: skip
def test_a_change_has_the_level_of_its_factor(factor: float, level: str) -> None:
    assert level_of(math.log(factor)) == level


def test_the_scale_runs_from_less_to_more_and_can_be_spoken() -> None:
    assert [tint for tint, _, _ in SCALE] == [
        "minus4", "minus3", "minus2", "minus1", "zero", "plus1", "plus2", "plus3", "plus4"
    ]  # fmt: skip
    assert [spoken for _, _, spoken in SCALE][::4] == ["divided by 10", "the same", "times 10"]


def test_without_the_files_the_page_says_how_to_make_them(new_run: NewRun, add_change: AddChange) -> None:
    run = new_run(iterations=1)
    text = unescape(ask(run, EPISODE))
    assert f"<code>stratagem logprobs {run} --iterations 1</code>" in text
    assert 'name="change"' not in text and 'class="scale"' not in text
    add_change(run, "start", 0.0)  # one set of weights alone shows no change
    assert f"<code>stratagem logprobs {run} --iterations 1</code>" in unescape(ask(run, EPISODE))


def test_tokens_are_coloured_by_the_change_that_was_chosen(new_run: NewRun, add_change: AddChange) -> None:
    run = new_run(iterations=1)
    add_change(run, "start", -1.0)
    add_change(run, "000001", 0.0)
    text = ask(run, EPISODE)
    assert '<option value="start:000001">change, untrained model to iteration 1</option>' in text
    assert 'class="tokens answer plus4"' in text  # by advantage until something else is chosen
    text = ask(run, f"{EPISODE}?change=start:000001")
    assert '<option value="start:000001" selected>' in text
    assert 'class="tokens answer zero"' in text
    # The first token was sampled with log p = -0.01: 36.4% before (exp(-1.01)), 99.0% after, so e times as probable.
    first = re.search(r'<pre class="tokens answer zero">(<span.*?</span>)', text)
    assert first is not None
    assert first[1] == '<span class="s0 plus2" title="p = 36.4% before, 99.0% after; log p +1.00">d</span>'
    cells = re.search(r"<td><code>d</code></td>.*?</tr>", text)
    assert cells is not None
    assert re.findall(r">([^<>]+)<", cells[0]) == ["d", "36.4%", "99.0%", "+1.000"]
    number = len(steps_of(run, 1)[0].completion_ids)
    before = -number - sum(0.01 * (k + 1) for k in range(number))
    after = before + number
    assert f"log p of the answer {before:.2f} before, {after:.2f} after, {number:+.2f}" in text
    assert text.count('<ol class="scale"') == 1 and "at temperature 0.5" in text
    # The choice stays when the next episode is opened.
    assert 'href="/run/first/iteration/1/group/0/episode/0?change=start%3A000001"' in text
    assert "stratagem logprobs" in ask(run, "/run/first/iteration/1/group/0/episode/2")  # not in the files


@pytest.mark.parametrize("choice", ["start:000009", "000001:000001", "x", "start:", "..%2F..:start"])
def test_a_choice_that_is_not_there_is_no_choice(new_run: NewRun, add_change: AddChange, choice: str) -> None:
    run = new_run(iterations=1)
    add_change(run, "start", 0.0)
    add_change(run, "000001", 0.0)
    assert 'class="tokens answer plus4"' in ask(run, f"{EPISODE}?change={choice}")


def test_files_about_other_tokens_colour_nothing(new_run: NewRun) -> None:
    run = new_run(iterations=1)
    for weights in ("start", "000001"):
        answers = {(0, 1, 0, ANSWER): TokenLogprobs((1, 2), (-1.0, -1.0))}
        write_token_logprobs(logprobs_file(run, weights, 1), 1, answers, temperature=1.0)
    text = ask(run, f"{EPISODE}?change=start:000001")
    assert text.count("How these tokens changed is not known.") == 6  # one for each step
    assert "before," not in re.sub(r"<option.*?</option>", "", text)


def test_a_damaged_file_hides_nothing_else(new_run: NewRun, add_change: AddChange) -> None:
    run = new_run(iterations=1)
    add_change(run, "start", 0.0)
    logprobs_file(run, "000001", 1).parent.mkdir()
    logprobs_file(run, "000001", 1).write_bytes(b"PAR1")
    text = ask(run, f"{EPISODE}?change=start:000001")
    assert 'class="tokens answer plus4"' in text
    assert "000001.parquet&#39; cannot be read as log-probabilities (" in text


def change_steps(run: Path, **changes: object) -> None:
    """Write the first group anew, with other values in the first step of its second episode."""
    groups = [stored.group for stored in read_trajectories(run / "trajectories" / "000001.parquet")]
    episodes = list(groups[0].trajectories)
    first, *rest = episodes[1].steps
    episodes[1] = replace(episodes[1], steps=(replace(first, **changes), *rest))  # type: ignore[arg-type]
    write_trajectories(run / "trajectories", 1, [TrajectoryGroup(tuple(episodes)), *groups[1:]])


def test_the_actions_that_were_chosen_among_are_shown_with_their_probabilities(new_run: NewRun) -> None:
    run = new_run(iterations=1)
    step = steps_of(run, 1)[0]
    others = (tuple(step.completion_ids[:2]), tuple(step.completion_ids[1:3]))
    logprobs = (math.log(0.25), math.log(0.625), math.log(0.125))
    change_steps(run, candidates=(others[0], step.completion_ids, others[1]), candidate_logprobs=logprobs, duration=3)
    text = ask(run, EPISODE)
    assert "Choice <small>among 3 actions, the most probable first</small>" in text
    rows = re.findall(
        r"<li(| class=\"chosen\")><span class=\"word\">(.*?)</span><svg.*?<span class=\"n\">(.*?)</span>", text
    )
    assert [(bool(chosen), re.sub(r"<.*", "", word).strip(), share) for chosen, word, share in rows] == [
        (True, "down", "62.5%"), (False, "do", "25.0%"), (False, "ow", "12.5%")
    ]  # fmt: skip
    assert '<rect class="part" width="62.50" height="8"/>' in text
    assert "<dt>Time taken</dt><dd>3</dd>" in text


def test_each_role_is_shown_with_its_words_and_its_prompt(new_run: NewRun, add_change: AddChange) -> None:
    run = new_run(iterations=1)
    step = steps_of(run, 1)[0]
    said = (
        Generation("progress", "moved", step.prompt_ids, step.completion_ids, step.logprobs, None, Finish.STOP),
        Generation("high", "reach the goal", step.prompt_ids, (), (), "cut off", Finish.LENGTH),
    )
    change_steps(run, generations=said)
    text = ask(run, EPISODE)
    headings = re.findall(r"<h3>(\w+) <small>([^<]*)</small></h3>", text)
    count = len(step.completion_ids)
    assert headings[:3] == [
        ("progress", f"sums up the last action, {count} tokens, ended by stop"),
        ("high", "names the subtask, 0 tokens, ended by length"),
        ("low", f"acts, {count} tokens, ended by stop"),
    ]
    assert "reach the goal" in text and '<p class="error">cut off</p>' in text
    assert text.count('data-same="roles"') == 2
    add_change(run, "start", -1.0)
    answers = {(0, 1, 0, 0): TokenLogprobs(said[0].completion_ids, tuple(p - 3.0 for p in said[0].logprobs))}
    write_token_logprobs(logprobs_file(run, "000001", 1), 1, answers, temperature=1.0)
    write_token_logprobs(logprobs_file(run, "start", 1), 1, {
        (0, 1, 0, 0): TokenLogprobs(said[0].completion_ids, said[0].logprobs)
    }, temperature=1.0)  # fmt: skip
    text = ask(run, f"{EPISODE}?change=start:000001")
    assert text.count('class="s0 minus4"') + text.count('class="s0 special minus4"') == count


def test_without_a_tokenizer_ids_stand_for_words() -> None:
    step = Step(
        "o", "up", 0.0, completion_ids=(5,), logprobs=(-0.1,), candidates=((5,), (6, 7)), candidate_logprobs=(-0.1, -2)
    )
    assert [(c.text, c.chosen) for c in candidates_of(step, None)] == [
        ("up", True),
        ("\u27e86\u27e9 \u27e87\u27e9", False),
    ]
    (token,) = tokens_of(step, None)
    assert (token.text, token.note, token.tint) == ("\u27e85\u27e9", "p = 90.5%", "")
