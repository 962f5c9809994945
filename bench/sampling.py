"""Sampling: the token tree against transformers' ``generate`` and vLLM's offline engine.

Every side draws the same number of new tokens for the same prompts at temperature 1 from the whole distribution, stop
ids switched off, and starts with empty caches, as after each step of training. Different draws, same distribution.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from measure import BENCH, NotRun, Peer, Timing, alternate, cores
from workloads import Workload

from stratagem.models.base import GenerationConfig
from stratagem.models.catalog import ModelConfig, load_pretrained, resolve
from stratagem.models.local import LocalModel
from stratagem.seeding import uniforms

__all__ = ["EndlessModel", "Generate", "SamplingResult", "Vllm", "compare"]

_BATCHES = (16, 64)


class EndlessModel(LocalModel):
    """A model without stop ids, so that every completion is as long as it may be."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """None."""
        return frozenset()

    def draw(self, workload: Workload, repeat: int) -> int:
        """Sample a workload from scratch; return the tokens that went through the model.

        Raises:
            NotRun: a completion has another length.
        """
        count = workload.max_new_tokens
        numbers = [uniforms(count, "bench", workload.letter, repeat, row) for row in range(len(workload.rows))]
        self.weights_changed()
        before = self.sampler.stats.computed_tokens
        rows = self.sample(workload.prompts, GenerationConfig(max_new_tokens=count), numbers)
        if any(len(row.completion_ids) != count for row in rows):
            raise NotRun("a completion is shorter than asked for; the context window is too small")
        return self.sampler.stats.computed_tokens - before


class Generate:
    """transformers: prompts of like length padded on the left, key-value cache, several in a batch."""

    def __init__(self, name: str) -> None:
        """Load the model in float32."""
        self.module, _ = load_pretrained(name, dtype=torch.float32)
        self.module.eval()
        self.batch = _BATCHES[0]
        """Prompts in a batch."""

    def draw(self, workload: Workload, seed: int) -> None:
        """Sample a workload."""
        self._draw(workload.prompts, workload.max_new_tokens, seed)

    def _draw(self, prompts: Sequence[Sequence[int]], count: int, seed: int) -> None:
        from transformers import GenerationConfig as TransformersConfig

        config = TransformersConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=count, eos_token_id=None, pad_token_id=0
        )
        ordered = sorted(prompts, key=len)
        # Its draws come from torch's global generator.
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(seed)
            for start in range(0, len(ordered), self.batch):
                part = ordered[start : start + self.batch]
                longest = len(part[-1])
                ids = torch.zeros((len(part), longest), dtype=torch.int64)
                mask = torch.zeros_like(ids)
                for number, prompt in enumerate(part):
                    ids[number, longest - len(prompt) :] = torch.tensor(prompt)
                    mask[number, longest - len(prompt) :] = 1
                made = self.module.generate(input_ids=ids, attention_mask=mask, generation_config=config)
                if made.shape[1] != longest + count:
                    raise NotRun(f"generate made {made.shape[1] - longest} new tokens instead of {count}")

    def tune(self, workload: Workload) -> None:
        """Keep the batch size that is faster on this workload's first prompts and a few tokens."""
        rates = {}
        for batch in _BATCHES:
            self.batch = batch
            some = workload.prompts[:batch]
            start = time.perf_counter()
            self._draw(some, 4, 0)
            rates[batch] = len(some) / (time.perf_counter() - start)
            if len(some) < batch:
                break
        self.batch = max(rates, key=lambda batch: rates[batch])


class Vllm:
    """vLLM's offline engine with prefix caching, in its own virtual environment."""

    def __init__(self, name: str, dtype: str, threads: int, max_model_len: int) -> None:
        """Start the engine.

        Raises:
            NotRun: it is not installed or does not start.
        """
        libraries = BENCH / "venvs" / "vllm" / "lib"
        preload = [libraries / "libtcmalloc_minimal.so.4", libraries / "libiomp5.so"]
        environment = {
            "LD_PRELOAD": " ".join(str(path) for path in preload if path.is_file()),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": cores(threads),
            "VLLM_NO_USAGE_STATS": "1",
        }
        self._peer = Peer("vllm", "vllm_worker.py", threads, environment)
        setting = {"model": resolve(name), "dtype": dtype, "max_model_len": max_model_len}
        try:
            self.start_seconds = float(self._peer.ask(setting)["ready"])
        except NotRun:
            self.close()
            raise

    def draw(self, workload: Workload, seed: int) -> float:
        """Sample a workload and return the engine's own seconds."""
        count = workload.max_new_tokens
        answer = self._peer.ask({"prompts": workload.prompts, "max_tokens": count, "seed": seed})
        if answer["new_tokens"] != count * len(workload.rows):
            raise NotRun(f"vLLM made {answer['new_tokens']} new tokens instead of {count * len(workload.rows)}")
        return float(answer["seconds"])

    def close(self) -> None:
        """End the engine."""
        self._peer.close()


@dataclass(frozen=True)
class SamplingResult:
    """What one workload gave."""

    workload: Workload
    timing: Timing
    """Against transformers."""
    vllm: Timing | None
    """Against vLLM; None where it did not run."""
    computed: int
    """Tokens that went through the model on the tree."""

    @property
    def new_tokens(self) -> int:
        """New tokens of one repetition."""
        return len(self.workload.rows) * self.workload.max_new_tokens

    def rate(self, seconds: Sequence[float]) -> float:
        """New tokens per second, at the median."""
        return self.new_tokens / statistics.median(seconds)


def load(name: str) -> EndlessModel:
    """Return the model of our side in float32."""
    model = EndlessModel.load(ModelConfig(name=name))
    assert isinstance(model, EndlessModel)
    return model


def compare(model: EndlessModel, peer: Generate, vllm: Vllm | None, workload: Workload, repeats: int) -> SamplingResult:
    """Time all sides on a workload, in turns."""
    computed = 0
    count = 0

    def ours() -> None:
        nonlocal computed, count
        count += 1
        computed = model.draw(workload, count)

    peer.tune(workload)
    timing = alternate(ours, lambda: peer.draw(workload, count), repeats)
    against = None if vllm is None else alternate(ours, lambda: vllm.draw(workload, count), repeats)
    return SamplingResult(workload, timing, against, computed)
