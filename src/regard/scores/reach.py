"""How far the activations of an additive score reach: seen while training, read late, so that no call waits for a GPU.

A backend that approximates tanh on a range needs to know the range before it looks at the data. It must not come from
the batch at evaluation, where one outlier would change its batch mates' results. So it is a property of the score:
a rung of a short ladder, moved while training, fixed at evaluation. Activations beyond it are corrected, pair by pair.
"""

import torch
from torch import Tensor

from regard.watched import is_watched

# Quarters up to 6, halves up to 8.
LADDER = (*(step / 4 for step in range(4, 25)), 6.5, 7.0, 7.5, 8.0)
START = 6.0
# Looking costs two small reductions: it is done once in so many calls.
EVERY = 16
# One token in so many may have activations beyond the range, which costs less than a range that holds them all.
OUTLIERS = 64


class Reach:
    """The ranges of queries and keys, (query, key), on the ladder."""

    def __init__(self) -> None:
        """Begin wide: nothing is known yet."""
        self.range = (START, START)
        self._calls = 0
        self._pending: tuple[Tensor, torch.cuda.Event] | None = None

    def observe(self, query: Tensor, key: Tensor) -> None:
        """Look at projected tokens (*batch, tokens, hidden) on a GPU, and take over what was seen some calls ago."""
        if is_watched():
            return
        if query.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return
        if not query.numel() or not key.numel():
            return
        if self._pending is not None and self._pending[1].query():
            self.settle(*self._pending[0].tolist())
            self._pending = None
        if self._pending is None and self._calls % EVERY == 0:
            with torch.no_grad():
                largest = torch.stack([_almost_largest(query), _almost_largest(key)])
            arrived = torch.empty(2, device="cpu", pin_memory=True)
            arrived.copy_(largest, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._pending = arrived, event
        self._calls += 1

    def settle(self, query: float, key: float) -> None:
        """Move each range to the rung that holds this |activation|."""
        self.range = rung(query), rung(key)

    def __getstate__(self) -> dict:
        """Without what is still on its way: a copy of a score looks for itself."""
        return {"range": self.range, "_calls": 0, "_pending": None}


def rung(largest: float) -> float:
    """The first rung at or above it, or the last: what is beyond that is corrected. NaN counts for nothing."""
    return next((step for step in LADDER if not largest > step), LADDER[-1])


def _almost_largest(tokens: Tensor) -> Tensor:
    """The largest |activation|, but for those of one token in OUTLIERS."""
    largest = tokens.detach().abs().amax(-1).flatten().float()
    return largest.kthvalue(largest.numel() - largest.numel() // OUTLIERS).values
