"""Training passes: the token tree against padded rows as a user of transformers writes them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from measure import Floor, NotRun, Shapes, Timing, alternate, training_floor
from torch import Tensor, nn
from workloads import Row, Workload

from stratagem.models.attention import TreeLayout
from stratagem.models.catalog import load_pretrained
from stratagem.models.local import LocalModel
from stratagem.models.tree import build_tree

__all__ = ["MAX_TOKENS", "RowByRow", "TrainingResult", "compare", "tree_pass"]

MAX_TOKENS = 2048
"""Distinct tokens of one pass on the tree: the default of every algorithm."""

_BUDGETS = (512, 1024, 2048, 4096)


def row_weights(rows: Sequence[Row]) -> list[float]:
    """Return the factor of each row's log-probabilities in the loss: advantages of both signs over the token count."""
    total = sum(len(completion) for _, completion in rows)
    return [(1.0 if number % 2 else -1.0) / total for number in range(len(rows))]


def tree_pass(model: LocalModel, rows: Sequence[Row], *, max_tokens: int = MAX_TOKENS) -> tuple[float, int]:
    """Do forward and backward on the tree; gradients stay in the parameters. Return the loss and tokens computed."""
    weights = row_weights(rows)
    loss, computed = 0.0, 0
    for part in model.split(rows, max_tokens):
        batch = model.logprobs([rows[i] for i in part])
        lengths = torch.tensor([len(rows[i][1]) for i in part])
        factors = torch.tensor([weights[i] for i in part]).repeat_interleave(lengths)
        value = -(factors * batch.logprobs).sum()
        value.backward()  # type: ignore[no-untyped-call]
        loss += value.item()
        computed += batch.num_computed
    return loss, computed


class RowByRow:
    """The same loss with transformers alone: rows of like length padded on the right, several in a micro-batch.

    It has every advantage that needs no tree: scaled-dot-product attention with its causal fast path (padding on the
    right needs no mask), no logits but those of completion tokens, no token after the last prediction, rows sorted by
    length, and the fastest of a few micro-batch sizes.
    """

    def __init__(self, name: str) -> None:
        """Load the model in float32."""
        self.module, _ = load_pretrained(name, dtype=torch.float32)
        self.module.eval()  # it has no dropout
        self.module.set_attn_implementation("sdpa")
        self.budget = _BUDGETS[1]
        """Padded tokens of one micro-batch."""

    def micro_batches(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return row numbers, longest rows first, cut where a micro-batch would hold more padded tokens than fit."""
        order = sorted(range(len(rows)), key=lambda r: -(len(rows[r][0]) + len(rows[r][1])))
        parts: list[list[int]] = []
        for number in order:
            longest = parts and len(rows[parts[-1][0]][0]) + len(rows[parts[-1][0]][1])
            if parts and longest * (len(parts[-1]) + 1) <= self.budget:
                parts[-1].append(number)
            else:
                parts.append([number])
        return parts

    def run(self, rows: Sequence[Row]) -> tuple[float, int]:
        """Do forward and backward; gradients stay in the parameters. Return the loss and tokens computed."""
        weights = row_weights(rows)
        loss, computed = 0.0, 0
        for part in self.micro_batches(rows):
            value, tokens = self._loss([rows[i] for i in part], [weights[i] for i in part])
            value.backward()  # type: ignore[no-untyped-call]
            loss += value.item()
            computed += tokens
        return loss, computed

    def _loss(self, rows: Sequence[Row], weights: Sequence[float]) -> tuple[Tensor, int]:
        inputs = [torch.tensor([*prompt, *completion[:-1]]) for prompt, completion in rows]
        ids = nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        hidden = self.module.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        lengths = torch.tensor([len(completion) for _, completion in rows])
        line = torch.arange(len(rows)).repeat_interleave(lengths)
        place = torch.cat([torch.arange(len(p) - 1, len(p) + len(c) - 1) for p, c in rows])
        labels = torch.tensor([token for _, completion in rows for token in completion])
        logits = self.module.get_output_embeddings()(hidden[line, place])
        negative = nn.functional.cross_entropy(logits.float(), labels, reduction="none")
        return (torch.tensor(weights).repeat_interleave(lengths) * negative).sum(), ids.numel()

    def tune(self, rows: Sequence[Row]) -> None:
        """Keep the micro-batch size that trains these rows fastest, by one micro-batch of each size."""
        rates: dict[int, float] = {}
        for budget in _BUDGETS:
            self.budget = budget
            some = [rows[i] for i in self.micro_batches(rows)[0]]
            start = time.perf_counter()
            _, tokens = self.run(some)
            rates[budget] = tokens / (time.perf_counter() - start)
            if tokens * 2 <= budget:
                break  # all rows together are smaller than this size
        self.budget = max(rates, key=lambda budget: rates[budget])
        self.module.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class TrainingResult:
    """What one workload gave."""

    workload: Workload
    timing: Timing
    computed: int
    """Tokens on the tree."""
    padded: int
    """Tokens of the padded rows."""
    floor: Floor
    build_share: float
    """Share of our time that makes trees, micro-batches and attention blocks."""
    gradient_gap: float
    """Norm of the difference of both sides' gradients over the norm of theirs."""

    @property
    def floor_share(self) -> float:
        """Time of the matrix products alone over our median time."""
        return self.floor.seconds / sorted(self.timing.ours)[len(self.timing.ours) // 2]


def compare(model: LocalModel, peer: RowByRow, workload: Workload, repeats: int, *, quick: bool) -> TrainingResult:
    """Time both sides on a workload and check that they compute the same gradient.

    Raises:
        NotRun: they do not.
    """
    counts = {}

    def ours() -> None:
        model.module.zero_grad(set_to_none=True)
        _, counts["ours"] = tree_pass(model, workload.rows)

    def theirs() -> None:
        peer.module.zero_grad(set_to_none=True)
        _, counts["theirs"] = peer.run(workload.rows)

    timing = alternate(ours, theirs, repeats)
    gap = _gradient_gap(model.module, peer.module)
    if not gap < 1e-3:
        raise NotRun(f"the gradients differ by {gap:.2e} of their norm; both sides must compute the same")
    model.module.zero_grad(set_to_none=True)
    peer.module.zero_grad(set_to_none=True)
    parts = [[workload.rows[i] for i in part] for part in model.split(workload.rows, MAX_TOKENS)]
    trees = [build_tree(part) for part in parts]
    floor = training_floor(trees, Shapes.of(model.module.config), min_seconds=0.02 if quick else 0.5)
    return TrainingResult(
        workload=workload,
        timing=timing,
        computed=counts["ours"],
        padded=counts["theirs"],
        floor=floor,
        build_share=_build_seconds(model, workload.rows) / min(timing.ours),
        gradient_gap=gap,
    )


def _gradient_gap(ours: nn.Module, theirs: nn.Module) -> float:
    others = dict(theirs.named_parameters())
    difference = norm = 0.0
    for name, parameter in ours.named_parameters():
        left, right = parameter.grad, others[name].grad
        if left is None or right is None:
            raise NotRun(f"parameter {name} has no gradient on one side")
        difference += float((left - right).double().square().sum())
        norm += float(right.double().square().sum())
    return float((difference / norm) ** 0.5)


def _build_seconds(model: LocalModel, rows: Sequence[Row]) -> float:
    start = time.perf_counter()
    for part in model.split(rows, MAX_TOKENS):
        tree = build_tree([rows[i] for i in part])
        TreeLayout(tree, block_size=model.config.attention_block).blocks(None)
    return time.perf_counter() - start
