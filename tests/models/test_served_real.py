"""A real server, ``transformers serve``, in a process of its own, on the loopback address and without a model hub."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratagem.errors import ModelError
from stratagem.models.base import Completion, GenerationConfig, Request
from stratagem.models.served import ServedModel, ServedModelConfig
from stratagem.seeding import uniforms
from stratagem.types import Finish

READY_S = 240
MISSING = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"transformers[serving] is not installed (no {', '.join(MISSING)})"),
]

CHAIN = ["<assistant>", "<action>", "left", "</action>", "<eos>"]
"""After the first token the model says the others, one after another, whatever the prompt."""


def write_model(folder: Path) -> None:
    """Write a 1-layer Llama that always answers ``<action>left</action>``.

    Attention and MLP add nothing (their output projections are zero), so the last token's embedding alone decides, and
    the output row of each token of the chain is the embedding of the one before it. An RMS-normed vector of width 64
    has length 8; so has about an embedding of unit normal numbers: the next token's logit is about 8 * 8 = 64, the
    others' about 0 +- 8, and even at temperature 1 the answer is certain.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig as ModelDefaults
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytewise = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_tokens(CHAIN[:-1])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<eos>", pad_token="<eos>")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer.save_pretrained(folder)

    chain = tokenizer.convert_tokens_to_ids(CHAIN)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=256,
            eos_token_id=chain[-1],
            pad_token_id=None,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        embeddings = torch.randn(len(tokenizer), 64, generator=torch.Generator().manual_seed(0))
        model.model.embed_tokens.weight.copy_(embeddings)
        model.lm_head.weight.zero_()
        for before, after in itertools.pairwise(chain):
            model.lm_head.weight[after] = embeddings[before]
    model.generation_config = ModelDefaults(eos_token_id=chain[-1], pad_token_id=chain[-1], do_sample=True)
    model.save_pretrained(folder)


@dataclass
class RunningServer:
    url: str
    model: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("served")
    model = folder / "model"
    write_model(model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(folder)}
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **offline}, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + READY_S
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"transformers serve did not get ready in {READY_S} s:\n{log.read_text()[-4000:]}")
            time.sleep(0.5)
        yield RunningServer(f"http://127.0.0.1:{port}/v1", str(model), process)
    finally:
        process.kill()
        process.wait(timeout=30)


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def ask(config: ServedModelConfig, *requests: Request) -> tuple[list[Completion], ServedModel]:
    async def run() -> tuple[list[Completion], ServedModel]:
        model = ServedModel(config)
        try:
            return await asyncio.gather(*(model.generate(request) for request in requests)), model
        finally:
            await model.aclose()

    return asyncio.run(run())


def make_request(text: str, draw: int = 0, **generation: Any) -> Request:
    return Request((("user", text),), GenerationConfig(**generation), uniforms=uniforms(4, "draw", draw))


def test_concurrent_chats_with_a_stop_text_are_answered_in_full(server: RunningServer) -> None:
    config = ServedModelConfig(server.url, server.model, seed=0, max_concurrency=4)
    texts = ["a", "bb", "ccc", "dddd", "eeeee"]
    requests = [make_request(text, index, stop=("</action>",)) for index, text in enumerate(texts)]
    answers, model = ask(config, *requests)
    # A token per byte of the prompt and <assistant>; <action>, left and </action> are one token each.
    assert answers == [
        Completion("<action>left</action>", Finish.STOP, num_prompt_tokens=count + 1, num_completion_tokens=3)
        for count in (1, 2, 3, 4, 5)
    ]
    usage = model.usage
    # 1 + 2 + 3 + 4 + 5 + 5 * 1 = 20 and 5 * 3 = 15
    assert (usage.requests, usage.retries, usage.prompt_tokens, usage.completion_tokens) == (5, 0, 20, 15)
    assert (usage.answers_without_usage, dict(usage.other_finishes)) == (0, {})


def test_token_limit_and_end_of_sequence_are_told_apart(server: RunningServer) -> None:
    config = ServedModelConfig(server.url, server.model)
    answers, _ = ask(config, make_request("a", max_new_tokens=2), make_request("a", temperature=0, max_new_tokens=20))
    assert answers == [
        Completion("<action>left", Finish.LENGTH, num_prompt_tokens=2, num_completion_tokens=2),
        Completion("<action>left</action>", Finish.STOP, num_prompt_tokens=2, num_completion_tokens=4),
    ]


def test_a_field_that_this_server_does_not_take_is_refused_in_its_words(server: RunningServer) -> None:
    config = ServedModelConfig(server.url, server.model, extra_body={"include_stop_str_in_output": True})
    message = (
        f'base_url={server.url!r}: the server answered 422 and said "Unexpected fields in the request: '
        "{'include_stop_str_in_output'}\". Change the setting that the server names; extra_body, send_extra_sampling "
        "and continue_assistant add fields that not every server takes."
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        ask(config, make_request("a"))


def test_a_wrong_model_name_is_refused_in_the_servers_words(server: RunningServer) -> None:
    message = (
        f"base_url={server.url!r}: the server answered 400 and said \"Server is pinned to '{server.model}'; requested "
        "'other'.\". Change the setting that the server names."
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        ask(ServedModelConfig(server.url, "other"), make_request("a"))


def test_killing_the_server_ends_in_a_clear_error(server: RunningServer) -> None:
    # Last in this file: the server does not come back.
    config = ServedModelConfig(server.url, server.model, max_retries=2, backoff_s=0.01)

    async def run() -> None:
        model = ServedModel(config)
        try:
            assert (await model.generate(make_request("a", max_new_tokens=20))).text == "<action>left</action>"
            server.kill()
            await model.generate(make_request("a"))
        finally:
            await model.aclose()

    message = (
        f"base_url={server.url!r}: cannot connect (ConnectError: All connection attempts failed); expected an "
        "OpenAI-compatible server there. Gave up after 3 tries (max_retries=2). Start the server, or set base_url to "
        "its address (it usually ends in /v1)."
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        asyncio.run(run())
