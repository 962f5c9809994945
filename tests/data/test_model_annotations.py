from __future__ import annotations

import re
from functools import partial

import pytest

from stratagem.data.annotations import check_annotations
from stratagem.data.model_annotations import annotate, plain_episodes, read_subtasks
from stratagem.errors import ConfigError
from stratagem.games import make
from stratagem.models.base import Completion, Request
from stratagem.types import Finish

make_lake = partial(make, "FrozenLake-NotSlippery", size=3, coordinates=False)


class Annotator:
    """Cuts every episode after its first action, unless told otherwise."""

    name = "annotator"
    context_length = 1000

    def __init__(self, cut: str | None = None, progress: str = "Did it.\nReally.") -> None:
        self.cut, self.progress = cut, progress
        self.progress_prompts: list[str] = []

    async def generate(self, request: Request) -> Completion:
        user = request.messages[1][1]
        if user.startswith("Task: "):
            count = user.count(" -> ")
            return Completion(self.cut or f"Here:\n1: Begin\n2-{count}: Go on", Finish.STOP)
        self.progress_prompts.append(user)
        return Completion(self.progress, Finish.STOP)

    async def aclose(self) -> None:
        return None


def test_a_planner_s_episode_is_one_subtask_and_a_valid_annotation() -> None:
    episodes = plain_episodes(make_lake, 3, seed=0, task="Reach the goal.")
    assert check_annotations(episodes) == []
    assert {step.subtask for episode in episodes for step in episode.steps} == {"Reach the goal."}
    assert all(episode.success and episode.steps[-1].reward == 1.0 for episode in episodes)


def test_a_model_s_subtasks_and_progress_make_valid_annotations() -> None:
    model = Annotator()
    episodes = plain_episodes(make_lake, 2, seed=0)
    annotated, reasons = annotate(model, episodes)
    assert reasons == [] and check_annotations(annotated) == []
    for before, after in zip(episodes, annotated, strict=True):
        assert [step.action for step in before.steps] == [step.action for step in after.steps]
        assert [step.subtask for step in after.steps] == ["Begin"] + ["Go on"] * (len(before.steps) - 1)
        assert [step.done for step in after.steps] == [True] + [False] * (len(before.steps) - 2) + [True]
        assert {step.next_progress for step in after.steps} == {"Did it. Really."}
    assert "Subtask: Begin\nProgress before: None\nAction: " in model.progress_prompts[0]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Annotator("1-1: Begin"), r"Episode 0: the subtasks cover 1 of \d actions; expected all of them"),
        (Annotator("I would not know."), r"Episode 0: the subtasks cover 0 of \d actions; expected all of them"),
        (
            Annotator("1-1: Begin\n3-4: Go on"),
            "Episode 0: subtask 'Go on' has actions 3-4; expected it to begin with 2",
        ),
        (Annotator(progress=" "), r"Episode 0: the progress after '\w+' is empty; expected one line"),
    ],
)
def test_an_answer_that_cannot_be_used_costs_its_episode_and_is_a_reason(model: Annotator, reason: str) -> None:
    annotated, reasons = annotate(model, plain_episodes(make_lake, 1, seed=0))
    assert annotated == []
    assert re.fullmatch(reason, reasons[0])


def test_subtasks_go_on_where_the_one_before_ended() -> None:
    assert read_subtasks("1 - 3 : A b\n4: C", 4) == [("A b", 3), ("C", 1)]


def test_a_game_for_several_is_refused() -> None:
    message = "Game 'snake' has 2 players; expected one for annotations."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        plain_episodes(partial(make, "snake"), 1, seed=0)
