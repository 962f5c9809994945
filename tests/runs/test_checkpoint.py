from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from stratagem.errors import RunError
from stratagem.runs import checkpoint as module
from stratagem.runs.checkpoint import list_checkpoints, load_checkpoint, load_latest, save_checkpoint


def save(folder: Path, iteration: int, keep: int = 2) -> Path:
    tensors = {"adapter": {"w": torch.full((3,), float(iteration))}}
    return save_checkpoint(folder, iteration, tensors, {"step": iteration, "moment": torch.ones(2)}, keep=keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_tensors_and_state_come_back_equal(tmp_path: Path) -> None:
    tied = torch.arange(6, dtype=torch.float32)
    tensors = {
        "adapter": {"a": tied, "b": tied, "t": tied.reshape(2, 3).T, "h": torch.tensor([1.5]).bfloat16()},
        "empty": {},
    }
    state = {"step": 4, "rng": torch.get_rng_state(), "betas": (0.9, 0.95), 3: None}
    path = save_checkpoint(tmp_path, 10, tensors, state)
    assert path == tmp_path / "000010"
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.iteration == 10
    assert loaded.tensors.keys() == {"adapter", "empty"}
    for name, tensor in tensors["adapter"].items():
        assert loaded.tensors["adapter"][name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors["adapter"][name], tensor), name
    assert torch.equal(loaded.state.pop("rng"), state.pop("rng"))  # type: ignore[arg-type]
    assert loaded.state == state


def test_no_file_is_a_pickle(tmp_path: Path) -> None:
    assert names(save(tmp_path, 1)) == ["adapter.safetensors", "manifest.json", "state.json", "state.safetensors"]


def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    for iteration in (1, 2, 3):
        save(tmp_path, iteration)
    assert names(tmp_path) == ["000002", "000003"]


def test_saving_an_iteration_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    save_checkpoint(tmp_path, 2, {}, {"step": "again"})
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.state == {"step": "again"}
    assert names(tmp_path) == ["000001", "000002.1"]


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "missing") is None


def test_a_changed_byte_is_found_and_the_previous_checkpoint_is_used(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2) / "adapter.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    message = (
        f"Checkpoint {str(tmp_path / '000002')!r} is damaged: adapter.safetensors does not match its SHA-256. "
        "Continuing from 000001 instead."
    )
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$"):
        loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.iteration == 1


@pytest.mark.parametrize("name", ["adapter.safetensors", "manifest.json", "state.json", "state.safetensors"])
def test_a_missing_file_is_damage(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / name).unlink()
    with pytest.warns(RuntimeWarning, match="is damaged"):
        loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.iteration == 1


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', "null"])
def test_a_damaged_manifest_is_damage(tmp_path: Path, content: str) -> None:
    path = save(tmp_path, 1)
    (path / "manifest.json").write_text(content)
    with pytest.raises(RunError, match="is damaged"):
        load_checkpoint(path)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(RunError, match=f"^{re.escape(f'Checkpoint {str(path)!r} has format 2; expected 1.')}$"):
        load_checkpoint(path)


def test_when_all_are_damaged_the_run_does_not_start_over_silently(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "state.json").write_text("{}")
    message = (
        f"No checkpoint in {str(tmp_path)!r} is intact; start a new run under another name. "
        f"Checkpoint {str(tmp_path / '000001')!r} is damaged: state.json does not match its SHA-256."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        load_latest(tmp_path)


@pytest.mark.parametrize("place", ["save_file", "publish_folder", "_digest"])
def test_a_full_disk_leaves_the_previous_checkpoint_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    save(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, place, full)
    message = (
        f"The checkpoint of iteration 2 could not be written to {str(tmp_path)!r} (No space left on device); "
        "checkpoint 000001 is untouched. Free some space, then continue with --resume."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        save(tmp_path, 2)
    monkeypatch.undo()
    assert names(tmp_path) == ["000001"]
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.iteration == 1


def test_a_file_that_the_system_refuses_to_extend_is_reported(tmp_path: Path) -> None:
    # A real failing write: the process may not make files above 100 kB.
    code = f"""
import resource, signal, torch
from pathlib import Path
from stratagem.runs.checkpoint import save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path({str(tmp_path)!r})
save_checkpoint(folder, 1, {{"adapter": {{"w": torch.ones(10)}}}}, {{}})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
save_checkpoint(folder, 2, {{"adapter": {{"w": torch.ones(1_000_000)}}}}, {{}})
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"RunError: The checkpoint of iteration 2 could not be written to {str(tmp_path)!r} (File too large); " in (
        result.stderr
    )
    assert names(tmp_path) == ["000001"]


def test_what_an_interrupted_save_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".tmp-000005-aa").mkdir()
    (tmp_path / ".old-000004-aa").mkdir()
    save(tmp_path, 6)
    assert names(tmp_path) == ["000006"]


def test_a_killed_process_always_leaves_a_folder_that_loads(tmp_path: Path) -> None:
    code = f"""
import itertools, torch
from pathlib import Path
from stratagem.runs.checkpoint import load_latest, save_checkpoint
folder = Path({str(tmp_path)!r})
latest = load_latest(folder)
for iteration in itertools.count(latest.iteration + 1 if latest else 1):
    tensors = {{"adapter": {{"w": torch.full((50_000,), float(iteration))}}}}
    save_checkpoint(folder, iteration, tensors, {{"step": iteration}})
    print(iteration, flush=True)
"""
    rng = random.Random(0)
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            reported = int(process.stdout.readline())
            time.sleep(rng.uniform(0.0, 0.2))
            process.send_signal(signal.SIGKILL)
            reported = max([reported, *(int(line) for line in process.stdout.read().split())])
        loaded = load_latest(tmp_path)
        assert loaded is not None
        assert loaded.iteration >= reported
        assert loaded.state == {"step": loaded.iteration}
        assert torch.equal(loaded.tensors["adapter"]["w"], torch.full((50_000,), float(loaded.iteration)))
        assert len(list_checkpoints(tmp_path)) <= 3
