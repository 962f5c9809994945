"""How things are timed: in alternation, against the machine's own matrix products, with the peak memory of a child."""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratagem.models.tree import TokenTree

__all__ = [
    "Floor",
    "NotRun",
    "Peer",
    "Shapes",
    "Timing",
    "alternate",
    "cores",
    "matmul_rate",
    "peak_gib",
    "run_child",
    "training_floor",
]

BENCH = Path(__file__).resolve().parent


class NotRun(Exception):
    """A side of a comparison cannot run here; its text says why."""


@dataclass(frozen=True)
class Timing:
    """Seconds of two sides that ran in turns."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """How many times longer they took than we did, pair by pair."""
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def speedup(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    def describe(self) -> str:
        """Return the spread in words."""
        return f"median of {len(self.ratios)} alternating pairs, {min(self.ratios):.2f} to {max(self.ratios):.2f}"


def alternate(ours: Callable[[], float | None], theirs: Callable[[], float | None], repeats: int) -> Timing:
    """Run both sides in turns, ours first.

    Args:
        ours: one measurement; seconds if it times itself, else None and the call is timed.
        theirs: the same of the other side.
        repeats: pairs.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for side, run in zip(seconds, (ours, theirs), strict=True):
            gc.collect()
            start = time.perf_counter()
            own = run()
            side.append(time.perf_counter() - start if own is None else own)
    return Timing(tuple(seconds[0]), tuple(seconds[1]))


def cores(threads: int) -> str:
    """Return the first ``threads`` cores that this process may use, as a list such as ``0-1``."""
    usable = sorted(os.sched_getaffinity(0))[:threads]
    if usable == list(range(usable[0], usable[-1] + 1)) and len(usable) > 1:
        return f"{usable[0]}-{usable[-1]}"
    return ",".join(map(str, usable))


# ---- the floor: what the machine's matrix products alone would take -------------------------------------------------


@dataclass(frozen=True)
class Shapes:
    """Sizes of a Llama-like model."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    width: int
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> Shapes:
        """Read the sizes from a transformers configuration."""
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=heads,
            key_heads=config.num_key_value_heads,
            width=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
        )

    @property
    def linears(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of the weight matrices of one layer."""
        query, key = self.heads * self.width, self.key_heads * self.width
        return [
            (self.hidden, query),
            (self.hidden, key),
            (self.hidden, key),
            (query, self.hidden),
            (self.hidden, self.inner),
            (self.hidden, self.inner),
            (self.inner, self.hidden),
        ]

    @property
    def layer_weights(self) -> int:
        """Weights that every token meets, without embedding and output layer."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linears)


@dataclass(frozen=True)
class Floor:
    """The products that cannot be avoided, and how long they take at the machine's measured rate."""

    flops: float
    rate: float
    """FLOP per second of products of these shapes, weighted by their share."""

    @property
    def seconds(self) -> float:
        """Time of the products alone."""
        return self.flops / self.rate


def training_floor(trees: Sequence[TokenTree], shapes: Shapes, *, min_seconds: float = 0.3) -> Floor:
    """Return the floor of a forward and backward pass over some trees.

    Weights: 6 FLOP for each weight and distinct token. Output layer: 6 for each weight and distinct token that has a
    label. Attention: 12 FLOP for each head, head width, layer and pair of a token and an ancestor (or itself). Nothing
    is counted for what is computed twice (attention and logits are, to save memory).
    """
    nodes = [tree.num_nodes for tree in trees]
    labelled = [len(np.unique(tree.label_nodes)) for tree in trees]
    pairs = sum(int((tree.depths + 1).sum()) for tree in trees)
    body = 6.0 * shapes.layer_weights * sum(nodes) + 12.0 * shapes.heads * shapes.width * shapes.layers * pairs
    head = 6.0 * shapes.hidden * shapes.vocabulary * sum(labelled)
    body_rate = matmul_rate(shapes.linears, max(1, sum(nodes) // len(nodes)), min_seconds)
    # Logits are made a chunk of rows at a time; larger products are not faster.
    head_rows = max(1, min(256, sum(labelled) // len(labelled)))
    head_rate = matmul_rate([(shapes.hidden, shapes.vocabulary)], head_rows, min_seconds)
    total = body + head
    return Floor(total, total / (body / body_rate + head / head_rate))


def matmul_rate(linears: Sequence[tuple[int, int]], rows: int, min_seconds: float) -> float:
    """Return FLOP per second of the three products (output, input gradient, weight gradient) of some linear layers."""
    flops = seconds = 0.0
    for inputs, outputs in sorted(set(linears)):
        count = linears.count((inputs, outputs))
        x, weight, grad = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)

        def products(x: torch.Tensor = x, weight: torch.Tensor = weight, grad: torch.Tensor = grad) -> None:
            torch.nn.functional.linear(x, weight)
            grad @ weight
            grad.t() @ x

        products()
        best, spent = float("inf"), 0.0
        while spent == 0.0 or spent < min_seconds / len(set(linears)):
            start = time.perf_counter()
            products()
            took = time.perf_counter() - start
            best, spent = min(best, took), spent + took
        flops += count * 6.0 * rows * inputs * outputs
        seconds += count * best
    return flops / seconds


# ---- children -------------------------------------------------------------------------------------------------------


def peak_gib() -> float:
    """Return the largest memory that this process ever held."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Not ru_maxrss: a child inherits the one of the process that started it.
        kib = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(kib) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


def run_child(arguments: Sequence[str], threads: int) -> dict[str, Any]:
    """Run this benchmark's command in a new process and return the JSON object on its last line.

    Raises:
        NotRun: it failed.
    """
    command = [sys.executable, str(BENCH / "run.py"), *arguments, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(threads))
    if done.returncode != 0:
        raise NotRun(_last_line(done.stderr))
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _environment(threads: int) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


class Peer:
    """A worker script in a peer's virtual environment that answers JSON lines, so that sides can run in turns."""

    MARK = "@@"
    """Begins an answer; everything else that the peer prints is passed over."""

    def __init__(self, venv: str, script: str, threads: int, environment: dict[str, str] | None = None) -> None:
        """Start the worker; the first :meth:`ask` waits until it is ready.

        Raises:
            NotRun: the virtual environment is missing.
        """
        python = BENCH / "venvs" / venv / "bin" / "python"
        if not python.is_file():
            raise NotRun(f"bench/venvs/{venv} is missing; run bench/setup_peers.sh {venv}")
        self._log = Path(f"{python.parents[1]}.log")
        self._process = subprocess.Popen(
            [str(python), str(BENCH / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            env=_environment(threads) | (environment or {}),
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a question and wait for the answer.

        Raises:
            NotRun: the worker ended or says what went wrong.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the loop below finds out
        for line in self._process.stdout:
            if line.startswith(self.MARK):
                answer: dict[str, Any] = json.loads(line[len(self.MARK) :])
                if "error" in answer:
                    raise NotRun(str(answer["error"]))
                return answer
        self._process.wait()
        raise NotRun(f"{_last_line(self._log.read_text())} (exit status {self._process.returncode}, see {self._log})")

    def close(self) -> None:
        """End the worker."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
