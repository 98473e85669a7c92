"""The chapter's data: 100 noisy samples of y = 2 sin(x) + x on [0, 4]."""

import torch
from torch import Tensor

LOW, HIGH = 0.0, 4.0
SAMPLES = 100
PLACES = 81
SEED = 0


def truth(x: Tensor) -> Tensor:
    """The noiseless curve, 2 sin(x) + x."""
    return 2 * torch.sin(x) + x


def samples(count: int = SAMPLES, *, seed: int = SEED) -> tuple[Tensor, Tensor]:
    """Draw x uniformly on [0, 4], in order, and y = truth + N(0, 1) noise; each (count,), float64."""
    generator = torch.Generator().manual_seed(seed)
    x = LOW + (HIGH - LOW) * torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
    x = x.sort().values
    return x, truth(x) + torch.randn(count, generator=generator, dtype=torch.float64, device="cpu")


def places(count: int = PLACES) -> Tensor:
    """The evenly spaced x at which the curve is asked for, (count,), float64."""
    return torch.linspace(LOW, HIGH, count, dtype=torch.float64, device="cpu")
