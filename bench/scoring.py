"""Acting by scoring: all admissible actions on one token tree against one padded row for each action.

    python bench/scoring.py                  a few minutes on two cores that do nothing else
    python bench/scoring.py --quick          seconds; shows that everything runs, keeps nothing

A decision asks for the log-probability of every admissible action after one prompt. Both sides get the decisions that
wait together: one of them, or those of some episodes of a random policy at different steps. The other side is
transformers as TWOSOME uses it, with every advantage that needs no tree: rows of like length padded on the right (no
mask needed), no logits but those of action tokens, no token after the last prediction, and the fastest of a few batch
sizes.

The median over the games, with the decisions of several episodes waiting, is kept as the record ``scoring.speedup``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Before anything imports torch or huggingface_hub, which read these once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from keeper import Keeper
from measure import NotRun, Timing, alternate
from rich.console import Console
from torch import nn
from workloads import Row

from stratagem.agents.scoring import ScoringAgent
from stratagem.evaluation.tables import Table
from stratagem.games import make
from stratagem.models.catalog import ModelConfig, load_pretrained
from stratagem.models.local import LocalModel
from stratagem.models.tree import build_tree
from stratagem.seeding import generator

__all__ = ["GAMES", "PaddedRows", "ScoringResult", "compare", "decisions"]

GAMES = (
    "Overcooked-TomatoSalad",
    "Overcooked-TomatoLettuceSalad",
    "VirtualHome-FoodPreparation",
    "VirtualHome-Entertainment",
)

_BATCHES = (4, 8, 16)


def decisions(game_name: str, agent: ScoringAgent, count: int) -> list[list[Row]]:
    """Return the rows of ``count`` decisions: episode i of a random policy, at step i + 1 or its last before that."""
    found = []
    for number in range(count):
        game = make(game_name)
        (text,) = game.reset(seed=0, course=number)
        rng = generator("bench", "scoring", game_name, number)
        legal = game.legal_actions()
        for _ in range(number + 1):
            step = game.step((game.random_action(0, rng),))
            if step.terminated or step.truncated:
                break
            text, legal = step.observations[0], game.legal_actions()
        prompt = agent.prompt_ids(text)
        found.append([(prompt, ids) for ids in agent.candidate_ids(legal)])
        game.close()
    return found


class PaddedRows:
    """transformers alone: one row for each action."""

    def __init__(self, name: str) -> None:
        """Load the model in float32."""
        self.module, _ = load_pretrained(name, dtype=torch.float32)
        self.module.eval()
        self.module.set_attn_implementation("sdpa")
        self.batch = _BATCHES[1]
        """Rows of one pass."""

    def score(self, rows: Sequence[Row]) -> list[float]:
        """Return the log-probability of each row's completion."""
        order = sorted(range(len(rows)), key=lambda number: len(rows[number][0]) + len(rows[number][1]))
        scores = [0.0] * len(rows)
        for start in range(0, len(order), self.batch):
            part = order[start : start + self.batch]
            for number, score in zip(part, self._pass([rows[number] for number in part]), strict=True):
                scores[number] = score
        return scores

    @torch.inference_mode()
    def _pass(self, rows: Sequence[Row]) -> list[float]:
        inputs = [torch.tensor([*prompt, *completion[:-1]]) for prompt, completion in rows]
        ids = nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        hidden = self.module.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        lengths = [len(completion) for _, completion in rows]
        line = torch.arange(len(rows)).repeat_interleave(torch.tensor(lengths))
        place = torch.cat([torch.arange(len(p) - 1, len(p) + len(c) - 1) for p, c in rows])
        labels = torch.tensor([token for _, completion in rows for token in completion])
        logits = self.module.get_output_embeddings()(hidden[line, place])
        values = -nn.functional.cross_entropy(logits.float(), labels, reduction="none")
        return [float(part.sum()) for part in torch.split(values, lengths)]

    def tune(self, rows: Sequence[Row]) -> None:
        """Keep the batch size that scores the first of these rows fastest."""
        seconds = {}
        for batch in _BATCHES:
            self.batch = batch
            some = rows[:batch]
            start = time.perf_counter()
            self.score(some)
            seconds[batch] = (time.perf_counter() - start) / len(some)
            if batch >= len(rows):
                break
        self.batch = min(seconds, key=lambda batch: seconds[batch])


@dataclass(frozen=True)
class ScoringResult:
    """What one comparison gave."""

    timing: Timing
    num_actions: int
    seen: int
    """Tokens row by row, without padding."""
    computed: int
    """Tokens on the tree."""
    gap: float
    """Largest difference of an action's log-probability between the sides."""


def compare(agent: ScoringAgent, peer: PaddedRows, waiting: Sequence[Sequence[Row]], repeats: int) -> ScoringResult:
    """Time both sides on the decisions that wait together, in turns.

    Raises:
        NotRun: the sides disagree.
    """
    rows = [row for decision in waiting for row in decision]
    ours = [float(part.sum()) for part in agent.score_rows(rows)]
    peer.tune(rows)
    gap = max(abs(one - other) for one, other in zip(ours, peer.score(rows), strict=True))
    if gap > 1e-2:
        raise NotRun(f"the sides differ by {gap:.1e} in a log-probability")

    def score() -> None:
        agent.score_rows(rows)

    def theirs() -> None:
        peer.score(rows)

    timing = alternate(score, theirs, repeats)
    tree = build_tree(rows)
    return ScoringResult(timing, len(rows), tree.num_row_tokens, tree.num_nodes, gap)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description="Scoring all admissible actions, tree against padded rows.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name of a model")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--repeats", type=int, default=5, help="alternating pairs")
    parser.add_argument("--waiting", type=int, default=8, help="episodes that wait together")
    parser.add_argument("--quick", action="store_true", help="one game, few decisions, one pair; no record by itself")
    parser.add_argument("--results", metavar="FOLDER", help="where the record goes (results)")
    options = parser.parse_args(argv)
    options.given = sys.argv[1:] if argv is None else list(argv)
    if options.results is None and not options.quick:
        options.results = "results"
    torch.set_num_threads(options.threads)
    console = Console(width=160)
    agent = ScoringAgent(LocalModel.load(ModelConfig(name=options.model)))
    peer = PaddedRows(options.model)
    cells: list[tuple[str, ...]] = []
    kept: dict[str, ScoringResult] = {}
    waiting_together = 3 if options.quick else options.waiting
    for game in GAMES[: 1 if options.quick else None]:
        for count in (1, waiting_together):
            waiting = decisions(game, agent, count)
            try:
                result = compare(agent, peer, waiting, 1 if options.quick else options.repeats)
            except NotRun as reason:
                console.print(f"{game}, {count} waiting, not run: {reason}")
                continue
            timing = result.timing
            if count == waiting_together:
                kept[game] = result
            cells.append(
                (
                    game,
                    str(count),
                    str(result.num_actions),
                    f"{result.seen:,}",
                    f"{result.computed:,}",
                    f"{statistics.median(timing.theirs):.3f}",
                    f"{statistics.median(timing.ours):.3f}",
                    f"{timing.speedup:.2f}x [{min(timing.ratios):.2f}, {max(timing.ratios):.2f}]",
                    f"{result.gap:.0e}",
                )
            )
    headers = ("game", "waiting", "actions", "tokens seen", "computed", "rows s", "tree s", "speed-up", "gap")
    console.print(Table(headers, tuple(cells)).rich("Scoring every admissible action, float32"))
    _keep(Keeper(options, "bench/scoring.py"), kept, waiting_together, options)
    return 0


def _keep(keeper: Keeper, results: Mapping[str, ScoringResult], waiting: int, options: argparse.Namespace) -> None:
    """Keep the median over the games; a game that was not run is not in it."""
    if not results:
        return
    speedups = {game: result.timing.speedup for game, result in results.items()}
    pairs = len(next(iter(results.values())).timing.ratios)
    each = ", ".join(f"{game} {speedup:.2f}" for game, speedup in speedups.items())
    note = (
        f"Every admissible action of {waiting} episodes that wait together, {options.model} in float32, tree against "
        f"padded rows; median over games of the median of {pairs} alternating pairs: {each}"
    )
    keeper.keep("scoring.speedup", round(statistics.median(speedups.values()), 3), "times as fast", note)


if __name__ == "__main__":
    raise SystemExit(main())
