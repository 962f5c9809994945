"""An ensemble of prompt templates: one for each group of training, all in the warm start, the first in evaluation."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stratagem.agents.history import make_language_agent
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.prompts import PromptTemplate, load_templates
from stratagem.algorithms.bc import WarmStartConfig, check_templates, demonstrations
from stratagem.algorithms.ms_grpo import Learner, MSGRPOConfig, train
from stratagem.errors import ConfigError
from stratagem.models.base import Completion, Request
from stratagem.rollout import Episode, play_episodes, play_groups

WORDINGS = tuple(
    PromptTemplate(name, f"system of {name}", "{observation}", "<action>", ("action",)) for name in ("a", "b", "c")
)


def ensemble(toys: SimpleNamespace, model: Any, count: int = 3) -> LanguageAgent:
    agent: LanguageAgent = toys.make_agent(model, template=WORDINGS[0])
    return replace(agent, ensemble=WORDINGS[:count])


def recorded(toys: SimpleNamespace) -> Any:
    """Return a model that keeps the system message of each request and of each encoded chat."""

    class Recorded(toys.TableModel):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[str] = []
            self.encoded: list[str] = []

        async def generate(self, request: Request) -> Completion:
            self.asked.append(request.messages[0][1])
            completion: Completion = await super().generate(request)
            return completion

        def encode_chat(self, messages: Any, *rest: Any) -> Any:
            self.encoded.append(messages[0][1])
            return super().encode_chat(messages, *rest)

    return Recorded()


# ---- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [("action", "action_formal", "action_brief"), ("think_plan_action", "think_plan_action_brief")],
    ids=lambda names: names[0],
)
def test_built_in_wordings_of_one_answer_are_an_ensemble(names: tuple[str, ...]) -> None:
    templates = load_templates(names)
    assert [template.name for template in templates] == list(names)
    assert len({template.tags for template in templates}) == len({t.assistant_prefix for t in templates}) == 1
    assert len({template.system for template in templates}) == len(names)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], 'template=[] names no template; name one or more, as ["action", "action_brief"].'),
        (
            ["action", "action_brief", "action"],
            "template=['action', 'action_brief', 'action'] names 'action' twice; name each template once.",
        ),
        (
            ("action", "think_action"),
            "template=['action', 'think_action'] asks for different answers: 'action' has the tags action, "
            "'think_action' has think, action; choose templates with the same tags.",
        ),
    ],
    ids=["none", "twice", "tags"],
)
def test_templates_that_are_no_ensemble_are_refused(names: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_templates(names)


@pytest.mark.parametrize("context", [0, "all"], ids=["plain", "remembers"])
def test_an_agent_is_made_with_its_templates_and_starts_with_the_first(context: Any) -> None:
    model: Any = None
    one = make_language_agent(model, AgentConfig(template="action_brief", context_steps=context))
    assert (one.num_templates, one.template.name, one.with_template(0)) == (1, "action_brief", one)
    several = make_language_agent(model, AgentConfig(template=("action", "action_brief"), context_steps=context))
    assert (several.num_templates, several.template.name) == (2, "action")
    second = several.with_template(1)
    assert (second.num_templates, second.template.name) == (2, "action_brief")
    assert second.with_template(0) == several


# ---- playing ---------------------------------------------------------------------------------------------------------


def test_a_group_plays_with_one_template_and_groups_with_all(toys: SimpleNamespace) -> None:
    model = recorded(toys)
    agent = ensemble(toys, model)
    groups, _ = play_groups(toys.Bandit, [agent], num_groups=60, group_size=4, address=(0, "train", 1))
    names = [{t.info["template"] for t in group.trajectories} for group in groups]
    assert all(len(of_group) == 1 for of_group in names)
    counts = Counter(name for of_group in names for name in of_group)
    # 60 draws of 3: 20 each, give or take 3 standard deviations of 3.65.
    assert set(counts) == {"a", "b", "c"} and all(9 <= count <= 31 for count in counts.values())
    assert Counter(model.asked) == {f"system of {name}": 4 * count for name, count in counts.items()}


def test_the_template_of_a_group_depends_on_its_number_alone(toys: SimpleNamespace) -> None:
    agent = ensemble(toys, toys.TableModel())

    def names(first: int, count: int, iteration: int = 1) -> list[Any]:
        groups, _ = play_groups(
            *(toys.Bandit, [agent]),
            num_groups=count, group_size=2, address=(0, "train", iteration), first_group=first, max_concurrent=1,
        )  # fmt: skip
        return [group.trajectories[1].info["template"] for group in groups]

    whole = names(0, 12)
    assert names(5, 7) == whole[5:]
    assert names(0, 12, iteration=2) != whole


def test_evaluation_plays_with_the_first_template(toys: SimpleNamespace) -> None:
    model = recorded(toys)
    episodes = [Episode(n, 0, (0, "panel", n)) for n in range(8)]
    played = play_episodes(toys.Bandit, [ensemble(toys, model)], episodes)
    assert set(model.asked) == {"system of a"}
    assert {t.info["template"] for t in played} == {"a"}


def test_one_template_leaves_everything_as_it_was(toys: SimpleNamespace) -> None:
    found = []
    for count in (0, 1):
        model = toys.TableModel()
        settings = MSGRPOConfig(
            num_iterations=3, group_size=6, learning_rate=0.1, sampled_group_size=None, episode_temperature=None
        )
        run = train(Learner(model, settings), ensemble(toys, model, count), toys.Bandit, seed=0)
        found.append([(iteration.groups, iteration.metrics["loss"]) for iteration in run])
    assert found[0] == found[1]
    assert all("template" not in t.info for groups, _ in found[0] for group in groups for t in group.trajectories)


# ---- warm start ------------------------------------------------------------------------------------------------------


def test_the_warm_start_shows_the_templates_in_turn(toys: SimpleNamespace) -> None:
    model = recorded(toys)
    config = WarmStartConfig(num_episodes=7)
    demonstrations(ensemble(toys, model), toys.Bandit, config, seed=0)
    assert model.encoded == [f"system of {name}" for name in "abcabca"]


def test_a_warm_start_with_fewer_episodes_than_templates_is_refused(toys: SimpleNamespace) -> None:
    agent = ensemble(toys, toys.TableModel())
    check_templates(agent, WarmStartConfig(num_episodes=3), "left")
    message = (
        "warm_start.num_episodes=2 cannot show the 3 templates of agent.template, one in an episode; set it to as many "
        "or more."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_templates(agent, WarmStartConfig(num_episodes=2), "left")


def test_the_prefix_of_every_template_is_looked_at(toys: SimpleNamespace) -> None:
    odd = PromptTemplate("odd", None, "{observation}", "Sure: ", ("action",))
    agent = replace(ensemble(toys, toys.TableModel()), ensemble=(WORDINGS[0], odd))
    with pytest.raises(ConfigError, match=r"^Template 'odd' begins the answer with 'Sure: '"):
        check_templates(agent, WarmStartConfig(), "left")
