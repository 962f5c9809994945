"""Measure a model behind any OpenAI-compatible server on a fixed panel.

``python examples/evaluate_a_server.py http://127.0.0.1:8000/v1 MODEL [EPISODES]``; the same from the command line is
``stratagem eval MODEL --base-url http://127.0.0.1:8000/v1 --game FrozenLake-NotSlippery --template think_action``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stratagem.agents.base import make_policy
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.evaluation.panels import fixed_panel, panel_optima
from stratagem.evaluation.play import evaluate
from stratagem.evaluation.tables import results_table
from stratagem.models.served import ServedModel, ServedModelConfig


def main(argv: Sequence[str] | None = None) -> None:
    """Play a panel with the served model and with a random policy, and print both."""
    base_url, name, *rest = sys.argv[1:] if argv is None else argv
    panel = fixed_panel("FrozenLake-NotSlippery", num_episodes=int(rest[0]) if rest else 50)
    model = ServedModel(ServedModelConfig(base_url=base_url, model=name, seed=0))
    agent = LanguageAgent.from_config(model, AgentConfig(template="think_action"))
    results = {}
    for who, player in ((name, agent), ("random", make_policy("random"))):
        results[who], _ = evaluate(panel, [player], address=(0, "example"), optima=panel_optima(panel))
    print(results_table({who: [result] for who, result in results.items()}).markdown())
    print(model.usage)


if __name__ == "__main__":
    main()
