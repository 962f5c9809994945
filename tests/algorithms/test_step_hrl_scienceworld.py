"""STEP-HRL on ScienceWorld with the tiny model; skipped where Java or the package is missing."""

from __future__ import annotations

import importlib.util
import shutil
from functools import partial

import pytest

from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalConfig, RoleSettings
from stratagem.algorithms import step_hrl
from stratagem.cli import main
from stratagem.games import make
from stratagem.models.catalog import ModelConfig
from stratagem.models.heads import HeadConfig
from stratagem.models.local import LocalModel

MISSING = shutil.which("java") is None or importlib.util.find_spec("scienceworld") is None
pytestmark = pytest.mark.skipif(MISSING, reason="there is no java or no package scienceworld here")


def test_the_engines_solutions_are_cloned_and_the_roles_play() -> None:
    make_game = partial(make, "ScienceWorld", tasks=["lifespan-longest-lived"], view="raw")
    config = step_hrl.StepHRLConfig(
        num_iterations=2,
        bc_iterations=1,
        steps_per_iteration=1,
        batch_episodes=1,
        num_expert_episodes=1,
        collected_ratio=1.0,
        critic_warmup=0,
        max_steps=2,
        critic=HeadConfig(layers=(8,)),
    )
    short = RoleSettings(max_new_tokens=4)
    agent = HierarchicalAgent.from_config(
        LocalModel.load(ModelConfig(name="tiny")), HierarchicalConfig(high=short, low=short, progress=short)
    )
    learner = step_hrl.Learner(agent.model, config)
    cloned, improved = step_hrl.train(learner, agent, make_game, seed=0)
    assert cloned.metrics["num_samples"] > 10 and not cloned.groups
    (group,) = improved.groups
    (trajectory,) = group.trajectories
    assert trajectory.game == "scienceworld" and len(trajectory.steps) == 2
    # A model that knows nothing says no command; the game gets none.
    assert all(step.executed_action is None for step in trajectory.steps)


def test_the_recipe_says_what_it_would_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "step_hrl_scienceworld", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "on ScienceWorld for 40 iterations, with panels ScienceWorld-Seen, ScienceWorld-Unseen." in printed
    # Two panels of 30 episodes, before, in the middle and after.
    assert "evaluation  3 times, 180 episodes in all" in printed
