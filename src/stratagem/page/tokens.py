"""Ids as text, with special tokens kept visible. Only the tokenizer's file is read, never a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratagem.models.catalog import cache_folder

__all__ = ["Piece", "TokenReader", "find_tokenizer"]


@dataclass(frozen=True)
class Piece:
    """Some text of a prompt or completion."""

    text: str
    special: bool
    """A token that is no text, such as the end of a turn."""


class TokenReader:
    """What makes text of ids."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._pieces: dict[int, Piece] = {}

    def tokens(self, ids: Sequence[int]) -> list[Piece]:
        """Return one piece for each id; half a character is shown as a replacement character."""
        return [self._piece(number) for number in ids]

    def text(self, ids: Sequence[int]) -> list[Piece]:
        """Return the text between special tokens in one piece each."""
        pieces: list[Piece] = []
        start = 0
        for place, number in enumerate([*ids, -1]):
            if number >= 0 and number not in self._special:
                continue
            if place > start:
                pieces.append(Piece(self._decode(ids[start:place]), False))
            if number >= 0:
                pieces.append(self._piece(number))
            start = place + 1
        return pieces

    def _piece(self, number: int) -> Piece:
        if number not in self._pieces:
            self._pieces[number] = Piece(self._decode([number]), number in self._special)
        return self._pieces[number]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def find_tokenizer(run: Path, model: str | None) -> TokenReader | None:
    """Return the tokenizer of a run, if it is on this machine.

    Args:
        run: the run's folder; a finished run holds it.
        model: the model's name in the recipe: an embedded one, a folder or a hub id.
    """
    for path in _candidates(run, model):
        if path.is_file():
            from tokenizers import Tokenizer

            try:
                return TokenReader(Tokenizer.from_file(str(path)))
            except Exception:  # the library raises nothing narrower for a damaged file; ids are shown instead
                continue
    return None


def _candidates(run: Path, model: str | None) -> list[Path]:
    found = [run / "model" / "tokenizer.json"]
    if model:
        found += [path / "tokenizer.json" for path in sorted(cache_folder().glob(f"models/{_literal(model)}-*"))]
        found.append(Path(model) / "tokenizer.json")
        hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
        folder = f"models--{model.replace('/', '--')}"
        found += sorted(hub.glob(f"{_literal(folder)}/snapshots/*/tokenizer.json"))
    return found


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name.replace("/", "--"))
