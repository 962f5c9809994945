"""Learning with a past in the prompt: credit on per-step rows against one sequence, demonstrations, POAD."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stratagem.agents.history import HistoryAgent
from stratagem.agents.parsing import ParsedAction
from stratagem.algorithms import ms_grpo, poad
from stratagem.algorithms.bc import WarmStartConfig, demonstrations
from stratagem.algorithms.ms_grpo import Learner, MSGRPOConfig, make_samples
from stratagem.algorithms.poad_config import POADConfig
from stratagem.games.base import Game, GameStep
from stratagem.models.base import GenerationConfig
from stratagem.models.catalog import ModelConfig, build_tiny
from stratagem.models.local import LocalModel
from stratagem.models.tree import build_tree
from stratagem.rollout import play_groups
from stratagem.seeding import generator
from stratagem.types import Trajectory


class Corridor(Game):
    """At most three rounds; "on" pays 1, "out" ends the episode."""

    name = "corridor"

    def __init__(self) -> None:
        self._round, self._over = 0, True

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self._round, self._over = 0, False
        return (self.observation(),)

    def step(self, actions: Any) -> GameStep:
        self._round += 1
        self._over = actions[0] == "out" or self._round == 3
        return GameStep((self.observation(),), (float(actions[0] == "on"),), self._over, False)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self._over else ("out", "on")

    def observation(self, player: int = 0) -> str:
        return f"Say on or out.\nRound {self._round}."

    def state_key(self) -> str:
        return str(self._round)

    def render(self) -> str:
        return self.state_key()

    def planner_action(self, player: int = 0) -> str:
        return "on"


def tiny() -> LocalModel:
    model, tokenizer = build_tiny()
    return LocalModel(model, tokenizer, ModelConfig("tiny"))


def remembering(toys: SimpleNamespace, model: Any, steps: Any = "all", temperature: float = 1.0) -> HistoryAgent:
    """An agent of a random byte model, whose answer is read from the first byte: odd goes on."""

    def parse(text: str, legal: Sequence[str]) -> ParsedAction:
        word = text.removeprefix("<action>")
        return ParsedAction(legal[ord(word[0]) % 2] if word else legal[0])

    generation = GenerationConfig(max_new_tokens=6, temperature=temperature, stop=("e", "t", " "))
    return HistoryAgent(toys.make_agent(model, generation=generation, parser=parse), steps)


def played(toys: SimpleNamespace, model: Any, **settings: Any) -> Any:
    agent = remembering(toys, model, **settings)
    (group,), _ = play_groups(Corridor, [agent], num_groups=1, group_size=6, address=(0, "credit"))
    return group


def gradient(model: LocalModel) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.named_parameters().values() if p.grad is not None])


def one_sequence(trajectory: Trajectory) -> tuple[tuple[int, ...], list[bool]]:
    """Return the tokens of a whole episode and which of them are answers."""
    last = trajectory.steps[-1]
    ids = last.prompt_ids + last.completion_ids
    mask = [False] * len(ids)
    for step in trajectory.steps:
        start, end = len(step.prompt_ids), len(step.prompt_ids) + len(step.completion_ids)
        assert ids[:end] == step.prompt_ids + step.completion_ids
        mask[start:end] = [True] * len(step.completion_ids)
    return ids, mask


def one_sequence_gradient(group: Any, advantages: dict[int, float], temperature: float, mean: str) -> Tensor:
    """Return the gradient of StarPO's loss: each episode one row, its answer tokens masked in.

    The mean is over the answer tokens of an episode, then over episodes; or over those of the whole batch.
    """
    model = tiny()
    rows = [one_sequence(trajectory) for trajectory in group.trajectories]
    total = sum(sum(mask) for _, mask in rows)
    loss = torch.zeros(())
    for j, (ids, mask) in enumerate(rows):
        # One plain line through the model, nothing shared; the first token is never predicted.
        logprobs = model.logprobs_by_row([(ids[:1], ids[1:])], temperature=temperature).logprobs
        ratio = torch.exp(logprobs - logprobs.detach())
        share = len(rows) * sum(mask) if mean == "episode" else total
        loss = loss - (ratio * torch.tensor(mask[1:])).sum() * advantages[j] / share
    loss.backward()  # type: ignore[no-untyped-call]
    return gradient(model)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rows_of_single_steps_have_the_gradient_of_one_sequence_per_episode(
    toys: SimpleNamespace, temperature: float
) -> None:
    model = tiny()
    group = played(toys, model, temperature=temperature)
    config = MSGRPOConfig(
        group_size=6, sampled_group_size=None, episode_temperature=None, max_grad_norm=1e9, learning_rate=1e-3
    )
    found = make_samples(group, config, generator("test"))
    lengths = {trajectory.num_tokens for trajectory in group.trajectories}
    assert len(lengths) > 1 and max(len(t.steps) for t in group.trajectories) == 3
    assert len({round(a, 6) for a in found.advantages.values()}) > 1
    Learner(model, config).step(found.samples, 1, temperature)
    of_rows = gradient(model)
    of_sequences = one_sequence_gradient(group, found.advantages, temperature, "episode")
    scale = float(of_sequences.abs().max())
    assert scale > 0
    assert float((of_rows - of_sequences).abs().max()) < 1e-4 * scale
    # negative control: one mean over all answer tokens of the batch is another loss
    of_batch = one_sequence_gradient(group, found.advantages, temperature, "batch")
    assert float((of_rows - of_batch).abs().max()) > 1e-2 * scale


def test_the_tree_of_an_episode_has_as_many_nodes_as_its_sequence(toys: SimpleNamespace) -> None:
    for trajectory in played(toys, tiny()).trajectories:
        rows = [(step.prompt_ids, step.completion_ids) for step in trajectory.steps]
        ids, _ = one_sequence(trajectory)
        assert build_tree(rows).num_nodes == len(ids) - 1  # the last token is a label only


def test_the_first_ratio_is_one_with_a_past(toys: SimpleNamespace) -> None:
    for steps in (1, "all"):
        model = tiny()
        config = MSGRPOConfig(num_iterations=2, num_groups=2, group_size=4, sampled_group_size=2, learning_rate=0.01)
        for iteration in ms_grpo.train(Learner(model, config), remembering(toys, model, steps), Corridor, seed=0):
            assert iteration.metrics["num_updates"] == 1.0
            assert iteration.metrics["ratio_gap"] < 1e-3
            for group in iteration.groups:
                assert len({trajectory.steps[0].prompt_ids for trajectory in group.trajectories}) == 1


def test_poad_learns_with_a_past(toys: SimpleNamespace) -> None:
    model = tiny()
    settings = POADConfig(num_iterations=1, num_groups=4, group_size=1)
    (iteration,) = poad.train(poad.Learner(model, settings), remembering(toys, model), Corridor, seed=0)
    assert iteration.metrics["num_updates"] >= 1.0
    assert iteration.metrics["ratio_gap"] < 1e-3


# ---- demonstrations --------------------------------------------------------------------------------------------------


def shown_to(model: Any) -> list[Any]:
    """Keep what chats a model is given to encode."""
    seen: list[Any] = []
    plain = model.encode_chat

    def encode_chat(messages: Any, assistant_prefix: str = "", sampled: Any = ()) -> Any:
        seen.append((tuple(messages), assistant_prefix, tuple(sampled)))
        return plain(messages, assistant_prefix, sampled)

    model.encode_chat = encode_chat
    return seen


def test_demonstrations_show_the_past_that_the_agent_will_see(toys: SimpleNamespace) -> None:
    model = tiny()
    seen = shown_to(model)
    agent = HistoryAgent(toys.make_agent(model), 2)
    (rows,) = demonstrations(agent, Corridor, WarmStartConfig("planner", num_episodes=1, exploration=0.0), seed=0)
    said = model.encode("on</action>")
    first, text = ("user", "Say on or out.\nRound 0."), ("assistant", "<action>on</action>")
    assert seen == [
        ((first,), "<action>", ()),
        ((first, text, ("user", "Round 1.")), "<action>", (said,)),
        ((first, text, ("user", "Round 1."), text, ("user", "Round 2.")), "<action>", (said, said)),
    ]
    assert [completion for _, completion in rows] == [said] * 3
    assert [len(prompt) for prompt, _ in rows] == sorted(len(prompt) for prompt, _ in rows)
    for (prompt, completion), (longer, _) in itertools.pairwise(rows):
        assert tuple(longer[: len(prompt) + len(completion)]) == tuple(prompt) + tuple(completion)


@pytest.mark.parametrize("demonstrator", ["planner", "random"])
def test_the_move_that_was_made_is_remembered_and_the_demonstrator_s_answer_is_cloned(
    toys: SimpleNamespace, demonstrator: Any
) -> None:
    moves: list[str] = []

    class Long(Corridor):
        """Three rounds, whatever is said."""

        def step(self, actions: Any) -> GameStep:
            moves.append(actions[0])
            self._round += 1
            self._over = self._round == 3
            return GameStep((self.observation(),), (0.0,), self._over, False)

    model = tiny()
    seen = shown_to(model)
    agent = HistoryAgent(toys.make_agent(model), "all")
    config = WarmStartConfig(demonstrator, num_episodes=6, answers_per_state=2, exploration=1.0)  # every move is random
    episodes = demonstrations(agent, Long, config, seed=0)
    on, out = model.encode("on</action>"), model.encode("out</action>")
    cloned = {completion for rows in episodes for _, completion in rows}
    assert cloned == ({on} if demonstrator == "planner" else {on, out})
    # One chat for each state, three states in an episode; the third shows the moves of the first two.
    remembered = [[text for role, text in messages if role == "assistant"] for messages, _, _ in seen[2::3]]
    made = [[f"<action>{move}</action>" for move in moves[start : start + 2]] for start in range(0, 18, 3)]
    assert remembered == made
    assert {text for episode in made for text in episode} == {"<action>on</action>", "<action>out</action>"}
