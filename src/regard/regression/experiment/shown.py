"""One draw shown in full: its curves and its weights, kernel by kernel and width by width."""

from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard.regression.experiment import data
from regard.regression.experiment.draws import Draws, fit
from regard.scores.names import KERNEL_SCORES

SEED = 0
# The kernels of eq. 5, the one that the chapter calls Epanechnikov under its true name, and Epanechnikov's own.
OF_THE_CHAPTER = ("gaussian", "boxcar", "triangular", "epanechnikov")
GAUSSIAN_WIDTHS = (0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Pooled:
    """A kernel of one width on the shown draw. curve: (places,). weights: (places, samples), eq. 4."""

    kernel: str
    width: float
    curve: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Shown:
    """x, y: (samples,). places, truth: (places,). at_one, at_own: by kernel. by_width: of the Gaussian."""

    x: Tensor
    y: Tensor
    places: Tensor
    truth: Tensor
    at_one: dict[str, Pooled]
    at_own: dict[str, Pooled]
    by_width: dict[float, Pooled]


def show(draws: Draws, own_widths: dict[str, float]) -> Shown:
    """Pool the shown draw; own_widths: the leave-one-out width of each kernel on it."""
    alone = Draws(draws.x[SEED : SEED + 1], draws.y[SEED : SEED + 1])
    return Shown(
        x=alone.x[0],
        y=alone.y[0],
        places=data.places(),
        truth=data.truth(data.places()),
        at_one={kernel: pool(alone, kernel, 1.0) for kernel in KERNEL_SCORES},
        at_own={kernel: pool(alone, kernel, width) for kernel, width in own_widths.items()},
        by_width={width: pool(alone, "gaussian", width) for width in GAUSSIAN_WIDTHS},
    )


def pool(alone: Draws, kernel: str, width: float) -> Pooled:
    """The curve of a single draw, and the weights behind it; a row without any key in its window has none."""
    query, key = data.places()[:, None], alone.x[0, :, None]
    record = regard.inspect(query, key, alone.y[0, :, None], score=KERNEL_SCORES[kernel](width))
    curve = fit(alone, kernel, torch.tensor([width], dtype=torch.float64, device="cpu")).fits[0]
    return Pooled(kernel, width, curve, record.weights())
