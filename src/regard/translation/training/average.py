"""The mean of the weights at the ends of the last epochs: what is validated, kept and translated with."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """The last few weights of a model.

    count: how many are kept.
    """

    def __init__(self, count: int) -> None:
        """Nothing is kept yet."""
        self.kept: deque[list[Tensor]] = deque(maxlen=count)

    def add(self, model: nn.Module) -> None:
        """Keep the model's present weights; the oldest go where there are too many."""
        self.kept.append([parameter.detach().clone() for parameter in model.parameters()])

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """Within it the model has the mean of the kept weights, and is in evaluation mode; then its own again."""
        parameters = list(model.parameters())
        own = [parameter.detach().clone() for parameter in parameters]
        was_training = model.training
        means = (torch.stack(tensors).mean(0) for tensors in zip(*self.kept, strict=True))
        _assign(parameters, means if self.kept else own)
        model.eval()
        try:
            yield
        finally:
            _assign(parameters, own)
            model.train(was_training)


@torch.no_grad()
def _assign(parameters, values) -> None:
    # In place: optimisers and graphs hold these very tensors.
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
