"""Many draws of the chapter's data at once: a draw is a batch axis of one call (eq. 11)."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import regard
from regard.errors import RegardError
from regard.regression.experiment import data
from regard.scores.names import KERNEL_SCORES

# So few draws of 100 samples have less than 2^16 pairs: their scores stay in the cache of one core.
AT_ONCE = 6
# A kernel this narrow gives all its weight to the nearest key.
NARROW = 1e-9


class Draws(NamedTuple):
    """x, y: (draws, samples), each draw in order of x."""

    x: Tensor
    y: Tensor

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """A few draws at a time: which they are, their keys and their values, each (draws, samples, 1)."""
        for start in range(0, len(self.x), AT_ONCE):
            rows = slice(start, min(start + AT_ONCE, len(self.x)))
            yield rows, self.x[rows, :, None], self.y[rows, :, None]


class Curves(NamedTuple):
    """fits: (draws, places). filled: how many places had no key in their window and took the nearest key's value."""

    fits: Tensor
    filled: int

    def errors(self) -> Tensor:
        """(draws,): the mean squared error of each curve against the noiseless one."""
        return (self.fits - data.truth(data.places())).square().mean(-1)


def check_count(count: int) -> None:
    """Refuse a number of draws that tells nothing."""
    if count < 2:
        raise RegardError(
            "draws",
            got=str(count),
            needed="at least 2, since an interval is estimated from their spread",
            repair="The chapter's table takes 200.",
        )


def draw(count: int) -> Draws:
    """The draws of the seeds 0 to count - 1; seed 0 is the one that the tour shows."""
    check_count(count)
    x, y = zip(*(data.samples(seed=seed) for seed in range(count)), strict=True)
    return Draws(torch.stack(x), torch.stack(y))


def fit(draws: Draws, kernel: str, widths: Tensor) -> Curves:
    """Nadaraya-Watson (eq. 4) of every draw at the 81 places; widths: (draws,), one for each."""
    query = data.places()[None, :, None]
    records = [
        regard.inspect(query.expand(len(key), -1, -1), key, value, score=KERNEL_SCORES[kernel](widths[rows, None]))
        for rows, key, value in draws.blocks()
    ]
    fits = torch.cat([record.output[..., 0] for record in records])
    empty = torch.cat([record.log_mass.isneginf() for record in records])
    return fill_by_nearest(fits, empty, draws)


def fill_by_nearest(fits: Tensor, empty: Tensor, draws: Draws) -> Curves:
    """Curves (draws, places) with the nearest sample's y where `empty` (draws, places) says that nothing was pooled."""
    rows = empty.any(-1).nonzero().flatten()
    fits = fits.clone()
    if len(rows):
        key, value = draws.x[rows, :, None], draws.y[rows, :, None]
        query = data.places()[None, :, None].expand(len(rows), -1, -1)
        nearest = regard.attend(query, key, value, score=KERNEL_SCORES["laplacian"](NARROW))[..., 0]
        fits[rows] = torch.where(empty[rows], nearest, fits[rows])
    return Curves(fits, int(empty.sum()))
