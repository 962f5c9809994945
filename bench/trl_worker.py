"""Train with TRL's GRPOTrainer; runs in TRL's own virtual environment and answers JSON lines.

First question: {"model", "prompts", "num_generations", "new_tokens", "micro_batch", "steps", "threads"}. Then each line
runs one optimizer step (sampling, rewards, forward, backward, AdamW) and is answered with {"seconds", "pairs"}.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def answer(content: dict[str, Any]) -> None:
    print("@@" + json.dumps(content), flush=True)


def spread(completions: list[str], **kwargs: Any) -> list[float]:
    """Reward something that differs between completions, so that every pair has a gradient."""
    return [float(sum(text.encode()) % 97) for text in completions]


def main() -> None:
    setting = json.loads(sys.stdin.readline())
    try:
        train(setting)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        raise


def train(setting: dict[str, Any]) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(setting["threads"])
    pairs = len(setting["prompts"]) * setting["num_generations"]
    new_tokens = setting["new_tokens"]

    class Turns(TrainerCallback):
        """Wait for a question before each step and answer it after the step."""

        start = 0.0

        def on_step_begin(self, *arguments: Any, **kwargs: Any) -> None:
            if not sys.stdin.readline():
                sys.exit(0)  # nobody asks any more
            self.start = time.perf_counter()

        def on_step_end(self, *arguments: Any, **kwargs: Any) -> None:
            answer({"seconds": time.perf_counter() - self.start, "pairs": pairs})

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32),
            reward_funcs=spread,
            processing_class=AutoTokenizer.from_pretrained(setting["model"], padding_side="left"),
            train_dataset=Dataset.from_dict({"prompt": setting["prompts"]}),
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=setting["micro_batch"],
                gradient_accumulation_steps=pairs // setting["micro_batch"],
                num_generations=setting["num_generations"],
                max_completion_length=new_tokens,
                generation_kwargs={"min_new_tokens": new_tokens},
                temperature=1.0,
                top_k=0,
                beta=0.0,
                learning_rate=1e-9,
                max_steps=setting["steps"],
                gradient_checkpointing=False,  # its default saves memory and costs time
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=0,
            ),
            callbacks=[Turns()],
        )
        answer({"ready": 1, "pairs": pairs})
        trainer.train()


if __name__ == "__main__":
    main()
