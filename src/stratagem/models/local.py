"""A transformers model in this process: samples and trains on token trees.

The weights are used through transformers' own modules; this file only packs batches. Architectures whose attention or
output layer does more than the tree implements are computed row by row, with a warning that names the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stratagem.errors import ConfigError, ModelError
from stratagem.models.attention import TREE_ATTENTION, KeyValueStore, TreeLayout, why_no_tree
from stratagem.models.base import Completion, GenerationConfig, Request
from stratagem.models.batch import Batch, row_batch, softcap, tree_batch
from stratagem.models.catalog import ModelConfig, load_pretrained, quiet_bars
from stratagem.models.chat import ChatEncoder
from stratagem.models.decoding import Row, TreeSampler
from stratagem.models.frozen import FrozenStates, freeze_below
from stratagem.models.mixed import MixedLinear, pad_rows, rounded_products, use_mixed_products
from stratagem.models.thin import thin_linear, use_thin_products
from stratagem.models.tree import Row as TreeRow
from stratagem.models.tree import TokenTree, build_tree, split_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Batch", "LocalModel", "check_device"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LocalModel:
    """A causal language model with its tokenizer; implements :class:`stratagem.models.base.LanguageModel`."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: ModelConfig) -> None:
        """Wrap a loaded model; :meth:`load` does it by name.

        Raises:
            ConfigError: the settings do not go together.
        """
        self.name = config.name
        self.config = config
        self.tokenizer = tokenizer
        self._chat = ChatEncoder(tokenizer, config.name)
        self.device = torch.device(config.device)
        model.to(self.device)
        model.eval()  # no dropout anywhere: the sampling and the training distribution must be one
        self.context_length = int(getattr(model.config, "max_position_embeddings", 4096))
        self.tree_refused = why_no_tree(model)
        if self.tree_refused is None:
            model.set_attn_implementation(TREE_ATTENTION)
        else:
            warnings.warn(f"{self.tree_refused} Batches are computed row by row, which is slower.", stacklevel=2)
        self._reference: dict[str, Tensor] | None = None
        self._frozen: FrozenStates | None = None
        if config.trainable_layers is not None:
            self._frozen = freeze_below(model, config.trainable_layers, capacity=config.cache_tokens)
        if config.lora is None:
            self._adapted: nn.Module = model
        else:
            from peft import LoraConfig, get_peft_model

            settings = LoraConfig(
                r=config.lora.rank,
                lora_alpha=config.lora.alpha,
                lora_dropout=0.0,
                target_modules=list(config.lora.target_modules),
                task_type="CAUSAL_LM",
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.lora.seed)
                try:
                    adapted: Any = get_peft_model(model, settings)
                except ValueError as error:
                    raise ConfigError(
                        f"model.lora.target_modules={config.lora.target_modules!r} does not go with model "
                        f"{config.name!r} ({error}); name modules of this model."
                    ) from error
            # The name, not the folder of this machine's cache, which peft would write into the saved adapter.
            adapted.peft_config["default"].base_model_name_or_path = config.name
            self._adapted = adapted.eval()
        self._mixed = config.matmul_dtype == "bfloat16"
        self.rounded = self._mixed
        """Whether products are rounded, so that log-probabilities differ by hundredths with the shape of a pass."""
        if self._mixed:
            use_mixed_products(model)
        else:
            use_thin_products(model)
        self.module: PreTrainedModel = model
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            for module in model.modules():
                if hasattr(module, "gradient_checkpointing"):
                    module.training = True  # of this module alone: it checkpoints, and nothing in it drops out
        self._sampler: TreeSampler | None = None
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._engine: asyncio.Task[None] | None = None
        self.version = 0
        """Counts the calls of :meth:`weights_changed`."""

    @classmethod
    def load(cls, config: ModelConfig) -> LocalModel:
        """Load weights by catalog name.

        Raises:
            UnknownNameError: no such name.
            ModelError: weights or a device are missing.
        """
        check_device(config.device)
        model, tokenizer = load_pretrained(config.name, dtype=_DTYPES[config.dtype])
        return cls(model, tokenizer, config)

    # ---- tokens and text ---------------------------------------------------------------------------------------

    def encode_chat(
        self,
        messages: Sequence[tuple[str, str]],
        assistant_prefix: str = "",
        sampled: Sequence[tuple[int, ...]] = (),
    ) -> tuple[int, ...]:
        """Return the ids of a chat up to where the assistant goes on; see :mod:`stratagem.models.chat`."""
        return self._chat.encode_chat(messages, assistant_prefix, sampled, stop_ids=self.stop_ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text: no special tokens around it, and none that is only spelled out in it."""
        return self._chat.encode(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids, special tokens visible unless asked otherwise."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the assistant's turn."""
        ids = self.module.generation_config.eos_token_id if self.module.generation_config else None
        found = set(ids if isinstance(ids, list) else [] if ids is None else [ids])
        if self.tokenizer.eos_token_id is not None:
            found.add(int(self.tokenizer.eos_token_id))
        return frozenset(found)

    @property
    def end_id(self) -> int:
        """The token that ends an answer which was written for the model to learn."""
        ids = self.stop_ids
        eos = self.tokenizer.eos_token_id
        return int(eos) if eos in ids else min(ids)

    # ---- sampling ----------------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Completion:
        """Sample one completion; calls that wait at the same time share every pass through the model."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._waiting.append((request, future))
        if self._engine is None or self._engine.done():
            self._engine = loop.create_task(self._serve())
        return await future

    async def aclose(self) -> None:
        """Stop serving; requests that are under way are dropped."""
        if self._engine is not None:
            self._engine.cancel()
        self._engine = None
        self._waiting.clear()
        if self._sampler is not None and self._sampler.num_running:
            self._sampler = None

    async def _serve(self) -> None:
        """Run passes until nobody waits; between passes every coroutine that can go on may ask for more."""
        running: dict[int, tuple[Row, asyncio.Future[Completion]]] = {}
        try:
            while self._waiting or running:
                while True:  # let everyone who just got an answer act and ask again, so that they share the pass
                    count = len(self._waiting)
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    if len(self._waiting) == count:
                        break
                for request, future in self._waiting:
                    ids = self.encode_chat(request.messages, request.assistant_prefix, request.sampled)
                    row = self.sampler.submit(
                        ids, request.config, request.uniforms, tuple(map(self.encode, request.expected))
                    )
                    if row.finish is None:
                        running[id(row)] = (row, future)
                    elif not future.done():
                        future.set_result(self._completion(row))
                self._waiting.clear()
                if running:
                    for row in self.sampler.advance():
                        _, future = running.pop(id(row))
                        if not future.done():
                            future.set_result(self._completion(row))
        except Exception as error:
            waiting = [*running.values(), *self._waiting]
            self._waiting.clear()
            self._sampler = None
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)

    def _completion(self, row: Row) -> Completion:
        assert row.finish is not None
        return Completion(
            text=self.decode(row.completion_ids, skip_special_tokens=True),
            finish=row.finish,
            prompt_ids=row.prompt_ids,
            completion_ids=tuple(row.completion_ids),
            logprobs=tuple(row.logprobs),
            num_prompt_tokens=len(row.prompt_ids),
            num_completion_tokens=len(row.completion_ids),
        )

    def sample(
        self, prompts: Sequence[Sequence[int]], config: GenerationConfig, uniforms: Sequence[Any] | None = None
    ) -> list[Row]:
        """Sample completions of token prompts, without the event loop; rows come back in the order of ``prompts``."""
        rows = [
            self.sampler.submit(prompt, config, None if uniforms is None else uniforms[number])
            for number, prompt in enumerate(prompts)
        ]
        while any(row.finish is None for row in rows):
            self.sampler.advance()
        return rows

    @property
    def sampler(self) -> TreeSampler:
        """The sampler of this version of the weights."""
        if self._sampler is None:
            self._sampler = self._make_sampler()
        return self._sampler

    def weights_changed(self) -> None:
        """Forget what was computed with the old weights. Whoever changes weights must call it."""
        self.version += 1
        if self._mixed:
            for module in self.module.modules():
                if isinstance(module, MixedLinear):
                    module.forget()
        if self._sampler is not None:
            self._sampler.clear()

    def _make_sampler(self) -> TreeSampler:
        if self.tree_refused is not None:
            raise ModelError(f"{self.tree_refused} Sampling needs the tree; choose another model or serve this one.")
        text = self.module.config.get_text_config()
        heads = int(text.num_key_value_heads)
        width = int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
        shape = (self.config.cache_tokens, heads, width)
        layers = range(int(text.num_hidden_layers))
        dtype = self.module.dtype
        store = KeyValueStore(
            [torch.empty(shape, dtype=dtype, device=self.device) for _ in layers],
            [torch.empty(shape, dtype=dtype, device=self.device) for _ in layers],
        )
        return TreeSampler(
            forward=self._forward_store,
            head=self._head,
            store=store,
            stop_ids=self.stop_ids,
            decode=self.decode,
            context_length=self.context_length,
            frozen=self._frozen,
        )

    @torch.inference_mode()
    def _forward_store(self, ids: Tensor, positions: Tensor, store: KeyValueStore) -> Tensor:
        return self._hidden({"input_ids": ids.unsqueeze(0)}, positions, store)

    @torch.inference_mode()
    def _head(self, hidden: Tensor) -> Tensor:
        head = self.module.get_output_embeddings()
        if self._mixed:
            with rounded_products(True):
                rows = pad_rows(hidden, hidden.dtype)
                logits = torch.nn.functional.linear(rows, head.weight, head.bias)[: len(hidden)]
        else:
            logits = thin_linear(hidden, head.weight, head.bias).float().contiguous()
        cap = softcap(self.module)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    # ---- training ----------------------------------------------------------------------------------------------

    def _hidden(self, tokens: dict[str, Tensor], positions: Tensor, tree: TreeLayout | KeyValueStore) -> Tensor:
        """Return the final hidden states [N, C] of a packed row of nodes."""
        # A 4-d mask is taken as it is, so transformers does not build one over [N, N]; the tree layout replaces it.
        unused = torch.zeros((1, 1, 1, 1), dtype=self.module.dtype, device=self.device)
        output = self.module.get_decoder()(
            **tokens,
            position_ids=positions.unsqueeze(0),
            attention_mask=unused,
            use_cache=False,
            tree=tree,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def logprobs(self, rows: Sequence[TreeRow], *, temperature: float = 1.0) -> Batch:
        """Return log-probabilities of completions, with gradients, every distinct token computed once.

        Args:
            rows: (prompt ids, completion ids) pairs.
            temperature: of the sampling distribution; > 0.
        """
        if self.tree_refused is not None:
            return self.logprobs_by_row(rows, temperature=temperature)
        tree = build_tree(rows)
        hidden = self._tree_hidden(tree, self._layout(tree))
        head = self.module.get_output_embeddings()
        return tree_batch(hidden, tree, head, temperature=temperature, cap=softcap(self.module), rounded=self._mixed)

    def _layout(self, tree: TokenTree) -> TreeLayout:
        config = self.config
        return TreeLayout(tree, block_size=config.attention_block, device=self.device, fused=config.fused_attention)

    def _tree_hidden(self, tree: TokenTree, layout: TreeLayout) -> Tensor:
        """Return the final hidden states [N, C] of a tree, without the frozen layers where their states are kept."""
        positions = torch.from_numpy(tree.depths).to(self.device)
        states = None if self._frozen is None else self._frozen.of_tree(tree)
        if self._frozen is not None and states is not None:
            with self._frozen.upper_layers():
                return self._hidden({"inputs_embeds": states.unsqueeze(0)}, positions, layout)
        ids = torch.from_numpy(tree.tokens).to(self.device)
        hidden = self._hidden({"input_ids": ids.unsqueeze(0)}, positions, layout)
        if self._frozen is not None:
            self._frozen.keep(self._frozen.place_tree(tree))
        return hidden

    def logprobs_by_row(self, rows: Sequence[TreeRow], *, temperature: float = 1.0) -> Batch:
        """Return the same as :meth:`logprobs`, one right-padded line for each row: what everyone else computes."""
        return row_batch(self.module, rows, temperature=temperature, device=self.device)

    @property
    def has_base(self) -> bool:
        """Whether there are weights apart from those that train: with LoRA, the model without its adapter."""
        return self.config.lora is not None

    def hidden_states(self, rows: Sequence[TreeRow], *, base: bool = False) -> Tensor:
        """Return ``logprobs(rows).hidden`` without the work of the output layer.

        Args:
            rows: (prompt ids, completion ids) pairs.
            base: of the weights without their adapter, which never change; then without gradients.
        """
        if base:
            assert self.has_base, "there is no adapter to leave out"
            with torch.no_grad(), self._adapted.disable_adapter():  # type: ignore[operator]
                return self.hidden_states(rows)
        if self.tree_refused is not None:
            return self.logprobs_by_row(rows).hidden
        tree = build_tree(rows)
        hidden = self._tree_hidden(tree, self._layout(tree))
        return hidden.index_select(0, torch.from_numpy(tree.label_nodes[tree.row_index]).to(self.device))

    @property
    def hidden_size(self) -> int:
        """C, the width of a hidden state."""
        return int(self.module.config.get_text_config().hidden_size)

    def split(self, rows: Sequence[TreeRow], max_tokens: int) -> list[list[int]]:
        """Cut rows into micro-batches whose trees have at most ``max_tokens`` nodes; lists of row numbers."""
        return split_rows(rows, max_tokens)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that train, by name."""
        return {name: p for name, p in self._adapted.named_parameters() if p.requires_grad}

    def keep_reference(self) -> None:
        """Take the present weights as the reference policy; until then, with LoRA, it is the model without adapter."""
        self._reference = {name: p.detach().clone() for name, p in self.named_parameters().items()}

    @torch.no_grad()
    def reference_logprobs(self, rows: Sequence[TreeRow], *, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities under the reference policy, aligned with :meth:`logprobs`.

        Raises:
            ModelError: :meth:`keep_reference` was not called.
        """
        with self._as_reference():
            return self.logprobs(rows, temperature=temperature).logprobs

    @contextlib.contextmanager
    def _as_reference(self) -> Iterator[None]:
        if self._reference is None:
            if self.config.lora is None:
                raise ModelError("There is no reference policy; call keep_reference() before training starts.")
            with self._adapted.disable_adapter():  # type: ignore[operator]
                yield
            return
        # Only the weights that train are kept and lent: what lies below them is the same, and so are its kept states.
        parameters = self.named_parameters()
        trained_values = {name: p.data for name, p in parameters.items()}
        try:
            for name, value in self._reference.items():
                parameters[name].data = value  # another tensor, so that a graph built before is not disturbed
            yield
        finally:
            for name, value in trained_values.items():
                parameters[name].data = value

    # ---- weights on disk ---------------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, merged: bool = False) -> None:
        """Write what ``from_pretrained`` reads: weights or adapter, tokenizer, chat template, generation settings.

        Args:
            folder: made if missing.
            merged: with LoRA, write whole weights with the adapter added in.
        """
        target = Path(folder)
        options: dict[str, Any] = {}
        if self.config.lora is None:
            model: Any = self.module
        elif merged:
            model = copy.deepcopy(self._adapted).merge_and_unload()  # type: ignore[operator]
        else:
            model = self._adapted
            options["save_embedding_layers"] = False  # "auto" would look for the base model's vocabulary on the hub
        with quiet_bars():
            model.save_pretrained(target, **options)
        self.tokenizer.save_pretrained(target)
        mode = next(target.glob("*config.json")).stat().st_mode
        for weights in target.glob("*.safetensors"):
            weights.chmod(mode)  # safetensors leaves them to their owner only, whatever the umask


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        ModelError: torch sees no such device.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"model.device={device!r} but torch sees no CUDA device; set it to 'cpu'.")
