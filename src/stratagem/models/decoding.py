"""Sampling on a token tree: every distinct token is computed once for a version of the weights.

The sampler keeps one trie of tokens with their keys and values. A request walks down the trie as far as it is known;
only the rest is computed. So the static prompt is computed once, equal states once, and completions that are still
equal advance as one row: each request draws its own uniform number against the shared distribution of its node, and the
trie branches where the draws differ. That is exact, since a causal model's distribution depends on the path alone.

Every pass takes whatever waits, prompts and completions mixed (continuous batching), up to a number of tokens. Requests
that draw go first; a prompt that does not fit into the rest is computed in pieces over several passes, each of which
attends to the earlier ones through the store. Storage is allocated once; when it is full, nodes that no running request
needs are dropped, and computed again if they are ever needed.

A request may say which completions it expects (an agent knows the legal words). Their tokens are computed in the pass
of the prompt, so a short answer takes one pass instead of one for each token. Nothing that is drawn depends on it.

How a token is drawn: :mod:`stratagem.models.distribution`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from stratagem.errors import ModelError
from stratagem.models.attention import Block, Fork, KeyValueStore
from stratagem.models.base import GenerationConfig
from stratagem.models.distribution import Distribution, Key, distributions, key_of
from stratagem.models.frozen import LOST, ROOT, FrozenStates
from stratagem.models.pass_blocks import fork_blocks, union_blocks
from stratagem.types import Finish

__all__ = ["Row", "SamplerStats", "TreeSampler"]


class _Node:
    """A token in the trie. ``slot`` < 0: keys and values are not computed (yet, or any more)."""

    __slots__ = ("children", "frozen", "hidden", "slot", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.slot = -1
        self.children: dict[int, _Node] = {}
        self.hidden: Tensor | None = None
        self.frozen = LOST


@dataclass(eq=False)
class Row:
    """A request on its way; filled in by the sampler."""

    prompt_ids: tuple[int, ...]
    config: GenerationConfig
    uniforms: np.ndarray | None
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    nodes: list[_Node] = field(default_factory=list)
    slots: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    ready: int = 0
    """nodes[:ready] are computed and their slots are in ``slots``."""
    expected: tuple[tuple[int, ...], ...] = ()
    """Completions that are likely; their tokens are computed together with the prompt."""


@dataclass
class _Entry:
    """A node to compute."""

    node: _Node
    parent: _Node | None
    slots: np.ndarray
    """slots[:depth + 1] are those of the node's path."""
    depth: int
    keep_hidden: bool
    """Its next token may be drawn."""

    def path(self, window: int | None) -> np.ndarray:
        """Return the slots that it attends to in a layer with this sliding window."""
        first = 0 if window is None else max(0, self.depth + 1 - window)
        return self.slots[first : self.depth + 1]


@dataclass
class SamplerStats:
    """Counts since the sampler was made."""

    computed_tokens: int = 0
    """Tokens that went through the model."""
    seen_tokens: int = 0
    """Tokens that a row-by-row sampler with a key-value cache would have computed."""
    sampled_tokens: int = 0
    passes: int = 0


class TreeSampler:
    """Draws completions for many requests at once; see the module's text."""

    def __init__(
        self,
        *,
        forward: Callable[[Tensor, Tensor, KeyValueStore], Tensor],
        head: Callable[[Tensor], Tensor],
        store: KeyValueStore,
        stop_ids: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        context_length: int,
        max_tokens_per_pass: int = 2048,
        distribution_bytes: int = 256 * 2**20,
        frozen: FrozenStates | None = None,
    ) -> None:
        """Take the model as functions.

        Args:
            forward: (ids [n], positions [n], store) -> hidden states [n, C]; writes keys and values into the store.
            head: hidden states [r, C] -> logits [r, V] in float32.
            store: preallocated keys and values of ``capacity`` tokens.
            stop_ids: tokens that end a completion and stay in it.
            decode: ids -> text, for stop texts.
            context_length: prompt and completion together.
            max_tokens_per_pass: at least 1; no pass computes more, so its memory is bounded and it stays in the caches.
            distribution_bytes: memory for kept distributions.
            frozen: keeps for the learner what the layers below it made of each token; cleared with the sampler.
        """
        self._forward, self._head, self._store = forward, head, store
        self._stop_ids, self._decode = stop_ids, decode
        self._context_length = context_length
        self._max_tokens = max_tokens_per_pass
        self._distribution_bytes = distribution_bytes
        self._frozen = frozen
        self._frozen_is_old = False
        self._max_distributions = 1
        self._capacity = store.keys[0].shape[0]
        self._device = store.keys[0].device
        self.stats = SamplerStats()
        self._rows: list[Row] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything that depends on the weights; running requests are computed again from their tokens."""
        self._roots: dict[int, _Node] = {}
        self._ends: dict[tuple[int, ...], list[_Node]] = {}
        self._free = list(range(self._capacity - 1, -1, -1))
        self._distributions: OrderedDict[_Node, Distribution] = OrderedDict()
        self._frozen_is_old = True  # the learner still needs it; the next pass of sampling begins a new collection
        for row in self._rows:
            self._enter(row)

    @property
    def num_running(self) -> int:
        """Requests that are not finished."""
        return len(self._rows)

    def submit(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        uniforms: np.ndarray | None = None,
        expected: tuple[tuple[int, ...], ...] = (),
    ) -> Row:
        """Queue a request.

        Args:
            prompt_ids: at least one token.
            config: how to sample.
            uniforms: [>= max_new_tokens] in [0, 1); not needed at temperature 0.
            expected: completions to compute ahead; they change the time it takes and nothing else.

        Raises:
            ModelError: the uniform numbers are too few, or missing for a temperature above 0.
        """
        row = Row(tuple(prompt_ids), config, uniforms, expected=expected)
        if config.temperature > 0 and (uniforms is None or len(uniforms) < config.max_new_tokens):
            have = 0 if uniforms is None else len(uniforms)
            raise ModelError(
                f"A request came with {have} uniform numbers; sampling at temperature={config.temperature!r} needs "
                f"max_new_tokens={config.max_new_tokens}. Pass them, or set temperature to 0."
            )
        if not row.prompt_ids or len(row.prompt_ids) >= self._context_length:
            row.finish = Finish.CONTEXT
            return row
        self._rows.append(row)
        self._enter(row)
        return row

    def _enter(self, row: Row) -> None:
        """Walk a row's tokens down the trie."""
        known = self._ends.get(row.prompt_ids)
        if known is None:
            known = []
            children = self._roots
            for token in row.prompt_ids:
                node = children.get(token)
                if node is None:
                    node = children[token] = _Node(token)
                known.append(node)
                children = node.children
            self._ends[row.prompt_ids] = known
        row.nodes = list(known)
        for token in row.completion_ids:
            row.nodes.append(row.nodes[-1].children.setdefault(token, _Node(token)))
        row.slots = np.empty(min(len(row.prompt_ids) + row.config.max_new_tokens, self._context_length), dtype=np.int64)
        row.ready = 0

    def advance(self) -> list[Row]:
        """Make one pass over what waits, draw as far as known distributions go, and return the finished requests.

        Raises:
            ModelError: a single request does not fit into the store.
        """
        selected, chains = self._select()
        if chains:
            self._compute(chains)
        waiting = selected
        while waiting:  # each turn draws a token or more, or leaves the row to the next pass
            self._distribute(waiting)
            for row in waiting:
                self._draw(row)
            waiting = [row for row in waiting if row.finish is None and row.nodes[-1].hidden is not None]
        finished = [row for row in selected if row.finish is not None]
        if finished:
            gone = set(map(id, finished))
            self._rows = [row for row in self._rows if id(row) not in gone]
        return finished

    def _select(self) -> tuple[list[Row], list[list[_Entry]]]:
        """Choose rows for this pass and give slots to the nodes they lack.

        Returns:
            The rows (one of them may get but a piece of its prompt), and what to compute for each.
        """
        selected: list[Row] = []
        chains: list[list[_Entry]] = []
        claimed: dict[_Node, _Entry] = {}  # what the rows selected so far will compute; equal rows wait for it too
        count = 0
        # Rows that lack one token go first, so that a long prompt delays nobody who draws.
        for row in sorted(self._rows, key=lambda row: row.ready < len(row.nodes) - 1):
            missing = self._missing(row, claimed)
            room = self._max_tokens - count
            if missing and not room:
                break
            if sum(row.nodes[depth].slot < 0 for depth in missing) > len(self._free):
                kept = self._evict([*selected, row])
                # Expected tokens that were claimed for this pass have lost their slots.
                chains = [[entry for entry in chain if entry.node in kept] for chain in chains]
                missing = self._missing(row, claimed)
                if sum(row.nodes[depth].slot < 0 for depth in missing) > len(self._free):
                    if selected:
                        break
                    raise ModelError(
                        f"A request of {len(row.nodes)} tokens does not fit into the store of {self._capacity} tokens. "
                        "Raise model.cache_tokens."
                    )
            part = missing[:room]
            for depth in part:
                node = row.nodes[depth]
                if node.slot < 0:
                    node.slot = self._free.pop()
                row.slots[depth] = node.slot
            row.ready = len(row.nodes) if len(part) == len(missing) else missing[len(part)]
            if part:
                first = len(row.prompt_ids) - 1
                chain = [_Entry(row.nodes[d], row.nodes[d - 1] if d else None, row.slots, d, d >= first) for d in part]
                if row.ready == len(row.nodes):
                    chain.extend(islice(self._ahead(row), room - len(part)))
                claimed.update((entry.node, entry) for entry in chain)
                chains.append(chain)
                count += len(chain)
            if row.nodes[-1] in claimed:
                claimed[row.nodes[-1]].keep_hidden = True  # it may lie inside the prompt of the row that computes it
            selected.append(row)
        return selected, chains

    def _ahead(self, row: Row) -> Iterator[_Entry]:
        """Give slots to the tokens of expected completions, while there are some to spare."""
        if row.completion_ids:
            return
        for completion in row.expected:
            node, depth = row.nodes[-1], len(row.nodes) - 1
            slots = np.concatenate([row.slots[: depth + 1], np.empty(len(completion), dtype=np.int64)])
            for token in completion[:-1]:  # nothing is drawn after the last token
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = _Node(token)
                parent, node, depth = node, child, depth + 1
                if node.slot < 0:
                    if len(self._free) <= self._capacity // 8:
                        return
                    node.slot = self._free.pop()
                    slots[depth] = node.slot
                    yield _Entry(node, parent, slots, depth, True)
                slots[depth] = node.slot

    def _missing(self, row: Row, claimed: Mapping[_Node, _Entry]) -> list[int]:
        """Return the depths of a row's nodes that it must claim in this pass, and note the slots of the others."""
        missing = []
        last = len(row.nodes) - 1
        for depth in range(min(row.ready, last), last + 1):
            node = row.nodes[depth]
            if node.slot < 0 or (depth == last and node.hidden is None and node not in claimed):
                missing.append(depth)
            else:
                row.slots[depth] = node.slot
        return missing

    def _evict(self, keep: list[Row]) -> set[_Node]:
        """Drop every node that none of these rows needs; the other rows start again from their tokens.

        Returns:
            The nodes that are left.
        """
        wanted = {node for row in keep for node in row.nodes}
        self._roots = {token: node for token, node in self._roots.items() if node in wanted}
        for node in wanted:
            node.children = {token: child for token, child in node.children.items() if child in wanted}
        self._ends = {row.prompt_ids: row.nodes[: len(row.prompt_ids)] for row in keep}
        for node in [node for node in self._distributions if node not in wanted]:
            del self._distributions[node]
        used = {node.slot for node in wanted}
        self._free = [slot for slot in range(self._capacity - 1, -1, -1) if slot not in used]
        kept = {id(row) for row in keep}
        for row in self._rows:
            if id(row) not in kept:
                self._enter(row)
        return wanted

    def _compute(self, chains: list[list[_Entry]]) -> None:
        """Run the model over the pending nodes."""
        # Rows that advance by a token first, equal paths side by side; then the others, also with relatives side by
        # side: slots are given in the order of computation, so theirs are near.
        single = [chain for chain in chains if len(chain) == 1]
        single.sort(key=lambda chain: chain[0].path(None).tobytes())
        others = [chain for chain in chains if len(chain) > 1]
        others.sort(key=lambda chain: int(chain[0].slots[chain[0].depth - 1]) if chain[0].depth else -1)
        pending = [entry for chain in (*single, *others) for entry in chain]
        ids = torch.tensor([entry.node.token for entry in pending], device=self._device)
        positions = torch.tensor([entry.depth for entry in pending], device=self._device)
        slots = torch.tensor([entry.node.slot for entry in pending], device=self._device)
        deepest = max(entry.depth for entry in pending)

        def blocks(window: int | None) -> list[Block | Fork]:
            paths = [entry.path(window) for entry in pending]
            ends = len(single)
            forks = fork_blocks(paths[:ends], 0, self._store.keys[0].shape[1], self._device)
            return [*forks, *union_blocks(paths[ends:], ends, self._capacity, self._device)]

        self._store.set_batch(slots, blocks, deepest)
        hidden = self._forward(ids, positions, self._store)
        if self._frozen is not None:
            self._keep_frozen(self._frozen, pending)
        for number, entry in enumerate(pending):
            if entry.keep_hidden:
                entry.node.hidden = hidden[number].clone()
        self.stats.computed_tokens += len(pending)
        self.stats.passes += 1

    def _keep_frozen(self, frozen: FrozenStates, pending: list[_Entry]) -> None:
        if self._frozen_is_old:
            frozen.clear()
            self._frozen_is_old = False
        for entry in sorted(pending, key=lambda entry: entry.depth):  # parents before their children
            entry.node.frozen = frozen.place(entry.parent.frozen if entry.parent else ROOT, entry.node.token)
        frozen.keep([entry.node.frozen for entry in pending])

    def _distribute(self, rows: list[Row]) -> None:
        """Make the distributions that these rows will draw from."""
        todo: dict[Key, tuple[GenerationConfig, dict[_Node, None]]] = {}
        for row in rows:
            node, key = row.nodes[-1], key_of(row.config)
            known = self._distributions.get(node)
            if known is not None and known.key == key:
                self._distributions.move_to_end(node)
            elif node.hidden is not None:
                todo.setdefault(key, (row.config, {}))[1][node] = None
        for config, waiting in todo.values():
            nodes = list(waiting)
            for start in range(0, len(nodes), 64):
                part = nodes[start : start + 64]
                logits = self._head(torch.stack([node.hidden for node in part if node.hidden is not None]))
                self._max_distributions = self._distribution_bytes // (4 * logits.shape[1])
                self._distributions.update(zip(part, distributions(logits, config), strict=True))
        while len(self._distributions) > max(len(rows), self._max_distributions):
            self._distributions.popitem(last=False)

    def _draw(self, row: Row) -> None:
        """Draw tokens until the row ends or reaches a node whose distribution is not known."""
        config = row.config
        key = key_of(config)
        while row.finish is None:
            node = row.nodes[-1]
            known = self._distributions.get(node)
            if known is None or known.key != key:
                return
            uniform = 0.0 if row.uniforms is None else float(row.uniforms[len(row.completion_ids)])
            token, logprob = known.draw(uniform)
            row.completion_ids.append(token)
            row.logprobs.append(logprob)
            self.stats.sampled_tokens += 1
            if token in self._stop_ids or (config.stop and self._stopped(row)):
                row.finish = Finish.STOP
            elif len(row.completion_ids) >= config.max_new_tokens:
                row.finish = Finish.LENGTH
            elif len(row.prompt_ids) + len(row.completion_ids) >= self._context_length:
                row.finish = Finish.CONTEXT
            else:
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = _Node(token)
                row.nodes.append(child)
                if child.slot >= 0 and row.ready == len(row.nodes) - 1:
                    row.slots[row.ready] = child.slot
                    row.ready += 1
        self.stats.seen_tokens += len(row.prompt_ids) + len(row.completion_ids) - 1

    def _stopped(self, row: Row) -> bool:
        longest = max(len(text.encode()) for text in row.config.stop)
        # A token is at least one byte, so a stop text that just ended lies within this many tokens.
        tail = self._decode(row.completion_ids[-(longest + 4) :])
        return any(text in tail for text in row.config.stop)
