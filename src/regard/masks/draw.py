"""A mask as text: one character a cell, with small labels on both axes."""

import math
from collections.abc import Sequence
from itertools import islice, product

import torch
from torch import Tensor

from regard.masks.checks import Call, check_sizes
from regard.masks.words import Word

ALLOWED, FORBIDDEN = "█", "·"
_DEFAULT, _MOST_QUERIES, _MOST_KEYS, _MOST_PANELS = 8, 48, 96, 8
_MARGIN = "queries"


def draw(word: Word, queries: int | None, keys: int | None, batch: Sequence[int] | None) -> str:
    """Draw every batch element, at most 8 panels of 48 queries and 96 keys; what is left out is said."""
    told, cpu = word.told(), torch.device("cpu")
    queries = _first(queries, told.queries, keys, told.keys)
    keys = _first(keys, told.keys, queries)
    batch = told.batch if batch is None else batch
    check_sizes(batch, queries, keys)
    batch = tuple(batch)
    placed = word.to(cpu).place(Call(batch, queries, keys, cpu))
    rows, cols = min(queries, _MOST_QUERIES), min(keys, _MOST_KEYS)
    tile = placed.tile(slice(0, rows), slice(0, cols), cpu).expand(*batch, rows, cols)
    panels = [
        "\n".join([f"batch {index}"] * bool(batch) + _panel(tile[index]))
        for index in islice(product(*map(range, batch)), _MOST_PANELS)
    ]
    left_out = {
        "queries": queries - rows,
        "keys": keys - cols,
        "panels": math.prod(batch) - len(panels),
    }
    notes = [f"… {number} more {what}" for what, number in left_out.items() if number]
    return "\n".join(panels + notes)


def _first(*sizes: int | None) -> int:
    return next((size for size in sizes if size is not None), _DEFAULT)


def _panel(cells: Tensor) -> list[str]:
    """The lines of one (queries, keys) matrix."""
    queries, keys = cells.shape
    margin = len(_MARGIN) + 1 + len(str(max(queries - 1, 0)))
    ticks = "".join(f"{key:<5}" for key in range(0, keys, 5)).rstrip()
    lines = [" " * (margin + 1) + "keys", " " * (margin + 1) + ticks]
    for query, row in enumerate(cells.tolist()):
        label = f"{_MARGIN} {query}" if query == 0 else f"{query}"
        lines.append(f"{label:>{margin}} " + "".join(ALLOWED if cell else FORBIDDEN for cell in row))
    return lines
