"""The tables of the documents name what runs write, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratagem.cli import main
from stratagem.runs.metrics import read_metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"

MS_GRPO = [
    *("tiny", "--set", "agent.recovery=random", "--set", "agent.max_new_tokens=4", "--set", "warm_start.num_steps=1"),
    *("--set", "warm_start.num_episodes=2", "--set", "warm_start.batch_size=4"),
    *("--set", "game.params={size=3, max_steps=4, coordinates=false}"),
    *("--set", "algorithm.kl_coef=0.1", "--set", "algorithm.max_kl=0.1"),
]
RECIPES = {
    "poad": """
[game]
name = "Overcooked-TomatoSalad"
params = { max_steps = 8 }
[agent]
name = "scoring"
normalisation = "tokens"
[algorithm]
name = "poad"
critic = { layers = [8] }
[model]
name = "tiny"
""",
    "step_hrl": """
[game]
name = "ALFWorld-Generated"
params = { view = "raw", max_steps = 6, task_types = ["pick_and_place_simple"] }
[agent]
name = "hierarchical"
high = { max_new_tokens = 4 }
low = { max_new_tokens = 4 }
progress = { max_new_tokens = 4 }
[algorithm]
name = "step_hrl"
bc_iterations = 1
steps_per_iteration = 1
batch_episodes = 1
num_expert_episodes = 2
collected_ratio = 1.0
critic_warmup = 0
critic = { layers = [8] }
[model]
name = "tiny"
""",
}
ROLES = ("_high", "_low", "_progress")
ELSEWHERE = {
    "ms_grpo": {"extra_groups", "temperature", "sampled_entropy"},  # with dynamic groups and an adaptive temperature
    "poad": set(),
    "step_hrl": set(),
}
"""Names that the run of this test has no reason to write."""
ONLY_ON_A_GPU = {"peak_gpu_memory_gib"}


def documented(page: str, heading: str) -> set[str]:
    """Return the names in the first column of the tables under a heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATAGEM_CACHE", str(folder / "cache"))
        for name in ("ms_grpo", *RECIPES):
            (folder / f"{name}.toml").write_text(RECIPES.get(name, ""), encoding="utf-8")
            first = MS_GRPO if name == "ms_grpo" else [str(folder / f"{name}.toml")]
            short = ("algorithm.num_iterations=2", "evaluation.num_episodes=1", "evaluation.every=1")
            words = [*first, "--name", name, "--runs-dir", str(folder)]
            assert main(["train", *words, *(word for item in short for word in ("--set", item))]) == 0
    return folder


@pytest.mark.parametrize("name", ["ms_grpo", "poad", "step_hrl"])
def test_every_metric_of_a_run_is_in_the_documents_and_every_documented_one_in_a_run(home: Path, name: str) -> None:
    written = {key for row in read_metrics(home / name / "metrics.jsonl") for key in row}
    shared = documented("runs.md", "### Metric names")
    own = documented(f"algorithms/{name}.md", "## Metrics")
    assert not shared & own, "a name has one place"
    if name == "step_hrl":
        own |= {base + role for base in own for role in ROLES}
    assert sorted(written - shared - own) == []
    expected = own if name != "step_hrl" else {base for base in own if not base.endswith(ROLES)}
    assert sorted(expected - written - ELSEWHERE[name]) == []
    if name == "ms_grpo":
        assert sorted(shared - written - ONLY_ON_A_GPU) == []
