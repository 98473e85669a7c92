"""The width of every draw by leave-one-out, the criterion of `NadarayaWatson(kernel, "loo")`.

All draws are judged on one grid of widths, so that each width is one call. Its steps are 9%: the minimum is so flat
that finer ones would change no digit of the table.
"""

import torch
from torch import Tensor

from regard.regression.bandwidth_search import canonical_ratio
from regard.regression.experiment.one_line import OneLine

# Gaussian widths; those of another kernel are in proportion to what smooths as much.
NARROWEST, WIDEST = 0.03, 0.9
TRIED = 40


def grid(kernel: str) -> Tensor:
    """(widths,): evenly spaced in the logarithm."""
    steps = torch.logspace(0, 1, TRIED, base=WIDEST / NARROWEST, dtype=torch.float64, device="cpu")
    return steps * NARROWEST * canonical_ratio(kernel)


def widths(line: OneLine, kernel: str) -> Tensor:
    """(draws,): the width with the smallest error in each draw."""
    tried = grid(kernel)
    errors = torch.stack([line.left_out(kernel, width) for width in tried.tolist()])
    return tried[errors.argmin(0)]
