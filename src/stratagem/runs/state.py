"""Any training state as named tensors plus JSON, and back, bit for bit, without pickle.

JSON alone keeps neither tuples, bytes, arrays, non-text keys nor NaN; each is written as a one-key object whose key
starts with ``$``. Tensors go to a separate dict and leave ``{"$tensor": name}`` behind.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["flatten_optimizer", "flatten_scheduler", "flatten_state", "unflatten_state"]


def flatten_state(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state into tensors by name and JSON values.

    Args:
        state: dicts, lists, tuples, numbers, texts, bytes, None, numpy arrays, tensors, in any nesting.

    Returns:
        The tensors (the same objects, not copies) and what is left as JSON.

    Raises:
        TypeError: a value is of another kind, such as a function; nothing is pickled.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _encode(state, "", tensors)


def unflatten_state(tensors: Mapping[str, Tensor], encoded: Any) -> Any:
    """Return the state that :func:`flatten_state` split."""
    if isinstance(encoded, list):
        return [unflatten_state(tensors, item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if len(encoded) == 1:
        ((key, value),) = encoded.items()
        if key == "$tensor":
            return tensors[value]
        if key == "$tuple":
            return tuple(unflatten_state(tensors, item) for item in value)
        if key == "$items":
            return {unflatten_state(tensors, k): unflatten_state(tensors, v) for k, v in value}
        if key == "$bytes":
            return base64.b64decode(value)
        if key == "$float":
            return float(value)
        if key == "$array":
            content = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
            return content.reshape(value["shape"]).copy()
    return {key: unflatten_state(tensors, item) for key, item in encoded.items()}


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], Any]:
    """Split an optimizer's state; ``optimizer.load_state_dict(unflatten_state(...))`` puts it back."""
    return flatten_state(optimizer.state_dict())


def flatten_scheduler(scheduler: torch.optim.lr_scheduler.LRScheduler) -> tuple[dict[str, Tensor], Any]:
    """Split a scheduler's state; ``scheduler.load_state_dict(unflatten_state(...))`` puts it back."""
    return flatten_state(scheduler.state_dict())


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = path or "value"
        while name in tensors:  # {"a.b": x, "a": {"b": y}} reach the same path
            name += "'"
        tensors[name] = value.detach()
        return {"$tensor": name}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype != object:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"$array": {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}}
    if isinstance(value, list):
        return [_encode(item, _join(path, index), tensors) for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [_encode(item, _join(path, index), tensors) for index, item in enumerate(value)]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, _join(path, key), tensors) for key, item in value.items()}
        pairs = [[_encode(key, "", tensors), _encode(item, _join(path, key), tensors)] for key, item in value.items()]
        return {"$items": pairs}
    raise TypeError(
        f"{path or 'state'} is a {type(value).__name__}, which a checkpoint cannot hold without pickle; "
        "store plain numbers, texts, arrays or tensors instead."
    )


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
