"""Weights on their way between a model, a checkpoint and a model folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from stratagem.errors import RunError
from stratagem.files import error_reason, publish_folder
from stratagem.models.local import LocalModel

__all__ = ["load_parameters", "save_model"]


def load_parameters(model: LocalModel, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Put saved values into the parameters that train.

    Raises:
        RunError: names or shapes are not those of the model.
    """
    parameters = model.named_parameters()
    wrong = sorted(
        name
        for name in parameters.keys() | tensors.keys()
        if name not in parameters or name not in tensors or parameters[name].shape != tensors[name].shape
    )
    if wrong:
        raise RunError(
            f"{str(source)!r} is not of model {model.name!r}: {len(wrong)} parameters are missing or have another "
            f"shape, the first is {wrong[0]!r}. Use the model that the run's recipe.toml names."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    model.weights_changed()


def save_model(model: LocalModel, target: Path, *, merged: bool = False) -> None:
    """Write a model folder that is whole or absent; one that is there is replaced.

    Raises:
        RunError: it could not be written.
    """
    temporary = target.parent / f".tmp-{target.name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        model.save(temporary, merged=merged)
        if target.exists():
            shutil.rmtree(target)
        publish_folder(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(
            f"The model could not be written to {str(target)!r} ({error_reason(error)}); free some space, then "
            "continue with --resume."
        ) from error
