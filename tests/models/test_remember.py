"""Scores that are looked up while the weights stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from stratagem.agents.scoring import ScoringAgent
from stratagem.games import make
from stratagem.models.local import LocalModel
from stratagem.models.remember import RememberedScores
from stratagem.rollout import Episode, play_episodes

ROWS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((5, 6, 7), (8, 9)), ((5, 6, 7), (8, 10)), ((5, 6, 7), (8, 9))]
MORE: tuple[tuple[int, ...], tuple[int, ...]] = ((5, 6, 11), (12,))


@pytest.fixture
def model(make_local: Callable[..., LocalModel]) -> LocalModel:
    return make_local("llama")


def counted(model: LocalModel) -> list[int]:
    """Return a list that grows by the number of rows of each pass."""
    passes: list[int] = []
    plain = model.logprobs

    def logprobs(rows: Sequence[Any], **settings: Any) -> Any:
        passes.append(len(rows))
        return plain(rows, **settings)

    model.logprobs = logprobs  # type: ignore[method-assign]
    return passes


def test_each_row_is_computed_once_until_the_weights_change(model: LocalModel) -> None:
    wanted = model.logprobs([*ROWS, MORE])
    passes = counted(model)
    scores = RememberedScores(model)
    for rows, count in ((ROWS, [2]), (ROWS, [2]), ([*ROWS, MORE], [2, 1])):
        found = scores.logprobs(rows)
        assert passes == count
        assert not found.logprobs.requires_grad
        torch.testing.assert_close(found.logprobs, wanted.logprobs[: len(found.logprobs)], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.entropy, wanted.entropy[: len(found.entropy)], rtol=1e-5, atol=1e-6)
    for parameter in model.named_parameters().values():
        parameter.data.mul_(1.1)
    model.weights_changed()
    changed = scores.logprobs(ROWS)
    assert passes == [2, 1, 2]
    assert not torch.allclose(changed.logprobs, wanted.logprobs[:6], atol=1e-4)


def test_known_rows_cost_no_pass_of_their_own(model: LocalModel) -> None:
    scores = RememberedScores(model)
    assert scores.split(ROWS, 1) == model.split(ROWS, 1)
    scores.logprobs(ROWS)
    assert scores.split(ROWS, 1) == [[0, 1, 2]]
    assert scores.split([*ROWS, MORE], 1) == [[0, 1, 2, 3]]
    assert scores.split([], 1) == []


def test_an_agent_plays_the_same_with_a_memory(model: LocalModel) -> None:
    def play(scorer: Any) -> list[Any]:
        episodes = [Episode(0, 0, (0, "test", number)) for number in range(3)]
        return play_episodes(
            lambda: make("FrozenLake-Slippery", size=3, max_steps=5, coordinates=False),
            [ScoringAgent(scorer)],
            episodes,
        )

    for mine, other in zip(play(RememberedScores(model)), play(model), strict=True):
        assert [step.action for step in mine.steps] == [step.action for step in other.steps]
        for a, b in zip(mine.steps, other.steps, strict=True):
            assert a.candidate_logprobs == pytest.approx(b.candidate_logprobs, abs=1e-5)
    asyncio.run(RememberedScores(model).aclose())
