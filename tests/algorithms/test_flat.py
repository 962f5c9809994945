"""Expert episodes as samples of agents without roles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from stratagem.agents.history import HistoryAgent
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.react import ReActAgent
from stratagem.algorithms.flat import flat_samples
from stratagem.algorithms.hierarchy import Sample
from stratagem.data.alfworld_annotations import expert_episodes
from stratagem.data.annotations import AnnotatedEpisode
from stratagem.data.model_annotations import plain_episodes
from stratagem.errors import RunError
from stratagem.games import make

make_lake = partial(make, "frozen_lake", board=["SF", "HG"], slippery=False)
make_home = partial(make, "ALFWorld-Generated", view="raw")


class Letters:
    """A tokenizer whose tokens are whole texts; a chat is one token for each message, sampled answers as they are."""

    name = "letters"
    context_length = 1000
    end_id = 0

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        return (self.known.setdefault(text, len(self.known) + 1),)

    def encode_chat(
        self,
        messages: Sequence[tuple[str, str]],
        assistant_prefix: str = "",
        sampled: Sequence[tuple[int, ...]] = (),
    ) -> tuple[int, ...]:
        answers = iter(sampled)
        return tuple(
            token
            for role, content in messages
            for token in (next(answers) if role == "assistant" else self.encode(f"{role}: {content}"))
        )

    def texts(self, ids: Sequence[int]) -> list[str]:
        names = {number: text for text, number in self.known.items()} | {self.end_id: "<end>"}
        return [names[token] for token in ids]


def lake() -> AnnotatedEpisode:
    return plain_episodes(make_lake, 1, seed=0)[0]


def samples_of(agent: Any, episode: AnnotatedEpisode, game: Any) -> list[Sample]:
    try:
        return flat_samples(agent, game, episode)
    finally:
        game.close()


def test_a_history_agent_is_shown_the_whole_episode_and_paid_by_the_game() -> None:
    model: Any = Letters()
    agent = HistoryAgent(LanguageAgent.from_config(model, AgentConfig()), "all")
    first, second = samples_of(agent, lake(), make_lake())
    assert model.texts(first.completion_ids) == ["right</action>"]  # its own last words end it
    assert model.texts(second.completion_ids) == ["down</action>"]
    shown = [text.partition(": ")[0] for text in model.texts(second.prompt_ids)]
    assert shown == ["system", "user", "right</action>", "user"]
    assert second.prompt_ids[: len(first.prompt_ids) + 1] == (*first.prompt_ids, *first.completion_ids)
    assert first.next_prompt_ids == second.prompt_ids and second.done
    assert [sample.reward for sample in (first, second)] == [0.0, 1.0]
    assert {sample.role for sample in (first, second)} == {"low"}


def test_an_agent_that_remembers_nothing_is_shown_the_present_observation() -> None:
    model: Any = Letters()
    _, second = samples_of(LanguageAgent.from_config(model, AgentConfig()), lake(), make_lake())
    assert [text.partition(": ")[0] for text in model.texts(second.prompt_ids)] == ["system", "user"]


def test_a_react_agent_learns_actions_without_thoughts_in_its_own_form() -> None:
    model: Any = Letters()
    (episode,) = expert_episodes(make_home, 1, seed=0)
    samples = samples_of(ReActAgent.from_config(model), episode, make_home())
    assert [model.texts(sample.completion_ids) for sample in samples] == [
        [f"Action: {step.action}", "<end>"] for step in episode.steps
    ]
    texts = model.texts(samples[-1].prompt_ids)
    assert texts[1].startswith("user: Observation: -= Welcome to TextWorld, ALFRED! =-")
    assert f"Your task is to: {episode.task}" in texts[1]
    replies = [f"user: Observation: {step.next_observation}" for step in episode.steps[:-1]]
    assert [text for text in texts[2:] if text.startswith("user: ")] == replies
    assert samples[-1].reward == 1.0


def test_an_episode_of_another_game_is_refused() -> None:
    episode = lake()
    steps = (replace(episode.steps[0], action="jump"), *episode.steps[1:])
    message = (
        f"Step 0 of the annotated episode with seed={episode.seed} has action='jump', which game 'frozen_lake' does "
        "not allow there; annotate episodes of the game that is trained on, with the same settings."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        model: Any = Letters()
        samples_of(ReActAgent.from_config(model), replace(episode, steps=steps), make_lake())
