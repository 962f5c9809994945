"""Tiny random models of every architecture that the tree knows, made from a config: no hub, no files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from stratagem.models.catalog import ModelConfig, build_tiny
from stratagem.models.local import LocalModel

SHAPE: dict[str, Any] = dict(
    vocab_size=259,  # of the tiny tokenizer
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.3,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=2,
)
HALF_SLIDING = ["sliding_attention", "full_attention"]

# The rows of the tests are longer than the windows.
ARCHITECTURES: dict[str, tuple[type[PreTrainedModel], Callable[[], Any]]] = {
    "llama": (LlamaForCausalLM, lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama_bias": (LlamaForCausalLM, lambda: LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "mistral": (MistralForCausalLM, lambda: MistralConfig(**SHAPE, head_dim=8, sliding_window=5)),
    "qwen2": (
        Qwen2ForCausalLM,
        lambda: Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=6, layer_types=HALF_SLIDING),
    ),
    "qwen3": (Qwen3ForCausalLM, lambda: Qwen3Config(**SHAPE, head_dim=16)),
    "gemma3_text": (
        Gemma3ForCausalLM,
        lambda: Gemma3TextConfig(**SHAPE, head_dim=16, sliding_window=4, layer_types=HALF_SLIDING),
    ),
    "gemma3_softcap": (
        Gemma3ForCausalLM,
        lambda: Gemma3TextConfig(
            **SHAPE, head_dim=16, sliding_window=4, layer_types=HALF_SLIDING, final_logit_softcapping=2.0
        ),
    ),
    # one layer without position embedding, one with
    "smollm3": (SmolLM3ForCausalLM, lambda: SmolLM3Config(**SHAPE, no_rope_layers=[1, 0])),
}


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_tiny()[1]


@pytest.fixture(scope="session")
def make_architecture() -> Callable[[str], PreTrainedModel]:
    """Return a maker of random models by the name of the architecture; equal names give equal weights."""

    def make(name: str) -> PreTrainedModel:
        kind, config = ARCHITECTURES[name]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            model = kind(config())
            for module in model.modules():  # norms at 1 and biases at 0 would hide a mistake
                for parameter in module.parameters(recurse=False):
                    if parameter.ndim == 1:
                        parameter.data.add_(0.2 * torch.randn_like(parameter))
        return model

    return make


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    """Every architecture in turn."""
    return str(request.param)


@pytest.fixture
def make_local(
    make_architecture: Callable[[str], PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> Callable[..., LocalModel]:
    """Return a maker of wrapped models: the architecture, then fields of ModelConfig."""

    def make(architecture: str = "llama", **settings: Any) -> LocalModel:
        model = make_architecture(architecture)
        if settings.get("dtype") == "bfloat16":
            model = model.to(torch.bfloat16)
        return LocalModel(model, tokenizer, ModelConfig(**({"name": architecture, "cache_tokens": 2048} | settings)))

    return make
