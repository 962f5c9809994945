"""What a training pass gives, from the hidden states of a token tree or of padded rows.

Log-probabilities and hidden states of one pass come from the same graph, so that a policy and a value head on top of it
cost one pass together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stratagem.models.logits import label_logprobs
from stratagem.models.tree import Row, TokenTree

__all__ = ["Batch", "row_batch", "softcap", "tree_batch"]


@dataclass(frozen=True)
class Batch:
    """What a training pass gives for a list of rows."""

    logprobs: Tensor
    """[sum of completion lengths] float32, rows one after the other."""
    entropy: Tensor
    """[same] entropy of the distribution that each token was drawn from, in nats."""
    num_computed: int
    """Tokens that went through the model."""
    num_seen: int
    """Tokens that a row-by-row pass without padding would compute."""
    states: Tensor
    """[N, C] final hidden states of everything that was computed, with gradients."""
    places: Tensor
    """[sum of completion lengths] int64: the state that predicts each token."""

    @property
    def hidden(self) -> Tensor:
        """[sum of completion lengths, C] the state *before* each token; for a row's first token that of the prompt."""
        return self.states.index_select(0, self.places)


def tree_batch(
    hidden: Tensor, tree: TokenTree, head: Any, *, temperature: float, cap: float | None, rounded: bool = False
) -> Batch:
    """Read the labels of a tree off its nodes.

    Args:
        hidden: [N, C] final hidden states of the nodes.
        tree: the tree.
        head: the output layer, with ``weight`` and ``bias``.
        temperature: of the sampling distribution.
        cap: see :func:`softcap`.
        rounded: see :func:`label_logprobs`.
    """
    device = hidden.device
    nodes = torch.from_numpy(tree.label_nodes).to(device)
    # Labels sorted by node, so that the logits are made chunk by chunk.
    order = torch.argsort(nodes, stable=True)
    distinct, row_of_label = torch.unique_consecutive(nodes[order], return_inverse=True)
    logprobs, entropy = label_logprobs(
        hidden.index_select(0, distinct),
        head.weight,
        rows=row_of_label,
        tokens=torch.from_numpy(tree.label_tokens).to(device)[order],
        bias=head.bias,
        temperature=temperature,
        softcap=cap,
        rounded=rounded,
    )
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=device))
    labels = torch.from_numpy(tree.row_index).to(device)
    index = back[labels]
    return Batch(
        logprobs[index], entropy[row_of_label[index]], tree.num_nodes, tree.num_row_tokens, hidden, nodes[labels]
    )


def row_batch(module: Any, rows: Sequence[Row], *, temperature: float, device: torch.device) -> Batch:
    """Return the same from one right-padded line for each row: what everyone else computes."""
    lengths = [len(prompt) + len(completion) for prompt, completion in rows]
    width = max(lengths)
    ids = torch.zeros((len(rows), width), dtype=torch.int64, device=device)
    mask = torch.zeros_like(ids)
    for number, (prompt, completion) in enumerate(rows):
        ids[number, : lengths[number]] = torch.tensor([*prompt, *completion], device=device)
        mask[number, : lengths[number]] = 1
    positions = torch.arange(width, device=device).expand_as(ids)
    output = module(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, output_hidden_states=True
    )
    log_p = torch.log_softmax(output.logits.float() / temperature, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    spans = [(n, range(len(p) - 1, len(p) + len(c) - 1)) for n, (p, c) in enumerate(rows)]
    line = torch.tensor([n for n, span in spans for _ in span], device=device)
    place = torch.tensor([k for _, span in spans for k in span], device=device)
    chosen = log_p[line, place, ids[line, place + 1]]
    states = output.hidden_states[-1].flatten(0, 1)
    return Batch(chosen, entropy[line, place], ids.numel(), sum(lengths) - len(rows), states, line * width + place)


def softcap(module: Any) -> float | None:
    """Return c of logits = c tanh(logits / c), or None for an architecture without it."""
    value = getattr(module.config.get_text_config(), "final_logit_softcapping", None)
    return None if not value else float(value)
