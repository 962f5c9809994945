"""Arrow columns as numpy arrays and back, by their memory.

pyarrow's own conversions (``to_numpy``, ``pa.array``, ``pa.scalar``, comparisons with a Python number) import pandas at
their first call where it is installed. That takes longer and holds more memory than all else that the page does to show
an episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["numpy_column", "take_rows"]


def numpy_column(column: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Return a column of numbers, or of truth values as 0 and 1; a null is 0.

    >>> numpy_column(pa.array([1.5, None])).tolist(), numpy_column(pa.array([True, None, False])).tolist()
    ([1.5, 0.0], [1, 0, 0])
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if not array.null_count:
        return np.from_dlpack(array)
    values = np.from_dlpack(array.drop_null())
    filled = np.zeros(len(array), dtype=values.dtype)
    filled[numpy_column(array.is_valid()).astype(bool)] = values
    return filled


def take_rows(table: pa.Table, rows: np.ndarray[Any, Any]) -> pa.Table:
    """Return some rows of a table, by their numbers.

    >>> take_rows(pa.table({"a": [5, 6, 7]}), np.array([2, 0])).to_pydict()
    {'a': [7, 5]}
    """
    numbers = np.ascontiguousarray(rows, dtype=np.int64)
    return table.take(pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)]))
