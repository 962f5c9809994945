"""Sample with vLLM's offline engine; runs in vLLM's own virtual environment and answers JSON lines.

First question: {"model", "dtype", "max_model_len", "threads"}. Then {"prompts": [[id, ...], ...], "max_tokens", "seed"}
is answered with {"seconds", "new_tokens"}. Prefixes are cached within a question, as its users set it, and forgotten
between questions, as a step of training makes them useless.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

# One process: no second one to spin or to outlive this one. Both are read when vllm is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def answer(content: dict[str, Any]) -> None:
    print("@@" + json.dumps(content), flush=True)


def main() -> None:
    setting = json.loads(sys.stdin.readline())
    try:
        from vllm import LLM, SamplingParams

        start = time.perf_counter()
        engine = LLM(
            model=setting["model"],
            dtype=setting["dtype"],
            max_model_len=setting["max_model_len"],
            max_num_seqs=setting.get("max_num_seqs", 64),
            enable_prefix_caching=True,
            block_size=32,
            seed=0,
        )
        answer({"ready": time.perf_counter() - start})
    except BaseException as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        raise
    for line in sys.stdin:
        question = json.loads(line)
        count = question["max_tokens"]
        sampling = SamplingParams(
            temperature=1.0,
            max_tokens=count,
            min_tokens=count,
            ignore_eos=True,
            seed=question["seed"],
            detokenize=False,
        )
        prompts = [{"prompt_token_ids": ids} for ids in question["prompts"]]
        engine.reset_prefix_cache()
        start = time.perf_counter()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        answer({"seconds": seconds, "new_tokens": sum(len(output.outputs[0].token_ids) for output in outputs)})


if __name__ == "__main__":
    main()
