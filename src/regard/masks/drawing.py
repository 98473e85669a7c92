"""Draw a mask as text: one panel of cells for each batch element."""

import math
from collections.abc import Sequence
from itertools import islice, product

import torch
from torch import Tensor

from regard.masks.checks import CallSizes, check_sizes
from regard.masks.expressions import Expression

_ALLOWED, _FORBIDDEN = "█", "·"
_ROW_TITLE = "queries"
# The size of an axis that is not known, and the largest drawing.
_DEFAULT_SIZE, _MAX_QUERIES, _MAX_KEYS, _MAX_PANELS = 8, 48, 96, 8


def draw_expression(expression: Expression, queries: int | None, keys: int | None, batch: Sequence[int] | None) -> str:
    """Return a drawing of a condition on queries and keys; see `Mask.draw`.

    Args:
        expression: the condition.
        queries: number of queries; None for that of the tensors, else the number of keys, else 8.
        keys: number of keys; None for that of the tensors, else the number of queries.
        batch: sizes of the batch axes; None for those of the tensors.

    Returns:
        The lines of the drawing.

    Raises:
        RegardError: if a size is invalid or does not fit the condition.
    """
    known, cpu = expression.known_sizes(), torch.device("cpu")
    batch = known.batch if batch is None else batch
    # Check before a missing size is derived from a given one, so that the error names the argument that was given.
    check_sizes(batch, _DEFAULT_SIZE if queries is None else queries, _DEFAULT_SIZE if keys is None else keys)
    queries = _first_known(queries, known.queries, keys, known.keys)
    keys = _first_known(keys, known.keys, queries)
    batch = tuple(batch)
    mask = expression.to(cpu).bind(CallSizes(batch, queries, keys, cpu))
    rows, cols = min(queries, _MAX_QUERIES), min(keys, _MAX_KEYS)
    tile = mask.tile(slice(0, rows), slice(0, cols), cpu).expand(*batch, rows, cols)
    panels = [
        "\n".join([f"batch {index}"] * bool(batch) + _panel(tile[index]))
        for index in islice(product(*map(range, batch)), _MAX_PANELS)
    ]
    left_out = {
        "queries": queries - rows,
        "keys": keys - cols,
        "panels": math.prod(batch) - len(panels),
    }
    notes = [f"… {number} more {what}" for what, number in left_out.items() if number]
    return "\n".join(panels + notes)


def _first_known(*sizes: int | None) -> int:
    """Return the first size that is not None, or the default size."""
    return next((size for size in sizes if size is not None), _DEFAULT_SIZE)


def _panel(cells: Tensor) -> list[str]:
    """Return the lines that draw one matrix, bool (queries, keys)."""
    queries, keys = cells.shape
    margin = len(_ROW_TITLE) + 1 + len(str(max(queries - 1, 0)))
    ticks = "".join(f"{key:<5}" for key in range(0, keys, 5)).rstrip()
    lines = [" " * (margin + 1) + "keys", " " * (margin + 1) + ticks]
    for query, row in enumerate(cells.tolist()):
        label = f"{_ROW_TITLE} {query}" if query == 0 else f"{query}"
        lines.append(f"{label:>{margin}} " + "".join(_ALLOWED if cell else _FORBIDDEN for cell in row))
    return lines
