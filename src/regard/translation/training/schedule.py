"""The learning rate at each update."""

import math


def learning_rate(update: int, *, highest: float, warmup: int, decay: str, updates: int) -> float:
    """The rate of update number `update`, counted from 0.

    Args:
        update: which.
        highest: the rate after the warm-up.
        warmup: the rate rises linearly over so many updates.
        decay: what follows: "none", "linear" or "cosine" towards 0 at the last update, "inverse_sqrt".
        updates: how many there are at most.
    """
    if update < warmup:
        return highest * (update + 1) / warmup
    if decay == "none":
        return highest
    if decay == "inverse_sqrt":
        return highest * math.sqrt(max(warmup, 1) / (update + 1))
    done = min((update - warmup) / max(updates - warmup, 1), 1.0)
    return highest * (1 - done) if decay == "linear" else highest * (1 + math.cos(math.pi * done)) / 2
